//! Inside libcontainer's init: preparations before the start signal, and the tail after it.
//!
//! libcontainer gets a spec without user, capabilities, limits, seccomp and no_new_privs: init
//! arrives here with every privilege, and `cairn_monitor::tail` confines it exactly like an exec.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use cairn_monitor::mount_tree::{self, Attributes};
use cairn_monitor::report::{REACHED, STATUS_FD};
use cairn_monitor::scheduling::Scheduling;
use cairn_monitor::sys;
use cairn_monitor::tail::Tail;
use libcontainer::workload::{
    Executor, ExecutorError, ExecutorSetEnvsError, ExecutorValidationError,
};
use oci_spec::runtime::Spec;

use crate::adjust::{Origin, Place, Tree};
use crate::birth::Birth;
use crate::devices::DevTree;
use crate::hooks::Early;
use crate::host_proc::HostProc;
use crate::inherited;
use crate::root::{self, Root, is_missing};
use crate::start_hooks::{StartHook, Waiting};
use crate::strip::Settings;

/// Called, and cloned, by libcontainer.
#[derive(Clone)]
pub(crate) struct Init(pub(crate) Rc<Ready>);

/// The inputs of init, read and opened before it.
pub(crate) struct Ready {
    pub(crate) tail: Tail,
    pub(crate) scheduling: Scheduling,
    pub(crate) hooks: Vec<StartHook>,
    pub(crate) settings: Settings,
    pub(crate) places: Vec<Place>,
    /// Of [`Origin::Tree`].
    pub(crate) trees: Vec<(Tree, OwnedFd)>,
    pub(crate) early: Option<HostHooks>,
    /// Set if the program runs in a process of a joined PID namespace, not in this one.
    pub(crate) birth: Option<Birth>,
    pub(crate) proc: HostProc,
    pub(crate) sysctls: Vec<(String, String)>,
}

/// OCI hooks before the start.
pub(crate) struct HostHooks {
    pub(crate) hooks: Early,
    /// The host's mounts, and the container's root among them.
    pub(crate) mounts: OwnedFd,
    pub(crate) rootfs: PathBuf,
}

impl Ready {
    /// Builds the container's root, and enters it. libcontainer has made the shell the root of this
    /// process.
    fn prepare(&self) -> Result<(), String> {
        self.write_sysctls()?;
        if let Some(label) = &self.tail.process().label {
            self.proc.label(label)?;
        }
        let namespace: Vec<RawFd> = self.birth.iter().map(|b| b.keep()).collect();
        let mounts = self.early.iter().map(|early| early.mounts.as_raw_fd());
        let trees = self.trees.iter().map(|(_, tree)| tree.as_raw_fd());
        let needed = mounts.chain(trees).chain([self.proc.keep()]);
        let needed = needed.chain(namespace.iter().copied());
        close_paths_outside(&needed.collect::<Vec<_>>());
        self.build()?;
        close_paths_outside(&namespace);
        self.find_program()?;
        match &self.birth {
            None => self.scheduling.apply(),
            // The monitor sets the scheduler of a born init.
            Some(_) => self.scheduling.apply_inherited(),
        }
        .map_err(|(step, e)| format!("{step}: {e}"))?;
        self.birth
            .as_ref()
            .map_or(Ok(()), |birth| birth.give(&self.tail))
    }

    fn write_sysctls(&self) -> Result<(), String> {
        for (name, value) in &self.sysctls {
            let path = format!("sys/{}", name.replace('.', "/"));
            self.proc
                .write(&path, value.as_bytes())
                .map_err(|e| format!("set sysctl {name}: {e}"))?;
        }
        Ok(())
    }

    /// Places all mounts in the root, runs the OCI hooks, and makes it the root of this process.
    fn build(&self) -> Result<(), String> {
        let at = |step: &'static str| move |e: io::Error| format!("{step}: {e}");
        self.take_null().map_err(at("open the null device"))?;
        let root = Root::take(&self.proc).map_err(at("take the root"))?;
        for place in &self.places {
            self.place(&root, place)
                .map_err(|e| format!("mount {}: {e}", place.destination.display()))?;
        }
        self.seal_devices().map_err(at("make /dev read-only"))?;
        let settings = &self.settings;
        root.protect(&settings.read_only_paths)?;
        root.mask(&settings.masked, settings.label.as_deref())?;
        // As other runtimes do. If it fails, the tail reports the missing directory.
        let _ = root.make_directory(Path::new(OsStr::from_bytes(&self.tail.process().cwd)));
        if let Some(early) = &self.early {
            root.show_host(&early.mounts, &early.rootfs)
                .map_err(at("enter the host's mounts for the hooks"))?;
            early.hooks.run()?;
            // The program need not expect orphans of hooks.
            while sys::reap().is_some() {}
        }
        root.enter().map_err(at("enter the root"))?;
        root.finish(settings.read_only, settings.propagation)
            .map_err(at("set the root's access"))
    }

    fn place(&self, root: &Root<'_>, place: &Place) -> io::Result<()> {
        match &place.from {
            Origin::Tree(number) => {
                let (_, tree) = &self.trees[*number];
                root.place(tree.as_fd(), &place.destination, place.propagation)
            }
            Origin::Shell(made) => {
                if let Some(label) = self.settings.label.as_ref().filter(|_| place.queues) {
                    // Few programs have queues, and some policies forbid labelling them.
                    let _ = root::label_queues(made, label);
                }
                root.place_made(made, &place.destination, place.propagation)
            }
        }
    }

    /// The container's own `/dev`, if it has one.
    fn devices(&self) -> Option<(&DevTree, BorrowedFd<'_>)> {
        let mut trees = self.trees.iter();
        trees.find_map(|(tree, fd)| match tree {
            Tree::Devices(devices) => Some((devices, fd.as_fd())),
            _ => None,
        })
    }

    /// Replaces a null device as stdio, which libcontainer opened in the shell, by the container's.
    fn take_null(&self) -> io::Result<()> {
        let device = |fd: BorrowedFd<'_>| {
            let (_, device) = sys::stat_fd(fd)?;
            Ok::<_, io::Error>(device == Some(rustix::fs::makedev(1, 3)))
        };
        let null = root::open_null(self.devices().map(|(_, fd)| fd))?;
        let stdio = [
            rustix::stdio::stdin(),
            rustix::stdio::stdout(),
            rustix::stdio::stderr(),
        ];
        for fd in stdio {
            if device(null.as_fd())? && device(fd)? {
                sys::dup_to(null.as_raw_fd(), fd.as_raw_fd())?;
            }
        }
        Ok(())
    }

    fn seal_devices(&self) -> io::Result<()> {
        match self.devices() {
            Some((devices, fd)) if devices.read_only => {
                let attributes = Attributes {
                    set: libc::MOUNT_ATTR_RDONLY,
                    ..Attributes::default()
                };
                mount_tree::set_attributes(fd, &attributes)
            }
            _ => Ok(()),
        }
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
    fn find_program(&self) -> Result<(), String> {
        let process = self.tail.process();
        let program = process.argv.first().map(|p| String::from_utf8_lossy(p));
        let program = program.unwrap_or_default();
        let mut why = None;
        for candidate in self.tail.candidates() {
            let path = match candidate.as_bytes() {
                absolute @ [b'/', ..] => absolute.to_vec(),
                relative => [process.cwd.as_slice(), b"/", relative].concat(),
            };
            match root::is_executable(&path) {
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
