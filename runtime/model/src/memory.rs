//! A machine in memory, which outlives the daemon. Cgroups are directories; a live process keeps
//! its cgroup busy by a directory in it, which is not a cgroup.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cairn::{
    image::{self, Rootfs, Userns},
    pod::machine::Machine,
    seeded,
};
use cni_shim::{
    Attach, Attachment, NetworkError,
    namespaces::{NamespaceError, PinSpec, Pinned},
};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use crate::monitors::Kept;

#[derive(Default)]
pub(crate) struct Inner {
    pub pins: BTreeSet<PathBuf>,
    pub mounts: Vec<PathBuf>,
    /// By sandbox, and whether it came up: one that did not is the network layer's to collect.
    pub networks: BTreeMap<String, bool>,
    pub monitors: BTreeMap<PathBuf, Kept>,
    /// Directories of monitors that were killed while their containers ran.
    pub lost: BTreeSet<PathBuf>,
    pub next_pid: i32,
    /// One of this many operations (network, starts and the like) fails; 0: none.
    pub fails: u64,
    pub faults: Vec<String>,
}

/// Clones share the machine.
#[derive(Clone, Default)]
pub(crate) struct Memory(pub Arc<Mutex<Inner>>);

pub(crate) fn drawn(below: u64) -> u64 {
    seeded::draw(below).expect("a seeded run")
}

/// Sleeps a random time below this many milliseconds.
pub(crate) async fn some_ms(below: u64) {
    tokio::time::sleep(Duration::from_millis(drawn(below))).await;
}

impl Memory {
    pub(crate) fn fault(&self, what: String) {
        self.0.lock().faults.push(what);
    }

    pub(crate) fn fails(&self) -> bool {
        let one_of = self.0.lock().fails;
        one_of > 0 && drawn(one_of) == 0
    }

    fn mount(&self, at: &Path) {
        self.0.lock().mounts.push(at.to_owned());
    }

    /// The leftovers of pods.
    pub(crate) fn left(&self) -> Vec<String> {
        let inner = self.0.lock();
        let paths = |what: &str, all: Vec<&PathBuf>| -> Vec<String> {
            all.iter()
                .map(|path| format!("{what} {}", path.display()))
                .collect()
        };
        [
            paths("namespaces", inner.pins.iter().collect()),
            paths("mount", inner.mounts.iter().collect()),
            paths("monitor", inner.monitors.keys().collect()),
            inner
                .networks
                .keys()
                .map(|id| format!("network {id}"))
                .collect(),
        ]
        .concat()
    }
}

fn failed(what: &str) -> NetworkError {
    NetworkError::Worker(format!("{what}: the seed has it so"))
}

impl Machine for Memory {
    fn pin(&self, spec: &PinSpec, dir: &Path) -> Result<Pinned, NamespaceError> {
        let io = |step: &str| {
            let step = step.to_owned();
            move |cause| NamespaceError::Io { step, cause }
        };
        fs::create_dir(dir).map_err(io("create"))?;
        self.0.lock().pins.insert(dir.to_owned());
        if self.fails() {
            self.unpin(dir)?;
            return Err(NamespaceError::Invalid("the seed has it so".into()));
        }
        let path = |wanted: bool, name: &str| wanted.then(|| dir.join(name));
        let pinned = Pinned {
            net: path(spec.net, "net"),
            ipc: path(spec.ipc, "ipc"),
            uts: path(spec.uts, "uts"),
            user: None,
        };
        for file in [&pinned.net, &pinned.ipc, &pinned.uts]
            .into_iter()
            .flatten()
        {
            fs::write(file, "").map_err(io("pin"))?;
        }
        Ok(pinned)
    }

    fn unpin(&self, dir: &Path) -> Result<(), NamespaceError> {
        self.0.lock().pins.remove(dir);
        match fs::remove_dir_all(dir) {
            Err(cause) if cause.kind() != io::ErrorKind::NotFound => {
                let step = "unpin".to_owned();
                Err(NamespaceError::Io { step, cause })
            }
            _ => Ok(()),
        }
    }

    fn is_pinned(&self, path: &Path) -> bool {
        let dir = path.parent().expect("a pin is in a directory");
        self.0.lock().pins.contains(dir)
    }

    fn mount_tmpfs(&self, _: &str, at: &Path, _: &CStr) -> io::Result<()> {
        if self.0.lock().mounts.iter().any(|mount| mount == at) {
            self.fault(format!("mounted twice: {}", at.display()));
        }
        self.mount(at);
        Ok(())
    }

    fn mount_root(
        &self,
        _: &Rootfs,
        at: &Path,
        _: Option<Userns>,
        _: Option<&str>,
    ) -> Result<(), image::Error> {
        self.mount(at);
        Ok(())
    }

    fn pin_procfs(&self, _: i32, _: u64, _: &Path, at: &Path) -> io::Result<()> {
        fs::create_dir(at)?;
        self.mount(at);
        Ok(())
    }

    fn unmount(&self, at: &Path) -> io::Result<()> {
        let mut inner = self.0.lock();
        let before = inner.mounts.len();
        inner.mounts.retain(|mount| !mount.starts_with(at));
        if inner.mounts.len() < before {
            Ok(())
        } else {
            Err(io::ErrorKind::InvalidInput.into())
        }
    }

    fn attach(&self, attach: Attach) -> BoxFuture<'_, Result<Attachment, NetworkError>> {
        Box::pin(async move {
            let id = attach.sandbox_id;
            if self.0.lock().networks.contains_key(&id) {
                self.fault(format!("attached twice: {id}"));
                return Err(NetworkError::AlreadyAttached(id));
            }
            if !self.is_pinned(&attach.netns) {
                self.fault(format!("attached without a namespace: {id}"));
            }
            self.0.lock().networks.insert(id.clone(), false);
            some_ms(60).await;
            if self.fails() {
                return Err(failed("attach"));
            }
            self.0.lock().networks.insert(id, true);
            Ok(Attachment {
                ips: vec!["10.0.0.1".parse().expect("an address")],
                network: "memory".into(),
                result: serde_json::json!({}),
                warnings: Vec::new(),
            })
        })
    }

    fn detach<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            some_ms(30).await;
            let came_up = self.0.lock().networks.get(sandbox) == Some(&true);
            if self.fails() && came_up {
                return Err(failed("detach"));
            }
            self.0.lock().networks.remove(sandbox);
            Ok(())
        })
    }

    fn abandon<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            self.fault(format!("abandoned without force: {sandbox}"));
            Ok(())
        })
    }

    fn gc<'a>(&'a self, valid: &'a HashSet<String>) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            // The record before an effect suffices to undo it (invariant 6).
            let left = self.0.lock().networks.clone();
            for id in left.keys().filter(|id| !valid.contains(*id)) {
                self.fault(format!("a network that no record owns: {id}"));
            }
            Ok(())
        })
    }
}
