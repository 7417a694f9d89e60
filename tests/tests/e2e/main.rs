//! The end-to-end tests, by theme. One binary: linking is most of what a test binary costs.

mod adjustments;
mod bad_input;
mod contract;
mod crictl;
mod events;
mod exec;
mod faults;
mod grace;
mod harness;
mod idempotence;
mod images;
mod lifecycle;
mod logs;
mod network;
mod plugins;
mod restart;
mod security;
mod stats;
