//! The network of pod sandboxes.
//!
//! Knows a sandbox by its id and network namespace only; knows neither CRI nor NRI.

mod addr;
mod attachments;
mod bandwidth;
mod bridge;
mod cni;
mod collect;
mod error;
mod exclusion;
mod file;
mod link;
pub mod namespaces;
mod netlink;
mod network;
mod nft;
mod record;
mod route;
mod tc;
mod turns;
mod types;

pub use addr::Cidr;
pub use bridge::{BridgeError, PoolError};
pub use cni::CniError;
#[cfg(any(test, feature = "fuzzing"))]
pub use cni::checks;
pub use collect::{Attached, Leftover};
pub use error::NetworkError;
pub use link::{Counters, Link};
pub use netlink::NetlinkError;
pub use network::Network;
pub use nft::probe as probe_nftables;
pub use record::RecordError;
pub use types::{
    Answers, Asked, Attach, Attachment, BridgeConfig, Config, Dns, INTERFACE, NotReady,
    PortMapping, Protocol,
};
