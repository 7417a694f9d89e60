//! Runs `cairn-create`, reads its reports, and starts init by libcontainer's notify socket.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};

use cairn_monitor::cgroup::Cgroups;
use cairn_monitor::log::Stream;
use cairn_monitor::record::Launch;
use cairn_monitor::report::{
    self, CONSOLE, MOUNTS_FD, PROGRAMS_FD, REACHED, REPORT_FD, Report, STATE, STATUS_FD,
};
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys::{self, ExecVector, Fork};

use crate::output::Output;

/// The running helper, and its pipes until init has executed its program.
pub(crate) struct Creation {
    pub(crate) helper: i32,
    /// Messages of the helper and of its forks.
    report: Option<OwnedFd>,
    /// The exec status pipe.
    status: Option<OwnedFd>,
    reported: Vec<u8>,
    console: Option<UnixListener>,
    errors: Vec<String>,
    failed: Option<String>,
    /// Init, if it is not the process that libcontainer made.
    born: Option<i32>,
    pub(crate) pid: Option<i32>,
}

impl Creation {
    /// Spawns the helper, which builds in a copy of `mounts`. `output` owns the container's output;
    /// the caller owns the returned write end of its stdin.
    pub(crate) fn spawn(
        launch: &Launch,
        cgroups: &Cgroups,
        output: &mut Output,
        mounts: OwnedFd,
    ) -> io::Result<(Creation, Option<OwnedFd>)> {
        let (report, their_report) = sys::seqpacket_pair()?;
        let (status, their_status) = sys::pipe()?;
        sys::set_nonblocking(report.as_fd())?;
        sys::set_nonblocking(status.as_fd())?;
        let mut our_stdin = None;
        let mut inherited = vec![
            (their_report, REPORT_FD),
            (their_status, STATUS_FD),
            (mounts, MOUNTS_FD),
        ];
        let mut console = None;
        if launch.tty {
            console = Some(UnixListener::bind(CONSOLE)?);
        } else {
            let stdin = if launch.stdin {
                let (read, write) = sys::pipe()?;
                sys::set_nonblocking(write.as_fd())?;
                our_stdin = Some(write);
                read
            } else {
                File::open("/dev/null")?.into()
            };
            let (out_read, out_write) = sys::pipe()?;
            let (err_read, err_write) = sys::pipe()?;
            output.add(Stream::Stdout, out_read, false)?;
            output.add(Stream::Stderr, err_read, false)?;
            inherited.extend([(stdin, 3), (out_write, 4), (err_write, 5)]);
        }
        let directory = cgroups.unified().map(File::open).transpose()?;
        let helper = spawn(launch, &[], directory, inherited)?;
        let creation = Creation {
            helper,
            report: Some(report),
            status: Some(status),
            reported: Vec::new(),
            console,
            errors: Vec::new(),
            failed: None,
            born: None,
            pid: None,
        };
        Ok((creation, our_stdin))
    }

    pub(crate) fn report_fd(&self) -> Option<i32> {
        self.report.as_ref().map(|fd| fd.as_raw_fd())
    }

    pub(crate) fn status_fd(&self) -> Option<i32> {
        self.status.as_ref().map(|fd| fd.as_raw_fd())
    }

