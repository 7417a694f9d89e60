//! Pods and their containers. Only this module changes their state.
//!
//! ```text
//!  pod        Creating ──RunPodSandbox──► Ready ──Stop or death──► NotReady ──Remove──► removed
//!                 └─────── any failure: undone, removed (or NotReady with the failed undo step)
//!
//!  container  Creating ──Create─► Created ──Start─► Running ──exit─► Exited ──Remove─► removed
//!                 └ failure: removed  └────start fails──────────────────┘
//!                                   Unknown: the monitor does not answer after a restart
//! ```
//!
//! Each pod has one driver task (`driver.rs`), which admits (`admit.rs`) and runs steps; only
//! those steps write records. A step is a function of the context `Pods`.
//! List and Status read the records' snapshots and never wait.
//!
//! | file | content |
//! |---|---|
//! | `state.rs` `op.rs` | a pod, a container: plain state and a queue; the queued operations |
//! | `pods.rs` | the context of the steps: `node.rs` (the machine), `registry.rs`, `notices.rs` |
//! | `<rpc>.rs` | the step of a CRI call |
//! | `container_exit.rs` | the end of a process, which no call requests |
//! | `hooks.rs` `plugin_answer.rs` `side_effects.rs` | the contract points; plugins' requests for other containers |
//! | `sandbox_phases.rs` `sandbox.rs` | a sandbox is made and undone; its resources on this machine |
//! | `registry.rs` | ids, names, prefixes, snapshots for List |
//! | `events.rs` | changes of phase, sent to subscribers |
//! | `recover.rs` `recover_pod.rs` `recover_container.rs` `sweep.rs` | recovery; removal of objects without record |
//! | `held.rs` | objects that cannot be served, because their records cannot be read |
//! | `skips.rs` `remove_by_id.rs` | forced removal that skips failing steps, or has no record |

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
pub mod plugin_answer;
pub mod plugins;
pub mod pods;
pub mod record;
mod recording;
pub mod recover;
mod recover_container;
mod recover_pod;
pub mod registry;
pub mod remove_by_id;
pub mod remove_container;
pub mod remove_pod_sandbox;
mod required;
pub mod resources;
mod resources_turn;
pub mod run_pod_sandbox;
pub mod sandbox;
mod sandbox_phases;
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
