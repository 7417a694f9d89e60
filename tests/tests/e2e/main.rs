//! The end-to-end tests, by theme. One binary: linking is most of what a test binary costs.
#![warn(unreachable_pub)]

mod adjustments;
mod bad_input;
mod contract;
mod crictl;
mod escape;
mod escape_limits;
mod events;
mod evictions;
mod exec;
mod explain;
mod fault_client;
mod fault_disk;
mod fault_monitor;
mod fault_records;
mod fault_removal;
mod fault_trees;
mod faults;
mod go_samples;
mod grace;
mod harness;
mod hosts;
mod idempotence;
mod images;
mod lifecycle;
mod logs;
mod network;
mod pid_namespaces;
mod plugins;
mod policy;
mod recovery;
mod restart;
mod samples;
mod security;
mod stats;
mod streaming;
