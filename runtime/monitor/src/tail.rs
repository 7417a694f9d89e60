//! The last steps before a program: of init (in `cairn-create`'s child) and of execs (in the
//! monitor's child). One function, so that both are equally confined.
//!
//! Order: descriptors closed → limits → umask → stdio's owner → cwd → keep capabilities → [filter,
//! without no_new_privs: it needs CAP_SYS_ADMIN] → bounding set → groups → ids → capabilities → cwd
//! as the user → no_new_privs: the process then has the container's rights only. An exec is born
//! into the pid namespace here → [filter] → execve. The caller sets namespaces, cgroups, session,
//! keyring, stdio and oom_score_adj before.
//!
//! No path of the container is used while a descriptor could lead out of it (CVE-2024-21626).

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::RawFd;

use rustix::stdio::{stderr, stdin, stdout};

use crate::filter::Filter;
use crate::process::{Label, Process};
use crate::rooted;
use crate::sys::{self, ExecVector};

/// A prepared process: applying it opens only its working directory.
pub struct Tail {
    process: Process,
    argv: ExecVector,
    env: ExecVector,
    candidates: Vec<CString>,
    filter: Option<(Vec<libc::sock_filter>, u32)>,
}

/// The step that failed and the kernel's reason.
#[derive(Debug)]
pub struct TailError {
    pub step: &'static str,
    pub cause: io::Error,
}

fn at(step: &'static str) -> impl FnOnce(io::Error) -> TailError {
    move |cause| TailError { step, cause }
}

/// Used when the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Tail {
    /// Fails on a NUL byte, an empty argv, or a missing filter.
    pub fn new(process: Process, filter: Option<&Filter>) -> Result<Tail, String> {
        let program = process.argv.first().cloned().unwrap_or_default();
        Tail::of_program(&program, process, filter)
    }

    /// As `new`, with a program other than `argv[0]`.
    pub fn of_program(
        program: &[u8],
        process: Process,
        filter: Option<&Filter>,
    ) -> Result<Tail, String> {
        let nul = |_| "a NUL byte in arguments or environment".to_owned();
        if program.is_empty() {
            return Err("no program given".to_owned());
        }
        if process.seccomp && filter.is_none() {
            return Err("the container's seccomp filter is missing".to_owned());
        }
        let filter = filter
            .filter(|_| process.seccomp)
            .map(|f| (f.instructions(), f.flags));
        if process.cwd.contains(&0) {
            return Err("a NUL byte in the working directory".to_owned());
        }
        Ok(Tail {
            argv: ExecVector::new(&process.argv).map_err(nul)?,
            env: ExecVector::new(&process.env).map_err(nul)?,
            candidates: candidates(program, &process.env).map_err(nul)?,
            filter,
            process,
        })
    }

    pub fn process(&self) -> &Process {
        &self.process
    }

    pub fn candidates(&self) -> &[CString] {
        &self.candidates
    }

    /// Drops to the container's rights; only the filter may still be missing. Of the descriptors
    /// from 3 on only `keep` stay open.
    ///
    /// # Safety
    /// The caller is a child that ends by execve or `exit_now`, and uses no other descriptor from 3
    /// on.
    #[allow(unsafe_code)]
    pub unsafe fn become_user(&self, keep: &mut [RawFd]) -> Result<(), TailError> {
        let p = &self.process;
        // SAFETY: the caller guarantees it.
        unsafe {
            sys::close_all_but(keep);
        }
        set_limits(p).map_err(at("set resource limits"))?;
        sys::umask(p.umask);
        own_stdio(p.uid);
        // Entered as root, for a directory that only root can enter; later as the user, for one
        // that root cannot enter (NFS).
        let entered = rooted::enter(&p.cwd).is_ok();
        rustix::thread::set_keep_capabilities(true)
            .map_err(|e| at("keep capabilities")(e.into()))?;
        if !p.no_new_privileges {
            self.load_filter()?;
        }
        for cap in (0..64).filter(|c| p.capabilities.bounding >> c & 1 == 0) {
            if !sys::drop_bounding(cap).map_err(at("drop the bounding set"))? {
                break;
            }
        }
        sys::set_groups(&p.groups).map_err(at("set groups"))?;
        sys::set_ids(p.uid, p.gid).map_err(at("set user and group"))?;
        let current = sys::permitted().map_err(at("read capabilities"))?;
        let c = p.capabilities;
        let permitted = c.permitted & current;
        let inheritable = c.inheritable & (current | c.bounding);
        sys::set_capabilities(c.effective & permitted, permitted, inheritable & c.bounding)
            .map_err(at("set capabilities"))?;
        sys::set_ambient(c.ambient & permitted & inheritable)
            .map_err(at("set ambient capabilities"))?;
        if !entered {
            rooted::enter(&p.cwd).map_err(at("change to the working directory"))?;
        }
        sys::cloexec_from(3).map_err(at("mark descriptors"))?;
        if p.no_new_privileges {
            rustix::thread::set_no_new_privs(true).map_err(|e| at("set no_new_privs")(e.into()))?;
        }
        // A change of ids may have made it dumpable: the container could read our memory.
        sys::forbid_dumps().map_err(at("forbid dumps"))
    }

    fn load_filter(&self) -> Result<(), TailError> {
        let Some((program, flags)) = &self.filter else {
            return Ok(());
        };
        sys::load_filter(program, *flags).map_err(at("load the seccomp filter"))
    }

    /// As execvp: remembers EACCES, skips missing files. Follows [`Tail::become_user`].
    pub fn execute(&self) -> TailError {
        if self.process.no_new_privileges
            && let Err(e) = self.load_filter()
        {
            return e;
        }
        let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
        for path in &self.candidates {
            let error = sys::execve(path, &self.argv, &self.env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => worst = error,
                _ => return at("execute")(error),
            }
        }
        at("execute")(worst)
    }

    /// One line for users; it names the program only.
    pub fn describe(&self, error: &TailError) -> String {
        match error.step {
            "execute" => {
                let program = self
                    .process
                    .argv
                    .first()
                    .map(|p| String::from_utf8_lossy(p));
                format!("exec {:?}: {}", program.unwrap_or_default(), error.cause)
            }
            "change to the working directory" => {
                format!(
                    "change to the working directory {:?}: {}",
                    String::from_utf8_lossy(&self.process.cwd),
                    error.cause
                )
            }
            step => format!("{step}: {}", error.cause),
        }
    }
}

