//! Description of a process in the container: plain values, resolved by the daemon, carried over the wire.
//!
//! Pure. The same value drives init's last steps (in `cairn-create`) and an exec's (in the monitor), so that both end
//! up equally confined; `tail.rs` applies it.

use crate::codec::{Coded, DecodeError, Reader, coded};

/// A process, ready to run: nothing in here needs another look-up, except the program in its PATH.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Process {
    /// `argv[0]` is searched in the PATH of `env` if it has no slash.
    pub argv: Vec<Vec<u8>>,
    /// `KEY=value`, the whole environment.
    pub env: Vec<Vec<u8>>,
    pub cwd: Vec<u8>,
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub umask: u32,
    pub capabilities: Capabilities,
    pub no_new_privileges: bool,
    /// Load the container's compiled filter (`seccomp.bpf` in its directory).
    pub seccomp: bool,
    pub limits: Vec<Limit>,
    /// Always set: what is not set would be inherited from the monitor.
    pub oom_score_adj: i32,
    /// Set for the next execve.
    pub label: Option<Label>,
}

/// How the kernel's security module shall know a program. Of AppArmor and SELinux a kernel has one at most.
#[derive(Clone, PartialEq, Eq)]
pub enum Label {
    /// A profile's name.
    AppArmor(Vec<u8>),
    /// A context: `user:role:type:level`.
    Selinux(Vec<u8>),
}

impl Label {
    /// What is written for the next execve, and where below a task's directory in /proc.
    #[must_use]
    pub fn for_exec(&self) -> (&'static str, Vec<u8>) {
        match self {
            Label::AppArmor(profile) => {
                let text = [b"exec ", profile.as_slice()].concat();
                ("attr/apparmor/exec", text)
            }
            Label::Selinux(context) => ("attr/exec", context.clone()),
        }
    }
}

impl std::fmt::Display for Label {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (what, name) = match self {
            Label::AppArmor(profile) => ("AppArmor profile", profile),
            Label::Selinux(context) => ("SELinux label", context),
        };
        write!(f, "{what} {}", String::from_utf8_lossy(name))
    }
}

/// The five sets as bit masks (bit n = capability n). What the caller does not hold itself is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities {
    pub bounding: u64,
    pub effective: u64,
    pub permitted: u64,
    pub inheritable: u64,
    pub ambient: u64,
}

/// One resource limit; `resource` is the kernel's RLIMIT number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    pub resource: u32,
    pub soft: u64,
    pub hard: u64,
}

impl std::fmt::Debug for Process {
    /// Without arguments and environment: both may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process")
            .field("argv", &format_args!("{} words", self.argv.len()))
            .field("env", &format_args!("{} variables", self.env.len()))
            .field("uid", &self.uid)
            .field("gid", &self.gid)
            .field("no_new_privileges", &self.no_new_privileges)
            .field("seccomp", &self.seccomp)
            .finish_non_exhaustive()
    }
}

coded!(Process {
    argv,
    env,
    cwd,
    uid,
    gid,
    groups,
    umask,
    capabilities,
    no_new_privileges,
    seccomp,
    limits,
    oom_score_adj,
    label,
});
coded!(Capabilities {
    bounding,
    effective,
    permitted,
    inheritable,
    ambient,
});
coded!(Limit {
    resource,
    soft,
    hard,
});

/// By its kind; 0 is none.
impl Coded for Option<Label> {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, name) = match self {
            None => return out.push(0),
            Some(Label::AppArmor(profile)) => (1, profile),
            // Never to a monitor of before there were labels: its container has none.
            Some(Label::Selinux(context)) => (2, context),
        };
        out.push(kind);
        name.put(out);
    }

    fn take(r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match r.u8()? {
            0 => None,
            1 => Some(Label::AppArmor(Coded::take(r)?)),
            2 => Some(Label::Selinux(Coded::take(r)?)),
            _ => return Err(DecodeError("invalid label")),
        })
    }
}
