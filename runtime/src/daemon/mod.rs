//! The daemon: opened, served, drained. Start with `serve.rs`.

pub mod cairn_service;
mod calls;
mod every_call;
pub mod from_config;
pub mod log;
pub mod metrics;
mod mistaken;
mod networks;
pub mod open;
mod pause_root;
mod report_progress;
pub mod serve;
mod traced;