/// Joins a new session keyring; `/proc` must be the host's. SELinux denies a confined process the
/// keyring of an unconfined one, so the keyring gets the process's label.
pub fn own_session_keyring(p: &Process) -> io::Result<()> {
    let Some(Label::Selinux(context)) = &p.label else {
        return sys::own_session_keyring();
    };
    const NEW_KEYS: &str = "/proc/thread-self/attr/keycreate";
    let named = |e: io::Error| io::Error::new(e.kind(), format!("set keycreate: {e}"));
    write_to_proc(NEW_KEYS, context).map_err(named)?;
    sys::own_session_keyring()?;
    // A newline clears it: an empty write would not reach the kernel.
    write_to_proc(NEW_KEYS, b"\n")
}

/// Writes without O_CREAT, unlike `fs::write`: SELinux would have to allow new files in /proc.
pub fn write_to_proc(path: &str, value: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).open(path)?;
    file.write_all(value)
}

/// Raises hard limits early: this needs a privilege that a user namespace takes away.
pub fn raise_limits(p: &Process) -> io::Result<()> {
    for l in &p.limits {
        let (soft, hard) = sys::limit(l.resource)?;
        if l.hard > hard {
            sys::set_limit(l.resource, soft, l.hard)?;
        }
    }
    Ok(())
}

fn set_limits(p: &Process) -> io::Result<()> {
    p.limits
        .iter()
        .try_for_each(|l| sys::set_limit(l.resource, l.soft, l.hard))
}

/// Gives stdio to the user, who may then open /dev/stdout by name.
fn own_stdio(uid: u32) {
    const DEV_NULL: u64 = libc::makedev(1, 3);
    for fd in [stdin(), stdout(), stderr()] {
        if let Ok((owner, device)) = sys::stat_fd(fd)
            && owner != uid
            && device != Some(DEV_NULL)
        {
            let _ = sys::chown_fd(fd, uid); // refused for files that are not ours; the owner stays
        }
    }
}

fn candidates(program: &[u8], env: &[Vec<u8>]) -> Result<Vec<CString>, std::ffi::NulError> {
    if program.contains(&b'/') {
        return Ok(vec![CString::new(program)?]);
    }
    let path = env
        .iter()
        .rev()
        .find_map(|e| e.strip_prefix(b"PATH="))
        .unwrap_or(DEFAULT_PATH);
    path.split(|b| *b == b':')
        .map(|dir| {
            let mut full = if dir.is_empty() {
                b".".to_vec()
            } else {
                dir.to_vec()
            };
            full.push(b'/');
            full.extend_from_slice(program);
            CString::new(full)
        })
        .collect()
}
