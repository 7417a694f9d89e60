//! Helpers that the monitor's tests share: a root file system of busybox, cgroups, a launcher; all
//! are removed at the end, also of a failed test.
//!
//! They need root and the helpers of `hack/build helpers` for the same profile (in `CAIRN_HELPERS`,
//! or beside the directory of the tests).

// Each test program uses a part.
#![allow(dead_code)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use cairn::monitor::{CgroupDir, LaunchSpec, Launcher, LauncherConfig, Monitor};
use serde_json::{Value, json};

const APPLETS: &[&str] = &[
    "sh", "cat", "sleep", "echo", "id", "mkdir", "ls", "ps", "kill", "true", "dd", "head", "seq",
    "setsid", "readlink", "grep", "touch", "env", "stty", "tty", "printf", "stat", "mount",
    "chmod", "cp", "tr", "wc", "test", "nc", "hostname", "unshare", "yes",
];

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The environment of one test.
pub(crate) struct Ground {
    pub dir: tempfile::TempDir,
    pub launcher: Launcher,
    cgroups: Vec<Vec<CgroupDir>>,
}

/// One container in it.
pub(crate) struct Box {
    pub id: String,
    pub dir: PathBuf,
    pub log: PathBuf,
    pub spec: Value,
    pub cgroups: Vec<CgroupDir>,
    pub tty: bool,
    pub stdin: bool,
    pub stdin_once: bool,
}

fn helpers() -> PathBuf {
    if let Some(dir) = std::env::var_os("CAIRN_HELPERS") {
        return dir.into();
    }
    let exe = std::env::current_exe().expect("our own path");
    let dir = exe
        .ancestors()
        .nth(2)
        .expect("a directory for each profile")
        .to_path_buf();
    assert!(
        dir.join("cairn-create").exists(),
        "run `hack/build helpers` first, or set CAIRN_HELPERS"
    );
    dir
}

impl Ground {
    pub(crate) async fn new() -> Ground {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let root = dir.path().join("rootfs");
        for name in ["bin", "proc", "dev", "sys", "tmp", "etc"] {
            fs::create_dir_all(root.join(name)).expect("rootfs");
        }
        // Copied by `cp`: programs that this process starts meanwhile would inherit the file open
        // for writing.
        let mut copy = std::process::Command::new("cp");
        let copied = copy.arg("/bin/busybox").arg(root.join("bin/busybox"));
        let copied = copied.status().expect("cp");
        assert!(copied.success(), "busybox-static is installed");
        for applet in APPLETS {
            symlink("busybox", root.join("bin").join(applet)).expect("applet");
        }
        fs::write(
            root.join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n",
        )
        .expect("passwd");
        let run_dir = dir.path().join("run");
        let launcher = Launcher::new(LauncherConfig {
            run_dir,
            helpers_dir: helpers(),
        })
        .await
        .expect("launcher");
        Ground {
            dir,
            launcher,
            cgroups: Vec::new(),
        }
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("rootfs")
    }

    pub(crate) fn container(&mut self, args: &[&str]) -> Box {
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("cairn-test-{}-{n}", std::process::id());
        let cgroups = make_cgroups(&id);
        self.cgroups.push(cgroups.clone());
        let dir = self.dir.path().join("c").join(&id);
        let log = self.dir.path().join("log").join(&id).join("0.log");
        let spec = spec(&self.root(), &id, args);
        Box {
            id,
            dir,
            log,
            spec,
            cgroups,
            tty: false,
            stdin: false,
            stdin_once: false,
        }
    }

    pub(crate) async fn launch(&self, b: &Box) -> Result<Monitor, cairn::monitor::MonitorError> {
        self.launcher.launch(b.launch_spec()).await
    }

    /// Creates, starts, awaits and deletes it; returns its log.
    pub(crate) async fn run(&self, b: &Box) -> String {
        let monitor = self.launch(b).await.expect("create");
        monitor.start().await.expect("start");
        monitor.wait().await;
        monitor.delete().await.expect("delete");
        fs::read_to_string(&b.log).expect("log")
    }
}

impl Box {
    /// Returns the number of processes in its cgroup, without those in sub-cgroups.
    pub(crate) fn processes(&self) -> usize {
        let mut dirs = self.cgroups.iter();
        let dir = &dirs.find(|c| c.controller == "pids").expect("pids").path;
        let procs = fs::read_to_string(format!("{dir}/cgroup.procs"));
        procs.expect("procs").lines().count()
    }

    pub(crate) fn launch_spec(&self) -> LaunchSpec {
        fs::create_dir_all(self.log.parent().expect("a directory")).expect("made");
        LaunchSpec {
            id: self.id.clone(),
            dir: self.dir.clone(),
            config: serde_json::to_vec(&self.spec).expect("json"),
            cgroups: self.cgroups.clone(),
            tty: self.tty,
            stdin: self.stdin,
            stdin_once: self.stdin_once,
            log_path: Some(self.log.clone()),
            max_log_line: 16384,
            join: None,
        }
    }

