//! One `cairn serve` in a yard of its own, with everything it may touch under one directory and
//! one cgroup parent.
//!
//! ```text
//! new ── start ──► serving ── kill ──► dead ── start ──► serving …
//!                     └────────── drop: yard, cgroups, directory ──┘
//! ```

use std::{
    collections::BTreeSet,
    env, fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Output, Stdio},
    time::{Duration, Instant},
};

use k8s_cri::v1 as cri;
use tempfile::TempDir;
use tokio::process::Command;

use crate::{
    bins,
    client::Client,
    image::{BUSYBOX, Image},
    look,
    pod::Cri,
    until::poll_within,
    yard::{Ended, Yard},
};

/// Names of everything that a test makes begin so; the last test looks for leftovers by it.
pub const PREFIX: &str = "cairn-test-";

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// What a daemon is started with. The default has the built-in bridge and no plugin.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// More of `cairn.toml`: whole tables, such as `[nri]\nrequest_timeout = "500ms"`.
    pub toml: String,
    /// Plugins to launch: file name, program or script, configuration.
    pub plugins: Vec<(String, PathBuf, Option<String>)>,
    /// A CNI conflist; the CNI programs come from `hack/peers`.
    pub cni: Option<String>,
    /// Where the CNI programs lie, if not where `hack/peers` put them.
    pub cni_programs: Option<PathBuf>,
    /// Environment of the daemon, such as `CAIRN_FAULT`.
    pub env: Vec<(String, String)>,
    /// System calls that the daemon and all that it starts are refused, as `cairn-refuse` has it.
    pub refused: Vec<String>,
    /// The limits of open files that it starts with, soft and hard.
    pub open_files: Option<(u64, u64)>,
    /// Of the daemon's log; `debug` if nothing is said.
    pub log_level: Option<&'static str>,
    /// A rule that the daemon breaks (`serve --violate`). `CAIRN_TEST_VIOLATE` says it for all daemons of a run, whose
    /// tests of that rule are then to fail.
    pub violate: Option<String>,
}

impl Setup {
    #[must_use]
    pub fn toml(mut self, more: &str) -> Self {
        self.toml.push_str(more);
        self.toml.push('\n');
        self
    }
    #[must_use]
    pub fn plugin(mut self, file: &str, program: impl Into<PathBuf>) -> Self {
        self.plugins.push((file.to_owned(), program.into(), None));
        self
    }
    #[must_use]
    pub fn plugin_with(mut self, file: &str, program: impl Into<PathBuf>, conf: &str) -> Self {
        let plugin = (file.to_owned(), program.into(), Some(conf.to_owned()));
        self.plugins.push(plugin);
        self
    }
    #[must_use]
    pub fn cni(mut self, conflist: &str) -> Self {
        self.cni = Some(conflist.to_owned());
        self
    }
    #[must_use]
    pub fn refused(mut self, calls: &[&str]) -> Self {
        self.refused
            .extend(calls.iter().map(|call| (*call).to_owned()));
        self
    }
    #[must_use]
    pub fn open_files(mut self, soft: u64, hard: u64) -> Self {
        self.open_files = Some((soft, hard));
        self
    }
    #[must_use]
    pub fn violate(mut self, rule: &str) -> Self {
        self.violate = Some(rule.to_owned());
        self
    }
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}

/// A running (or killed) daemon and its surroundings.
pub struct Daemon {
    // Order of drop: the yard ends first, then its directory goes.
    pub yard: Yard,
    dir: TempDir,
    cgroup_parent: String,
    setup: Setup,
    pid: i32,
    cri: Option<Cri>,
}

impl Daemon {
    /// A serving daemon with the built-in bridge and the busybox image.
    pub async fn start() -> Self {
        Self::with(Setup::default()).await
    }

    /// A serving daemon with the busybox image.
    pub async fn with(setup: Setup) -> Self {
        let mut daemon = Self::new(setup).await;
        daemon.serve().await;
        daemon.import(&Image::busybox(BUSYBOX)).await;
        daemon
    }

    /// Everything but the process.
    ///
    /// # Panics
    /// If the surroundings cannot be made.
    pub async fn new(setup: Setup) -> Self {
        let base = env::var_os("CAIRN_TEST_TMP").map_or_else(env::temp_dir, PathBuf::from);
        let dir = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(base)
            .expect("a temporary directory can be made");
        let name = dir.path().file_name().expect("it has a name");
        let cgroup_parent = format!("/{}", name.to_string_lossy());
        let daemon = Self {
            yard: Yard::new().await,
            dir,
            cgroup_parent,
            setup,
            pid: 0,
            cri: None,
        };
        daemon
            .furnish()
            .expect("the daemon's directory can be filled");
        daemon
    }

