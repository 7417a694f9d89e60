//! The machine that pods run on: directories, facts, programs, cgroups, images, network, stores. It
//! knows records and ids, but no pods (`the_machine_knows_no_pods`), and changes no record.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cni_shim::Network;

use super::{
    dirs::{Dirs, remove_dir},
    error::{AtStep as _, Result},
    machine::Machine,
    record::{ContainerRecord, PodRecord, Process},
    spec::SpecStore,
};
use crate::{
    cgroup::{self, Cgroup, CgroupPath},
    config::Config,
    host::lookup::Lookups,
    image::Images,
    monitor::{CgroupDir, Launcher, Monitor},
    oci::{HostFacts, Policies},
    store::{Store, Unsynced},
};

/// Time limit for the removal of an emptied cgroup.
pub const CGROUP_GONE: Duration = Duration::from_secs(5);

pub struct Node {
    pub config: Config,
    pub dirs: Dirs,
    /// For pods on the node's network.
    pub name: String,
    pub boot_id: String,
    pub host: HostFacts,
    /// The operator's policies for containers, by runtime handler.
    pub policies: Policies,
    pub lookups: Lookups,
    pub launcher: Launcher,
    pub cgroups: cgroup::Host,
    pub machine: Arc<dyn Machine>,
    pub network: Arc<Network>,
    pub images: Images,
    pub pods: Store<PodRecord>,
    pub containers: Store<ContainerRecord>,
    pub specs: SpecStore,
    pub unsynced: Unsynced,
    /// The built-in root of pause processes.
    pub pause_root: PathBuf,
    /// Runs plugins that are WebAssembly modules.
    pub wasm_host: PathBuf,
}

impl Node {
    /// The record form of a monitor's process.
    pub fn process(&self, monitor: &Monitor) -> Process {
        let (pid, start_time) = monitor.init();
        Process {
            pid: pid.unsigned_abs(),
            start_time,
            boot_id: self.boot_id.clone(),
        }
    }

    /// The cgroup of a path from a record.
    ///
    /// # Errors
    /// An invalid cgroup path; records contain none.
    pub fn cgroup(&self, path: &str) -> Result<Cgroup> {
        let path = CgroupPath::parse(path).step("cgroup path")?;
        Ok(self.cgroups.cgroup(path))
    }

    /// The directories of a cgroup that the monitor joins.
    pub fn joined_by_monitor(&self, group: &Cgroup) -> Vec<CgroupDir> {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        let v1 = self.cgroups.v1().iter().map(|hierarchy| CgroupDir {
            controller: hierarchy.controllers.join(","),
            path: text(&group.path().below(&hierarchy.mount)),
        });
        let unified = group.unified_dir().map(|dir| CgroupDir {
            controller: String::new(),
            path: text(&dir),
        });
        v1.chain(unified).collect()
    }

    /// Removes a root's mount from the host's mount table: a created container keeps it in its own
    /// mount namespace. A missing mount is fine.
    pub fn unmount_root(&self, container: &str) {
        // A failed unmount shows when the directory is removed.
        let _ = self.machine.unmount(&self.dirs.rootfs(container));
    }

    /// Ends all processes of a monitor's directory, and removes the directory. Idempotent.
    ///
    /// # Errors
    /// The step that failed; the directory stays for the next attempt.
    pub async fn end(&self, dir: &Path) -> Result<()> {
        self.launcher.cleanup(dir).await.step("clean up")?;
        remove_dir(dir).await
    }

    /// Kills the processes in a cgroup and removes it. Idempotent.
    ///
    /// # Errors
    /// The cgroup that could not be removed.
    pub async fn kill_cgroup(&self, path: &str) -> Result<()> {
        let group = self.cgroup(path)?;
        group.kill_all(CGROUP_GONE).await.step("kill")?;
        group.remove(CGROUP_GONE).await.step("remove")
    }

    /// The cgroup that the monitor of this directory was launched with.
    pub fn recorded_cgroup(&self, dir: &Path) -> Option<String> {
        let launched = Launcher::recorded_cgroups(dir);
        let unified = self.cgroups.unified().map(|unified| &unified.mount);
        let v1 = self.cgroups.v1().iter().map(|one| &one.mount);
        let mounts: Vec<_> = unified.into_iter().chain(v1).collect();
        launched.iter().find_map(|group| {
            let path = Path::new(&group.path);
            let below = mounts.iter().find_map(|m| path.strip_prefix(m).ok())?;
            Some(format!("/{}", below.display()))
        })
    }
}
