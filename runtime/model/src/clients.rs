//! Clients of pods: calls in and out of order, two at a time, some abandoned; at the end they
//! remove everything.

use std::{sync::Arc, time::Duration};

use cairn::pod::{
    create_container::create_container,
    error::{Kind, Result},
    op::Op,
    pods::Pods,
    run_pod_sandbox,
};
use proto_cri::v1 as cri;
use tokio::{task::JoinSet, time::timeout};

use crate::{
    memory::{drawn, some_ms},
    world::{CALL, IMAGE, World},
};

impl World {
    pub(crate) async fn work(&self, pods: &Arc<Pods>) {
        let mut clients = JoinSet::new();
        for client in 0..self.plan.clients {
            let (world, pods) = (self.clone(), Arc::clone(pods));
            clients.spawn(async move {
                for pod in 0..world.plan.pods {
                    world.pod(&pods, &format!("c{client}-p{pod}")).await;
                }
            });
        }
        clients.join_all().await;
    }

    /// A call, which must not hang. Returns `None` if its caller abandons it.
    async fn call<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<T>>,
    ) -> Option<Result<T>> {
        let patience = match drawn(8) {
            0 if self.plan.clients > 1 => Duration::from_millis(drawn(40)),
            _ => CALL,
        };
        let answer = timeout(patience, call).await;
        let notified = match &answer {
            Ok(Ok(_)) => "OK".to_owned(),
            Ok(Err(error)) => {
                // On this machine, killed processes die.
                if error.kind == Kind::TimedOut {
                    self.memory.fault(format!("{what}: {}", error.text));
                }
                error.text.clone()
            }
            Err(_) => "given up".to_owned(),
        };
        if patience == CALL && answer.is_err() {
            self.memory.fault(format!("{what} hangs"));
        }
        self.notified.lock().push(format!("{what}: {notified}"));
        answer.ok()
    }

    async fn pod(&self, pods: &Arc<Pods>, name: &str) {
        let config = sandbox(name);
        let run = || {
            let request = cri::RunPodSandboxRequest {
                config: Some(config.clone()),
                runtime_handler: String::new(),
            };
            run_pod_sandbox::run(pods, request)
        };
        let mut ran = self.call(&format!("run {name}"), run()).await;
        // Abandoned, vetoed, or failed by the network: retries like a kubelet.
        for _ in 0..4 {
            if !matches!(ran, Some(Ok(_))) {
                some_ms(500).await;
                ran = self.call(&format!("run {name} again"), run()).await;
            }
        }
        let Some(Ok(pod)) = ran else {
            return;
        };
        let mut containers = JoinSet::new();
        for number in 0..=drawn(2) {
            let (world, pods, pod) = (self.clone(), Arc::clone(pods), pod.clone());
            let (name, config) = (format!("{name}-{number}"), config.clone());
            containers.spawn(async move { world.container(&pods, &pod, &name, config).await });
        }
        // The pod may end meanwhile.
        let all = containers.join_all();
        match drawn(3) {
            0 => drop(timeout(Duration::from_millis(drawn(400)), all).await),
            _ => drop(all.await),
        }
        if drawn(2) == 0 {
            let stop = pods.registry.ask(&pod, Op::StopPod);
            self.call(&format!("stop {name}"), stop).await;
        }
        let remove = pods.registry.ask(&pod, Op::RemovePod);
        self.call(&format!("remove {name}"), remove).await;
    }

    async fn container(
        &self,
        pods: &Arc<Pods>,
        pod: &str,
        name: &str,
        sandbox_config: cri::PodSandboxConfig,
    ) {
        let create = || {
            let request = cri::CreateContainerRequest {
                pod_sandbox_id: pod.to_owned(),
                config: Some(container(name)),
                sandbox_config: Some(sandbox_config.clone()),
            };
            create_container(&pods.registry, request)
        };
        let mut made = self.call(&format!("create {name}"), create()).await;
        if !matches!(made, Some(Ok(_))) {
            some_ms(100).await;
            made = self.call(&format!("create {name} again"), create()).await;
        }
        let Some(Ok(id)) = made else {
            return;
        };
        let start = || self.call("start", pods.registry.ask_container(&id, Op::Start));
        let stop = |seconds| {
            let grace = Duration::from_secs(seconds);
            self.call("stop", pods.registry.ask_container(&id, Op::Stop { grace }))
        };
        let remove = || self.call("remove", pods.registry.ask_container(&id, Op::Remove));
        let update = || {
            let request = cri::UpdateContainerResourcesRequest {
                container_id: id.clone(),
                linux: Some(cri::LinuxContainerResources::default()),
                ..Default::default()
            };
            let update = Op::Update(Arc::new(request));
            self.call("update", pods.registry.ask_container(&id, update))
        };
        if self.plan.clients == 1 {
            start().await;
            update().await;
            some_ms(50).await;
            stop(2).await;
            remove().await;
            return;
        }
        match drawn(6) {
            0 => drop(tokio::join!(start(), stop(0))),
            1 => drop(tokio::join!(start(), remove())),
            2 => drop(tokio::join!(start(), start())),
            _ => drop(start().await),
        }
        some_ms(200).await;
        match drawn(6) {
            0 => drop(tokio::join!(stop(10), stop(1))),
            1 => drop(tokio::join!(stop(30), remove())),
            2 => drop(tokio::join!(update(), stop(2))),
            3 => drop(tokio::join!(update(), remove())),
            4 => some_ms(9000).await,
            _ => drop(stop(3).await),
        }
        if drawn(2) == 0 {
            remove().await;
        }
    }

    /// Removes all pods, with retries, until no work is left.
    pub(crate) async fn finish(&self, pods: &Arc<Pods>) {
        self.memory.0.lock().fails = 0;
        for _ in 0..5 {
            // Abandoned calls continue.
            tokio::time::sleep(Duration::from_secs(60)).await;
            for pod in pods.registry.all() {
                match timeout(CALL, pods.registry.ask(&pod.id, Op::RemovePod)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) if error.kind == Kind::NotFound => {}
                    Ok(Err(error)) => self.notified.lock().push(format!("finish: {}", error.text)),
                    Err(_) => self
                        .memory
                        .fault(format!("the removal of {} hangs", pod.id)),
                }
            }
        }
        for pod in pods.registry.all() {
            self.memory.fault(format!("cannot be removed: {}", pod.id));
        }
        self.check_reported();
    }
}

fn sandbox(name: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.into(),
            uid: name.into(),
            namespace: "model".into(),
            attempt: 0,
        }),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: format!("/model-{name}"),
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(cri::NamespaceOption {
                    pid: cri::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                // No device filter, which needs a real cgroup.
                privileged: true,
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn container(name: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.into(),
            attempt: 0,
        }),
        image: Some(cri::ImageSpec {
            image: IMAGE.into(),
            ..Default::default()
        }),
        linux: Some(cri::LinuxContainerConfig {
            security_context: Some(cri::LinuxContainerSecurityContext {
                privileged: true,
                namespace_options: Some(cri::NamespaceOption {
                    pid: cri::NamespaceMode::Container.into(),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    }
}
