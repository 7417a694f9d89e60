//! The environment of the storm: one daemon in a yard, its disks of bounded size, a registry beside
//! it; killed, restarted and rebooted.

use std::{
    fs, io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
    time::Duration,
};

use cairn_tests::{
    Daemon, Setup, bins,
    client::Cri,
    image::{BUSYBOX, Image},
    look,
    output::shown,
    until::poll_within,
    yard::Yard,
};
use tokio::sync::watch;

use crate::{
    args::{Args, Network},
    registry,
    report::Report,
    target::{self, Process, Target},
    weather::{Cause, Token, Weather},
};

/// Sizes of the daemon's file systems: kept over a reboot, and lost at it.
const ROOT_BYTES: u64 = 3 << 30;
const SIGCONT: i32 = 18;
const STATE_SIZE: &str = "size=256m";

const CONFLIST: &str = r#"{
  "cniVersion": "1.0.0", "name": "storm",
  "plugins": [
    { "type": "bridge", "bridge": "cni-storm0", "isGateway": true, "ipMasq": false,
      "ipam": { "type": "host-local", "ranges": [[{ "subnet": "10.78.0.0/16" }]],
                "routes": [{ "dst": "0.0.0.0/0" }] } },
    { "type": "portmap", "capabilities": { "portMappings": true }, "snat": true }
  ]
}"#;

const CONFIG: &str = r#"
[nri]
request_timeout = "3s"
[nri.plugin."50-logger"]
restart = "on-failure"
"#;

/// A record that the daemon can read.
pub(crate) struct Whole {
    /// Relative to the daemon's directory.
    pub(crate) path: PathBuf,
    pub(crate) id: String,
    pub(crate) pod: String,
    pub(crate) content: Vec<u8>,
}

/// Owned by the keeper of the storm; clients see only `line`.
pub(crate) struct Arena {
    pub(crate) daemon: Daemon,
    line: watch::Sender<Option<Cri>>,
    weather: Arc<Weather>,
    report: Arc<Report>,
    /// Set while the daemon is down.
    down: Option<Token>,
    boots: u32,
}

impl Arena {
    /// A serving daemon with the busybox image.
    ///
    /// # Errors
    /// The resource that cannot be made; nothing was tested then.
    pub(crate) async fn new(
        args: &Args,
        weather: Arc<Weather>,
        report: Arc<Report>,
    ) -> Result<Self, String> {
        let mut setup = Setup::default().toml(CONFIG).plugin_with(
            "50-logger",
            bins::built("logger"),
            "logFile: /dev/null\n",
        );
        if args.network == Network::Cni {
            setup = setup.cni(CONFLIST);
        }
        setup.log_level = Some(args.log);
        let daemon = Daemon::new(setup).await;
        let mut arena = Self {
            daemon,
            line: watch::channel(None).0,
            weather,
            report,
            down: None,
            boots: 0,
        };
        arena.make_disk().map_err(|e| format!("the disk: {e}"))?;
        registry::furnish(&arena.registry_dir(), args.clients, args.seed)
            .map_err(|e| format!("the registry's images: {e}"))?;
        arena.settle_in().await?;
        arena.daemon.try_serve().await?;
        let file = arena.daemon.path("busybox.tar");
        Image::busybox(BUSYBOX).write(&file);
        let done = arena.daemon.import_file(&file).await;
        if !done.status.success() {
            return Err(format!("import busybox: {}", shown(&done)));
        }
        arena.line.send_replace(Some(arena.daemon.cri()));
        Ok(arena)
    }

    /// The client of the current daemon.
    pub(crate) fn line(&self) -> watch::Receiver<Option<Cri>> {
        self.line.subscribe()
    }

    fn registry_dir(&self) -> PathBuf {
        self.daemon.path("registry")
    }

