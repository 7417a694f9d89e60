//! The container's stdin and output, and the attach sessions that share them.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use cairn_monitor::log::Stream;
use cairn_monitor::record::Launch;
use cairn_monitor::sys;
use cairn_monitor::wire::{Event, Streams as Given};

use crate::output::Output;

/// Limit of concurrent attach sessions.
const ATTACHED: usize = 64;

pub(crate) struct Streams {
    pub(crate) output: Output,
    /// The write end of the container's stdin, or its terminal's master.
    pub(crate) stdin: Option<OwnedFd>,
    attached: Vec<Attached>,
    next_id: u32,
}

pub(crate) struct Attached {
    pub(crate) id: u32,
    pub(crate) peer: u64,
    has_stdin: bool,
}

impl Streams {
    pub(crate) fn new(output: Output) -> Streams {
        Streams {
            output,
            stdin: None,
            attached: Vec::new(),
            next_id: 1,
        }
    }

    pub(crate) fn attach(
        &mut self,
        peer: u64,
        asked: Given,
        launch: &Launch,
    ) -> Result<(Event, Vec<OwnedFd>), String> {
        if self.attached.len() >= ATTACHED {
            return Err(format!("limit of {ATTACHED} attached sessions reached"));
        }
        let id = self.next_id;
        self.next_id += 1;
        let tty = launch.tty;
        let text = |e: io::Error| e.to_string();
        // A terminal's master is both directions; the client only writes to this copy.
        let stdin = self.stdin.as_ref().filter(|_| asked.stdin && launch.stdin);
        let stdin = stdin.map(|fd| sys::dup_above(fd.as_fd(), 3));
        let stdin = stdin.transpose().map_err(text)?;
        let streams = Given {
            stdin: stdin.is_some() && !tty,
            stdout: asked.stdout,
            stderr: asked.stderr && !tty,
            master: stdin.is_some() && tty,
        };
        let mut fds = Vec::new();
        let (pipe, master) = if tty { (None, stdin) } else { (stdin, None) };
        fds.extend(pipe);
        for (wanted, stream) in [
            (streams.stdout, Stream::Stdout),
            (streams.stderr, Stream::Stderr),
        ] {
            if wanted {
                fds.push(self.output.attach(id, stream).map_err(text)?);
            }
        }
        fds.extend(master);
        let has_stdin = streams.stdin || streams.master;
        self.attached.push(Attached {
            id,
            peer,
            has_stdin,
        });
        let attached = Event::Attached {
            attach_id: id,
            streams,
        };
        Ok((attached, fds))
    }

    /// Ends sessions. With `stdin_once` the first that had stdin closes the container's (CRI-255).
    pub(crate) fn detach(&mut self, ends: impl Fn(&Attached) -> bool, launch: &Launch) {
        for session in self.attached.extract_if(.., |session| ends(session)) {
            self.output.detach(session.id);
            if session.has_stdin && launch.stdin_once && !launch.tty {
                self.stdin = None;
            }
        }
    }

    pub(crate) fn resize(&self, columns: u16, rows: u16, launch: &Launch) -> Result<(), String> {
        let master = self.stdin.as_ref().filter(|_| launch.tty);
        let master = master.ok_or("the container has no terminal")?;
        sys::set_window(master.as_fd(), columns, rows).map_err(|e| e.to_string())
    }
}
