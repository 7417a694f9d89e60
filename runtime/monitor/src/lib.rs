//! The protocol of the monitor.
