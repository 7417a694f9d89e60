//! The yard: a mount, a network and a pid namespace for one daemon and its peers.

use std::{
    collections::HashMap,
    io,
    path::{Path, PathBuf},
    process::Stdio,
    sync::Arc,
};

use parking_lot::Mutex;
use serde_json::json;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::{mpsc, watch},
};

use crate::bins;

/// The wait status of a process of the yard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub i32);

impl Ended {
    /// The exit code, if it exited.
    pub fn code(self) -> Option<i32> {
        (self.0 & 0x7f == 0).then_some((self.0 >> 8) & 0xff)
    }
    /// The signal, if one ended it.
    pub fn signal(self) -> Option<i32> {
        (self.0 & 0x7f != 0).then_some(self.0 & 0x7f)
    }
}

type Endings = Arc<watch::Sender<HashMap<i32, Ended>>>;

/// Owned by the test; all processes, mounts and devices inside end with it.
pub struct Yard {
    // Declared first: closing it ends the yard.
    orders: Option<ChildStdin>,
    answers: mpsc::Receiver<Result<i32, String>>,
    endings: Endings,
    unshare: Child,
    /// The machine's pid of the yard's pid 1.
    pid: u32,
    scratch: Arc<Mutex<u32>>,
}

impl Yard {
    /// Makes the namespaces.
    ///
    /// # Panics
    /// If they cannot be made; the tests need root.
    pub async fn new() -> Self {
        let mut unshare = Command::new("unshare")
            .args(["--mount", "--net", "--pid", "--fork", "--kill-child"])
            .args(["--propagation", "private", "--mount-proc", "--"])
            .arg(bins::built("cairn-yard"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("unshare (util-linux) is there and we are root");
        let orders = unshare.stdin.take().expect("stdin is piped");
        let lines = BufReader::new(unshare.stdout.take().expect("stdout is piped")).lines();
        let endings: Endings = Arc::new(watch::channel(HashMap::new()).0);
        let (report, answers) = mpsc::channel(16);
        tokio::spawn(hear(lines, report, endings.clone()));
        let mut yard = Self {
            pid: 0,
            orders: Some(orders),
            answers,
            endings,
            unshare,
            scratch: Arc::default(),
        };
        let first = yard.answers.recv().await;
        assert!(
            matches!(first, Some(Ok(1))),
            "the yard cannot be made (are we root?): {first:?}"
        );
        let unshare = yard.unshare.id().expect("unshare runs");
        yard.pid = only_child(unshare).expect("unshare has one child, the yard");
        yard
    }

    /// Starts a program inside; returns its pid there. Its output goes to `log`.
    ///
    /// # Errors
    /// The reason, if it could not be started.
    pub async fn run<S: AsRef<str>>(
        &mut self,
        argv: &[S],
        env: &[(&str, &str)],
        log: &Path,
    ) -> Result<i32, String> {
        let argv: Vec<&str> = argv.iter().map(AsRef::as_ref).collect();
        let env: HashMap<_, _> = env.iter().copied().collect();
        self.order(&json!({ "run": { "argv": argv, "env": env, "log": log } }))
            .await
            .map_err(|e| e.to_string())?;
        self.answers
            .recv()
            .await
            .unwrap_or_else(|| Err("the yard is gone".into()))
    }

    /// Sends a signal to a process inside.
    pub async fn kill(&mut self, pid: i32, signal: i32) {
        self.order(&json!({ "kill": { "pid": pid, "signal": signal } }))
            .await
            .expect("the yard takes orders");
        // The signal must be sent before the test continues.
        let sent = self.answers.recv().await;
        assert_eq!(sent, Some(Ok(pid)), "the yard answers an order");
    }

    async fn order(&mut self, order: &serde_json::Value) -> io::Result<()> {
        let to = self.orders.as_mut().expect("open until dropped");
        to.write_all(format!("{order}\n").as_bytes()).await
    }

    /// Waits for the end of a process that was started inside.
    pub async fn ended(&self, pid: i32) -> Ended {
        let mut endings = self.endings.subscribe();
        let map = endings
            .wait_for(|ended| ended.contains_key(&pid))
            .await
            .expect("the yard outlives its processes");
        map[&pid]
    }

    /// The end of a process, if it has ended.
    pub fn ending(&self, pid: i32) -> Option<Ended> {
        self.endings.borrow().get(&pid).copied()
    }

    /// The path of a file inside, for a reader outside (bind mounts, /proc, /run).
    pub fn inside(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        Path::new("/proc")
            .join(self.pid.to_string())
            .join("root")
            .join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The machine's pid of the yard's pid 1; its `/proc/<pid>/ns` are the yard's namespaces.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// A command that runs inside the yard's namespaces, as a child of the test.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter
            .arg(format!("--target={}", self.pid))
            .args(["--mount", "--net", "--pid", "--"])
            .arg(program)
            .stdin(Stdio::null())
            .kill_on_drop(true);
        nsenter
    }

    /// A number unique in this yard.
    pub fn next(&self) -> u32 {
        let mut n = self.scratch.lock();
        *n += 1;
        *n
    }

    /// Ends all processes inside and waits.
    pub fn end(&mut self) {
        drop(self.orders.take());
        let unshare = &mut self.unshare;
        let gone = testkit::until::blocking(testkit::until::PATIENCE, || {
            !matches!(unshare.try_wait(), Ok(None))
        });
        if !gone {
            // --kill-child also ends the yard's pid 1.
            let _ = unshare.start_kill();
        }
    }
}

impl Drop for Yard {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sorts the yard's messages: answers to orders, and ends of processes.
async fn hear(
    mut lines: Lines<BufReader<ChildStdout>>,
    report: mpsc::Sender<Result<i32, String>>,
    endings: Endings,
) {
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(value) = serde_json::from_str::<serde_json::Value>(&line) else {
            continue;
        };
        let int = |v: &serde_json::Value| v.as_i64().and_then(|n| i32::try_from(n).ok());
        let done = value.get("started").or_else(|| value.get("killed"));
        if let Some(pid) = done.and_then(int) {
            let _ = report.send(Ok(pid)).await;
        } else if let Some(why) = value.get("failed").and_then(|v| v.as_str()) {
            let _ = report.send(Err(why.to_owned())).await;
        } else if let Some(exited) = value.get("exited")
            && let (Some(pid), Some(status)) = (int(&exited["pid"]), int(&exited["status"]))
        {
            endings.send_modify(|map| {
                map.insert(pid, Ended(status));
            });
        }
    }
}

/// The one child of a process.
fn only_child(pid: u32) -> Option<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    std::fs::read_to_string(path)
        .ok()?
        .split_whitespace()
        .next()?
        .parse()
        .ok()
}