    /// Writes a configuration of CNI programs; host-local keeps its leases with the daemon, not with the machine.
    ///
    /// # Errors
    /// For what is not JSON, or cannot be written.
    pub fn configure_cni(&self, name: &str, conflist: &str) -> std::io::Result<()> {
        let mut conflist: serde_json::Value = serde_json::from_str(conflist)?;
        let plugins = conflist["plugins"].as_array_mut().into_iter().flatten();
        for ipam in plugins.filter_map(|plugin| plugin.get_mut("ipam")) {
            ipam["dataDir"] = self.path("leases").display().to_string().into();
        }
        let file = self.path("cni").join(format!("{name}.conflist"));
        fs::write(file, conflist.to_string())
    }

    fn furnish(&self) -> std::io::Result<()> {
        // Containers running as other users must reach their logs' and volumes' parents.
        fs::set_permissions(self.dir.path(), fs::Permissions::from_mode(0o755))?;
        for dir in ["plugins", "plugin-conf", "cni", "certs", "logs", "volumes"] {
            fs::create_dir_all(self.path(dir))?;
        }
        for (file, program, conf) in &self.setup.plugins {
            let to = self.path("plugins").join(file);
            fs::copy(program, &to)?;
            fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?;
            if let Some(conf) = conf {
                fs::write(self.path("plugin-conf").join(format!("{file}.conf")), conf)?;
            }
        }
        if let Some(conflist) = &self.setup.cni {
            self.configure_cni("10-test", conflist)?;
        }
        let toml = format!(
            "version = 1\n\n[cgroup]\nparent = {:?}\n\n{}",
            self.cgroup_parent, self.setup.toml
        );
        fs::write(self.path("cairn.toml"), toml)
    }

