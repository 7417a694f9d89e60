//! Clients of pods: calls in and out of order, two at a time, some abandoned; at the end they
//! remove everything.

use std::{sync::Arc, time::Duration};

use cairn::pod::{
    create_container::create_container,
    error::{Error, Kind, Result},
    op::Op,
    pods::Pods,
    run_pod_sandbox,
};
use proto_cri::v1 as cri;
use tokio::{
    task::JoinSet,
    time::{Instant, timeout},
};

use crate::{
    acknowledged::Known,
    bounds::CALL,
    drawn::{drawn, some_ms},
    plan::Hazard,
    rule::Rule,
    values::cri_of,
    world::{IMAGE, World},
};

impl World {
    pub(crate) async fn work(&self, pods: &Arc<Pods>) {
        let mut clients = JoinSet::new();
        if self.plan.has(Hazard::Images) {
            for client in 0..2 {
                let (world, pods) = (self.clone(), Arc::clone(pods));
                clients.spawn(async move { world.use_images(&pods, client).await });
            }
        }
        for client in 0..self.plan.clients {
            let (world, pods) = (self.clone(), Arc::clone(pods));
            clients.spawn(async move {
                for pod in 0..world.plan.pods {
                    let name = format!("c{client}-p{pod}");
                    let config = sandbox(&name, world.memory.happens(Hazard::Pause));
                    world.pod(&pods, &name, config).await;
                }
            });
        }
        clients.join_all().await;
    }

    /// A call, which must end within `bound`. Returns `None` if its caller abandons it.
    async fn call<T>(
        &self,
        what: &str,
        bound: Duration,
        call: impl Future<Output = Result<T>>,
    ) -> Option<Result<T>> {
        let abandons = self.plan.clients > 1 && drawn(8) == 0;
        let patience = if abandons {
            Duration::from_millis(drawn(40))
        } else {
            CALL
        };
        let begun = Instant::now();
        self.memory.log(format!("{what} begins"));
        let answer = timeout(patience, call).await;
        let notified = match &answer {
            Ok(Ok(_)) => "OK".to_owned(),
            Ok(Err(error)) => error.text.clone(),
            Err(_) => "given up".to_owned(),
        };
        self.memory.log(format!("{what}: {notified}"));
        self.notified.lock().push(format!("{what}: {notified}"));
        let took = begun.elapsed();
        if !abandons && took > bound {
            let (took, bound) = (took.as_secs_f64(), bound.as_secs_f64());
            self.memory.fault(
                Rule::Call,
                format!("{what}: {took:.1} s, may take {bound:.1} s: {notified}"),
            );
        }
        answer.ok()
    }

    async fn pod(&self, pods: &Arc<Pods>, name: &str, config: cri::PodSandboxConfig) {
        let run = || {
            let request = cri::RunPodSandboxRequest {
                config: Some(config.clone()),
                runtime_handler: String::new(),
            };
            run_pod_sandbox::run(pods, request)
        };
        let mut ran = self.call(&format!("run {name}"), CALL, run()).await;
        // Abandoned, vetoed, or failed by the network: retries like a kubelet.
        for _ in 0..4 {
            if !matches!(ran, Some(Ok(_))) {
                some_ms(500).await;
                ran = self.call(&format!("run {name} again"), CALL, run()).await;
            }
        }
        let Some(Ok(pod)) = ran else {
            return;
        };
        self.knows_pod(pods, &pod);
        let mut containers = JoinSet::new();
        for number in 0..=drawn(2) {
            let (world, pods, pod) = (self.clone(), Arc::clone(pods), pod.clone());
            let (name, config) = (format!("{name}-{number}"), config.clone());
            containers.spawn(async move {
                Client {
                    world,
                    pods,
                    pod,
                    name,
                }
                .container(config)
                .await;
            });
        }
        if drawn(4) == 0 {
            let update = Op::UpdatePod(Arc::new(cri::UpdatePodSandboxResourcesRequest {
                pod_sandbox_id: pod.clone(),
                resources: Some(cri_of(1)),
                ..Default::default()
            }));
            let update = pods.registry.ask(&pod, update);
            self.call(&format!("update {name}"), CALL, update).await;
        }
        // The pod may end meanwhile.
        let all = containers.join_all();
        match drawn(3) {
            0 => drop(timeout(Duration::from_millis(drawn(400)), all).await),
            _ => drop(all.await),
        }
        if self.memory.happens(Hazard::Stays) {
            return;
        }
        let bound = self.plan.stop(Duration::ZERO);
        if drawn(2) == 0 {
            let stop = pods.registry.ask(&pod, Op::StopPod);
            self.call(&format!("stop {name}"), bound, stop).await;
        }
        let begun = |known: &mut Known| known.removing = true;
        self.memory.0.lock().acknowledged.of_pod(&pod, begun);
        let remove = pods.registry.ask(&pod, Op::RemovePod);
        let what = format!("remove {name}");
        let removed = self.call(&what, 2 * bound, remove).await;
        if let Some(Ok(_)) = removed {
            let done = |known: &mut Known| known.removed = true;
            self.memory.0.lock().acknowledged.of_pod(&pod, done);
        }
    }