    pub(crate) fn read_report(&mut self) {
        let mut buf = [0; report::MAX];
        while let Some(fd) = &self.report {
            match sys::read(fd.as_fd(), &mut buf) {
                Ok(0) => self.report = None,
                Ok(n) => match Report::decode(&buf[..n]) {
                    // Bounded: the first lines are the most specific.
                    Some(Report::Error(text)) if self.errors.len() < 16 => self.errors.push(text),
                    Some(Report::Born(pid)) => self.born = Some(pid),
                    Some(Report::Created(pid)) => self.pid = self.born.or(Some(pid)),
                    Some(Report::Failed(text)) => self.failed = Some(text),
                    _ => {}
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.report = None,
            }
        }
    }

    /// `None` until init has reached its program or failed; `Ok` if the program runs.
    pub(crate) fn started(&mut self) -> Option<Result<(), String>> {
        let fd = self.status.as_ref()?;
        let mut buf = [0; 512];
        loop {
            match sys::read(fd.as_fd(), &mut buf) {
                Ok(0) => break,
                Ok(n) if self.reported.len() < report::MAX => {
                    self.reported.extend_from_slice(&buf[..n])
                }
                // The limit: a container of the same pid namespace may write to the pipe.
                Ok(_) => break,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(_) => break,
            }
        }
        self.status = None;
        self.read_report();
        Some(match self.reported.split_first() {
            Some((&REACHED, [])) => Ok(()),
            Some((&REACHED, text)) => Err(String::from_utf8_lossy(text).into_owned()),
            _ => Err(self.why("init ended before its program")),
        })
    }

    /// The first ERROR line is the most specific; the returned error is often shallow. A broken
    /// channel is never the cause: it is reported when another process of the helper ends.
    pub(crate) fn why(&self, otherwise: &str) -> String {
        let cause = self
            .errors
            .iter()
            .find(|e| !e.contains("BrokenChannel"))
            .or(self.errors.first());
        match (cause, &self.failed) {
            (Some(first), Some(last)) if !last.contains(first) => format!("{first} ({last})"),
            (Some(text), _) | (None, Some(text)) => text.clone(),
            (None, None) => otherwise.to_owned(),
        }
    }

    /// Sets the scheduler of an init that was born without one: the monitor has the privilege.
    pub(crate) fn schedule(&self, pid: i32) -> io::Result<()> {
        if self.born.is_none() {
            return Ok(());
        }
        let scheduling = Scheduling::read().map_err(io::Error::other)?;
        let set = scheduling.cpu.map(|cpu| sys::set_scheduler(pid, &cpu));
        set.unwrap_or(Ok(()))
            .map_err(|e| io::Error::new(e.kind(), format!("set the scheduler: {e}")))
    }

    /// Takes the terminal's master, which init sent before it reported ready.
    pub(crate) fn take_terminal(&mut self) -> io::Result<Option<OwnedFd>> {
        let Some(listener) = self.console.take() else {
            return Ok(None);
        };
        listener.set_nonblocking(true)?;
        let (socket, _) = listener.accept()?;
        let (_, master) = sys::receive_fd(socket.as_fd(), &mut [0; 64])?;
        fs::remove_file(CONSOLE)?;
        master
            .map(Some)
            .ok_or_else(|| io::Error::other("no terminal was received"))
    }
}

/// Lets init run: it accepts on this socket and reads to the end.
pub(crate) fn notify(id: &str) -> io::Result<()> {
    UnixStream::connect(format!("{STATE}/{id}/notify.sock"))?.write_all(b"start container")
}

/// Starts the helper with exactly these descriptors, in this cgroup v2 directory, without v1 ones.
/// It dies with this process.
pub(crate) fn spawn(
    launch: &Launch,
    args: &[Vec<u8>],
    directory: Option<File>,
    inherited: Vec<(OwnedFd, i32)>,
) -> io::Result<i32> {
    let nul = |_| io::Error::from_raw_os_error(libc::EINVAL);
    let path = CString::new(launch.create.as_str()).map_err(nul)?;
    let argv = [&[b"cairn-create".to_vec()], args].concat();
    let argv = ExecVector::new(&argv).map_err(nul)?;
    let env = ExecVector::new(&[]).map_err(nul)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // Moves them away from their final numbers.
    let inherited = inherited
        .into_iter()
        .map(|(fd, number)| Ok((sys::dup_above(fd.as_fd(), 64)?, number)))
        .collect::<io::Result<Vec<_>>>()?;
    let null = sys::dup_above(null.as_fd(), 64)?;
    match sys::fork_into(directory.as_ref().map(|d| d.as_fd()))? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => {
            sys::default_signals();
            let mut keep: Vec<i32> = inherited.iter().map(|(_, number)| *number).collect();
            keep.push(PROGRAMS_FD);
            let numbers = (0..3).map(|n| (null.as_raw_fd(), n));
            for (fd, number) in numbers.chain(inherited.iter().map(|(fd, n)| (fd.as_raw_fd(), *n)))
            {
                if sys::dup_to(fd, number).is_err() {
                    sys::exit_now(126);
                }
            }
            // SAFETY: only execve and `exit_now` follow.
            #[allow(unsafe_code)]
            unsafe {
                sys::close_all_but(&mut keep);
            }
            let _ = sys::execve(&path, &argv, &env); // returns only on failure
            sys::exit_now(127)
        }
    }
}
