//! The parts of the daemon that both services use. Each RPC gets only the parts that it uses;
//! Status gets all.

use std::sync::Arc;

use super::statistics::Statistics;
use crate::{pod::pods::Pods, stream::Streams};

/// Limit of a message in both directions; stock clients accept as much (CRI-002).
pub const MAX_MESSAGE: usize = 16 << 20;

/// Both services on one socket.
#[derive(Clone)]
pub struct Cri {
    pub pods: Arc<Pods>,
    pub statistics: Arc<Statistics>,
    pub streams: Arc<Streams>,
}
