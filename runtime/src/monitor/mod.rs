//! The daemon's side of the monitor: spawns it, speaks its protocol, finds it again after a restart.
