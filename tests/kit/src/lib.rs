//! Shared by the tests of CRI runtimes: nri-contract and the tests of cairn.

pub mod client;
pub mod look;
pub mod raw;
pub mod rng;
pub mod until;

pub use k8s_cri::v1 as cri;
pub use until::until;
