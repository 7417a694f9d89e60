//! What runs inside, in libcontainer's init: last preparations before the start signal, and the tail after it.
//!
//! libcontainer gets a spec without user, capabilities, limits, seccomp and no_new_privs, so that init still has every
//! privilege when it comes here; `cairn_monitor::tail` then confines it exactly as it confines an exec.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cairn_monitor::report::{REACHED, STATUS_FD};
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys;
use cairn_monitor::tail::Tail;
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use oci_spec::runtime::Spec;

use crate::adjust::Propagation;
use crate::place;
use crate::start_hooks::StartHook;

#[derive(Clone)]
pub struct Init {
    tail: Rc<Tail>,
    scheduling: Rc<Scheduling>,
    hooks: Rc<Vec<StartHook>>,
    propagation: Rc<Vec<Propagation>>,
    /// The container's view of its cgroups, and where it belongs.
    cgroups: Option<Rc<(OwnedFd, PathBuf)>>,
}

impl Init {
    pub fn new(
        tail: Tail,
        scheduling: Scheduling,
        hooks: Vec<StartHook>,
        propagation: Vec<Propagation>,
        cgroups: Option<(OwnedFd, PathBuf)>,
    ) -> Init {
        Init {
            tail: Rc::new(tail),
            scheduling: Rc::new(scheduling),
            hooks: Rc::new(hooks),
            propagation: Rc::new(propagation),
            cgroups: cgroups.map(Rc::new),
        }
    }

    fn prepare(&self) -> Result<(), String> {
        if let Some((tree, at)) = self.cgroups.as_deref() {
            place::attach(tree, at)
                .map_err(|e| format!("mount the cgroups at {}: {e}", at.display()))?;
        }
        for p in self.propagation.iter() {
            place::set_propagation(&p.destination, p.flags).map_err(|e| {
                format!(
                    "set the propagation of mount {}: {e}",
                    p.destination.display()
                )
            })?;
        }
        let process = self.tail.process();
        let cwd = Path::new(std::ffi::OsStr::from_bytes(&process.cwd));
        if !cwd.exists() {
            // As the peers do. On a read-only root it fails, and changing to it will say why.
            let _reported_by_the_tail = fs::create_dir_all(cwd);
        }
        self.find_program()?;
        self.scheduling
            .apply()
            .map_err(|(step, e)| format!("{step}: {e}"))
    }

    /// So that a missing program fails the creation and not the start.
    fn find_program(&self) -> Result<(), String> {
        let program = self
            .tail
            .process()
            .argv
            .first()
            .map(|p| String::from_utf8_lossy(p));
        let program = program.unwrap_or_default();
        let cwd = Path::new(std::ffi::OsStr::from_bytes(&self.tail.process().cwd));
        let found = self.tail.candidates().iter().filter_map(|c: &CString| {
            fs::metadata(cwd.join(std::ffi::OsStr::from_bytes(c.as_bytes()))).ok()
        });
        let mut found = found.peekable();
        if found.peek().is_none() {
            let place = if program.contains('/') {
                "no such file"
            } else {
                "not found in PATH"
            };
            return Err(format!("exec {program:?}: {place}"));
        }
        let executable = |m: &fs::Metadata| {
            use std::os::unix::fs::PermissionsExt;
            m.is_file() && m.permissions().mode() & 0o111 != 0
        };
        if found.any(|m| executable(&m)) {
            Ok(())
        } else {
            Err(format!("exec {program:?}: not executable"))
        }
    }
}

impl Executor for Init {
    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        self.prepare().map_err(|text| {
            tracing::error!("{text}");
            ExecutorValidationError::ArgValidationError(text)
        })
    }

    /// The tail hands the environment to execve itself.
    fn setup_envs(&self, _: HashMap<String, String>) -> Result<(), ExecutorSetEnvsError> {
        Ok(())
    }

    fn exec(&self, _: &Spec) -> Result<(), ExecutorError> {
        // SAFETY: descriptor 7 is the monitor's pipe, open until execve; nobody in this process closes it.
        #[allow(unsafe_code)]
        let status = unsafe { BorrowedFd::borrow_raw(STATUS_FD) };
        // This helper ignores SIGPIPE (a hook need not read its stdin); the program must not inherit that.
        sys::default_signals();
        let _nobody_listens = sys::write(status, &[REACHED]);
        let error = match self.hooks.iter().try_for_each(StartHook::run) {
            Ok(()) => self.tail.describe(&self.tail.run()),
            Err(text) => text,
        };
        let _nobody_listens = sys::write(status, error.as_bytes());
        sys::exit_now(127)
    }
}
