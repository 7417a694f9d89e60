//! What a plugin answers where more than "yes" can be said. Stop- and Synchronize carry updates only,
//! and are a plain list.

use proto_nri::{
    ContainerAdjustment, ContainerEviction, ContainerUpdate, CreateContainerResponse,
    StopContainerResponse, UpdateContainerResponse,
};

use crate::adjust::Strip;

/// Answer to [`Plugin::create_container`](crate::Plugin::create_container): what is to be different about
/// the container, and what becomes of others. The default changes nothing.
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
/// Where an adjustment is all there is to say, it becomes an answer by `.into()`.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct CreateAnswer {
    /// Of the container being created; see [`Adjust`](crate::adjust::Adjust).
    pub adjust: ContainerAdjustment,
    /// Of containers that are there.
    pub updates: Vec<ContainerUpdate>,
    /// Containers that are to go, with the reason for each.
    pub evictions: Vec<ContainerEviction>,
}

/// Answer to [`Plugin::update_container`](crate::Plugin::update_container): updates of this container and of
/// others, and evictions. The default changes nothing.
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
    /// One that names the container in question changes what it is about to get.
    pub updates: Vec<ContainerUpdate>,
    /// Containers that are to go, with the reason for each.
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

            /// Asks that a container, by its id, be evicted.
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
