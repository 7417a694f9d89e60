//! Answers that carry more than success. Answers to Stop and Synchronize are plain lists of
//! updates.

use proto_nri::{
    ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerResponse,
    StopContainerResponse, UpdateContainerResponse,
};

use crate::adjust::Strip;

/// Answer to [`Plugin::create_container`](crate::Plugin::create_container): the container's
/// adjustment, and updates and evictions of others. The default changes nothing.
///
/// ```
/// use nri::{CreateAnswer, adjust::{Adjust, SetResources, update}};
///
/// let mut answer = CreateAnswer::default();
/// answer.adjust.add_env("MODE", "fast").cpu_shares(512);
/// // A container that is there makes room, another has to go.
/// let mut smaller = update("batch-1", false);
/// smaller.cpu_shares(2);
/// answer.update(smaller).evict("batch-2", "its place is needed");
/// ```
///
/// An adjustment alone becomes an answer by `.into()`.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CreateAnswer {
    /// Of the container being created; see [`Adjust`](crate::adjust::Adjust).
    pub adjust: ContainerAdjustment,
    /// Updates of existing containers.
    pub updates: Vec<ContainerUpdate>,
    /// Containers to evict, with the reason for each.
    pub evictions: Vec<ContainerEviction>,
}

/// Answer to [`Plugin::update_container`](crate::Plugin::update_container): updates of this
/// container and of others, and evictions. The default changes nothing.
///
/// ```
/// use nri::{UpdateAnswer, adjust::{SetResources, update}};
///
/// let mut answer = UpdateAnswer::default();
/// let mut less = update("c1", true);
/// less.memory_limit(1 << 30);
/// answer.update(less).evict("c2", "out of memory");
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct UpdateAnswer {
    /// An update of the container in question changes its new resources.
    pub updates: Vec<ContainerUpdate>,
    /// Containers to evict, with the reason for each.
    pub evictions: Vec<ContainerEviction>,
}

macro_rules! collects {
    ($($answer:ident)*) => {
        $(impl $answer {
            /// Adds an update of a container.
            pub fn update(&mut self, update: ContainerUpdate) -> &mut Self {
                self.updates.push(update);
                self
            }

            /// Requests the eviction of a container by its id.
            pub fn evict(
                &mut self,
                container: impl Into<String>,
                reason: impl Into<String>,
            ) -> &mut Self {
                self.evictions.push(eviction(container, reason));
                self
            }
        })*
    };
}

collects! { CreateAnswer UpdateAnswer }

/// An eviction of the container with this id.
pub(crate) fn eviction(
    container: impl Into<String>,
    reason: impl Into<String>,
) -> ContainerEviction {
    ContainerEviction {
        container_id: container.into(),
        reason: reason.into(),
    }
}

impl From<ContainerAdjustment> for CreateAnswer {
    fn from(adjust: ContainerAdjustment) -> Self {
        Self {
            adjust,
            ..Self::default()
        }
    }
}

impl From<Option<ContainerAdjustment>> for CreateAnswer {
    fn from(adjust: Option<ContainerAdjustment>) -> Self {
        adjust.unwrap_or_default().into()
    }
}

impl From<Vec<ContainerUpdate>> for UpdateAnswer {
    fn from(updates: Vec<ContainerUpdate>) -> Self {
        Self {
            updates,
            ..Self::default()
        }
    }
}

impl CreateAnswer {
    pub(crate) fn into_reply(self) -> CreateContainerResponse {
        CreateContainerResponse {
            adjust: self.adjust.strip(),
            update: self.updates,
            evict: self.evictions,
        }
    }
}

impl UpdateAnswer {
    pub(crate) fn into_reply(self) -> UpdateContainerResponse {
        UpdateContainerResponse {
            update: self.updates,
            evict: self.evictions,
        }
    }
}

pub(crate) fn stop_reply(update: Vec<ContainerUpdate>) -> StopContainerResponse {
    StopContainerResponse { update }
}
