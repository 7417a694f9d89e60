//! The network of a pod sandbox.
//!
//! Knows sandboxes by an id and a network namespace, and nothing of CRI or NRI.

mod addr;
mod bridge;
mod cni;
mod link;
pub mod namespaces;
mod netlink;
mod network;
mod nft;
mod record;
mod types;

pub use addr::Cidr;
pub use bridge::ipam::PoolError;
pub use cni::CniError;
pub use link::{Counters, Link};
pub use netlink::NetlinkError;
pub use network::Network;
pub use types::{
    Attach, Attachment, BridgeConfig, Config, Dns, INTERFACE, NetworkError, NotReady, PortMapping,
    Protocol,
};
