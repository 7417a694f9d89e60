//! The harness of the end-to-end tests. It links nothing of the daemon.
//!
//! ```text
//! test ── Daemon ── Yard (mount, network and pid namespace of its own; cairn-yard is pid 1)
//!            │         └── cairn serve ── cairn-monitor ── the container …
//!            ├── CRI client (crate k8s-cri) on the daemon's socket
//!            └── directories under one temporary directory, cgroups under one parent
//! ```
//! Dropping a [`Daemon`] ends the yard's pid 1, and with it every process, mount and network device
//! inside; the cgroups and the directory are removed after that. The harness uses only the daemon's
//! command line, its sockets and the kernel's view of its resources.

pub mod bench;
pub mod bins;
pub mod browser;
pub mod client;
pub mod container;
pub mod criclog;
pub mod daemon;
pub mod image;
pub mod machine;
pub mod output;
pub mod plugin;
pub mod pod;
pub mod registry;
pub mod table;
pub mod yard;

pub use daemon::{Daemon, Setup};
pub use testkit::{cri, look, raw, rng, until};
