//! Inside libcontainer's init: last preparations before the start signal, and the tail after it.
//!
//! libcontainer gets a spec without user, capabilities, limits, seccomp and no_new_privs, so that init still has every
//! privilege when it comes here; `cairn_monitor::tail` then confines it exactly as it confines an exec.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cairn_monitor::report::{REACHED, STATUS_FD};
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::tail::Tail;
use cairn_monitor::{rooted, sys};
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use oci_spec::runtime::Spec;
use rustix::fs::OFlags;

use crate::adjust::Propagation;
use crate::birth::Birth;
use crate::host_proc::HostProc;
use crate::inherited;
use crate::place::{self, Trees};
use crate::start_hooks::{StartHook, Waiting};

/// What libcontainer calls; it copies it.
#[derive(Clone)]
pub(crate) struct Init(pub(crate) Rc<Ready>);

/// What init needs, read and opened before.
pub(crate) struct Ready {
    pub(crate) tail: Tail,
    pub(crate) scheduling: Scheduling,
    pub(crate) hooks: Vec<StartHook>,
    pub(crate) propagation: Vec<Propagation>,
    pub(crate) trees: Trees,
    /// Where the program is not ours to become, but that of a process in another PID namespace.
    pub(crate) birth: Option<Birth>,
    pub(crate) proc: HostProc,
    /// Where message queues are mounted, and their SELinux label.
    pub(crate) queues: Option<(PathBuf, String)>,
}

impl Ready {
    /// The container's root is ours, with all that libcontainer mounts. Its image may have laid traps in the paths that
    /// are touched here: descriptors that lead out of it are closed before.
    fn prepare(&self) -> Result<(), String> {
        if let Some(birth) = &self.birth {
            birth.write_settings(&self.proc)?;
        }
        if let Some(label) = &self.tail.process().label {
            self.proc.label(label)?;
        }
        let namespace = self.birth.iter().map(|b| b.keep());
        let trees = self.trees.iter().map(|(tree, _)| tree.as_raw_fd());
        close_what_leads_outside(&namespace.clone().chain(trees).collect::<Vec<_>>());
        let root = || sys::open_root().map_err(|e| format!("open the root: {e}"));
        for (tree, at) in &self.trees {
            place::attach(root()?.as_fd(), tree, at)
                .map_err(|e| format!("mount {}: {e}", at.display()))?;
        }
        close_what_leads_outside(&namespace.collect::<Vec<_>>());
        let root = root()?;
        for p in &self.propagation {
            place::set_propagation(&p.destination, p.flags).map_err(|e| {
                format!(
                    "set the propagation of mount {}: {e}",
                    p.destination.display()
                )
            })?;
        }
        if let Some((at, label)) = &self.queues {
            // Few programs have queues, and not every policy lets them be labelled.
            let _ = label_queues(root.as_fd(), at, label);
        }
        let process = self.tail.process();
        // As the peers do. On a read-only root it fails, and entering it will say why.
        let _ = rooted::make_directories(root.as_fd(), &process.cwd, 0o755);
        self.find_program(root.as_fd())?;
        match &self.birth {
            None => self.scheduling.apply(),
            // The scheduler is given to it by the monitor.
            Some(_) => self.scheduling.apply_inherited(),
        }
        .map_err(|(step, e)| format!("{step}: {e}"))?;
        drop(root);
        self.birth
            .as_ref()
            .map_or(Ok(()), |birth| birth.give(&self.tail))
    }

