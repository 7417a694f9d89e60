//! Reading a terminal's master side.

use std::io;

use rustix::io::Errno;

/// What `read` has of a terminal's master; 0 while no process has the other side.
///
/// The kernel (seen on Linux 6.18) can say EIO while the last bytes are on their way: it waits for those that it knew of,
/// sleeps, then sees that the other side was closed, but not what was written before that. All was written before the
/// first EIO, and a read waits for what was: the second one has it.
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
    fn what_came_with_the_hangup_is_read_after_it() {
        assert_eq!(reads(&[Err(Errno::IO), Ok(9)]), (Ok(9), 0));
        assert_eq!(reads(&[Ok(0), Ok(9)]), (Ok(9), 0));
    }

    #[test]
    fn a_terminal_ends_when_it_has_nothing_twice() {
        assert_eq!(reads(&[Err(Errno::IO), Err(Errno::IO), Ok(9)]), (Ok(0), 1));
        assert_eq!(reads(&[Ok(0), Err(Errno::IO), Ok(9)]), (Ok(0), 1));
    }

    #[test]
    fn what_is_there_and_what_else_fails_is_told_at_once() {
        assert_eq!(reads(&[Ok(5), Ok(9)]), (Ok(5), 1));
        assert_eq!(reads(&[Err(Errno::AGAIN), Ok(9)]), (Err(Errno::AGAIN), 1));
        assert_eq!(
            reads(&[Err(Errno::IO), Err(Errno::AGAIN)]),
            (Err(Errno::AGAIN), 0)
        );
    }
}
