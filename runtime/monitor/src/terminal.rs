//! Reads a terminal's master side.

use std::io;

use rustix::io::Errno;

/// Reads a terminal's master; returns 0 while no process has the other side open.
///
/// The kernel (seen on Linux 6.18) can return EIO while the last bytes are still on their way. All
/// bytes are written before the first EIO, so a second read returns them.
pub fn read_master(mut read: impl FnMut() -> io::Result<usize>) -> io::Result<usize> {
    let mut once = || match read() {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::IO) => Ok(0),
        other => other,
    };
    match once()? {
        0 => once(),
        n => Ok(n),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reads(answers: &[Result<usize, Errno>]) -> (Result<usize, Errno>, usize) {
        let mut left = answers.iter();
        let read = read_master(|| Ok((*left.next().expect("an answer"))?));
        let error = |e: io::Error| Errno::from_io_error(&e).expect("an errno");
        (read.map_err(error), left.len())
    }

    #[test]
    fn bytes_of_the_hangup_are_read_after_it() {
        assert_eq!(reads(&[Err(Errno::IO), Ok(9)]), (Ok(9), 0));
        assert_eq!(reads(&[Ok(0), Ok(9)]), (Ok(9), 0));
    }

    #[test]
    fn a_terminal_ends_when_it_has_nothing_twice() {
        assert_eq!(reads(&[Err(Errno::IO), Err(Errno::IO), Ok(9)]), (Ok(0), 1));
        assert_eq!(reads(&[Ok(0), Err(Errno::IO), Ok(9)]), (Ok(0), 1));
    }

    #[test]
    fn bytes_and_other_errors_are_returned_at_once() {
        assert_eq!(reads(&[Ok(5), Ok(9)]), (Ok(5), 1));
        assert_eq!(reads(&[Err(Errno::AGAIN), Ok(9)]), (Err(Errno::AGAIN), 1));
        assert_eq!(
            reads(&[Err(Errno::IO), Err(Errno::AGAIN)]),
            (Err(Errno::AGAIN), 0)
        );
    }
}
