//! Init's birth into a PID namespace that other processes already use.
//!
//! Those may have SYS_PTRACE, and can then inspect every process in the namespace: its root, memory
//! and descriptors. So a process enters it only when it has no more rights than they have. Until
//! the start, libcontainer's process stays outside with every privilege, in all of the container's
//! other namespaces. It forks a *midwife*, which becomes the container's user with all limits and
//! then clones init into the namespace; both are children of the monitor. Init waits for a byte.

use std::cell::OnceCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use cairn_monitor::report::{Report, STATUS_FD};
use cairn_monitor::sys::{self, Fork};
use cairn_monitor::tail::Tail;

use crate::{inherited, reports};

pub(crate) struct Birth {
    namespace: File,
    tty: bool,
    born: OnceCell<Born>,
}

struct Born {
    go: OwnedFd,
    /// Its pid in its own PID namespace.
    pid: i32,
}

/// Messages of midwife and init: a kind and four bytes, a pid or the length of a following text.
const OUTSIDE: u8 = b'o';
const INSIDE: u8 = b'i';
const ERROR: u8 = b'e';

impl Birth {
    pub(crate) fn new(namespace: File, tty: bool) -> Birth {
        Birth {
            namespace,
            tty,
            born: OnceCell::new(),
        }
    }

    /// The descriptor that must stay open until [`Birth::give`].
    pub(crate) fn keep(&self) -> RawFd {
        self.namespace.as_raw_fd()
    }

    pub(crate) fn namespace(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }

    /// Makes init, which then waits.
    pub(crate) fn give(&self, tail: &Tail) -> Result<(), String> {
        let at = |e: io::Error| format!("make init: {e}");
        if self.tty {
            sys::leave_terminal(io::stdin().as_fd())
                .map_err(|e| format!("give up the terminal: {e}"))?;
        }
        let (report_read, report) = sys::pipe().map_err(at)?;
        let (waits, go) = sys::pipe().map_err(at)?;
        // SAFETY: this process has one thread; the child ends in `midwife`, which does not return.
        #[allow(unsafe_code)]
        match unsafe { sys::fork_sibling() }.map_err(at)? {
            Fork::Child => self.midwife(tail, &report, &waits),
            Fork::Parent(_) => {}
        }
        drop((report, waits));
        let (outside, pid) = read_pids(report_read)?;
        reports::send(&Report::Born(outside));
        let _ = self.born.set(Born { go, pid }); // the only call
        Ok(())
    }

    /// Init's pid in its own PID namespace.
    pub(crate) fn pid(&self) -> Option<i32> {
        self.born.get().map(|born| born.pid)
    }

    /// Lets init execute its program.
    pub(crate) fn release(&self) -> io::Result<()> {
        let born = self.born.get().ok_or(io::ErrorKind::NotFound)?;
        sys::write(born.go.as_fd(), &[1]).map(drop)
    }

    fn midwife(&self, tail: &Tail, report: &OwnedFd, waits: &OwnedFd) -> ! {
        sys::default_signals();
        let mut keep = [STATUS_FD, report.as_raw_fd(), waits.as_raw_fd()];
        match born_into(self.namespace.as_fd(), tail, &mut keep) {
            Ok(Fork::Child) => self.begin(tail, report, waits),
            Ok(Fork::Parent(pid)) => send(report, OUTSIDE, pid, &[]),
            Err(text) => send(report, ERROR, text.len() as i32, text.as_bytes()),
        }
        sys::exit_now(0)
    }

    fn begin(&self, tail: &Tail, report: &OwnedFd, waits: &OwnedFd) -> ! {
        let session = sys::setsid().and_then(|()| {
            if self.tty {
                sys::take_terminal(io::stdin().as_fd())
            } else {
                Ok(())
            }
        });
        match session {
            Ok(()) => send(report, INSIDE, std::process::id().cast_signed(), &[]),
            Err(e) => {
                let text = format!("make a session: {e}");
                send(report, ERROR, text.len() as i32, text.as_bytes());
                sys::exit_now(127)
            }
        }
        // SAFETY: only these two are used, and `exit_now` follows.
        #[allow(unsafe_code)]
        unsafe {
            sys::close_all_but(&mut [STATUS_FD, waits.as_raw_fd()]);
        }
        if !matches!(sys::read(waits.as_fd(), &mut [0]), Ok(1)) {
            sys::exit_now(127);
        }
        let error = tail.describe(&tail.execute());
        let _ = sys::write(inherited::status(), error.as_bytes()); // the monitor may be dead
        sys::exit_now(127)
    }
}

/// Becomes the user, then clones a sibling in the namespace. Of the descriptors from 3 on `keep`
/// stay open. Both processes, and a failed one, may then only call `exit_now` or execve.
pub(crate) fn born_into(
    namespace: BorrowedFd<'_>,
    tail: &Tail,
    keep: &mut [RawFd],
) -> Result<Fork, String> {
    sys::choose_pid_namespace(namespace).map_err(|e| format!("enter the PID namespace: {e}"))?;
    // SAFETY: the caller guarantees it; the process has one thread.
    #[allow(unsafe_code)]
    unsafe {
        tail.become_user(keep).map_err(|e| tail.describe(&e))?;
        sys::fork_sibling().map_err(|e| format!("clone into the PID namespace: {e}"))
    }
}

/// One write, so that two messages do not mix.
fn send(report: &OwnedFd, kind: u8, number: i32, text: &[u8]) {
    let message = [&[kind], number.to_ne_bytes().as_slice(), text].concat();
    let _ = sys::write(report.as_fd(), &message); // the reader may be dead
}

/// Init's pid outside and inside. A container of the namespace with SYS_PTRACE may write here too:
/// the monitor accepts the first only if it is its own child.
fn read_pids(report: OwnedFd) -> Result<(i32, i32), String> {
    let at = |e: io::Error| format!("make init: {e}");
    let (mut outside, mut inside) = (None, None);
    while outside.is_none() || inside.is_none() {
        let mut head = [0; 5];
        if !matches!(sys::read(report.as_fd(), &mut head).map_err(at)?, 5) {
            return Err("init was killed before it entered the container".to_owned());
        }
        let number = i32::from_ne_bytes([head[1], head[2], head[3], head[4]]);
        match head[0] {
            OUTSIDE => outside = outside.or(Some(number)),
            INSIDE => inside = inside.or(Some(number)),
            _ => {
                let mut text = vec![0; usize::try_from(number).unwrap_or(0).min(4096)];
                let n = sys::read(report.as_fd(), &mut text).map_err(at)?;
                return Err(String::from_utf8_lossy(&text[..n]).into_owned());
            }
        }
    }
    Ok((outside.unwrap_or(0), inside.unwrap_or(0)))
}
