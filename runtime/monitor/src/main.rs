//! The keeper process of one container.

fn main() {}
