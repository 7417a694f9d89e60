//! cairn-machine: prints what the last test compares with, one item a line.

use std::io::{Write, stdout};

fn main() -> std::io::Result<()> {
    let mut out = stdout().lock();
    for item in cairn_tests::machine::snapshot() {
        writeln!(out, "{item}")?;
    }
    out.flush()
}