    fn make_disk(&self) -> io::Result<()> {
        let disk = self.daemon.path("disk.img");
        fs::File::create(&disk)?.set_len(ROOT_BYTES)?;
        for dir in ["root", "state"] {
            fs::create_dir_all(self.daemon.path(dir))?;
        }
        let made = std::process::Command::new("mkfs.ext4")
            .args(["-q", "-m", "0", "-E", "lazy_itable_init=1"])
            .arg(&disk)
            .stdin(Stdio::null())
            .status()?;
        made.success()
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("mkfs.ext4: {made}")))
    }

    /// Sets up a new yard: the disks, the registry, and its own boot id.
    async fn settle_in(&mut self) -> Result<(), String> {
        let path = |name: &str| self.daemon.path(name).display().to_string();
        let (disk, root, state) = (path("disk.img"), path("root"), path("state"));
        self.inside(&["mount", "-o", "loop", &disk, &root]).await?;
        self.inside(&["mount", "-t", "tmpfs", "-o", STATE_SIZE, "tmpfs", &state])
            .await?;
        let id = path("boot_id");
        let text = format!("00000000-0000-4000-8000-{:012}\n", self.boots);
        fs::write(&id, text).map_err(|e| format!("the boot id: {e}"))?;
        self.inside(&["mount", "--bind", &id, "/proc/sys/kernel/random/boot_id"])
            .await?;
        let own = std::env::current_exe().map_err(|e| format!("our own program: {e}"))?;
        let argv = [
            own.display().to_string(),
            "registry".to_owned(),
            self.registry_dir().display().to_string(),
        ];
        let log = self.daemon.path("registry.log");
        self.daemon.yard.run(&argv, &[], &log).await?;
        Ok(())
    }

    /// Runs a command in the yard, which must succeed.
    ///
    /// # Errors
    /// The output of the command.
    pub(crate) async fn inside(&self, argv: &[&str]) -> Result<(), String> {
        let (program, args) = argv.split_first().expect("a command");
        let output = self.daemon.yard.command(program).args(args).output().await;
        let output = output.map_err(|e| format!("{argv:?}: {e}"))?;
        let failed = || format!("{argv:?}: {}", shown(&output));
        output.status.success().then_some(()).ok_or_else(failed)
    }

    fn goes_down(&mut self) {
        self.line.send_replace(None);
        let begun = || self.weather.begin(Cause::Daemon);
        self.down.get_or_insert_with(begun);
    }

    /// Ends the daemon by a signal and waits for its end.
    pub(crate) async fn take_down(&mut self, signal: i32) {
        self.goes_down();
        self.daemon.yard.kill(self.daemon.pid(), signal).await;
        // A stopped process handles signals only after this.
        self.daemon.yard.kill(self.daemon.pid(), SIGCONT).await;
        let (yard, pid) = (&self.daemon.yard, self.daemon.pid());
        let ended = poll_within(Duration::from_secs(40), || async { yard.ending(pid) }).await;
        if ended.is_none() {
            let what = format!("the daemon does not end within 40 s of signal {signal}");
            self.report.violation(&what, &self.report.history());
            self.daemon.kill().await;
        }
    }

    /// Starts the daemon until it serves.
    ///
    /// # Errors
    /// The daemon does not serve; the error has its log, and the storm ends.
    pub(crate) async fn bring_up(&mut self) -> Result<(), String> {
        let mut why = String::new();
        for attempt in 0..4 {
            match self.daemon.try_serve().await {
                Ok(()) => {
                    if let Some(down) = self.down.take() {
                        self.weather.end(down, Duration::ZERO);
                    }
                    self.line.send_replace(Some(self.daemon.cri()));
                    return Ok(());
                }
                Err(error) => why = error,
            }
            if !self.weather.now(|cause| *cause == Cause::Scarce) {
                self.report.violation(
                    &format!("the daemon does not start (attempt {attempt}): {why}"),
                    &self.report.history(),
                );
            }
            self.daemon.kill().await;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        Err(why)
    }

    /// Restarts a daemon that ended unexpectedly.
    ///
    /// # Errors
    /// As [`Arena::bring_up`].
    pub(crate) async fn look_after(&mut self) -> Result<(), String> {
        let Some(ended) = self.daemon.yard.ending(self.daemon.pid()) else {
            return Ok(());
        };
        let log = self.daemon.log_tail(30);
        let what = format!("the daemon ended by itself ({ended:?}); its log:\n{log}");
        self.report.violation(&what, &self.report.history());
        self.goes_down();
        self.bring_up().await
    }

    /// A power cut: all processes, and all data not on a disk, are lost.
    ///
    /// # Errors
    /// As [`Arena::bring_up`].
    pub(crate) async fn reboot(&mut self) -> Result<(), String> {
        let token = self.weather.begin(Cause::Reboot);
        self.goes_down();
        self.daemon.yard.end();
        let left = look::remove_cgroup(self.daemon.cgroup_parent());
        if !left.is_empty() {
            return Err(format!("cgroups outlived the yard: {left:?}"));
        }
        self.daemon.yard = Yard::new().await;
        self.boots += 1;
        self.settle_in().await?;
        let result = self.bring_up().await;
        self.weather.end(token, Duration::ZERO);
        result
    }

    /// The current processes of a kind.
    pub(crate) fn processes(&self, target: Target) -> Vec<Process> {
        let mut all = target::all(&self.daemon.yard);
        all.retain(|process| process.is(target));
        all
    }

    /// The number of the daemon's open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        fs::read_dir(self.proc().join("fd")).map_or(0, Iterator::count)
    }
    /// Its resident memory, as the kernel prints it.
    pub(crate) fn memory(&self) -> String {
        look::status_field(&self.proc(), "VmRSS").unwrap_or_default()
    }
    /// Its directory in /proc.
    pub(crate) fn proc(&self) -> PathBuf {
        let pid = self.daemon.pid();
        self.daemon.yard.inside(format!("/proc/{pid}"))
    }

    /// The records in a directory of the daemon.
    pub(crate) fn records(&self, dir: &str) -> Vec<Whole> {
        let files = fs::read_dir(self.seen(dir)).into_iter().flatten().flatten();
        files
            .filter_map(|file| {
                let content = fs::read(file.path()).ok()?;
                let id = file.file_name().to_str()?.strip_suffix(".json")?.to_owned();
                let json: serde_json::Value = serde_json::from_slice(&content).ok()?;
                let pod = json["record"]["pod"].as_str().unwrap_or(&id).to_owned();
                let path = Path::new(dir).join(file.file_name());
                Some(Whole {
                    path,
                    id,
                    pod,
                    content,
                })
            })
            .collect()
    }

    /// A path of the daemon, for a reader outside the yard.
    pub(crate) fn seen(&self, name: impl AsRef<Path>) -> PathBuf {
        self.daemon
            .yard
            .inside(self.daemon.path("").join(name.as_ref()))
    }
}
