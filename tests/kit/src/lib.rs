//! Shared by the tests of CRI runtimes: nri-contract and the tests of cairn.

pub mod client;
mod handlers;
pub mod journal;
pub mod look;
pub mod plugin;
pub mod raw;
pub mod registry;
pub mod rng;
pub mod until;
pub mod verdict;

pub use k8s_cri::v1 as cri;
pub use until::until;
