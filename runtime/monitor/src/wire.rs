//! The control protocol between the daemon and a container's monitor, version 1.
//!
//! A stream socket (`ctl.sock` in the container's directory, or the socket pair the monitor was spawned with)
//! carries frames: `u32 length` of what follows, `u32 request id`, `u8 kind`, payload. The monitor speaks first
//! ([`Event::Hello`], id 0). Every request gets exactly one [`Event`] with its id; an exec gets two, `ExecStarted` and
//! later `ExecExited`. Id 0 is for what nobody asked for: `Hello`, and `Exited` once init is gone, also to late clients.
//! Descriptors (exec's and attach's streams) travel by SCM_RIGHTS with the first byte of their frame, monitor to
//! daemon only.
//!
//! A monitor outlives its daemon, so an old monitor meets a new daemon: a change of meaning needs a new
//! [`VERSION`], and `tests/fixtures/v1.conversation` keeps a recorded version 1.

use crate::codec::{DecodeError, Reader, VERSION, Writer};
use crate::process::Process;
use crate::record::Exit;

/// The longest frame either side accepts, header included: argv plus environment of an exec.
pub const MAX_FRAME: usize = 4 << 20;

/// Bytes before the payload: length, id, kind.
pub const HEADER: usize = 9;

type Result<T> = std::result::Result<T, DecodeError>;

/// Request of a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Build the container (once). Answer: `Created` or `Failed`.
    Create,
    /// Let init run its program. Answer: `Done` once execve has succeeded, or `Failed`.
    Start,
    /// Signal init, or everything in its cgroup when `all`. Answer: `Done` or `Failed`.
    Kill { signal: i32, all: bool },
    /// Run a process in the container. Answer: `ExecStarted` with its streams, then `ExecExited`; or `Failed`.
    Exec(Box<ExecRequest>),
    /// Kill everything in an exec's own cgroup. Answer: `Done` or `Failed`.
    ExecKill { session: u32 },
    /// Window size of the container's own terminal. Answer: `Done` or `Failed`.
    Resize { columns: u16, rows: u16 },
    /// A live copy of the container's output, and its stdin. Answer: `Attached` with the streams, or `Failed`.
    Attach {
        stdin: bool,
        stdout: bool,
        stderr: bool,
    },
    /// The attach session that this client held is over (also implied when the connection ends). Answer: `Done`.
    Detach { attach_id: u32 },
    /// Open the log path again and write there from now on. Answer: `Done` or `Failed`.
    ReopenLog,
    /// Forget the container; only after its exit. The monitor answers `Done` and ends.
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
    /// After so many milliseconds the session's whole cgroup is killed; 0 is never.
    pub timeout_ms: u64,
}

/// Event or answer of the monitor.
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

/// Which descriptors came along, in this order. With a terminal an exec has only `master`, an attach `stdout` too.
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

/// Phase of the container. Only the monitor changes it: Empty → Creating → Created → Running → Exited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Empty = 0,
    Creating = 1,
    Created = 2,
    Running = 3,
    Exited = 4,
}

impl Phase {
    fn decode(v: u8) -> Result<Phase> {
        use Phase::{Created, Creating, Empty, Exited, Running};
        let mut all = [Empty, Creating, Created, Running, Exited].into_iter();
        all.find(|phase| *phase as u8 == v)
            .ok_or(DecodeError("unknown phase"))
    }
}

/// Wraps a payload into a frame.
fn frame(id: u32, kind: u8, payload: Vec<u8>) -> Vec<u8> {
    let mut w = Writer::default();
    w.u32((payload.len() + HEADER - 4) as u32).u32(id).u8(kind);
    let mut out = w.finish();
    out.extend_from_slice(&payload);
    out
}

/// One frame of a stream.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub id: u32,
    pub kind: u8,
    pub payload: &'a [u8],
    /// Bytes it took, header included.
    pub size: usize,
}

/// Looks for one whole frame at the front of `buf`. `Ok(None)` means more bytes are needed.
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

