//! One `cairn serve` in its own yard. Everything it may touch is under one directory and one cgroup
//! parent.
//!
//! ```text
//! new ── start ──► serving ── kill ──► dead ── start ──► serving …
//!                     └────────── drop: yard, cgroups, directory ──┘
//! ```

mod ask;
pub mod inventory;
mod setup;

use std::{env, fs, os::unix::fs::PermissionsExt, path::PathBuf, time::Duration};

use k8s_cri::v1 as cri;
use tempfile::TempDir;
use testkit::{look, until::poll_within};

use crate::{
    bins,
    client::Client,
    client::Cri,
    image::{BUSYBOX, Image},
    yard::{Ended, Yard},
};

pub use setup::Setup;

/// Prefix of all names that tests make; the last test searches leftovers by it.
pub const PREFIX: &str = "cairn-test-";

const SIGKILL: i32 = 9;
const SIGTERM: i32 = 15;

/// A running (or killed) daemon and its surroundings.
pub struct Daemon {
    // Order of drop: the yard ends before its directory is removed.
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

    /// Makes everything but the process.
    ///
    /// # Panics
    /// If the surroundings cannot be made.
    pub async fn new(setup: Setup) -> Self {
        // Not /tmp: on a tmpfs, devices cannot be opened and files use memory.
        let base = ["CAIRN_TEST_TMP", "TMPDIR"].iter().find_map(env::var_os);
        let base = base.unwrap_or_else(|| "/var/tmp".into());
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

    /// Writes a CNI configuration; host-local keeps its leases in the daemon's directory.
    ///
    /// # Errors
    /// For invalid JSON, or a failed write.
    pub fn configure_cni(&self, name: &str, conflist: &str) -> std::io::Result<()> {
        let mut conflist: serde_json::Value = serde_json::from_str(conflist)?;
        let plugins = conflist["plugins"].as_array_mut().into_iter().flatten();
        for ipam in plugins.filter_map(|plugin| plugin.get_mut("ipam")) {
            ipam["dataDir"] = self.path("leases").display().to_string().into();
        }
        let file = self.path("cni").join(format!("{name}.conflist"));
        let new = file.with_extension("new");
        fs::write(&new, conflist.to_string())?;
        // Atomic, because a daemon may be reading it.
        fs::rename(new, file)
    }

    fn furnish(&self) -> std::io::Result<()> {
        // Containers of other users must reach the parents of their logs and volumes.
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
        // A hook may block as long as a test needs, and plugins may be slow on a busy machine.
        let nri = if self.setup.toml.contains("[nri]") {
            ""
        } else {
            "\n[nri]\nrequest_timeout = \"60s\"\n"
        };
        let toml = format!(
            "version = 1\n{}\n[cgroup]\nparent = {:?}\n\n{}{nri}",
            self.setup.toml_first, self.cgroup_parent, self.setup.toml
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
                bridge.parent().expect("a file is in a directory").into()
            });
            flag("cni-bin-dir", text(programs));
        }
        flag("registry-config-dir", text(self.path("certs")));
        flag(
            "log-level",
            self.setup.log_level.unwrap_or("debug").to_owned(),
        );
        flag("log-format", "human".to_owned());
        argv
    }

    /// The command line with the daemon's filter of system calls.
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
        if let Some(stderr) = &self.setup.stderr {
            let redirect = ["sh", "-c", "exec \"$@\" 2>\"$0\""].map(str::to_owned);
            let redirected = redirect.into_iter().chain([stderr.display().to_string()]);
            argv.splice(0..0, redirected);
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
    /// If it ends before, with its log.
    pub async fn serve(&mut self) {
        self.try_serve().await.unwrap_or_else(|why| panic!("{why}"));
    }

    /// As [`Daemon::serve`].
    ///
    /// # Errors
    /// It ended before, with its log, or it does not answer within a minute.
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

    /// Kills the daemon, like a crash.
    pub async fn kill(&mut self) -> Ended {
        self.signal(SIGKILL).await
    }
    /// Sends SIGTERM.
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
    /// Changes the setup of the next start.
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

    /// Copies the log of a failed test to a known directory.
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
        // A test may leave trees too deep for the temporary directory's own recursive removal.
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
