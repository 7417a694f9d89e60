//! Errors of the built-in network.

use std::io;

use super::ipam::PoolError;
use crate::namespaces::NamespaceError;
use crate::netlink::NetlinkError;
use crate::types::NotReady;

/// Errors of connecting a pod to the bridge, or disconnecting it.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    #[error(transparent)]
    NotReady(#[from] NotReady),
    #[error("host port {0} is taken by another sandbox")]
    HostPortTaken(String),
    #[error(
        "host port {0}: answers to ::1 are lost while net.bridge.bridge-nf-call-ip6tables is 1: set it to 0, or take another \
         host address"
    )]
    Loopback6(String),
    #[error("{0}")]
    Bandwidth(String),
    #[error(transparent)]
    Pool(#[from] PoolError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error("{step}: {cause}")]
    Io { step: String, cause: io::Error },
}

impl BridgeError {
    pub(super) fn io(step: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let step = step.into();
        move |cause| Self::Io { step, cause }
    }
}
