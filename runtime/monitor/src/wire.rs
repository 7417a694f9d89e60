//! The control protocol between the daemon and a container's monitor, version 1.
//!
//! A stream socket (`ctl.sock` in the container's directory, or the socket pair the monitor was
//! spawned with) carries frames: `u32 length` of the rest, `u32 request id`, `u8 kind`, payload.
//! The monitor speaks first ([`Event::Hello`], id 0). Every request gets exactly one [`Event`] with
//! its id; an exec gets two, `ExecStarted` and later `ExecExited`. Id 0 is for unsolicited events:
//! `Hello`, and `Exited` at init's end. Descriptors (streams of exec and attach) travel by
//! SCM_RIGHTS with the first byte of their frame, only from monitor to daemon.
//!
//! A monitor outlives its daemon, so an old monitor meets a new daemon: a change of meaning needs a
//! new [`VERSION`], and `tests/fixtures/v1.conversation` keeps a recorded version 1.

use crate::codec::{Coded, DecodeError, Reader, VERSION, coded};
use crate::process::Process;
use crate::record::Exit;

/// The longest frame either side accepts, header included: argv plus environment of an exec.
pub const MAX_FRAME: usize = 4 << 20;

/// Bytes before the payload: length, id, kind.
pub const HEADER: usize = 9;

type Result<T> = std::result::Result<T, DecodeError>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Build the container (once). Answer: `Created` or `Failed`.
    Create,
    /// Let init run its program. Answer: `Done` once execve has succeeded, or `Failed`.
    Start,
    /// Signal init, or everything in its cgroup when `all`. Answer: `Done` or `Failed`.
    Kill { signal: i32, all: bool },
    /// Run a process in the container. Answer: `ExecStarted` with its streams, then `ExecExited`;
    /// or `Failed`. `ExecStarted` has no streams and pid 0 if the timeout expired before the
    /// process was in the container.
    Exec(Box<ExecRequest>),
    /// Kill everything in an exec's own cgroup. Answer: `Done` or `Failed`.
    ExecKill { session: u32 },
    /// Window size of the container's own terminal. Answer: `Done` or `Failed`.
    Resize { columns: u16, rows: u16 },
    /// Copy the live output, and pass stdin. Answer: `Attached` with the streams, or `Failed`.
    Attach {
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// End this client's attach session; the end of its connection implies it. Answer: `Done`.
    Detach { attach_id: u32 },
    /// Reopen the log path and write there from now on. Answer: `Done` or `Failed`.
    ReopenLog,
    /// Forget the container, after its exit. The monitor answers `Done` and ends.
    Delete,
}

/// One process to run beside init.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    pub process: Process,
    pub tty: bool,
    pub stdin: bool,
    /// First window size, with `tty`.
    pub window: Option<(u16, u16)>,
    /// The session's cgroup is killed after this many milliseconds; 0 is never.
    pub timeout_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    Hello {
        version: u16,
        phase: Phase,
        pid: i32,
        start_time: u64,
        exit: Option<Exit>,
    },
    Created {
        pid: i32,
        start_time: u64,
    },
    Done,
    Failed {
        text: String,
    },
    ExecStarted {
        session: u32,
        pid: i32,
        streams: Streams,
    },
    ExecExited {
        session: u32,
        code: i32,
        signal: i32,
        timed_out: bool,
    },
    Attached {
        attach_id: u32,
        streams: Streams,
    },
    Exited(Exit),
}

/// The passed descriptors, in this order. With a terminal: `master`, for an attach also `stdout`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Streams {
    pub stdin: bool,
    pub stdout: bool,
    pub stderr: bool,
    pub master: bool,
}

impl Streams {
    pub fn count(self) -> usize {
        [self.stdin, self.stdout, self.stderr, self.master]
            .iter()
            .filter(|b| **b)
            .count()
    }
}

/// Only the monitor changes it: Empty → Creating → Created → Running → Exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Empty = 0,
    Creating = 1,
    Created = 2,
    Running = 3,
    Exited = 4,
}

