//! The last steps of a process before its program: of init (in `cairn-create`'s child) and of every exec (in the
//! monitor's child). One function, so that both are equally confined.
//!
//! Order: limits → umask → stdio's owner → cwd → keep capabilities → [filter, without no_new_privs: it needs
//! CAP_SYS_ADMIN] → bounding set → groups → ids → capabilities → cwd as the user → no_new_privs → [filter] → execve.
//! Namespaces, cgroups, session, stdio and oom_score_adj are the caller's, before.

use std::ffi::CString;
use std::io;

use crate::filter::Filter;
use crate::process::Process;
use crate::sys::{self, ExecVector};

/// A process prepared so far that applying it allocates nothing and opens nothing.
pub struct Tail {
    process: Process,
    cwd: CString,
    argv: ExecVector,
    env: ExecVector,
    /// Where the program may be, in this order.
    candidates: Vec<CString>,
    filter: Option<(Vec<libc::sock_filter>, u32)>,
}

/// The step that failed and the kernel's reason.
#[derive(Debug)]
pub struct TailError {
    pub step: &'static str,
    pub cause: io::Error,
}

/// Used when the environment has no PATH.
const DEFAULT_PATH: &[u8] = b"/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Tail {
    /// Fails on a NUL byte, an empty argv, or a filter that is asked for and not given.
    pub fn new(process: Process, filter: Option<&Filter>) -> Result<Tail, String> {
        let program = process.argv.first().cloned().unwrap_or_default();
        Tail::of_program(&program, process, filter)
    }

    /// As `new`, for a program that `argv[0]` does not name.
    pub fn of_program(
        program: &[u8],
        process: Process,
        filter: Option<&Filter>,
    ) -> Result<Tail, String> {
        let nul = |_| "a NUL byte in arguments, environment or working directory".to_owned();
        if program.is_empty() {
            return Err("no program is given".to_owned());
        }
        if process.seccomp && filter.is_none() {
            return Err("the container's seccomp filter is missing".to_owned());
        }
        let filter = filter
            .filter(|_| process.seccomp)
            .map(|f| (f.instructions(), f.flags));
        let cwd = if process.cwd.is_empty() {
            b"/".to_vec()
        } else {
            process.cwd.clone()
        };
        Ok(Tail {
            cwd: CString::new(cwd).map_err(nul)?,
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

    /// Where the program may be, in the order they are tried.
    pub fn candidates(&self) -> &[CString] {
        &self.candidates
    }

    /// Becomes the program. Returns only with the error.
    pub fn run(&self) -> TailError {
        match self.confine() {
            Ok(()) => self.execute(),
            Err(e) => e,
        }
    }

    fn confine(&self) -> Result<(), TailError> {
        let p = &self.process;
        let at = |step| move |cause| TailError { step, cause };
        set_limits(p).map_err(at("set resource limits"))?;
        sys::umask(p.umask);
        own_stdio(p.uid);
        // As root first: a directory only root may enter; as the user later: one that root may not (NFS).
        let entered = sys::chdir(&self.cwd).is_ok();
        sys::prctl(libc::PR_SET_KEEPCAPS, 1).map_err(at("keep capabilities"))?;
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
        let held = sys::permitted().map_err(at("read capabilities"))?;
        let c = p.capabilities;
        let permitted = c.permitted & held;
        let inheritable = c.inheritable & (held | c.bounding);
        sys::set_capabilities(c.effective & permitted, permitted, inheritable & c.bounding)
            .map_err(at("set capabilities"))?;
        sys::set_ambient(c.ambient & permitted & inheritable)
            .map_err(at("set ambient capabilities"))?;
        if !entered {
            sys::chdir(&self.cwd).map_err(at("change to the working directory"))?;
        }
        sys::cloexec_from(3).map_err(at("mark descriptors"))?;
        if p.no_new_privileges {
            sys::prctl(libc::PR_SET_NO_NEW_PRIVS, 1).map_err(at("set no_new_privs"))?;
            self.load_filter()?;
        }
        Ok(())
    }

    fn load_filter(&self) -> Result<(), TailError> {
        let Some((program, flags)) = &self.filter else {
            return Ok(());
        };
        sys::load_filter(program, *flags).map_err(|cause| TailError {
            step: "load the seccomp filter",
            cause,
        })
    }

    /// As execvp: a refusal is remembered, a missing file is not.
    fn execute(&self) -> TailError {
        let mut worst = io::Error::from_raw_os_error(libc::ENOENT);
        for path in &self.candidates {
            let error = sys::execve(path, &self.argv, &self.env);
            match error.raw_os_error() {
                Some(libc::ENOENT | libc::ENOTDIR) => {}
                Some(libc::EACCES) => worst = error,
                _ => {
                    return TailError {
                        step: "execute",
                        cause: error,
                    };
                }
            }
        }
        TailError {
            step: "execute",
            cause: worst,
        }
    }

    /// One line for people; names the program only.
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
                    self.cwd, error.cause
                )
            }
            step => format!("{step}: {}", error.cause),
        }
    }
}

/// Hard limits above the present ones need a privilege that a user namespace takes away: raise them while it is there.
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

/// So that a user may open /dev/stdout by name. Refused for what is not ours to give: then it stays as it is.
fn own_stdio(uid: u32) {
    const DEV_NULL: u64 = libc::makedev(1, 3);
    for fd in 0..3 {
        if let Ok((owner, device)) = sys::stat_fd(fd)
            && owner != uid
            && device != Some(DEV_NULL)
        {
            let _not_ours = sys::chown_fd(fd, uid);
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
