//! Builds a [`FakeRuntime`](crate::FakeRuntime).

use std::{path::Path, sync::Arc};

use nri::{
    Adaptation, Handlers, PluginId, Settings, StartError, Timeouts,
    proto::{Container, PodSandbox},
    validate::DefaultValidator,
};

use crate::{flavor::Flavor, memory::Memory};

/// Collects the settings of a [`FakeRuntime`](crate::FakeRuntime).
#[derive(Clone, Default)]
pub struct Builder {
    name: String,
    version: String,
    flavor: Flavor,
    timeouts: Timeouts,
    plugins: Vec<(PluginId, Handlers)>,
    validator: DefaultValidator,
    pod_ips: bool,
    pub(super) existing: Vec<(PodSandbox, Vec<Container>)>,
}

impl Builder {
    /// Runtime name and version sent to plugins; the flavor's by default.
    pub fn identity(mut self, name: impl Into<String>, version: impl Into<String>) -> Self {
        (self.name, self.version) = (name.into(), version.into());
        self
    }

    /// The runtime whose fields of pods and containers are simulated.
    pub fn flavor(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// An in-process plugin without a socket: the one under test, or another beside it. It cannot
    /// request updates of its own accord ([`nri::Runtime`] has no connection): for that, connect it
    /// to [`FakeRuntime::socket`](crate::FakeRuntime::socket).
    pub fn plugin(mut self, id: PluginId, plugin: impl Into<Handlers>) -> Self {
        self.plugins.push((id, plugin.into()));
        self
    }

    /// Checks each creation by the default validator.
    pub fn validator(mut self, validator: DefaultValidator) -> Self {
        self.validator = validator;
        self
    }

    /// Accepts addresses of pods from answers to RunPodSandbox, as [`Settings::pod_ips`] does.
    pub fn pod_ips(mut self) -> Self {
        self.pod_ips = true;
        self
    }

    /// A pod with containers that exists before any plugin. Plugins see it only in Synchronize. A
    /// container runs, unless it has another state.
    pub fn existing<C: Into<Container>>(
        mut self,
        pod: impl Into<PodSandbox>,
        containers: impl IntoIterator<Item = C>,
    ) -> Self {
        let containers = containers.into_iter().map(Into::into).collect();
        self.existing.push((pod.into(), containers));
        self
    }

    pub(super) fn filled_pod(&self, memory: &Memory, mut pod: PodSandbox) -> PodSandbox {
        if pod.id.is_empty() {
            pod.id = memory.next_id();
        }
        self.flavor.fill_pod(&mut pod);
        pod
    }

    pub(super) fn filled_container(
        &self,
        memory: &Memory,
        pod: &PodSandbox,
        mut container: Container,
    ) -> Container {
        if container.id.is_empty() {
            container.id = memory.next_id();
        }
        container.pod_sandbox_id.clone_from(&pod.id);
        self.flavor.fill_container(pod, &mut container);
        container
    }

    pub(super) async fn adaptation(
        &self,
        memory: &Arc<Memory>,
        socket: &Path,
    ) -> Result<Adaptation, StartError> {
        let (name, version) = self.flavor.identity();
        let or = |given: &str, usual: &str| match given {
            "" => usual.to_owned(),
            given => given.to_owned(),
        };
        let settings = Settings {
            socket: Some(socket.to_owned()),
            plugin_dir: None,
            plugin_config_dir: None,
            timeouts: self.timeouts,
            pod_ips: self.pod_ips,
            ..Settings::default()
        };
        let mut builder = Adaptation::builder(or(&self.name, name), or(&self.version, version))
            .settings(settings)
            .source(memory.clone())
            .observer(memory.clone());
        for (id, handlers) in &self.plugins {
            builder = builder.in_process(id.clone(), handlers.clone());
        }
        builder
            .default_validator(self.validator.clone())
            .start()
            .await
    }
}
