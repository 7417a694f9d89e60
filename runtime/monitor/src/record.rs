//! What lies in the container's directory: `launch` and `join` (written by the daemon, read by the monitor and
//! `cairn-create`), `pid` and `exit` (written by the monitor). Each carries the version of the protocol.
//!
//! `pid` and `exit` are lines of `key=value`, for people too. `exit` appears atomically (temporary file, fdatasync,
//! rename), so that it is either absent or whole.

use crate::codec::{self, DecodeError, VERSION, coded};

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

/// Makes a struct a file for people too: a line for the version, then one for each field. A field's name is its key in the
/// files of monitors that still run: never rename one.
macro_rules! lines {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl $type {
            pub fn to_text(&self) -> String {
                let mut text = format!("version={VERSION}\n");
                $(text += &format!("{}={}\n", stringify!($field), self.$field);)*
                text
            }

            pub fn from_text(text: &str) -> Result<$type, DecodeError> {
                let fields = Fields::parse(text)?;
                Ok($type { $($field: fields.get(stringify!($field))?),* })
            }
        }
    };
}

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

coded!(Exit {
    code,
    signal,
    finished_at,
    oom_killed,
    started,
    log_lost,
});
lines!(Exit {
    code,
    signal,
    finished_at,
    oom_killed,
    started,
    log_lost,
});

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

lines!(Pid {
    pid,
    start_time,
    boot_id,
    monitor,
});

/// The process whose PID namespace is joined, as `join`. A number alone could be another's by now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    pub pid: i32,
    /// As [`Pid::start_time`].
    pub start_time: u64,
    /// Path of the namespace's procfs on the host; empty: only the process has it, at `/proc`.
    pub procfs: String,
}

lines!(Join {
    pid,
    start_time,
    procfs
});

/// One cgroup directory of the container, made by the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupDir {
    /// `cpu`, `memory`, `freezer`, `name=systemd`, ...; empty for cgroup v2, also the one beside v1.
    pub controller: String,
    pub path: String,
}

coded!(CgroupDir { controller, path });

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

coded!(Launch {
    id,
    create,
    cgroups,
    tty,
    stdin,
    stdin_once,
    log_path,
    max_log_line,
    seccomp_cache,
});

impl Launch {
    pub fn encode(&self) -> Vec<u8> {
        codec::to_file(self)
    }

    pub fn decode(bytes: &[u8]) -> Result<Launch, DecodeError> {
        codec::from_file(bytes, "unsupported version of the launch file")
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
