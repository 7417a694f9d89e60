//! Shared by the benchmarks, which run beside any CRI runtime that `hack/contract --run` starts.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tokio::task::JoinSet;

use crate::{client::Client, client::Cri, pod::Pod};

/// Clients that make or end pods concurrently.
pub const CLIENTS: usize = 4;
/// The main process of a container that ends at once on SIGTERM.
pub const HONOURS_SIGTERM: &str = "trap 'exit 0' TERM; sleep 100000 & wait";
/// Names of a runtime's processes for a container or pod, cut like the kernel does.
const HELPERS: [&str; 3] = ["cairn-monitor", "containerd-shim", "conmon"];

/// The runtime's socket and the image, from the environment.
pub fn given() -> Option<(PathBuf, String)> {
    let socket = env::var("CRI").ok()?;
    let image = env::var("IMAGE").ok()?;
    Some((socket.trim_start_matches("unix://").into(), image))
}

/// Whether a runtime keeps a process with this command for a container or pod.
pub fn is_helper(command: &str) -> bool {
    HELPERS.iter().any(|helper| command.starts_with(helper))
}

/// Logs and cgroups of its pods are named after the socket's directory.
///
/// # Panics
/// If the runtime does not serve.
pub async fn cri(socket: &Path) -> Cri {
    let client = Client::connect(socket).await;
    let logs = socket.parent().expect("a socket is in a directory");
    let parent = logs.file_name().and_then(|name| name.to_str());
    let parent = format!("/{}", parent.expect("a directory with a name"));
    Cri::new(client.expect("the runtime serves"), logs, &parent)
}

/// The runtime's pid, from PID_FILE.
pub fn pid() -> Option<String> {
    let file = env::var("PID_FILE").ok()?;
    Some(fs::read_to_string(file).ok()?.trim().to_owned())
}

/// The runtime's resident memory, in MB.
pub fn rss() -> Option<f64> {
    let rss = kib(Path::new("/proc").join(pid()?), "status", "VmRSS:")?;
    Some(rss / 1024.0)
}

/// A field of a process's file.
pub fn kib(process: PathBuf, file: &str, field: &str) -> Option<f64> {
    let text = fs::read_to_string(process.join(file)).ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// Stops and removes the pods.
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
