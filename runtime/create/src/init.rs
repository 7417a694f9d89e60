//! Inside libcontainer's init: preparations before the start signal, and the tail after it.
//!
//! libcontainer gets a spec without user, capabilities, limits, seccomp and no_new_privs: init
//! arrives here with every privilege, and `cairn_monitor::tail` confines it exactly like an exec.

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
use rustix::mount::UnmountFlags;

use crate::adjust::{DEVICES, Propagation};
use crate::birth::Birth;
use crate::host_proc::HostProc;
use crate::inherited;
use crate::place::{self, Trees};
use crate::start_hooks::{StartHook, Waiting};

/// Called, and cloned, by libcontainer.
#[derive(Clone)]
pub(crate) struct Init(pub(crate) Rc<Ready>);

/// The inputs of init, read and opened before it.
pub(crate) struct Ready {
    pub(crate) tail: Tail,
    pub(crate) scheduling: Scheduling,
    pub(crate) hooks: Vec<StartHook>,
    pub(crate) propagation: Vec<Propagation>,
    pub(crate) trees: Trees,
    /// A tmpfs of libcontainer's is on the bound [`DEVICES`].
    pub(crate) covered: bool,
    /// Set if the program runs in a process of a joined PID namespace, not in this one.
    pub(crate) birth: Option<Birth>,
    pub(crate) proc: HostProc,
    /// The mount point of message queues, and their SELinux label.
    pub(crate) queues: Option<(PathBuf, String)>,
}

impl Ready {
    /// Prepares inside the container's root, with all mounts. The image controls the paths used
    /// here, so descriptors that lead outside are closed before.
    fn prepare(&self) -> Result<(), String> {
        if let Some(birth) = &self.birth {
            birth.write_settings(&self.proc)?;
        }
        if let Some(label) = &self.tail.process().label {
            self.proc.label(label)?;
        }
        if self.covered {
            rustix::mount::unmount(DEVICES, UnmountFlags::DETACH)
                .map_err(|e| format!("uncover {DEVICES}: {e}"))?;
        }
        let namespace = self.birth.iter().map(|b| b.keep());
        let trees = self.trees.iter().map(|(tree, _)| tree.as_raw_fd());
        close_paths_outside(&namespace.clone().chain(trees).collect::<Vec<_>>());
        let root = || sys::open_root().map_err(|e| format!("open the root: {e}"));
        for (tree, at) in &self.trees {
            place::attach(root()?.as_fd(), tree, at)
                .map_err(|e| format!("mount {}: {e}", at.display()))?;
        }
        close_paths_outside(&namespace.collect::<Vec<_>>());
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
            // Few programs have queues, and some policies forbid labelling them.
            let _ = label_queues(root.as_fd(), at, label);
        }
        let process = self.tail.process();
        // As other runtimes do. On a read-only root it fails; the tail then reports the error.
        let _ = rooted::make_directories(root.as_fd(), &process.cwd, 0o755);
        self.find_program(root.as_fd())?;
        match &self.birth {
            None => self.scheduling.apply(),
            // The monitor sets the scheduler of a born init.
            Some(_) => self.scheduling.apply_inherited(),
        }
        .map_err(|(step, e)| format!("{step}: {e}"))?;
        drop(root);
        self.birth
            .as_ref()
            .map_or(Ok(()), |birth| birth.give(&self.tail))
    }

    /// Runs the hooks, then the program or the born init. Returns only on error.
    fn run_program(&self, hooks: Vec<Waiting<'_>>) -> String {
        if let Some(birth) = &self.birth {
            let release = || birth.release().map_err(|e| format!("start init: {e}"));
            return match run(hooks).and_then(|()| release()) {
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
        // The program need not expect orphans of hooks.
        while had_hooks && sys::reap().is_some() {}
        tail.describe(&tail.execute())
    }

    /// Fails the creation, not the start, if the program is missing. A path through a link of
    /// procfs counts as missing: `/proc/self/exe` would be this helper.
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

/// Keeps only sockets, which libcontainer still uses here; its other descriptors are done.
fn close_paths_outside(keep: &[RawFd]) {
    // SAFETY: owners of closed descriptors are in frames that never resume: execve or exit follows.
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

/// Labels the queues unless another file system covers them.
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

    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        let status = inherited::status();
        // This helper ignores SIGPIPE (hooks may not read stdin); the program must not inherit
        // that.
        sys::default_signals();
        let _ = sys::write(status, &[REACHED]); // the monitor may be dead
        let hooks = self.0.hooks.iter();
        let hooks = hooks.map(|hook| hook.begin(self.0.birth.as_ref()));
        let error = match hooks.collect::<Result<Vec<_>, _>>() {
            Ok(hooks) => self.0.run_program(hooks),
            Err(text) => text,
        };
        let _ = sys::write(status, error.as_bytes()); // the monitor may be dead
        sys::exit_now(127)
    }
}
