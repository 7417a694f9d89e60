//! What the benchmarks have in common: they measure any runtime that serves CRI, beside it, as `hack/contract --run` starts it.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tokio::task::JoinSet;

use crate::{client::Client, client::Cri, pod::Pod};

/// How many make or end pods at once.
pub const CLIENTS: usize = 4;
/// The main process of a container: it ends on SIGTERM, and at once.
pub const HONOURS_SIGTERM: &str = "trap 'exit 0' TERM; sleep 100000 & wait";
/// What a runtime's processes for a container or pod are called, as far as the kernel keeps it.
const HELPERS: [&str; 3] = ["cairn-monitor", "containerd-shim", "conmon"];

/// The socket that the runtime serves at, and the image, as the environment has them.
pub fn given() -> Option<(PathBuf, String)> {
    let socket = env::var("CRI").ok()?;
    let image = env::var("IMAGE").ok()?;
    Some((socket.trim_start_matches("unix://").into(), image))
}

/// Whether this is the command of a process that a runtime keeps for a container or pod.
pub fn is_helper(command: &str) -> bool {
    HELPERS.iter().any(|helper| command.starts_with(helper))
}

/// Logs and cgroups of its pods are named after the directory that the socket lies in.
///
/// # Panics
/// If the runtime does not serve.
pub async fn cri(socket: &Path) -> Cri {
    let client = Client::connect(socket).await;
    let logs = socket.parent().expect("a socket lies somewhere");
    let parent = logs.file_name().and_then(|name| name.to_str());
    let parent = format!("/{}", parent.expect("a directory with a name"));
    Cri::new(client.expect("the runtime serves"), logs, &parent)
}

/// Of the runtime, as PID_FILE has it.
pub fn pid() -> Option<String> {
    let file = env::var("PID_FILE").ok()?;
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// The runtime's resident memory, in MB.
pub fn rss() -> Option<f64> {
    let rss = kib(Path::new("/proc").join(pid()?), "status", "VmRSS:")?;
    Some(rss / 1024.0)
}

/// A line of a file of a process.
pub fn kib(process: PathBuf, file: &str, field: &str) -> Option<f64> {
    let text = fs::read_to_string(process.join(file)).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Stops and removes them.
pub async fn end(pods: Vec<Pod>) {
    let mut tasks = JoinSet::new();
    let mut queues: [Vec<Pod>; CLIENTS] = Default::default();
    for (n, pod) in pods.into_iter().enumerate() {
        queues[n % CLIENTS].push(pod);
    }
    for queue in queues {
        tasks.spawn(async move {
            for pod in queue {
                pod.end().await;
            }
        });
    }
    tasks.join_all().await;
}
