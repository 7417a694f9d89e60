//! Jobs: what a token stands for.

use std::sync::Arc;

use super::remote::Wanted;
use crate::{
    monitor::Process,
    pod::state::{Container, Pod},
};

/// What a token stands for.
pub enum Job {
    Exec {
        container: Arc<Container>,
        process: Box<Process>,
        wanted: Wanted,
    },
    Attach {
        container: Arc<Container>,
        wanted: Wanted,
    },
    PortForward {
        pod: Arc<Pod>,
        /// For the WebSocket protocols of channels; others name the port of each stream.
        ports: Vec<u16>,
    },
}
