//! The command line: arguments, commands that use a daemon by CRI and `cairn.v1`, and their output.

#![expect(
    clippy::disallowed_methods,
    reason = "commands have no clients to delay"
)]

pub mod args;
pub mod check_table;
pub mod client;
mod diff;
mod explain_text;
pub mod image;
mod image_table;
pub mod network;
mod network_table;
mod plugin_table;
pub mod ps;
mod ps_tree;
mod pull_progress;
pub mod serve_flags;
pub mod standard_output;
pub mod status;
mod status_report;
pub mod text;
pub mod timeline;
pub mod timeline_page;
mod whole_file;
mod words;
