//! A process in the container: plain values, resolved by the daemon, carried over the wire.
//!
//! Pure. The same value drives the last steps of init (in `cairn-create`) and of an exec (in the
//! monitor), so that both are equally confined; `tail.rs` applies it.

use crate::codec::{Coded, DecodeError, Reader, coded};

/// A process, ready to run: only the program is still looked up, in its PATH.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Process {
    /// `argv[0]` is searched in the PATH of `env` if it has no slash.
    pub argv: Vec<Vec<u8>>,
    /// `KEY=value`; the complete environment.
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
    /// Always set; otherwise the monitor's value would be inherited.
    pub oom_score_adj: i32,
    /// Set for the next execve.
    pub label: Option<Label>,
}

/// The security label of a process. A kernel has AppArmor or SELinux, not both.
#[derive(Clone, PartialEq, Eq)]
pub enum Label {
    /// A profile's name.
    AppArmor(Vec<u8>),
    /// A context: `user:role:type:level`.
    Selinux(Vec<u8>),
}

impl Label {
    /// A file below a task's directory in /proc, and the bytes to write there for the next execve.
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

/// The five sets as masks (bit n = capability n). Capabilities that the caller lacks are left out.
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
    /// Omits arguments and environment: both may contain secrets.
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

/// Encoded by its kind; 0 means no label.
impl Coded for Option<Label> {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, name) = match self {
            None => return out.push(0),
            Some(Label::AppArmor(profile)) => (1, profile),
            // Monitors older than labels never receive this: their containers have none.
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
