//! cairn: a small CRI runtime with NRI built in.

fn main() {}
