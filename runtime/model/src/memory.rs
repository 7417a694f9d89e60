//! A machine in memory, which outlives the daemon. Cgroups are directories; a live process keeps
//! its cgroup busy by a directory in it, which is not a cgroup.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    ffi::CStr,
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Weak},
    time::Duration,
};

use cairn::{
    image::{self, Rootfs, Userns},
    pod::{machine::Machine, state::Pod},
};
use cni_shim::{
    Attach, Attachment, NetworkError,
    namespaces::{NamespaceError, PinSpec, Pinned},
};
use futures_util::future::BoxFuture;
use nri::proto::{ContainerUpdate, LinuxContainerUpdate};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    acknowledged::Acknowledged,
    drawn::{drawn, some_ms},
    kept::Kept,
    plan::Hazard,
    rule::{Fault, Rule},
    values::{Values, nri_of},
};

#[derive(Default)]
pub(crate) struct Inner {
    pub pins: BTreeSet<PathBuf>,
    pub mounts: Vec<PathBuf>,
    pub networks: BTreeMap<String, Attached>,
    pub monitors: BTreeMap<PathBuf, Kept>,
    /// Directories of monitors that were killed while their containers ran, and when in this life.
    pub lost: BTreeMap<PathBuf, Option<Instant>>,
    pub next_pid: i32,
    /// By directory of the monitor: the code of the container, and when it ended in this life.
    pub exits: BTreeMap<PathBuf, (i32, Option<Instant>)>,
    pub values: Values,
    pub acknowledged: Acknowledged,
    /// Containers that are evicted by an acknowledged request, and since when in this life.
    pub evicted: BTreeMap<String, Option<Instant>>,
    /// Also the name of the boot.
    pub power_cuts: u64,
    /// See [`Plan::hazards`]; empty at the end of a run.
    pub hazards: BTreeMap<Hazard, u64>,
    /// Nothing begins any more but removals.
    pub is_over: bool,
    /// Pods that clients have seen in this life.
    pub pods: Vec<Weak<Pod>>,
    /// The start of this life.
    pub begun: Option<Instant>,
    pub log: Vec<String>,
    pub faults: Vec<Fault>,
}

/// The network of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Attached {
    Begun,
    Up,
    /// It did not come up, and its owner is the network layer.
    Left,
}

/// Clones share the machine.
#[derive(Clone, Default)]
pub(crate) struct Memory(pub Arc<Mutex<Inner>>);

impl Memory {
    pub(crate) fn fault(&self, rule: Rule, text: String) {
        let fault = Fault { rule, text };
        self.log(format!("FAULT {fault}"));
        self.0.lock().faults.push(fault);
    }

    /// One line, with the time of this life.
    pub(crate) fn log(&self, line: String) {
        let mut inner = self.0.lock();
        let line = match inner.begun {
            Some(begun) => format!("{:>9.3} {line}", begun.elapsed().as_secs_f64()),
            None => format!("        - {line}"),
        };
        inner.log.push(line);
    }

    /// Begins a plugin's update of a container.
    pub(crate) fn update_of(&self, container: &str) -> (i64, ContainerUpdate) {
        let values = &mut self.0.lock().values;
        let number = values.number();
        values.begin(container, number);
        let update = ContainerUpdate {
            container_id: container.to_owned(),
            linux: Some(LinuxContainerUpdate {
                resources: Some(nri_of(number)),
            }),
            ignore_failure: false,
        };
        (number, update)
    }

    pub(crate) fn happens(&self, hazard: Hazard) -> bool {
        let one_of = self.0.lock().hazards.get(&hazard).copied();
        one_of.is_some_and(|one_of| drawn(one_of) == 0)
    }

    fn fails(&self) -> bool {
        self.happens(Hazard::Fails)
    }

    fn set(&self, sandbox: &str, attached: Attached) {
        let mut inner = self.0.lock();
        inner.networks.insert(sandbox.to_owned(), attached);
    }

    /// A DEL whose agent answers late, or not.
    async fn wait_for_agent(&self) -> Result<(), NetworkError> {
        if !self.happens(Hazard::Dels) {
            return Ok(());
        }
        let waits = [Duration::from_secs(5), Duration::from_secs(20), DEL][drawn(3) as usize];
        tokio::time::sleep(waits).await;
        match waits {
            DEL => Err(failed("wait for the agent")),
            _ => Ok(()),
        }
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
                .iter()
                .filter(|(_, attached)| **attached != Attached::Left)
                .map(|(id, _)| format!("network {id}"))
                .collect(),
        ]
        .concat()
    }
}

/// The time limit of a DEL.
pub(crate) const DEL: Duration = Duration::from_secs(60);

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
            self.fault(Rule::Order, format!("mounted twice: {}", at.display()));
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
                self.fault(Rule::Order, format!("attached twice: {id}"));
                return Err(NetworkError::AlreadyAttached(id));
            }
            if !self.is_pinned(&attach.netns) {
                self.fault(Rule::Order, format!("attached without a namespace: {id}"));
            }
            self.set(&id, Attached::Begun);
            some_ms(60).await;
            if self.fails() {
                return Err(failed("attach"));
            }
            if self.happens(Hazard::Dels) && drawn(2) == 0 {
                self.set(&id, Attached::Left);
                return Err(failed("attach, and undo it"));
            }
            self.set(&id, Attached::Up);
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
            self.wait_for_agent().await?;
            let attached = self.0.lock().networks.get(sandbox).copied();
            if self.fails() && attached == Some(Attached::Up) {
                return Err(failed("detach"));
            }
            if attached != Some(Attached::Left) {
                self.0.lock().networks.remove(sandbox);
            }
            Ok(())
        })
    }

    fn abandon<'a>(&'a self, sandbox: &'a str) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            self.fault(Rule::Order, format!("abandoned without force: {sandbox}"));
            Ok(())
        })
    }

    fn gc<'a>(
        &'a self,
        valid: &'a (dyn Fn() -> HashSet<String> + Sync),
    ) -> BoxFuture<'a, Result<(), NetworkError>> {
        Box::pin(async move {
            let all = self.0.lock().networks.clone();
            let valid = valid();
            for (id, attached) in all.iter().filter(|(id, _)| !valid.contains(*id)) {
                if *attached == Attached::Left {
                    // One at a time, as in cni-shim.
                    if self.wait_for_agent().await.is_ok() {
                        self.0.lock().networks.remove(id);
                    }
                } else {
                    // The record before an effect suffices to undo it (invariant 6).
                    self.fault(Rule::Order, format!("a network that no record owns: {id}"));
                }
            }
            Ok(())
        })
    }
}
