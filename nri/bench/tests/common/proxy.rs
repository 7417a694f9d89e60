//! `nri-bench record` between a plugin and an in-memory runtime.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use nri_record::{Recording, What};
use nri_testing::{FakeRuntime, container, pod};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Bench, broken};

const LONG: Duration = Duration::from_secs(30);

/// `nri-bench record`, killed when it is dropped.
pub(crate) struct Recorder {
    child: Child,
    pub listen: PathBuf,
    pub file: PathBuf,
}

impl Recorder {
    pub(crate) fn start(bench: &Bench, runtime: &Path, flags: &[&str]) -> Self {
        let (listen, file) = (bench.path("proxy.sock"), bench.path("recording.jsonl"));
        let child = Command::new(env!("CARGO_BIN_EXE_nri-bench"))
            .arg("record")
            .args(flags)
            .arg("--nri")
            .arg(runtime)
            .arg("--listen")
            .arg(&listen)
            .arg(&file)
            .stdout(Stdio::null())
            .spawn()
            .expect("it starts");
        until("it listens", || {
            fs::metadata(&listen).is_ok_and(|m| m.permissions().mode() & 0o777 == 0o600)
        });
        Self {
            child,
            listen,
            file,
        }
    }

    pub(crate) fn interrupt(&mut self) -> ExitStatus {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("it runs"), Signal::INT).expect("ours");
        self.child.wait().expect("it ends")
    }

    pub(crate) fn read(&self) -> Recording {
        let bytes = fs::read(&self.file).expect("a file");
        nri_record::read(bytes.as_slice()).expect("a recording")
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn plugin(rule: &str, socket: &Path) -> Killed {
    let words = broken(rule);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).arg("-socket-path").arg(socket);
    Killed(command.stdout(Stdio::null()).spawn().expect("a plugin"))
}

pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !holds() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Runs a pod's life with the plugin behind the proxy.
pub(crate) fn life(
    rule: &str,
    recorder: &Recorder,
    runtime: &FakeRuntime,
    tokio: &tokio::runtime::Runtime,
) {
    let plugin = plugin(rule, &recorder.listen);
    tokio.block_on(async {
        let id = "10-broken".parse().expect("an id");
        runtime.joined(&id, LONG).await.expect("it joins");
        runtime.run_pod(pod("web")).await.expect("let through");
        let greeter = container("greeter").env("PASSWORD", "s3cret");
        runtime.create("web", greeter).await.expect("let through");
        runtime
            .start_container("greeter")
            .await
            .expect("let through");
        runtime.remove_pod("web").await.expect("there");
        runtime.shutdown().await;
    });
    drop(plugin);
}

pub(crate) fn tokio() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime")
}

/// Records such a life of the plugin that breaks this rule.
pub(crate) fn recorded(bench: &Bench, rule: &str, flags: &[&str]) -> PathBuf {
    let tokio = tokio();
    let runtime = tokio.block_on(FakeRuntime::start()).expect("a runtime");
    let mut recorder = Recorder::start(bench, runtime.socket(), flags);
    life(rule, &recorder, &runtime, &tokio);
    until("the connection is closed", || {
        let lines = recorder.read().lines;
        lines.iter().any(|l| matches!(l.what, What::Closed { .. }))
    });
    assert!(recorder.interrupt().success());
    recorder.file.clone()
}