    /// Runs the hooks, and becomes the program or lets it go on. Returns only with an error.
    fn go_on(&self, hooks: Vec<Waiting<'_>>) -> String {
        if let Some(birth) = &self.birth {
            let let_go = || birth.let_go().map_err(|e| format!("start init: {e}"));
            return match run(hooks).and_then(|()| let_go()) {
                Ok(()) => sys::exit_now(0),
                Err(text) => text,
            };
        }
        let tail = &self.tail;
        let mut keep: Vec<RawFd> = hooks.iter().flat_map(Waiting::keep).collect();
        keep.push(STATUS_FD);
        // SAFETY: only these are used from here on, and `exit_now` follows.
        #[allow(unsafe_code)]
        if let Err(e) = unsafe { tail.become_user(&mut keep) } {
            return tail.describe(&e);
        }
        let had_hooks = !hooks.is_empty();
        if let Err(text) = run(hooks) {
            return text;
        }
        // Orphans of hooks: the program need not expect any.
        while had_hooks && sys::reap().is_some() {}
        tail.describe(&tail.execute())
    }

    /// So that a missing program fails the creation and not the start. One that is reached through a link of procfs is
    /// none: `/proc/self/exe` would be this helper.
    fn find_program(&self, root: BorrowedFd<'_>) -> Result<(), String> {
        let process = self.tail.process();
        let program = process.argv.first().map(|p| String::from_utf8_lossy(p));
        let program = program.unwrap_or_default();
        let mut why = None;
        for candidate in self.tail.candidates() {
            let path = match candidate.as_bytes() {
                absolute @ [b'/', ..] => absolute.to_vec(),
                relative => [process.cwd.as_slice(), b"/", relative].concat(),
            };
            match executable(root, &path) {
                Ok(true) => return Ok(()),
                Ok(false) => why = Some("not executable".to_owned()),
                Err(e) if is_missing(&e) => {}
                Err(e) => why = why.or(Some(e.to_string())),
            }
        }
        let missing = if program.contains('/') {
            "no such file"
        } else {
            "not found in PATH"
        };
        Err(format!(
            "exec {program:?}: {}",
            why.as_deref().unwrap_or(missing)
        ))
    }
}

fn run(hooks: Vec<Waiting<'_>>) -> Result<(), String> {
    hooks.into_iter().try_for_each(Waiting::run)
}

/// All that libcontainer still uses in this process are its sockets: what else it opened was for what is done by now.
fn close_what_leads_outside(keep: &[RawFd]) {
    // SAFETY: owners of what is closed lie in frames that this process never returns to: it ends by execve or exit.
    #[allow(unsafe_code)]
    unsafe {
        sys::close_all_but_sockets_and_pipes(keep);
    }
}

fn is_missing(e: &io::Error) -> bool {
    matches!(
        e.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// Unless something else was mounted over them.
fn label_queues(root: BorrowedFd<'_>, at: &Path, label: &str) -> io::Result<()> {
    const MQUEUE_MAGIC: u64 = 0x1980_0202;
    let dir = rooted::open(
        root,
        at.as_os_str().as_bytes(),
        OFlags::RDONLY | OFlags::DIRECTORY,
    )?;
    if u64::try_from(rustix::fs::fstatfs(&dir)?.f_type) != Ok(MQUEUE_MAGIC) {
        return Ok(());
    }
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::fsetxattr(&dir, "security.selinux", label.as_bytes(), flags)?;
    Ok(())
}

fn executable(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<bool> {
    use std::os::unix::fs::PermissionsExt;
    let metadata: fs::Metadata = File::from(rooted::open(root, path, OFlags::PATH)?).metadata()?;
    Ok(metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

impl Executor for Init {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.0.prepare().map_err(|text| {
            tracing::error!("{text}");
            ExecutorValidationError::ArgValidationError(text)
        })
    }

    /// The tail hands the environment to execve itself.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let status = inherited::status();
        // This helper ignores SIGPIPE (a hook need not read its stdin); the program must not inherit that.
        sys::default_signals();
        // The reader may have ended.
        let _ = sys::write(status, &[REACHED]);
        let hooks = self.0.hooks.iter();
        let hooks = hooks.map(|hook| hook.begin(self.0.birth.as_ref()));
        let error = match hooks.collect::<Result<Vec<_>, _>>() {
            Ok(hooks) => self.0.go_on(hooks),
            Err(text) => text,
        };
        // The reader may have ended.
        let _ = sys::write(status, error.as_bytes());
        sys::exit_now(127)
    }
}
