//! A client's calls on its pods: each step updates the books before and after the call.

use std::time::{Duration, Instant};

use cairn_tests::{
    client::Cri,
    cri,
    pod::{host_network, pod_namespaces},
    rng::Rng,
};
use tonic::Code;

use crate::{
    book::{Pod, Stage, subject},
    calls::{Link, Manner, Outcome},
    report::Op,
};

/// The label of a client's objects in lists.
pub(crate) const LABEL: &str = "storm";

/// Draws the kind of a pod.
fn config(cri: &Cri, name: &str, client: &str, port: i32, rng: &mut Rng) -> cri::PodSandboxConfig {
    let mut config = cri.pod_config(name);
    config.labels.insert(LABEL.to_owned(), client.to_owned());
    let options = pod_namespaces(&mut config);
    match rng.below(10) {
        0..=2 => options.pid = cri::NamespaceMode::Pod.into(),
        3 => options.pid = cri::NamespaceMode::Node.into(),
        4..=5 => {
            let map = || {
                vec![cri::IdMapping {
                    host_id: 100_000,
                    container_id: 0,
                    length: 65_536,
                }]
            };
            options.userns_options = Some(cri::UserNamespace {
                mode: cri::NamespaceMode::Pod.into(),
                uids: map(),
                gids: map(),
            });
        }
        _ => {}
    }
    let user = options.userns_options.is_some();
    if !user && rng.chance(30) {
        host_network(&mut config);
        // The kubelet gives such a pod the host's name.
        config.hostname = String::new();
    } else if rng.chance(30) {
        config.port_mappings.push(published(port));
    }
    config
}

fn published(port: i32) -> cri::PortMapping {
    cri::PortMapping {
        protocol: cri::Protocol::Tcp.into(),
        container_port: 80,
        host_port: port,
        host_ip: String::new(),
    }
}

/// A planned pod, which exists only in the books.
pub(crate) async fn plan(link: &Link, client: &str, serial: u32, port: i32, rng: &mut Rng) -> Pod {
    let name = format!("{client}-p{serial}");
    let config = config(&link.cri().await, &name, client, port, rng);
    let subject = subject(link, &name);
    let linux = config
        .linux
        .as_ref()
        .and_then(|l| l.security_context.as_ref());
    let options = linux.and_then(|s| s.namespace_options.as_ref());
    subject.history.note(format!("namespaces: {options:?}"));
    Pod {
        name,
        id: None,
        config,
        stage: Stage::Asked,
        subject,
        containers: Vec::new(),
        made: None,
        failed: false,
    }
}

/// Sets a host port in any case, because the rules of the first one stay on the host.
pub(crate) fn publish(pod: &mut Pod, port: i32) {
    pod_namespaces(&mut pod.config).network = cri::NamespaceMode::Pod.into();
    pod.config.port_mappings = vec![published(port)];
}

/// RunPodSandbox, until the outcome is known.
pub(crate) async fn run(link: &Link, pod: &mut Pod, manner: Manner) {
    let config = pod.config.clone();
    let reported = link
        .call(Op::RunPodSandbox, &pod.subject, manner, async |cri| {
            cri.client.run_pod(config).await
        })
        .await;
    if let Outcome::Done(id) = reported {
        if pod.id.as_ref().is_some_and(|before| *before != id) {
            let what = format!("it had the id {:?} and became {id}", pod.id);
            link.violation(&pod.subject, &what);
        }
        pod.identify(link, &id);
        pod.stage = Stage::Made;
        pod.made = Some(Instant::now());
    }
}

/// From now on its containers may be listed stopped.
fn with_containers(pod: &mut Pod, stage: Stage) {
    // Unacknowledged containers may still be missing.
    for container in pod.containers.iter_mut().filter(|c| c.id.is_some()) {
        container.stage = container.stage.max(stage);
    }
}

/// StopPodSandbox.
pub(crate) async fn stop(link: &Link, pod: &mut Pod, manner: Manner) -> bool {
    let Some(id) = pod.id.clone() else {
        return false;
    };
    pod.stage = pod.stage.max(Stage::Stopping);
    with_containers(pod, Stage::Stopping);
    let reported = link
        .call(Op::StopPodSandbox, &pod.subject, manner, async |cri| {
            cri.client.stop_pod(&id).await
        })
        .await;
    let done = reported.done().is_some();
    if done {
        pod.stage = pod.stage.max(Stage::Stopped);
        with_containers(pod, Stage::Stopped);
    }
    done
}

/// RemovePodSandbox. Returns whether it was acknowledged: then the pod must stay removed.
pub(crate) async fn remove(link: &Link, pod: &mut Pod, manner: Manner) -> bool {
    let Some(id) = pod.id.clone() else {
        return false;
    };
    pod.stage = Stage::Removing;
    link.weather.doom(&id);
    with_containers(pod, Stage::Removing);
    let reported = link
        .call(Op::RemovePodSandbox, &pod.subject, manner, async |cri| {
            cri.client.remove_pod(&id).await
        })
        .await;
    reported.done().is_some()
}

/// UpdatePodSandboxResources.
pub(crate) async fn update(link: &Link, pod: &Pod, cpu_shares: i64) {
    let Some(id) = pod.id.clone() else { return };
    let (subject, manner) = (&pod.subject, Manner::default());
    let update = async |cri: Cri| cri.client.update_pod(&id, cpu_shares).await;
    link.call(Op::UpdateResources, subject, manner, update)
        .await;
}

/// PodSandboxStatus of an existing pod: the answer must be legal.
pub(crate) async fn check(link: &Link, pod: &Pod) {
    let Some(id) = pod.id.clone() else { return };
    let manner = Manner {
        expected: Some(Code::NotFound),
        ..Default::default()
    };
    let reported = link
        .call(Op::PodSandboxStatus, &pod.subject, manner, async |cri| {
            cri.pod_status(&id).await
        })
        .await;
    let seen = match &reported {
        Outcome::Done(answer) => answer.status.as_ref().map(cri::PodSandboxStatus::state),
        _ if reported.refused_as(Code::NotFound) => None,
        _ => return,
    };
    if let Err(what) = pod.check(link, seen) {
        link.violation(&pod.subject, &format!("PodSandboxStatus: {what}"));
    }
}

/// Stops and removes a pod, with retries; reports a violation if that fails.
pub(crate) async fn be_rid_of(link: &Link, pod: &mut Pod) {
    let deadline = Instant::now() + Duration::from_secs(150);
    while pod.id.is_some() {
        stop(link, pod, Manner::default()).await;
        if remove(link, pod, Manner::default()).await {
            return;
        }
        if Instant::now() > deadline {
            link.violation(&pod.subject, "the pod cannot be removed");
            return;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}
