//! The command line: its arguments, the commands that ask a running daemon over CRI and `cairn.v1`, and what they print.

pub mod args;
pub mod check_table;
pub mod client;
mod diff;
mod explain_text;
mod plugin_table;
pub mod ps;
mod ps_tree;
pub mod status;
mod status_report;
pub mod text;
pub mod timeline;
mod words;