    fn knows_pod(&self, pods: &Pods, id: &str) {
        let mut inner = self.memory.0.lock();
        inner.acknowledged.of(id).made = true;
        if let Some(pod) = pods.registry.any(id) {
            inner.pods.push(Arc::downgrade(&pod));
        }
    }

    /// Removes all pods, with retries, until no work is left.
    pub(crate) async fn finish(&self, pods: &Arc<Pods>) {
        {
            let mut inner = self.memory.0.lock();
            inner.hazards.clear();
            inner.is_over = true;
        }
        for round in 0..5 {
            // Abandoned calls continue.
            tokio::time::sleep(Duration::from_secs(60)).await;
            if round == 0 {
                self.check_at_rest(&pods.registry);
            }
            for pod in pods.registry.all() {
                let begun = |known: &mut Known| known.removing = true;
                self.memory.0.lock().acknowledged.of_pod(&pod.id, begun);
                match timeout(CALL, pods.registry.ask(&pod.id, Op::RemovePod)).await {
                    Ok(Ok(_)) => {}
                    Ok(Err(error)) if error.kind == Kind::NotFound => {}
                    Ok(Err(error)) => {
                        let text = format!("finish: {}", error.text);
                        self.memory.log(text.clone());
                        self.notified.lock().push(text);
                    }
                    Err(_) => {
                        let text = format!("the removal of {} hangs", pod.id);
                        self.memory.fault(Rule::Left, text);
                    }
                }
            }
        }
        for pod in pods.registry.all() {
            let text = format!("cannot be removed: {}", pod.id);
            self.memory.fault(Rule::Left, text);
        }
        self.check_images(&pods.node.images).await;
        self.check_end(&pods.registry);
    }
}

/// A client of one container.
struct Client {
    world: World,
    pods: Arc<Pods>,
    pod: String,
    name: String,
}

impl Client {
    async fn container(&self, sandbox_config: cri::PodSandboxConfig) {
        let number = self.world.memory.0.lock().values.number_of_new();
        let pid = pid_of(&sandbox_config);
        let create = || {
            let request = cri::CreateContainerRequest {
                pod_sandbox_id: self.pod.clone(),
                config: Some(container(&self.name, number, pid)),
                sandbox_config: Some(sandbox_config.clone()),
            };
            create_container(&self.pods.registry, request)
        };
        let name = &self.name;
        let mut made = self
            .world
            .call(&format!("create {name}"), CALL, create())
            .await;
        if !matches!(made, Some(Ok(_))) {
            some_ms(100).await;
            let what = format!("create {name} again");
            made = self.world.call(&what, CALL, create()).await;
        }
        let Some(Ok(id)) = made else {
            return;
        };
        {
            let mut inner = self.world.memory.0.lock();
            let known = inner.acknowledged.of(&id);
            (known.made, known.pod) = (true, self.pod.clone());
            inner.values.first(&id, number);
        }
        let id = &id;
        if self.world.plan.clients == 1 {
            self.start(id).await;
            self.update(id).await;
            some_ms(50).await;
            self.stop(id, 2).await;
            self.remove(id).await;
            return;
        }
        if drawn(3) == 0 {
            some_ms(500).await;
        }
        match drawn(6) {
            0 => drop(tokio::join!(self.start(id), self.stop(id, 0))),
            1 => drop(tokio::join!(self.start(id), self.remove(id))),
            2 => drop(tokio::join!(self.start(id), self.start(id))),
            3 => drop(tokio::join!(
                self.start(id),
                self.update(id),
                self.update(id)
            )),
            _ => self.start(id).await,
        }
        some_ms(200).await;
        match drawn(8) {
            0 => drop(tokio::join!(self.stop(id, 10), self.stop(id, 1))),
            1 => drop(tokio::join!(self.stop(id, 30), self.remove(id))),
            2 => drop(tokio::join!(self.update(id), self.stop(id, 2))),
            3 => drop(tokio::join!(self.update(id), self.remove(id))),
            4 => some_ms(9000).await,
            5 => drop(tokio::join!(self.update(id), self.update(id))),
            6 => self.reopen_log(id).await,
            _ => self.stop(id, 3).await,
        }
        if !self.world.plan.has(Hazard::Stays) && drawn(2) == 0 {
            self.remove(id).await;
        }
    }

