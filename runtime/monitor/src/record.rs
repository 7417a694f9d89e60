//! What lies in the container's directory: `launch` and `join` (written by the daemon, read by the monitor and
//! `cairn-create`), `pid` and `exit` (written by the monitor). Each carries the version of the protocol.
//!
//! `pid` and `exit` are lines of `key=value`, for people too. `exit` appears atomically (temporary file, fdatasync,
//! rename), so that it is either absent or whole.

use crate::codec::{DecodeError, Reader, VERSION, Writer};

/// Name of the control socket in the container's directory.
pub const CTL: &str = "ctl.sock";
pub const LAUNCH: &str = "launch";
pub const PID: &str = "pid";
pub const EXIT: &str = "exit";
/// The compiled seccomp filter, if the container has one.
pub const SECCOMP: &str = "seccomp.bpf";
/// Scheduler, I/O priority and memory policy, if the container was given any.
pub const SCHEDULING: &str = "scheduling";
/// Names of the OCI hooks that are left for after create, if there are any (`poststart`, `poststop`), one a line.
pub const HOOKS: &str = "hooks";
/// Whose PID namespace the container joins, if it does ([`Join`]).
pub const JOIN: &str = "join";
/// The OCI spec.
pub const CONFIG: &str = "config.json";

/// Exit status of init.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// As a shell says it: the exit code, or 128 + signal.
    pub code: i32,
    /// The signal that killed it, or 0.
    pub signal: i32,
    /// Nanoseconds since 1970.
    pub finished_at: u64,
    /// The kernel killed something in this container for memory (CRI-144), and init died of SIGKILL.
    pub oom_killed: bool,
    /// False when init ended before its program ran (it was killed between create and start, or start failed).
    pub started: bool,
    /// Bytes of log records that could not be written (disk full).
    pub log_lost: u64,
}

impl Exit {
    pub fn encode<'w>(&self, w: &'w mut Writer) -> &'w mut Writer {
        w.i32(self.code)
            .i32(self.signal)
            .u64(self.finished_at)
            .bool(self.oom_killed)
            .bool(self.started)
            .u64(self.log_lost)
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Exit, DecodeError> {
        Ok(Exit {
            code: r.i32()?,
            signal: r.i32()?,
            finished_at: r.u64()?,
            oom_killed: r.bool()?,
            started: r.bool()?,
            log_lost: r.u64()?,
        })
    }

    pub fn to_text(&self) -> String {
        format!(
            "version={VERSION}\ncode={}\nsignal={}\nfinished_at={}\noom_killed={}\nstarted={}\nlog_lost={}\n",
            self.code, self.signal, self.finished_at, self.oom_killed, self.started, self.log_lost
        )
    }

    pub fn from_text(text: &str) -> Result<Exit, DecodeError> {
        let fields = Fields::parse(text)?;
        Ok(Exit {
            code: fields.get("code")?,
            signal: fields.get("signal")?,
            finished_at: fields.get("finished_at")?,
            oom_killed: fields.get("oom_killed")?,
            started: fields.get("started")?,
            log_lost: fields.get("log_lost")?,
        })
    }
}

/// Identity of init, safe across pid reuse and reboot (CRI-813).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pid {
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks after boot.
    pub start_time: u64,
    pub boot_id: String,
    /// The monitor itself, so that the daemon can tell whether it still lives.
    pub monitor: i32,
}

impl Pid {
    pub fn to_text(&self) -> String {
        format!(
            "version={VERSION}\npid={}\nstart_time={}\nboot_id={}\nmonitor={}\n",
            self.pid, self.start_time, self.boot_id, self.monitor
        )
    }

    pub fn from_text(text: &str) -> Result<Pid, DecodeError> {
        let fields = Fields::parse(text)?;
        Ok(Pid {
            pid: fields.get("pid")?,
            start_time: fields.get("start_time")?,
            boot_id: fields.get("boot_id")?,
            monitor: fields.get("monitor")?,
        })
    }
}

/// The process whose PID namespace is joined, as `join`. A number alone could be another's by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Join {
    pub pid: i32,
    /// As [`Pid::start_time`].
    pub start_time: u64,
}

impl Join {
    pub fn to_text(&self) -> String {
        format!(
            "version={VERSION}\npid={}\nstart_time={}\n",
            self.pid, self.start_time
        )
    }

    pub fn from_text(text: &str) -> Result<Join, DecodeError> {
        let fields = Fields::parse(text)?;
        Ok(Join {
            pid: fields.get("pid")?,
            start_time: fields.get("start_time")?,
        })
    }
}

/// One cgroup directory of the container, made by the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupDir {
    /// `cpu`, `memory`, `freezer`, `name=systemd`, ...; empty for cgroup v2, also the one beside v1.
    pub controller: String,
    pub path: String,
}

impl CgroupDir {
    pub fn unified(&self) -> bool {
        self.controller.is_empty()
    }
}

/// All that a monitor must know before `create`. The daemon writes it as `launch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub id: String,
    /// Path of `cairn-create`; the daemon's is below [`PROGRAMS_FD`](crate::report::PROGRAMS_FD).
    pub create: String,
    pub cgroups: Vec<CgroupDir>,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
    pub log_path: Option<String>,
    /// Bytes of content per log record (CRI-251); 0 for the largest this monitor keeps in memory.
    pub max_log_line: u32,
    /// Directory of compiled seccomp filters.
    pub seccomp_cache: String,
}

impl Launch {
    pub fn encode(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u16(VERSION)
            .bytes(self.id.as_bytes())
            .bytes(self.create.as_bytes())
            .list(&self.cgroups, |w, c| {
                w.bytes(c.controller.as_bytes()).bytes(c.path.as_bytes())
            })
            .bool(self.tty)
            .bool(self.stdin)
            .bool(self.stdin_once)
            .option(self.log_path.as_ref(), |w, path| w.bytes(path.as_bytes()))
            .u32(self.max_log_line)
            .bytes(self.seccomp_cache.as_bytes());
        w.finish()
    }

    pub fn decode(bytes: &[u8]) -> Result<Launch, DecodeError> {
        let mut r = Reader::new(bytes);
        if r.u16()? != VERSION {
            return Err(DecodeError("unsupported version of the launch file"));
        }
        let launch = Launch {
            id: r.string()?,
            create: r.string()?,
            cgroups: r.list(|r| {
                Ok(CgroupDir {
                    controller: r.string()?,
                    path: r.string()?,
                })
            })?,
            tty: r.bool()?,
            stdin: r.bool()?,
            stdin_once: r.bool()?,
            log_path: r.option(Reader::string)?,
            max_log_line: r.u32()?,
            seccomp_cache: r.string()?,
        };
        r.end()?;
        Ok(launch)
    }
}

struct Fields<'a>(Vec<(&'a str, &'a str)>);

impl<'a> Fields<'a> {
    fn parse(text: &'a str) -> Result<Fields<'a>, DecodeError> {
        let fields = Fields(text.lines().filter_map(|l| l.split_once('=')).collect());
        match fields.get::<u16>("version")? {
            VERSION => Ok(fields),
            _ => Err(DecodeError("unsupported version of the file")),
        }
    }

    fn get<T: std::str::FromStr>(&self, key: &str) -> Result<T, DecodeError> {
        let value = self.0.iter().find(|(k, _)| *k == key).map(|(_, v)| v);
        value
            .and_then(|v| v.parse().ok())
            .ok_or(DecodeError("missing or malformed field"))
    }
}