    /// A path in the daemon's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    pub fn socket(&self) -> PathBuf {
        self.path("cairn.sock")
    }
    pub fn nri_socket(&self) -> PathBuf {
        self.path("nri.sock")
    }
    /// Parent of all cgroups of this daemon's pods.
    pub fn cgroup_parent(&self) -> &str {
        &self.cgroup_parent
    }
    /// The daemon's pid in the yard.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// The command line of the daemon.
    pub fn argv(&self) -> Vec<String> {
        self.argv_of("serve")
    }

    /// The command line of a command with the daemon's flags: `serve` or `check`.
    pub fn argv_of(&self, command: &str) -> Vec<String> {
        let text = |path: PathBuf| path.display().to_string();
        let mut argv = vec![text(bins::cairn()), command.to_owned()];
        let mut flag = |name: &str, value: String| {
            argv.push(format!("--{name}"));
            argv.push(value);
        };
        flag("config", text(self.path("cairn.toml")));
        flag("root", text(self.path("root")));
        flag("state", text(self.path("state")));
        flag("listen", format!("unix://{}", self.socket().display()));
        flag("nri-socket", text(self.nri_socket()));
        flag("nri-plugin-dir", text(self.path("plugins")));
        flag("nri-plugin-config-dir", text(self.path("plugin-conf")));
        flag("cni-conf-dir", text(self.path("cni")));
        flag("cni-cache-dir", text(self.path("root/cni")));
        if self.setup.cni.is_some() {
            let programs = self.setup.cni_programs.clone().unwrap_or_else(|| {
                let bridge = bins::peer("bridge");
                bridge.parent().expect("a file lies somewhere").into()
            });
            flag("cni-bin-dir", text(programs));
        }
        flag("registry-config-dir", text(self.path("certs")));
        flag(
            "log-level",
            self.setup.log_level.unwrap_or("debug").to_owned(),
        );
        flag("log-format", "human".to_owned());
        let of_the_run = || env::var("CAIRN_TEST_VIOLATE").ok();
        if command == "serve"
            && let Some(rule) = self.setup.violate.clone().or_else(of_the_run)
        {
            flag("violate", rule);
        }
        argv
    }

    /// A command line that runs as the daemon does, without the system calls that it is refused.
    pub fn refusing(&self, argv: Vec<String>) -> Vec<String> {
        if self.setup.refused.is_empty() {
            return argv;
        }
        let refuse = bins::built("cairn-refuse").display().to_string();
        let calls = self.setup.refused.iter().cloned();
        let wrapper = [refuse].into_iter().chain(calls).chain(["--".to_owned()]);
        wrapper.chain(argv).collect()
    }

    /// Starts the process, without waiting until it serves.
    pub async fn spawn(&mut self) {
        let mut argv = self.refusing(self.argv());
        if let Some((soft, hard)) = self.setup.open_files {
            let limited = ["prlimit".to_owned(), format!("--nofile={soft}:{hard}")];
            argv.splice(0..0, limited);
        }
        let env: Vec<_> = self
            .setup
            .env
            .iter()
            .map(|(n, v)| (n.as_str(), v.as_str()))
            .collect();
        let log = self.dir.path().join("daemon.log");
        let started = self.yard.run(&argv, &env, &log).await;
        self.pid = started.unwrap_or_else(|why| panic!("the daemon does not start: {why}"));
    }

    /// Starts the process and waits until it answers `Version`.
    ///
    /// # Panics
    /// If it ends before, with what it logged.
    pub async fn serve(&mut self) {
        self.try_serve().await.unwrap_or_else(|why| panic!("{why}"));
    }

    /// As [`Daemon::serve`].
    ///
    /// # Errors
    /// That it ended before, with what it logged, or that it does not answer within a minute.
    pub async fn try_serve(&mut self) -> Result<(), String> {
        self.spawn().await;
        let (socket, pid) = (self.socket(), self.pid);
        let asked = || async {
            if let Some(ended) = self.yard.ending(pid) {
                let log = self.log_tail(40);
                return Some(Err(format!(
                    "the daemon ended at its start ({ended:?}):\n{log}"
                )));
            }
            let mut client = Client::connect(&socket).await.ok()?;
            let request = cri::VersionRequest::default();
            client.runtime.version(request).await.ok()?;
            Some(Ok(client))
        };
        let client = poll_within(Duration::from_secs(60), asked)
            .await
            .unwrap_or_else(|| Err("the daemon does not answer Version for a minute".to_owned()))?;
        self.cri = Some(Cri::new(client, self.dir.path(), &self.cgroup_parent));
        Ok(())
    }

    /// Ends the daemon by force, as a crash would.
    pub async fn kill(&mut self) -> Ended {
        self.signal(SIGKILL).await
    }
    /// Asks the daemon to end.
    pub async fn terminate(&mut self) -> Ended {
        self.signal(SIGTERM).await
    }
    async fn signal(&mut self, signal: i32) -> Ended {
        self.cri = None;
        self.yard.kill(self.pid, signal).await;
        self.yard.ended(self.pid).await
    }
    /// Kills the daemon and starts it again on the same directories.
    pub async fn kill_and_restart(&mut self) {
        self.kill().await;
        self.serve().await;
    }
    /// Changes what the next start is given.
    pub fn setup_mut(&mut self) -> &mut Setup {
        &mut self.setup
    }

    /// The client side.
    ///
    /// # Panics
    /// If the daemon is not serving.
    pub fn cri(&self) -> Cri {
        self.cri.clone().expect("the daemon serves")
    }

    /// `cairn <args> --connect <this daemon>`.
    pub async fn cairn(&self, args: &[&str]) -> Output {
        Command::new(bins::cairn())
            .args(args)
            .arg("--connect")
            .arg(format!("unix://{}", self.socket().display()))
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("cairn runs")
    }

    /// What `cairn plugins --output json` lists.
    ///
    /// # Panics
    /// If it fails, or says something else.
    pub async fn plugins(&self) -> Vec<serde_json::Value> {
        let output = self.cairn(&["plugins", "--output", "json"]).await;
        assert!(output.status.success(), "{}", shown(&output));
        let mut all: serde_json::Value =
            serde_json::from_slice(&output.stdout).expect("it is JSON");
        let plugins = all["plugins"].take();
        serde_json::from_value(plugins).expect("a list")
    }

    /// `crictl -r <this daemon> <args>`.
    pub async fn crictl(&self, args: &[&str]) -> Output {
        let endpoint = format!("unix://{}", self.socket().display());
        Command::new(bins::peer("crictl"))
            // A configuration file of the machine must not be read.
            .args(["--config", "/dev/null"])
            .args([
                "--runtime-endpoint",
                &endpoint,
                "--image-endpoint",
                &endpoint,
            ])
            .args(args)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output()
            .await
            .expect("crictl runs")
    }

    /// Imports an image by `cairn image import`; answers its id.
    ///
    /// # Panics
    /// If the import fails.
    pub async fn import(&self, image: &Image) -> String {
        let file = self.path(&format!("image-{}.tar", self.yard.next()));
        let blobs = image.write(&file);
        let done = self.import_file(&file).await;
        assert!(done.status.success(), "import: {}", shown(&done));
        fs::remove_file(file).expect("the archive was ours");
        blobs.id
    }
    /// `cairn image import FILE`, whatever comes of it.
    pub async fn import_file(&self, file: &Path) -> Output {
        self.cairn(&["image", "import", &file.display().to_string()])
            .await
    }

    /// The end of the daemon's log.
    pub fn log_tail(&self, lines: usize) -> String {
        let log = self.log();
        let all: Vec<&str> = log.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }
    /// All that the daemon logged so far.
    pub fn log(&self) -> String {
        let bytes = fs::read(self.path("daemon.log")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// All that exists because of this daemon now: compare two of these to see what was left.
    /// Taken after a first pod came and went, so that what is made once is in both.
    ///
    /// # Panics
    /// If the monitor of a removed container does not end.
    pub async fn inventory(&self) -> BTreeSet<String> {
        // It ends by itself and nobody waits for it; counted here, it would be missed later.
        crate::until("the monitors of removed containers have ended", || async {
            (!look::works_nowhere(self.yard.pid(), "cairn-monitor")).then_some(())
        })
        .await;
        self.look_around().await
    }

    async fn look_around(&self) -> BTreeSet<String> {
        let mut all = BTreeSet::new();
        let mut add = |kind: &str, what: BTreeSet<String>| {
            all.extend(what.into_iter().map(|w| format!("{kind} {w}")));
        };
        add("mount", look::mounts(self.yard.pid()));
        add("process", look::processes(self.yard.pid()));
        for dir in look::cgroup_dirs(&self.cgroup_parent) {
            add(
                &format!("cgroup {}", dir.display()),
                look::tree(&dir)
                    .into_iter()
                    .filter(|p| Path::new(p).extension().is_none() && !p.contains('.'))
                    .collect(),
            );
        }
        for part in ["state", "root"] {
            // As the yard sees it: there it may be a file system of its own.
            let seen = look::tree(&self.yard.inside(self.path(part)));
            add(
                part,
                seen.into_iter()
                    .filter(|p| !p.starts_with("trace"))
                    .collect(),
            );
        }
        add(
            "lease",
            look::tree(&self.path("leases"))
                .into_iter()
                .filter(|p| !p.ends_with("last_reserved_ip.0") && !p.ends_with("lock"))
                .collect(),
        );
        add(
            "link",
            self.lines(&["ip", "-o", "-br", "link"])
                .await
                .into_iter()
                .map(|l| l.split_whitespace().next().unwrap_or_default().to_owned())
                .collect(),
        );
        if bins::system("nft").is_some() {
            // Without what its counters have counted.
            let list = ["nft", "--stateless", "list", "ruleset"];
            add("nft", self.lines(&list).await);
        }
        all
    }

    /// Waits until nothing is there that was not there before: a short clean-up in the background
    /// is allowed, a leftover is not.
    ///
    /// # Panics
    /// With what is left, or missing.
    pub async fn leaves_only(&self, before: &BTreeSet<String>) {
        let (left, missing) = self.changed_since(before, Duration::from_secs(10)).await;
        assert!(
            left.is_empty() && missing.is_empty(),
            "left behind: {left:?}; missing: {missing:?}"
        );
    }

    /// What is there that was not there before, and what is missing, once nothing is or `patience` has run out.
    pub async fn changed_since(
        &self,
        before: &BTreeSet<String>,
        patience: Duration,
    ) -> (Vec<String>, Vec<String>) {
        let deadline = Instant::now() + patience;
        loop {
            let now = self.look_around().await;
            let left: Vec<_> = now.difference(before).cloned().collect();
            // What was on its way out when `before` was taken may be gone now.
            let missing = before
                .difference(&now)
                .filter(|m| !m.contains("images/trash"));
            let missing: Vec<_> = missing.cloned().collect();
            if (left.is_empty() && missing.is_empty()) || Instant::now() >= deadline {
                return (left, missing);
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// The output lines of a command in the yard.
    pub async fn lines(&self, argv: &[&str]) -> BTreeSet<String> {
        let (program, args) = argv.split_first().expect("a command");
        let output = self.yard.command(program).args(args).output().await;
        let output = output.expect("nsenter runs");
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .map(|l| l.trim().to_owned())
            .collect()
    }

    /// Keeps the log of a failed test where people find it.
    fn keep_log(&self) {
        let to = bins::repository().join("target/test-logs");
        let test = std::thread::current()
            .name()
            .unwrap_or("test")
            .replace("::", ".");
        let file = to.join(format!("{test}.log"));
        let kept = fs::create_dir_all(&to).and_then(|()| fs::copy(self.path("daemon.log"), &file));
        if kept.is_ok() {
            eprintln!(
                "--- the daemon's log: {}; its end:\n{}",
                file.display(),
                self.log_tail(25)
            );
        }
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.keep_log();
        }
        self.yard.end();
        // A test may leave trees that the recursion of a temporary directory's own removal cannot take.
        let emptied = std::process::Command::new("rm")
            .args(["-rf", "--one-file-system"])
            .arg(self.path("root"))
            .status();
        if !emptied.is_ok_and(|status| status.success()) && !std::thread::panicking() {
            panic!("the daemon's root cannot be removed");
        }
        let left = look::remove_cgroup(&self.cgroup_parent);
        if !left.is_empty() && !std::thread::panicking() {
            panic!("cgroups that cannot be removed: {left:?}");
        }
    }
}

/// A command's result in one piece, for messages.
pub fn shown(output: &Output) -> String {
    format!(
        "{}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}
