//! The output of `cairn ps`. Pure: CRI's lists in, text out.

use std::collections::BTreeMap;

use proto_cri::v1 as cri;
use serde::Serialize;
use serde_json::{Value, json};

use super::{
    text::{age, aligned, clean, line, short_id},
    words::Tint,
};

const HEAD: [&str; 7] = [
    "POD / CONTAINER",
    "STATE",
    "AGE",
    "RESTARTS",
    "ID",
    "IMAGE",
    "PROCESS",
];
/// Column of the state, which is colored.
const STATE: usize = 1;

/// A container as listed, and its status.
pub(super) struct Listed {
    pub container: cri::Container,
    pub status: cri::ContainerStatus,
    pub pid: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(super) struct Pod {
    pub id: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// `ready` or `notready`; `unknown` for a pod that only its containers name.
    pub state: &'static str,
    pub attempt: u32,
    pub created_at_ns: i64,
    pub containers: Vec<Container>,
}

#[derive(Debug, Serialize)]
pub(super) struct Container {
    pub id: String,
    pub name: String,
    pub state: &'static str,
    pub attempt: u32,
    pub image: String,
    pub image_id: String,
    pub created_at_ns: i64,
    /// 0 if it has not happened, like the next.
    pub started_at_ns: i64,
    pub finished_at_ns: i64,
    /// The host's pid, while it runs.
    pub pid: Option<u64>,
    /// Only of an exited container.
    pub exit_code: Option<i32>,
    pub reason: String,
    pub message: String,
}

impl Pod {
    /// Whether it is shown without `--all`.
    pub(super) fn is_active(&self) -> bool {
        self.state == "ready" || self.containers.iter().any(|c| c.state != "exited")
    }
}

/// Pods by namespace, name and attempt, each with its containers by creation.
pub(super) fn pods(pods: &[cri::PodSandbox], listed: Vec<Listed>) -> Vec<Pod> {
    let mut of_pod: BTreeMap<String, Vec<Container>> = BTreeMap::new();
    for one in listed {
        let pod = one.container.pod_sandbox_id.clone();
        of_pod.entry(pod).or_default().push(container(one));
    }
    for containers in of_pod.values_mut() {
        containers.sort_by_key(|container| container.created_at_ns);
    }
    let mut all: Vec<Pod> = pods
        .iter()
        .map(|pod| {
            let metadata = pod.metadata.clone().unwrap_or_default();
            Pod {
                containers: of_pod.remove(&pod.id).unwrap_or_default(),
                id: pod.id.clone(),
                namespace: metadata.namespace,
                name: metadata.name,
                uid: metadata.uid,
                state: match pod.state() {
                    cri::PodSandboxState::SandboxReady => "ready",
                    cri::PodSandboxState::SandboxNotready => "notready",
                },
                attempt: metadata.attempt,
                created_at_ns: pod.created_at,
            }
        })
        .collect();
    all.sort_by(|a, b| {
        let key = |pod: &Pod| (pod.namespace.clone(), pod.name.clone(), pod.attempt);
        key(a).cmp(&key(b))
    });
    // Held containers without a known pod.
    all.extend(of_pod.into_iter().map(|(id, containers)| Pod {
        id,
        namespace: String::new(),
        name: String::new(),
        uid: String::new(),
        state: "unknown",
        attempt: 0,
        created_at_ns: 0,
        containers,
    }));
    all
}

fn container(listed: Listed) -> Container {
    let Listed {
        container,
        status,
        pid,
    } = listed;
    let metadata = status.metadata.clone().unwrap_or_default();
    let image = status.image.clone().unwrap_or_default();
    let state = status.state();
    Container {
        id: status.id,
        name: metadata.name,
        state: match state {
            cri::ContainerState::ContainerCreated => "created",
            cri::ContainerState::ContainerRunning => "running",
            cri::ContainerState::ContainerExited => "exited",
            cri::ContainerState::ContainerUnknown => "unknown",
        },
        attempt: metadata.attempt,
        image: if image.user_specified_image.is_empty() {
            image.image
        } else {
            image.user_specified_image
        },
        image_id: container.image_id,
        created_at_ns: status.created_at,
        started_at_ns: status.started_at,
        finished_at_ns: status.finished_at,
        pid,
        exit_code: (state == cri::ContainerState::ContainerExited).then_some(status.exit_code),
        reason: status.reason,
        message: status.message,
    }
}

/// The table for people. `all`: nothing was left out.
pub(super) fn table(pods: &[Pod], now_ns: i64, all: bool, color: bool) -> String {
    if pods.is_empty() {
        let text = if all {
            "there is no pod\n"
        } else {
            "no pod is ready, and no container runs; --all shows those that ended\n"
        };
        return text.to_owned();
    }
    let mut rows = vec![HEAD.map(str::to_owned)];
    let mut tints = vec![Tint::Plain];
    for pod in pods {
        rows.push(row_of_pod(pod, now_ns));
        tints.push(tint(pod.state, None));
        for (number, container) in pod.containers.iter().enumerate() {
            let branch = if number + 1 == pod.containers.len() {
                "└─ "
            } else {
                "├─ "
            };
            rows.push(row_of_container(container, branch, now_ns));
            tints.push(tint(container.state, container.exit_code));
        }
    }
    let mut text = String::new();
    for (mut row, tint) in aligned(&rows).into_iter().zip(tints) {
        row[STATE] = tint.paint(&row[STATE], color);
        text += &line(&row);
    }
    text
}

/// The JSON form: everything, times in nanoseconds since the epoch.
pub(super) fn json(pods: &[Pod]) -> Value {
    json!({ "pods": pods })
}

fn tint(state: &str, exit_code: Option<i32>) -> Tint {
    match (state, exit_code) {
        ("ready" | "running", _) => Tint::Good,
        (_, Some(0)) => Tint::Faint,
        ("notready" | "exited", _) => Tint::Warn,
        ("unknown", _) => Tint::Bad,
        _ => Tint::Plain,
    }
}

fn since(then_ns: i64, now_ns: i64) -> String {
    match then_ns {
        0 => "-".to_owned(),
        _ => age(u64::try_from(now_ns - then_ns).unwrap_or(0)),
    }
}

fn row_of_pod(pod: &Pod, now_ns: i64) -> [String; HEAD.len()] {
    let name = if pod.name.is_empty() {
        "unknown pod".to_owned()
    } else {
        clean(&format!("{}/{}", pod.namespace, pod.name))
    };
    [
        name,
        pod.state.to_owned(),
        since(pod.created_at_ns, now_ns),
        pod.attempt.to_string(),
        short_id(&pod.id).to_owned(),
        String::new(),
        String::new(),
    ]
}

fn row_of_container(container: &Container, branch: &str, now_ns: i64) -> [String; HEAD.len()] {
    let since_when = match container.state {
        "running" => container.started_at_ns,
        "exited" => container.finished_at_ns,
        _ => container.created_at_ns,
    };
    // These two add nothing to the code.
    let reason = match container.reason.as_str() {
        "Completed" | "Error" => "",
        reason => reason,
    };
    let process = match (container.pid, container.exit_code) {
        (_, Some(code)) => format!("exit {code} {reason}"),
        (Some(pid), _) => format!("pid {pid} {reason}"),
        _ => reason.to_owned(),
    };
    let image = if container.image.starts_with("sha256:") {
        short_id(&container.image)
    } else {
        &container.image
    };
    let name = if container.name.is_empty() {
        "unknown"
    } else {
        &container.name
    };
    [
        format!("{branch}{}", clean(name)),
        container.state.to_owned(),
        since(since_when, now_ns),
        container.attempt.to_string(),
        short_id(&container.id).to_owned(),
        clean(image),
        clean(process.trim_end()),
    ]
}

#[cfg(test)]
#[path = "ps_tree_tests.rs"]
mod tests;
