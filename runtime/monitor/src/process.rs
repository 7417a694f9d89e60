//! Description of a process in the container: plain values, resolved by the daemon, carried over the wire.
//!
//! Pure. The same value drives init's last steps (in `cairn-create`) and an exec's (in the monitor), so that both end
//! up equally confined; `tail.rs` applies it.

use crate::codec::{DecodeError, Reader, Writer};

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

impl Process {
    pub fn encode(&self, w: &mut Writer) {
        let c = self.capabilities;
        w.list(&self.argv, |w, a| w.bytes(a))
            .list(&self.env, |w, e| w.bytes(e))
            .bytes(&self.cwd)
            .u32(self.uid)
            .u32(self.gid)
            .list(&self.groups, |w, g| w.u32(*g))
            .u32(self.umask)
            .u64(c.bounding)
            .u64(c.effective)
            .u64(c.permitted)
            .u64(c.inheritable)
            .u64(c.ambient)
            .bool(self.no_new_privileges)
            .bool(self.seccomp)
            .list(&self.limits, |w, l| {
                w.u32(l.resource).u64(l.soft).u64(l.hard)
            })
            .i32(self.oom_score_adj);
        match &self.label {
            None => w.u8(0),
            Some(Label::AppArmor(profile)) => w.u8(1).bytes(profile),
            // Never to a monitor of before there were labels: its container has none.
            Some(Label::Selinux(context)) => w.u8(2).bytes(context),
        };
    }

    pub fn decode(r: &mut Reader<'_>) -> Result<Process, DecodeError> {
        Ok(Process {
            argv: r.list(Reader::bytes)?,
            env: r.list(Reader::bytes)?,
            cwd: r.bytes()?,
            uid: r.u32()?,
            gid: r.u32()?,
            groups: r.list(Reader::u32)?,
            umask: r.u32()?,
            capabilities: Capabilities {
                bounding: r.u64()?,
                effective: r.u64()?,
                permitted: r.u64()?,
                inheritable: r.u64()?,
                ambient: r.u64()?,
            },
            no_new_privileges: r.bool()?,
            seccomp: r.bool()?,
            limits: r.list(|r| {
                Ok(Limit {
                    resource: r.u32()?,
                    soft: r.u64()?,
                    hard: r.u64()?,
                })
            })?,
            oom_score_adj: r.i32()?,
            label: match r.u8()? {
                0 => None,
                1 => Some(Label::AppArmor(r.bytes()?)),
                2 => Some(Label::Selinux(r.bytes()?)),
                _ => return Err(DecodeError("invalid label")),
            },
        })
    }
}
