//! Tables of a class of tests, a line per cell: `hack/test` prints them at the end of its part.

use std::{fs::OpenOptions, io::Write as _};

/// Records a cell of a table.
///
/// # Panics
/// If it cannot be recorded.
pub fn cell(line: &str) {
    eprintln!("{line}");
    if let Some(path) = std::env::var_os("CAIRN_TEST_TABLE") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        let noted = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
        noted.expect("the cell can be noted");
    }
}
