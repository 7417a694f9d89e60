//! The end-to-end tests, by theme. One binary: linking is most of what a test binary costs.

mod adjustments;
mod answers;
mod bad_input;
mod contract;
mod crictl;
mod events;
mod evictions;
mod exec;
mod faults;
mod go_samples;
mod grace;
mod harness;
mod idempotence;
mod images;
mod lifecycle;
mod logs;
mod network;
mod plugins;
mod policy;
mod recovery;
mod restart;
mod samples;
mod security;
mod stats;
