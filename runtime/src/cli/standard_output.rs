//! Standard output of a command, whose reader may leave.

use std::{
    io::{self, ErrorKind, Write as _},
    ops::ControlFlow,
};

/// Writes the text. `Break` if the reader has left, such as `head`: there is nothing more to write.
///
/// # Errors
/// One line for the user.
pub fn write(text: &str) -> Result<ControlFlow<()>, String> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(format!("standard output: {error}")),
    }
}
