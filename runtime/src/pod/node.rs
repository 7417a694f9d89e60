//! The machine that pods run on, as the daemon opened it: directories, facts, programs, cgroups, images, network, stores.
//! It has records and ids, and no pods (`the_machine_knows_no_pods`). Nothing here changes a record.

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

/// How long an emptied cgroup may take to go.
pub const CGROUP_GONE: Duration = Duration::from_secs(5);

pub struct Node {
    pub config: Config,
    pub dirs: Dirs,
    /// For pods on the node's network.
    pub name: String,
    pub boot_id: String,
    pub host: HostFacts,
    /// The operator's decisions about containers, by runtime handler.
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
    /// A monitor's process as a record has it.
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
    /// A path that is no cgroup path; records hold none such.
    pub fn cgroup(&self, path: &str) -> Result<Cgroup> {
        let path = CgroupPath::parse(path).step("cgroup path")?;
        Ok(self.cgroups.cgroup(path))
    }

    /// The directories of a cgroup as the monitor joins them.
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

    /// Takes a root's mount off the host's mount table: once a container is made, its own mount namespace keeps it. Nothing
    /// mounted is fine.
    pub fn unmount_root(&self, container: &str) {
        // What cannot be unmounted shows when the directory is removed.
        let _ = self.machine.unmount(&self.dirs.rootfs(container));
    }

    /// Ends what runs from a monitor's directory, and removes the directory. Idempotent.
    ///
    /// # Errors
    /// What is left; the directory is then still there, for the next try.
    pub async fn end(&self, dir: &Path) -> Result<()> {
        self.launcher.cleanup(dir).await.step("clean up")?;
        remove_dir(dir).await
    }

    /// Kills what is in a cgroup and removes it. Idempotent.
    ///
    /// # Errors
    /// What is left.
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
