//! Builds one container by libcontainer, and exits.

fn main() {}