impl Request {
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let mut w = Writer::default();
        let kind = match self {
            Request::Create => 1,
            Request::Start => 2,
            Request::Kill { signal, all } => {
                w.i32(*signal).bool(*all);
                3
            }
            Request::Exec(exec) => {
                exec.encode(&mut w);
                4
            }
            Request::ExecKill { session } => {
                w.u32(*session);
                5
            }
            Request::Resize { columns, rows } => {
                w.u16(*columns).u16(*rows);
                6
            }
            Request::Attach {
                stdin,
                stdout,
                stderr,
            } => {
                w.bool(*stdin).bool(*stdout).bool(*stderr);
                7
            }
            Request::Detach { attach_id } => {
                w.u32(*attach_id);
                8
            }
            Request::ReopenLog => 9,
            Request::Delete => 10,
        };
        frame(id, kind, w.finish())
    }

    pub fn decode(kind: u8, payload: &[u8]) -> Result<Request> {
        let mut r = Reader::new(payload);
        let request = match kind {
            1 => Request::Create,
            2 => Request::Start,
            3 => Request::Kill {
                signal: r.i32()?,
                all: r.bool()?,
            },
            4 => Request::Exec(Box::new(ExecRequest::decode(&mut r)?)),
            5 => Request::ExecKill { session: r.u32()? },
            6 => Request::Resize {
                columns: r.u16()?,
                rows: r.u16()?,
            },
            7 => Request::Attach {
                stdin: r.bool()?,
                stdout: r.bool()?,
                stderr: r.bool()?,
            },
            8 => Request::Detach {
                attach_id: r.u32()?,
            },
            9 => Request::ReopenLog,
            10 => Request::Delete,
            _ => return Err(DecodeError("unknown request")),
        };
        r.end()?;
        Ok(request)
    }
}

impl ExecRequest {
    fn encode(&self, w: &mut Writer) {
        self.process.encode(w);
        w.bool(self.tty)
            .bool(self.stdin)
            .option(self.window.as_ref(), |w, (columns, rows)| {
                w.u16(*columns).u16(*rows)
            })
            .u64(self.timeout_ms);
    }

    fn decode(r: &mut Reader<'_>) -> Result<ExecRequest> {
        Ok(ExecRequest {
            process: Process::decode(r)?,
            tty: r.bool()?,
            stdin: r.bool()?,
            window: r.option(|r| Ok((r.u16()?, r.u16()?)))?,
            timeout_ms: r.u64()?,
        })
    }
}

impl Event {
    pub fn encode(&self, id: u32) -> Vec<u8> {
        let mut w = Writer::default();
        let kind = match self {
            Event::Hello {
                version,
                phase,
                pid,
                start_time,
                exit,
            } => {
                w.u16(*version).u8(*phase as u8);
                w.i32(*pid).u64(*start_time);
                w.option(exit.as_ref(), |w, e| e.encode(w));
                1
            }
            Event::Created { pid, start_time } => {
                w.i32(*pid).u64(*start_time);
                2
            }
            Event::Done => 3,
            Event::Failed { text } => {
                w.bytes(text.as_bytes());
                4
            }
            Event::ExecStarted {
                session,
                pid,
                streams,
            } => {
                w.u32(*session).i32(*pid);
                streams.encode(&mut w);
                5
            }
            Event::ExecExited {
                session,
                code,
                signal,
                timed_out,
            } => {
                w.u32(*session).i32(*code).i32(*signal).bool(*timed_out);
                6
            }
            Event::Attached { attach_id, streams } => {
                w.u32(*attach_id);
                streams.encode(&mut w);
                7
            }
            Event::Exited(exit) => {
                exit.encode(&mut w);
                8
            }
        };
        frame(id, kind, w.finish())
    }

    pub fn decode(kind: u8, payload: &[u8]) -> Result<Event> {
        let mut r = Reader::new(payload);
        let event = match kind {
            1 => {
                let version = r.u16()?;
                if version != VERSION {
                    // Only the version's place is fixed for ever; the rest belongs to that version.
                    return Ok(Event::Hello {
                        version,
                        phase: Phase::Empty,
                        pid: 0,
                        start_time: 0,
                        exit: None,
                    });
                }
                Event::Hello {
                    version,
                    phase: Phase::decode(r.u8()?)?,
                    pid: r.i32()?,
                    start_time: r.u64()?,
                    exit: r.option(Exit::decode)?,
                }
            }
            2 => Event::Created {
                pid: r.i32()?,
                start_time: r.u64()?,
            },
            3 => Event::Done,
            4 => Event::Failed { text: r.string()? },
            5 => Event::ExecStarted {
                session: r.u32()?,
                pid: r.i32()?,
                streams: Streams::decode(&mut r)?,
            },
            6 => Event::ExecExited {
                session: r.u32()?,
                code: r.i32()?,
                signal: r.i32()?,
                timed_out: r.bool()?,
            },
            7 => Event::Attached {
                attach_id: r.u32()?,
                streams: Streams::decode(&mut r)?,
            },
            8 => Event::Exited(Exit::decode(&mut r)?),
            _ => return Err(DecodeError("unknown event")),
        };
        r.end()?;
        Ok(event)
    }
}

impl Streams {
    fn encode(self, w: &mut Writer) {
        w.bool(self.stdin)
            .bool(self.stdout)
            .bool(self.stderr)
            .bool(self.master);
    }

    fn decode(r: &mut Reader<'_>) -> Result<Streams> {
        Ok(Streams {
            stdin: r.bool()?,
            stdout: r.bool()?,
            stderr: r.bool()?,
            master: r.bool()?,
        })
    }
}
