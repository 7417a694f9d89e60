//! A runtime without containers, and plugins as programs connected to it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use nri::{
    Adaptation, BoxFuture, FailedUpdate, PluginId, PluginState, Requester, Snapshot, Source,
    merge::MergedCreate,
    proto::{
        Container, ContainerUpdate, Event, LinuxContainer, LinuxNamespace, LinuxPodSandbox, Mount,
        PodSandbox,
    },
};

struct Runtime(Vec<PodSandbox>);

impl Source for Runtime {
    fn snapshot(&self) -> Snapshot {
        Snapshot {
            pods: self.0.clone(),
            ..Snapshot::default()
        }
    }

    fn update(&self, _: &Requester, _: Vec<ContainerUpdate>) -> BoxFuture<'_, Vec<FailedUpdate>> {
        Box::pin(async { Vec::new() })
    }

    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// A runtime with its own directory, and the connected programs, which end with it.
pub(crate) struct World {
    pub nri: Adaptation,
    pub dir: tempfile::TempDir,
    children: Vec<Child>,
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl World {
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| {}).await
    }

    /// Starts it with the files that `prepare` puts into the directories `plugins` and `conf.d`.
    pub(crate) async fn start_with(prepare: impl FnOnce(&Path)) -> Self {
        Self::begin(Vec::new(), prepare).await
    }

    /// As [`World::start_with`], with these pods in its lists.
    pub(crate) async fn begin(pods: Vec<PodSandbox>, prepare: impl FnOnce(&Path)) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        prepare(dir.path());
        let mut settings = nri::Settings {
            // The directory belongs to the user of the tests.
            trusted_files_only: false,
            ..Default::default()
        };
        settings
            .allowed_uids
            .push(rustix::process::getuid().as_raw());
        let nri = Adaptation::builder("test", "1.0")
            .settings(settings)
            .socket(dir.path().join("nri.sock"))
            .plugin_dir(dir.path().join("plugins"))
            .plugin_config_dir(dir.path().join("conf.d"))
            .request_timeout(Duration::from_secs(10))
            .source(Arc::new(Runtime(pods)));
        Self {
            nri: nri.start().await.expect("the runtime starts"),
            dir,
            children: Vec::new(),
        }
    }

    /// Returns a path in the directory.
    pub(crate) fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_string_lossy().into_owned()
    }

    /// Writes a file in the directory and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        if let Some(parent) = PathBuf::from(&path).parent() {
            fs::create_dir_all(parent).expect("a folder");
        }
        fs::write(&path, text).expect("a file");
        path
    }

    /// Writes a program. A separate process writes it: programs that this process starts meanwhile
    /// would inherit the file open for writing.
    pub(crate) fn write_program(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        let script = r#"printf %s "$1" >"$0" && chmod 755 "$0""#;
        let mut shell = std::process::Command::new("sh");
        let written = shell.args(["-c", script, &path, text]).status();
        assert!(written.expect("a shell").success());
        path
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Runs a program with these flags, and waits until plugins of these ids are active.
    pub(crate) async fn run(&mut self, program: &str, args: &[&str], ids: &[&str]) {
        let child = Command::new(program)
            .args(["-socket-path", &self.path("nri.sock")])
            .args(args)
            .stdin(Stdio::null())
            .spawn()
            .expect("the program runs");
        self.children.push(child);
        for id in ids {
            self.until(id, |world| {
                let plugins = world.nri.plugins();
                let mut active = plugins.iter().filter(|p| p.state == PluginState::Active);
                active.any(|p| p.id.to_string() == *id)
            })
            .await;
        }
    }

    /// Waits, with a deadline, until a condition holds.
    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !holds(self) {
            assert!(Instant::now() < deadline, "not in time: {what}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits, with a deadline, until the last started program has ended.
    pub(crate) async fn exit_code(&mut self) -> Option<i32> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let child = self.children.last_mut().expect("one was run");
            if let Some(status) = child.try_wait().expect("it is ours") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it goes on and on");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn create(
        &self,
        pod: PodSandbox,
        ctr: Container,
    ) -> Result<MergedCreate, String> {
        let turn = self.nri.turn(Event::CreateContainer).await;
        let created = self.nri.create_container(&turn, pod, ctr).await;
        created.map(|c| c.merged).map_err(|e| e.to_string())
    }
}

/// Pod `pod0` with these annotations, in its own network namespace.
pub(crate) fn pod(annotations: &[(&str, &str)]) -> PodSandbox {
    let all = annotations.iter();
    PodSandbox {
        id: "pod0-id".into(),
        name: "pod0".into(),
        namespace: "default".into(),
        annotations: all.map(|(k, v)| (k.to_string(), v.to_string())).collect(),
        ips: vec!["10.0.0.7".into()],
        linux: Some(LinuxPodSandbox {
            namespaces: vec![LinuxNamespace {
                r#type: "network".into(),
                path: "/run/netns/pod0".into(),
            }],
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// Container `ctr0`, which runs `sh` and has `/sys/fs/cgroup`.
pub(crate) fn container() -> Container {
    Container {
        id: "ctr0-id".into(),
        pod_sandbox_id: "pod0-id".into(),
        name: "ctr0".into(),
        args: vec!["/bin/sh".into()],
        env: vec!["PATH=/bin".into()],
        mounts: vec![Mount {
            destination: "/sys/fs/cgroup".into(),
            r#type: "cgroup".into(),
            source: "cgroup".into(),
            options: vec!["nosuid".into(), "ro".into()],
        }],
        linux: Some(LinuxContainer::default()),
        ..Default::default()
    }
}
