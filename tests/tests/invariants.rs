//! The invariants of ARCHITECTURE.md that a machine can check, over `cargo metadata` and the
//! sources. A broken one names the file or the path of dependencies.
