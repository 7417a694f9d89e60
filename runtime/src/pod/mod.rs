//! Pods and their containers: the only place where their state changes.
//!
//! ```text
//!  pod        Creating ──RunPodSandbox──► Ready ──Stop, or found dead──► NotReady ──Remove──► gone
//!                 └─────── any failure: undone, gone (or NotReady with the step that could not be undone)
//!
//!  container  Creating ──Create──► Created ──Start──► Running ──exit──► Exited ──Remove──► gone
//!                 └ failure: gone      └────start fails────────────────────┘
//!                                   Unknown: the monitor does not answer after a restart
//! ```
//!
//! Each pod has one driver task (`driver.rs`), which admits (`admit.rs`) and runs steps; only
//! those steps write records. A step is a function of the context `Pods`.
//! List and Status read the records' snapshots and never wait.
//!
//! | file | holds |
//! |---|---|
//! | `state.rs` `op.rs` | a pod, a container: plain state and a queue; the operations that go through the queue |
//! | `pods.rs` | the context of the steps: `node.rs`, the machine without pods; `registry.rs`; `notices.rs`, reports |
//! | `<rpc>.rs` | the step of a CRI call |
//! | `container_exit.rs` | what nobody calls for: a process has ended |
//! | `hooks.rs` `side_effects.rs` | the contract points, the only caller of NRI dispatch; what plugins want of others |
//! | `sandbox.rs` | what a sandbox has of this machine |
//! | `registry.rs` | ids, names, prefixes, snapshots for List |
//! | `events.rs` | changes of phase, sent to subscribers |
//! | `recover.rs` `recover_container.rs` `sweep.rs` | what a restart makes of the records, and of what has none |
//! | `held.rs` | what is there and cannot be served, since its record cannot be read |
//! | `skips.rs` `remove_by_id.rs` | removal on demand, whatever fails; and of what has no record |

pub mod adjusted_cgroup;
mod adjusted_start;
pub mod admit;
pub mod container_exit;
mod contract_point;
pub mod create_container;
pub mod dirs;
pub mod driver;
pub mod error;
pub mod event_log;
pub mod events;
pub mod files;
pub mod grace;
pub mod held;
pub mod hooks;
mod image_volumes;
pub mod machine;
pub mod message;
pub mod node;
pub mod notices;
pub mod op;
pub mod pause;
pub mod plugins;
pub mod pods;
pub mod record;
mod recording;
pub mod recover;
mod recover_container;
pub mod registry;
pub mod remove_by_id;
pub mod remove_container;
pub mod remove_pod_sandbox;
mod required;
pub mod resources;
pub mod run_pod_sandbox;
pub mod sandbox;
mod selinux;
pub mod side_effects;
pub mod skips;
pub mod spec;
pub mod start_container;
pub mod state;
pub mod stop_container;
pub mod stop_pod_sandbox;
pub mod sweep;
pub mod update_container_resources;
pub mod update_pod_sandbox_resources;
