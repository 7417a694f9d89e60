//! The answers of plugins to an event, as `hooks.rs` returns them.

use std::{ops::Deref, sync::Arc};

use nri::{Requester, Turn, owners::Owners};
use proto_nri::{ContainerEviction, ContainerUpdate};

use crate::seeded::Span;

/// Changes that plugins request for other containers; `side_effects.rs` applies them.
#[derive(Debug, Default)]
pub struct SideEffects {
    pub updates: Vec<ContainerUpdate>,
    pub evictions: Vec<ContainerEviction>,
    pub by: Arc<Requester>,
}

/// The NRI turn; a model measures how long it is held.
pub struct HeldTurn {
    turn: Turn,
    _time: Span,
}

impl HeldTurn {
    pub fn new(turn: Turn) -> Self {
        Self {
            turn,
            _time: Span::begin("turn"),
        }
    }
}

impl Deref for HeldTurn {
    type Target = Turn;

    fn deref(&self) -> &Turn {
        &self.turn
    }
}

/// The answers of plugins to an event that can carry updates. Dropping it releases the NRI turn.
pub struct Answer<T> {
    /// For the container itself. `None` if no plugin changed it.
    pub own: Option<T>,
    /// For other containers. The caller applies them first.
    pub others: SideEffects,
    pub _turn: Option<HeldTurn>,
}

impl<T> Answer<T> {
    /// The answer if NRI is off.
    pub fn none() -> Self {
        Self {
            own: None,
            others: SideEffects::default(),
            _turn: None,
        }
    }

    /// Releases the turn.
    pub fn into_own(self) -> Option<T> {
        self.own
    }
}

/// Result of CreateContainer.
pub struct Adjusted {
    pub adjustment: proto_nri::ContainerAdjustment,
    pub owners: Owners,
}

/// Result of UpdateContainer if plugins changed the request.
pub struct Changed {
    pub resources: proto_nri::LinuxResources,
    /// The plugins that set a value in it.
    pub plugins: Vec<String>,
}
