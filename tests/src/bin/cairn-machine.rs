//! cairn-machine: prints the snapshot that the last test compares, one item per line.

use std::io::{Write, stdout};

fn main() -> std::io::Result<()> {
    let mut out = stdout().lock();
    for item in cairn_tests::machine::snapshot() {
        writeln!(out, "{item}")?;
    }
    out.flush()
}