    pub(crate) fn base(&self) -> cairn::monitor::Process {
        let spec = serde_json::from_value(self.spec.clone()).expect("spec");
        cairn::monitor::process_of(&spec).expect("process")
    }

    pub(crate) fn exec(&self, args: &[&str]) -> cairn::monitor::ExecSpec {
        let mut process = self.base();
        process.argv = args.iter().map(|a| a.as_bytes().to_vec()).collect();
        cairn::monitor::ExecSpec {
            process,
            tty: false,
            stdin: false,
            window: None,
            timeout: None,
        }
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        // The monitor of an ended container waits for a `delete`, which not every test sends.
        for entry in fs::read_dir(self.dir.path().join("c"))
            .into_iter()
            .flatten()
            .flatten()
        {
            let monitor = cairn::monitor::Launcher::recorded(&entry.path()).map(|pid| pid.monitor);
            if let Some(pid) = monitor.and_then(rustix::process::Pid::from_raw) {
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        for dirs in &self.cgroups {
            for d in dirs {
                remove_cgroup(Path::new(&d.path));
            }
        }
    }
}

/// Kills the processes in it, then removes it: a failed test leaves a container behind.
fn remove_cgroup(dir: &Path) {
    let deadline = Instant::now() + Duration::from_secs(5);
    while dir.exists() && Instant::now() < deadline {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if entry.path().is_dir() {
                remove_cgroup(&entry.path());
            }
        }
        for pid in fs::read_to_string(dir.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            if let Some(pid) = pid.parse().ok().and_then(rustix::process::Pid::from_raw) {
                let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        if fs::remove_dir(dir).is_ok() {
            return;
        }
        std::thread::yield_now();
    }
}

fn make_cgroups(id: &str) -> Vec<CgroupDir> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("mountinfo");
    let mut dirs = Vec::new();
    for line in mounts.lines() {
        let (before, after) = line.split_once(" - ").expect("mountinfo");
        let point = before.split(' ').nth(4).expect("mount point");
        let fields: Vec<&str> = after.split(' ').collect();
        if !point.starts_with("/sys/fs/cgroup") || !fields[0].starts_with("cgroup") {
            continue;
        }
        let name = Path::new(point)
            .file_name()
            .expect("name")
            .to_string_lossy()
            .into_owned();
        let controller = match (fields[0], name.as_str()) {
            ("cgroup2", _) => String::new(),
            (_, "systemd") => "name=systemd".to_owned(),
            _ => name,
        };
        let path = Path::new(point).join(id);
        fs::create_dir_all(&path).expect("make a cgroup");
        if controller == "cpuset" {
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value = fs::read(Path::new(point).join(file)).expect("cpuset");
                fs::write(path.join(file), value).expect("cpuset");
            }
        }
        dirs.push(CgroupDir {
            controller,
            path: path.to_string_lossy().into_owned(),
        });
    }
    dirs
}

pub(crate) fn spec(root: &Path, id: &str, args: &[&str]) -> Value {
    let caps = [
        "CAP_CHOWN",
        "CAP_KILL",
        "CAP_SETUID",
        "CAP_SETGID",
        "CAP_NET_BIND_SERVICE",
    ];
    json!({
        "ociVersion": "1.2.0",
        "root": {"path": root, "readonly": false},
        "hostname": "box",
        "process": {
            "terminal": false,
            "user": {"uid": 0, "gid": 0},
            "args": args,
            "env": ["PATH=/bin", "MARK=yes"],
            "cwd": "/",
            "capabilities": {"bounding": caps, "effective": caps, "permitted": caps},
            "rlimits": [{"type": "RLIMIT_NOFILE", "soft": 512, "hard": 1024}],
            "oomScoreAdj": 500,
            "noNewPrivileges": true
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
             "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
            {"destination": "/dev/pts", "type": "devpts", "source": "devpts",
             "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]},
            {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
            {"destination": "/sys/fs/cgroup", "type": "cgroup", "source": "cgroup",
             "options": ["nosuid", "noexec", "nodev", "relatime", "ro"]}
        ],
        "linux": {
            "cgroupsPath": format!("/{id}"),
            "namespaces": [{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}],
            "maskedPaths": ["/proc/kcore"],
            "readonlyPaths": ["/proc/sys"]
        }
    })
}

/// Returns the records of a log without times: `(stream, tag, content)`.
pub(crate) fn records(log: &str) -> Vec<(String, String, String)> {
    log.lines()
        .map(|line| {
            let mut parts = line.splitn(4, ' ').skip(1).map(str::to_owned);
            (
                parts.next().expect("stream"),
                parts.next().expect("tag"),
                parts.next().expect("content"),
            )
        })
        .collect()
}

/// Waits until the condition holds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !holds() {
        assert!(Instant::now() < deadline, "not within 30 s: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(crate) async fn running(ground: &Ground, b: &Box) -> Monitor {
    let monitor = ground.launch(b).await.expect("create");
    monitor.start().await.expect("start");
    monitor
}

pub(crate) async fn end(monitor: Monitor) {
    monitor.kill(9, true).await.expect("kill all");
    monitor.wait().await;
    monitor.delete().await.expect("delete");
}
