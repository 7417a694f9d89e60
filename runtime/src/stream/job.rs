//! Jobs: the requests behind tokens.

use std::sync::Arc;

use super::remote::Wanted;
use crate::{
    monitor::Process,
    pod::state::{Container, Pod},
};

/// The request behind a token.
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
        /// For the WebSocket protocols of channels; in others each stream names its port.
        ports: Vec<u16>,
    },
}
