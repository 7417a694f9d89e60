//! The contract points: every place where NRI plugins are called, and the only file that calls
//! the dispatch of crate `nri`.

use proto_cri::v1 as cri;

use super::{Container, Pod, error::Result, spec::Specs};

/// What plugins made of a container that is being created.
pub struct Created {
    pub adjust: proto_nri::ContainerAdjustment,
    pub owners: proto_nri::OwningPlugins,
}

#[derive(Default)]
pub struct Hooks {}

impl Hooks {
    /// False when no plugin can be there: then nothing need be marked before a hook.
    pub fn active(&self) -> bool {
        false
    }

    pub async fn cut<T, F: Future<Output = T>>(&self, change: impl FnOnce() -> F) -> T {
        change().await
    }

    pub async fn run_pod(&self, _pod: &Pod) -> Result<()> {
        Ok(())
    }

    pub async fn undo_run_pod(&self, _pod: &Pod) {}

    pub async fn stop_pod(&self, _pod: &Pod) {}

    pub async fn remove_pod(&self, _pod: &Pod) {}

    pub async fn update_pod(
        &self,
        _pod: &Pod,
        _overhead: Option<&cri::LinuxContainerResources>,
        _resources: Option<&cri::LinuxContainerResources>,
    ) -> Result<()> {
        Ok(())
    }

    pub async fn post_update_pod(&self, _pod: &Pod) {}

    pub async fn create_container(
        &self,
        _pod: &Pod,
        _container: &Container,
        _specs: &Specs,
    ) -> Result<Option<Created>> {
        Ok(None)
    }

    pub async fn undo_create_container(&self, _pod: &Pod, _container: &Container) {}

    pub async fn post_create_container(&self, _pod: &Pod, _container: &Container) {}

    pub async fn start_container(
        &self,
        _pod: &Pod,
        _container: &Container,
        _pid: u32,
    ) -> Result<()> {
        Ok(())
    }

    pub async fn post_start_container(&self, _pod: &Pod, _container: &Container) {}

    pub async fn update_container(
        &self,
        _pod: &Pod,
        _container: &Container,
        _wanted: &cri::LinuxContainerResources,
    ) -> Result<Option<proto_nri::LinuxResources>> {
        Ok(None)
    }

    pub async fn post_update_container(&self, _pod: &Pod, _container: &Container) {}

    pub async fn stop_container(&self, _pod: &Pod, _container: &Container) {}

    pub async fn remove_container(&self, _pod: &Pod, _container: &Container) {}
}