impl Coded for Phase {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(*self as u8);
    }

    fn take(r: &mut Reader<'_>) -> Result<Phase> {
        use Phase::{Created, Creating, Empty, Exited, Running};
        let number = r.u8()?;
        let mut all = [Empty, Creating, Created, Running, Exited].into_iter();
        all.find(|phase| *phase as u8 == number)
            .ok_or(DecodeError("unknown phase"))
    }
}

fn frame(id: u32, kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER + payload.len());
    ((payload.len() + HEADER - 4) as u32).put(&mut out);
    id.put(&mut out);
    out.push(kind);
    out.extend_from_slice(payload);
    out
}

#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub id: u32,
    pub kind: u8,
    pub payload: &'a [u8],
    /// Size in bytes, header included.
    pub size: usize,
}

/// Takes one complete frame from the front of `buf`. `Ok(None)`: more bytes are needed.
pub fn split(buf: &[u8]) -> Result<Option<Frame<'_>>> {
    if buf.len() < 4 {
        return Ok(None);
    }
    let len = u32::from_le_bytes([buf[0], buf[1], buf[2], buf[3]]) as usize;
    if !(HEADER - 4..=MAX_FRAME - 4).contains(&len) {
        return Err(DecodeError("frame length out of range"));
    }
    if buf.len() < len + 4 {
        return Ok(None);
    }
    let id = u32::from_le_bytes([buf[4], buf[5], buf[6], buf[7]]);
    Ok(Some(Frame {
        id,
        kind: buf[8],
        payload: &buf[HEADER..len + 4],
        size: len + 4,
    }))
}

/// Encodes an enum as messages: each variant's kind on the wire, and its fields in this order.
macro_rules! messages {
    ($type:ident, $unknown:literal: $(
        $kind:literal => $name:ident $(($value:ident))? $({ $($field:ident),* })?,
    )*) => {
        impl $type {
            pub fn encode(&self, id: u32) -> Vec<u8> {
                let mut payload = Vec::new();
                let kind = match self {
                    $($type::$name $(($value))? $({ $($field),* })? => {
                        $($value.put(&mut payload);)?
                        $($($field.put(&mut payload);)*)?
                        $kind
                    })*
                };
                frame(id, kind, &payload)
            }

            fn parse(kind: u8, payload: &[u8]) -> Result<$type> {
                let mut r = Reader::new(payload);
                let message = match kind {
                    $($kind => {
                        $(let $value = Coded::take(&mut r)?;)?
                        $($(let $field = Coded::take(&mut r)?;)*)?
                        $type::$name $(($value))? $({ $($field),* })?
                    })*
                    _ => return Err(DecodeError($unknown)),
                };
                r.end()?;
                Ok(message)
            }
        }
    };
}

messages!(Request, "unknown request":
    1 => Create,
    2 => Start,
    3 => Kill { signal, all },
    4 => Exec(exec),
    5 => ExecKill { session },
    6 => Resize { columns, rows },
    7 => Attach { stdin, stdout, stderr },
    8 => Detach { attach_id },
    9 => ReopenLog,
    10 => Delete,
);

messages!(Event, "unknown event":
    1 => Hello { version, phase, pid, start_time, exit },
    2 => Created { pid, start_time },
    3 => Done,
    4 => Failed { text },
    5 => ExecStarted { session, pid, streams },
    6 => ExecExited { session, code, signal, timed_out },
    7 => Attached { attach_id, streams },
    8 => Exited(exit),
);

coded!(ExecRequest {
    process,
    tty,
    stdin,
    window,
    timeout_ms,
});
coded!(Streams {
    stdin,
    stdout,
    stderr,
    master,
});

impl Request {
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Request> {
        Request::parse(kind, payload)
    }
}

impl Event {
    pub fn decode(kind: u8, payload: &[u8]) -> Result<Event> {
        // Only the place of the version in `Hello` is fixed for all versions.
        let version = u16::take(&mut Reader::new(payload));
        match (kind, version) {
            (1, Ok(version)) if version != VERSION => Ok(Event::Hello {
                version,
                phase: Phase::Empty,
                pid: 0,
                start_time: 0,
                exit: None,
            }),
            _ => Event::parse(kind, payload),
        }
    }
}