    async fn ask(&self, what: &str, id: &str, bound: Duration, op: Op) -> bool {
        let asked = self.pods.registry.ask_container(id, op);
        let what = format!("{what} {}", self.name);
        matches!(self.world.call(&what, bound, asked).await, Some(Ok(_)))
    }

    async fn start(&self, id: &str) {
        let evicted = self.world.memory.0.lock().evicted.contains_key(id);
        if self.ask("start", id, CALL, Op::Start).await {
            self.world.memory.0.lock().acknowledged.of(id).started = true;
            if evicted {
                let text = format!("is started after its eviction: {id}");
                self.world.memory.fault(Rule::Evicted, text);
            }
        }
    }

    async fn stop(&self, id: &str, seconds: u64) {
        let grace = Duration::from_secs(seconds);
        let bound = self.world.plan.stop(grace);
        if self.ask("stop", id, bound, Op::Stop { grace }).await {
            let record = self.pods.registry.container(id);
            let exit = record.map(|(_, container)| container.cell.get().exit.clone());
            let mut inner = self.world.memory.0.lock();
            inner.acknowledged.of(id).stopped = exit.ok().map(|exit| (exit.code, exit.reason));
        }
    }

    async fn remove(&self, id: &str) {
        self.world.memory.0.lock().acknowledged.of(id).removing = true;
        let bound = 2 * self.world.plan.stop(Duration::ZERO);
        if self.ask("remove", id, bound, Op::Remove).await {
            self.world.memory.0.lock().acknowledged.of(id).removed = true;
        }
    }

    async fn update(&self, id: &str) {
        let number = {
            let values = &mut self.world.memory.0.lock().values;
            let number = values.number();
            values.begin(id, number);
            number
        };
        let update = Op::Update(Arc::new(cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(cri_of(number)),
            ..Default::default()
        }));
        if self.ask("update", id, CALL, update).await {
            let mut inner = self.world.memory.0.lock();
            inner.values.acknowledge(id, number);
        }
    }

    async fn reopen_log(&self, id: &str) {
        let Ok((_, container)) = self.pods.registry.container(id) else {
            return;
        };
        if let Ok(monitor) = container.running_monitor().await {
            let reopened = async {
                let reopened = monitor.reopen_log().await;
                reopened.map_err(|error| Error::failed(error.to_string()))
            };
            let what = format!("reopen {}", self.name);
            self.world.call(&what, CALL, reopened).await;
        }
    }
}

fn sandbox(name: &str, shares_pids: bool) -> cri::PodSandboxConfig {
    let pid = if shares_pids {
        cri::NamespaceMode::Pod
    } else {
        cri::NamespaceMode::Container
    };
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
                    pid: pid.into(),
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

fn pid_of(sandbox: &cri::PodSandboxConfig) -> i32 {
    let linux = sandbox.linux.as_ref();
    let context = linux.and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    options.map_or(0, |options| options.pid)
}

fn container(name: &str, number: i64, pid: i32) -> cri::ContainerConfig {
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
            resources: Some(cri_of(number)),
            security_context: Some(cri::LinuxContainerSecurityContext {
                privileged: true,
                namespace_options: Some(cri::NamespaceOption {
                    pid,
                    ..Default::default()
                }),
                ..Default::default()
            }),
        }),
        ..Default::default()
    }
}
