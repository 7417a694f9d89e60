//! What both services have; each RPC is handed what it uses, Status all of it.

use std::sync::Arc;

use super::statistics::Statistics;
use crate::{pod::pods::Pods, stream::Streams};

/// The longest message either way; stock clients accept as much (CRI-002).
pub const MAX_MESSAGE: usize = 16 << 20;

/// Both services on one socket.
#[derive(Clone)]
pub struct Cri {
    pub pods: Arc<Pods>,
    pub statistics: Arc<Statistics>,
    pub streams: Arc<Streams>,
}
