//! Files in the container's directory: `launch` and `join` (written by the daemon), `pid` and
//! `exit` (written by the monitor). Each has the protocol's version.
//!
//! `pid` and `exit` are lines of `key=value`, readable by people. `exit` appears atomically
//! (temporary file, fdatasync, rename): it is absent or complete.

use crate::codec::{self, DecodeError, VERSION, coded};

/// Name of the control socket in the container's directory.
pub const CTL: &str = "ctl.sock";
pub const LAUNCH: &str = "launch";
pub const PID: &str = "pid";
pub const EXIT: &str = "exit";
/// The compiled seccomp filter, if the container has one.
pub const SECCOMP: &str = "seccomp.bpf";
/// Scheduler, I/O priority and memory policy, if the container has any.
pub const SCHEDULING: &str = "scheduling";
/// OCI hooks to run after create (`poststart`, `poststop`), one per line; absent if there are none.
pub const HOOKS: &str = "hooks";
/// The processes that run these hooks, each with its own name ([`Pid`]). A process of a hook is in
/// no cgroup of the container, and below one of these.
pub const HOOK_PIDS: [(&str, &str); 2] =
    [("poststart", "poststart.pid"), ("poststop", "poststop.pid")];
/// The process whose PID namespace the container joins, if it does ([`Join`]).
pub const JOIN: &str = "join";
/// The OCI spec.
pub const CONFIG: &str = "config.json";

/// Encodes a struct as lines: the version, then `field=value`. Running monitors have written files
/// with these keys: never rename a field.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The exit code, or 128 + signal as in a shell.
    pub code: i32,
    /// The signal that killed it, or 0.
    pub signal: i32,
    /// Nanoseconds since 1970.
    pub finished_at: u64,
    /// The kernel killed one of its processes for memory (CRI-144), and init died of SIGKILL.
    pub oom_killed: bool,
    /// False if init ended before its program ran (killed before start, or start failed).
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

/// Identity of a process (init, or one that runs hooks), safe across pid reuse and reboot
/// (CRI-813).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pid {
    pub pid: i32,
    /// Field 22 of `/proc/<pid>/stat`: clock ticks after boot.
    pub start_time: u64,
    pub boot_id: String,
    /// The monitor itself, so that the daemon can check whether it is alive.
    pub monitor: i32,
}

lines!(Pid {
    pid,
    start_time,
    boot_id,
    monitor,
});

/// The process whose PID namespace is joined, from `join`. Its start time detects a reused pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    pub pid: i32,
    /// As [`Pid::start_time`].
    pub start_time: u64,
    /// The namespace's procfs on the host; empty if only the process has one, at its `/proc`.
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
    /// `cpu`, `memory`, `freezer`, `name=systemd`, ...; empty for cgroup v2, also beside v1.
    pub controller: String,
    pub path: String,
}

coded!(CgroupDir { controller, path });

impl CgroupDir {
    pub fn unified(&self) -> bool {
        self.controller.is_empty()
    }
}

/// Everything that a monitor needs before `create`. The daemon writes it as `launch`.
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
