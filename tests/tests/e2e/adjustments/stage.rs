//! A daemon with an adjusting plugin, and helpers that inspect the adjusted containers.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use cairn_tests::{Daemon, container::Container, cri, plugin::Plugin, pod::Pod};
use nri::proto::{ContainerAdjustment, LinuxContainerAdjustment, LinuxResources};
use parking_lot::Mutex;

use super::fields;

pub(crate) struct Stage {
    pub(crate) daemon: Daemon,
    pub(crate) plugin: Plugin,
    /// All fields sent so far.
    sent: Arc<Mutex<BTreeSet<String>>>,
}

impl Stage {
    pub(crate) async fn new() -> Self {
        let daemon = Daemon::start().await;
        let plugin = Plugin::join(&daemon.nri_socket(), "10", "adjuster").await;
        Self {
            daemon,
            plugin,
            sent: Arc::default(),
        }
    }

    pub(crate) async fn pod(&self, name: &str) -> Pod {
        self.daemon.cri().pod(name).await
    }

    /// Makes the plugin answer with this adjustment from now on, by the container's name.
    pub(crate) fn adjusts<F>(&self, adjust: F)
    where
        F: Fn(&str, &mut ContainerAdjustment) + Send + Sync + 'static,
    {
        self.adjusts_by(&self.plugin, adjust);
    }

    /// As `adjusts`, for a second plugin.
    pub(crate) fn adjusts_by<F>(&self, plugin: &Plugin, adjust: F)
    where
        F: Fn(&str, &mut ContainerAdjustment) + Send + Sync + 'static,
    {
        let sent = self.sent.clone();
        plugin.adjusts(move |_, container| {
            let mut answer = ContainerAdjustment::default();
            adjust(&container.name, &mut answer);
            let fields = fields::set_in(&answer);
            sent.lock().extend(fields);
            Some(answer)
        });
    }

    /// Checks that the adjustment fails the creation with the name of the field, and leaves nothing
    /// behind.
    pub(crate) async fn refuses(&self, pod: &Pod, field: &str, adjust: ContainerAdjustment) {
        self.adjusts(|_, _| ());
        let plain = pod.create("before", &["true"]).await;
        plain.remove().await.expect("RemoveContainer");
        let before = self.daemon.inventory().await;
        let listed = pod.cri.containers().await.len();
        let shown = format!("{adjust:?}");
        self.adjusts(move |_, answer| *answer = adjust.clone());
        let created = pod
            .try_create(pod.cri.container_config("refused", &["true"]))
            .await;
        let error = match created {
            Ok(_) => panic!("{field} is taken: {shown}"),
            Err(error) => error,
        };
        let text = error.message();
        assert!(text.contains(field), "{field}: {text}");
        assert_eq!(pod.cri.containers().await.len(), listed, "{field}");
        self.daemon.leaves_only(&before).await;
    }

    /// # Panics
    /// If one of the fields was in no adjustment.
    pub(crate) fn has_sent(&self, fields: &[&str]) {
        let sent = self.sent.lock();
        for field in fields {
            assert!(sent.contains(*field), "{field} was never sent: {sent:?}");
        }
    }

    /// Returns `/proc/<init>` of a container.
    pub(crate) async fn proc(&self, container: &Container) -> PathBuf {
        let pid = container.pid().await.expect("the container runs");
        self.daemon.yard.inside(format!("/proc/{pid}"))
    }

    /// Reads a file of the container's cgroup, on v1 in the controller's hierarchy; `None` if the
    /// file does not exist.
    pub(crate) async fn cgroup_file(
        &self,
        container: &Container,
        controller: &str,
        file: &str,
    ) -> Option<String> {
        let groups = fs::read_to_string(self.proc(container).await.join("cgroup"));
        let groups = groups.expect("a process has cgroups");
        let mut found = groups.lines().filter_map(|line| {
            let (names, path) = line.split_once(':')?.1.split_once(':')?;
            let root = if names.is_empty() {
                unified_root()
            } else if names.split(',').any(|n| n == controller) {
                Path::new("/sys/fs/cgroup").join(names)
            } else {
                return None;
            };
            fs::read_to_string(root.join(path.trim_start_matches('/')).join(file)).ok()
        });
        found.next().map(|text| text.trim().to_owned())
    }

    /// As `cgroup_file`, but the file must exist.
    pub(crate) async fn in_cgroup(
        &self,
        container: &Container,
        controller: &str,
        file: &str,
    ) -> String {
        let text = self.cgroup_file(container, controller, file).await;
        text.unwrap_or_else(|| panic!("{controller} has no {file}"))
    }

    /// Runs a program of the machine in the daemon's namespaces, which must succeed. Returns its
    /// output.
    pub(crate) async fn machine(&self, argv: &[&str]) -> String {
        let (program, args) = argv.split_first().expect("a command");
        let output = self.daemon.yard.command(program).args(args).output().await;
        let output = output.expect("nsenter runs");
        assert!(output.status.success(), "{argv:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Makes a directory for volumes, writable by all users.
    pub(crate) fn volume(&self, name: &str) -> PathBuf {
        use std::os::unix::fs::PermissionsExt;
        let path = self.daemon.path("volumes").join(name);
        fs::create_dir_all(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("ours");
        path
    }
}

/// Returns the mount point of the v2 tree.
fn unified_root() -> PathBuf {
    let beside = Path::new("/sys/fs/cgroup/unified");
    if beside.is_dir() {
        beside.to_owned()
    } else {
        "/sys/fs/cgroup".into()
    }
}

/// Whether limits are written to cgroup v2.
pub(crate) fn limits_are_v2() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Runs a container whose first process sleeps and does not fork.
pub(crate) async fn sleeper(pod: &Pod, name: &str) -> Container {
    pod.run(name, &["sleep", "1000"]).await
}

/// Runs a command that must fail; returns its output.
pub(crate) async fn fails(container: &Container, script: &str) -> String {
    let ran = container.try_exec(&["sh", "-c", script], 20).await;
    let ran = ran.expect("ExecSync");
    assert_ne!(ran.code, 0, "{script:?} succeeds: {ran:?}");
    ran.err
}

pub(crate) fn linux(adjust: &mut ContainerAdjustment) -> &mut LinuxContainerAdjustment {
    adjust.linux.get_or_insert_default()
}

pub(crate) fn resources(adjust: &mut ContainerAdjustment) -> &mut LinuxResources {
    linux(adjust).resources.get_or_insert_default()
}

/// An adjustment of the `linux` section only.
pub(crate) fn of_linux(change: impl FnOnce(&mut LinuxContainerAdjustment)) -> ContainerAdjustment {
    let mut adjust = ContainerAdjustment::default();
    change(linux(&mut adjust));
    adjust
}

/// A bind mount as a kubelet requests it.
pub(crate) fn bind(from: &Path, to: &str) -> cri::Mount {
    cri::Mount {
        host_path: from.display().to_string(),
        container_path: to.to_owned(),
        ..Default::default()
    }
}
