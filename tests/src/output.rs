//! What a command answered, as text.

use std::process::Output;

/// A command's result in one piece, for messages.
pub fn shown(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// A row of a table that `hack/test` prints at the end of its part; a test that is run by itself shows it with `--nocapture`.
///
/// # Panics
/// If the file of the run cannot be written.
pub fn row(text: &str) {
    println!("{text}");
    if let Some(path) = std::env::var_os("CAIRN_TEST_TABLE") {
        let file = std::fs::File::options()
            .append(true)
            .create(true)
            .open(path);
        let mut file = file.expect("the run's file opens");
        std::io::Write::write_all(&mut file, format!("{text}\n").as_bytes()).expect("written");
    }
}
