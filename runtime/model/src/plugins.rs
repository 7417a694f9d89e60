//! The plugins' view. An instance is a connection, or the in-process plugin in one life of the
//! daemon: its list at Synchronize and the events after it must be consistent.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use nri::{Handlers, HookRequest, PluginId, Runtime, Stub, proto::*};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    drawn::{drawn, some_ms},
    memory::Memory,
    plan::Plugin,
    rule::Rule,
};

impl Plugin {
    /// All chances.
    pub(crate) fn chances(&mut self) -> [&mut u64; 7] {
        [
            &mut self.vetoes,
            &mut self.fails,
            &mut self.late,
            &mut self.lost,
            &mut self.asks,
            &mut self.evicts,
            &mut self.unsolicited,
        ]
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    Listed,
    Made,
    Started,
    Stopped,
}

/// A connection of a plugin.
#[derive(Default)]
pub(crate) struct Instance {
    pub name: String,
    /// Known pods and containers, and the pod of each container.
    knows: BTreeMap<String, (Seen, String)>,
    removed: BTreeSet<String>,
    busy: bool,
    pub over: bool,
}

/// Observations of all plugins, over all lives of the daemon.
#[derive(Clone)]
pub(crate) struct Plugins {
    pub memory: Memory,
    pub seen: Arc<Mutex<Log>>,
}

#[derive(Default)]
pub(crate) struct Log {
    /// Plugins that answered Run or Create of an object without a veto.
    pub answered: BTreeSet<(&'static str, String)>,
    /// Events of all instances: plugin, event, object.
    pub notified: BTreeSet<(&'static str, Event, String)>,
    pub instances: Vec<Arc<Mutex<Instance>>>,
    /// Names of events.
    pub events: Vec<String>,
    containers: Vec<String>,
}

impl Plugins {
    fn instance(&self, plugin: &Plugin) -> Arc<Mutex<Instance>> {
        let mut log = self.seen.lock();
        let name = format!("{}#{}", plugin.id, log.instances.len());
        let instance = Arc::new(Mutex::new(Instance {
            name,
            ..Instance::default()
        }));
        log.instances.push(Arc::clone(&instance));
        instance
    }

    /// The daemon has died, and all its connections with it.
    pub(crate) fn disconnect(&self) {
        for instance in &self.seen.lock().instances {
            instance.lock().over = true;
        }
    }

    pub(crate) fn in_process(&self, plugin: &Plugin) -> (PluginId, Handlers) {
        let instance = self.instance(plugin);
        let lost = Arc::new(Notify::new());
        (
            plugin.id.parse().expect("an id"),
            self.handlers(plugin, &instance, &lost),
        )
    }

    /// Reconnects for as long as the daemon lives.
    pub(crate) async fn connect(self, plugin: Plugin, socket: PathBuf) {
        let (index, name) = plugin.id.split_once('-').expect("an id");
        loop {
            let (instance, lost) = (self.instance(&plugin), Arc::new(Notify::new()));
            let handlers = self.handlers(&plugin, &instance, &lost);
            let mut stub = Stub::builder(handlers)
                .index(index)
                .name(name)
                .socket(&socket);
            let runtime = stub.runtime();
            if let Ok(stub) = stub.register().await {
                tokio::select! {
                    biased;
                    () = lost.notified() => {}
                    _ = stub.wait() => {}
                    () = self.ask(&plugin, &runtime) => {}
                }
                stub.stop();
            }
            instance.lock().over = true;
            some_ms([4, 300][drawn(2) as usize]).await;
        }
    }

    /// Requests updates and evictions for as long as the plugin is connected.
    async fn ask(&self, plugin: &Plugin, runtime: &Runtime) {
        runtime.synchronized().await;
        loop {
            let asks = plugin.unsolicited > 0 && !self.memory.0.lock().is_over;
            if !asks {
                return std::future::pending().await;
            }
            some_ms(100 * plugin.unsolicited).await;
            let Some(container) = self.one_of_all() else {
                continue;
            };
            if drawn(6) == 0 {
                let evicted = runtime.evict(&container, "the seed has it so").await;
                self.memory
                    .log(format!("{} evicts {container}: {evicted:?}", plugin.id));
                if evicted.is_ok() {
                    let mut inner = self.memory.0.lock();
                    let now = inner.begun.map(|_| Instant::now());
                    inner.evicted.entry(container).or_insert(now);
                }
                continue;
            }
            let (number, update) = self.memory.update_of(&container);
            let failed = runtime.update_containers(vec![update], Vec::new()).await;
            let failed = failed.map(|failed| failed.len());
            self.memory.log(format!(
                "{} updates {container} to {number}: {failed:?}",
                plugin.id
            ));
            if let Ok(0) = failed {
                let mut inner = self.memory.0.lock();
                inner.values.acknowledge(&container, number);
            }
        }
    }

    /// A container, existing or removed.
    fn one_of_all(&self) -> Option<String> {
        let log = self.seen.lock();
        let among = Some(log.containers.len() as u64).filter(|n| *n > 0)?;
        // Mostly one of the last.
        let back = drawn(among.min([4, among][drawn(2) as usize]));
        Some(log.containers[(among - 1 - back) as usize].clone())
    }

    /// Objects that a permanent plugin was asked to create and whose end it did not get, even if
    /// the daemon was killed in between (G-13 to G-19).
    pub(crate) fn untold(&self, plugin: &Plugin) -> Vec<String> {
        use Event::{CreateContainer, RemoveContainer, RemovePodSandbox, RunPodSandbox};
        use Event::{StopContainer, StopPodSandbox};
        let log = self.seen.lock();
        let pairs = [
            (RunPodSandbox, StopPodSandbox),
            (RunPodSandbox, RemovePodSandbox),
            (CreateContainer, StopContainer),
            (CreateContainer, RemoveContainer),
        ];
        let mut untold = Vec::new();
        for (id, event, object) in log.notified.iter().filter(|(id, ..)| *id == plugin.id) {
            for (_, end) in pairs.iter().filter(|(made, _)| made == event) {
                if !log.notified.contains(&(id, *end, object.clone())) {
                    untold.push(format!("{id}: {event:?} {object} without {end:?}"));
                }
            }
        }
        untold
    }

    fn handlers(
        &self,
        plugin: &Plugin,
        instance: &Arc<Mutex<Instance>>,
        lost: &Arc<Notify>,
    ) -> Handlers {
        let at = At {
            all: self.clone(),
            plugin: plugin.clone(),
            instance: Arc::clone(instance),
            lost: Arc::clone(lost),
        };
        let sync = at.clone();
        let handlers = Handlers::new().synchronize(move |pods, containers| {
            sync.synchronized(&pods, &containers);
            async move {
                some_ms(20).await;
                Ok(Vec::new())
            }
        });
        let handlers = at.hook::<RunPodSandboxRequest>(handlers);
        let handlers = at.hook::<StopPodSandboxRequest>(handlers);
        let handlers = at.hook::<RemovePodSandboxRequest>(handlers);
        let handlers = at.hook::<StartContainerRequest>(handlers);
        let handlers = at.hook::<PostStartContainerRequest>(handlers);
        let handlers = at.hook::<RemoveContainerRequest>(handlers);
        let (create, stop, update) = (at.clone(), at.clone(), at);
        handlers
            .on(move |request: CreateContainerRequest| {
                let at = create.clone();
                async move {
                    at.on(&request).await?;
                    let evict = at.of_another().map(|container_id| ContainerEviction {
                        container_id,
                        reason: "the seed has it so".into(),
                    });
                    Ok(CreateContainerResponse {
                        evict: evict.into_iter().collect(),
                        update: at.updates(),
                        ..Default::default()
                    })
                }
            })
            .on(move |request: StopContainerRequest| {
                let at = stop.clone();
                async move {
                    at.on(&request).await?;
                    Ok(StopContainerResponse {
                        update: at.updates(),
                    })
                }
            })
            .on(move |request: UpdateContainerRequest| {
                let at = update.clone();
                async move {
                    at.on(&request).await?;
                    Ok(UpdateContainerResponse {
                        update: at.updates(),
                        ..Default::default()
                    })
                }
            })
    }
}

/// An instance with its context.
#[derive(Clone)]
struct At {
    all: Plugins,
    plugin: Plugin,
    instance: Arc<Mutex<Instance>>,
    lost: Arc<Notify>,
}

impl At {
    fn hook<R>(&self, handlers: Handlers) -> Handlers
    where
        R: HookRequest + Send + Sync + 'static,
        R::Reply: Default + Send + 'static,
    {
        let at = self.clone();
        handlers.on(move |request: R| {
            let at = at.clone();
            async move {
                at.on(&request).await?;
                Ok(R::Reply::default())
            }
        })
    }

    fn chance(&self, one_of: u64) -> bool {
        one_of > 0 && drawn(one_of) == 0
    }

    fn of_another(&self) -> Option<String> {
        self.chance(self.plugin.evicts)
            .then(|| self.all.one_of_all())
            .flatten()
    }

    /// Up to four updates of different containers.
    fn updates(&self) -> Vec<ContainerUpdate> {
        if !self.chance(self.plugin.asks) {
            return Vec::new();
        }
        let containers: BTreeSet<String> = (0..=drawn(4))
            .filter_map(|_| self.all.one_of_all())
            .collect();
        let memory = &self.all.memory;
        let updates = containers.iter().map(|id| memory.update_of(id).1);
        updates.collect()
    }

    fn synchronized(&self, pods: &[PodSandbox], containers: &[Container]) {
        let mut instance = self.instance.lock();
        let pods = pods.iter().map(|pod| (&pod.id, &pod.id, Seen::Listed));
        let containers = containers.iter().map(|one| {
            let seen = match one.state() {
                ContainerState::ContainerCreated => Seen::Made,
                _ => Seen::Started,
            };
            (&one.id, &one.pod_sandbox_id, seen)
        });
        for (id, pod, seen) in pods.chain(containers) {
            let before = instance.knows.insert(id.clone(), (seen, pod.clone()));
            if before.is_some() {
                self.fault(&instance.name, &format!("listed, and known before: {id}"));
            }
        }
        let listed = instance.knows.len();
        let line = format!("{} Synchronize {listed}", instance.name);
        self.all.memory.log(line.clone());
        self.all.seen.lock().events.push(line);
    }

    async fn on<R: HookRequest>(&self, request: &R) -> nri::Result<()> {
        let pod = request.pod().map_or("", |pod| &pod.id).to_owned();
        let object = request
            .container()
            .map_or(&pod, |container| &container.id)
            .clone();
        self.see(R::EVENT, &object, &pod);
        some_ms(5).await;
        if self.chance(self.plugin.lost) {
            self.lost.notify_one();
            std::future::pending::<()>().await;
        }
        if self.chance(self.plugin.late) {
            let late = [1500, 5000, 100_000_000][drawn(3) as usize];
            tokio::time::sleep(Duration::from_millis(late)).await;
        }
        self.instance.lock().busy = false;
        let setup = matches!(
            R::EVENT,
            Event::RunPodSandbox | Event::CreateContainer | Event::StartContainer
        );
        if setup && self.chance(self.plugin.vetoes) {
            return Err("the seed has it so".into());
        }
        if !setup && self.chance(self.plugin.fails) {
            return Err("the seed has it so".into());
        }
        if matches!(R::EVENT, Event::RunPodSandbox | Event::CreateContainer) {
            self.all
                .seen
                .lock()
                .answered
                .insert((self.plugin.id, object));
        }
        Ok(())
    }

    fn fault(&self, name: &str, what: &str) {
        let text = format!("{name}: {what}");
        self.all.memory.fault(Rule::Plugins, text);
    }

    /// Per object: Run < Stop < Remove, Create < Start < Stop < Remove, each once; unknown objects
    /// may be stopped and removed.
    fn see(&self, event: Event, object: &str, pod: &str) {
        let mut instance = self.instance.lock();
        let instance = &mut *instance;
        let name = instance.name.clone();
        let fault = |what: &str| {
            self.fault(&name, &format!("{event:?} {object}: {what}"));
        };
        {
            let line = format!("{name} {event:?} {object}");
            self.all.memory.log(line.clone());
            let mut log = self.all.seen.lock();
            log.events.push(line);
            log.notified
                .insert((self.plugin.id, event, object.to_owned()));
            if event == Event::CreateContainer {
                log.containers.push(object.to_owned());
            }
        }
        if std::mem::replace(&mut instance.busy, true) {
            fault("two at a time");
        }
        let known = instance.knows.get(object).map(|(seen, _)| *seen);
        let of_pod = |seen: fn(Seen) -> bool| {
            let mut below = instance.knows.iter();
            below.any(|(id, (phase, of))| id != of && of == pod && seen(*phase))
        };
        match event {
            Event::RunPodSandbox | Event::CreateContainer => {
                if known.is_some() || instance.removed.contains(object) {
                    fault("made, and known before");
                }
                if event == Event::CreateContainer && !instance.knows.contains_key(pod) {
                    fault("in a pod that it does not know");
                }
                instance
                    .knows
                    .insert(object.to_owned(), (Seen::Made, pod.to_owned()));
            }
            Event::StartContainer => match known {
                Some(Seen::Made) => {
                    instance
                        .knows
                        .insert(object.to_owned(), (Seen::Started, pod.to_owned()));
                }
                _ => fault("started, and not just made"),
            },
            // A process that ends at once is stopped after this (C-07.2).
            Event::PostStartContainer if !matches!(known, Some(Seen::Made | Seen::Started)) => {
                fault("runs, and was not just started");
            }
            Event::StopPodSandbox | Event::StopContainer => {
                // The backlog of a must-run plugin may arrive beside the event itself.
                let again = known == Some(Seen::Stopped) || instance.removed.contains(object);
                if again && !self.plugin.must_run {
                    fault("stopped again, or after its removal");
                }
                // A container that was never started is stopped at its removal.
                if event == Event::StopPodSandbox && of_pod(|seen| seen == Seen::Started) {
                    fault("before its containers");
                }
                if known.is_some() {
                    instance
                        .knows
                        .insert(object.to_owned(), (Seen::Stopped, pod.to_owned()));
                }
            }
            Event::RemovePodSandbox | Event::RemoveContainer => {
                let listed_stopped =
                    event == Event::RemovePodSandbox && known == Some(Seen::Listed);
                if matches!(known, Some(Seen::Made | Seen::Started | Seen::Listed))
                    && !listed_stopped
                {
                    fault("before its stop");
                }
                if event == Event::RemovePodSandbox && of_pod(|_| true) {
                    fault("before its containers");
                }
                instance.knows.remove(object);
                instance.removed.insert(object.to_owned());
            }
            _ => {}
        }
    }
}

impl Instance {
    /// Objects whose end it did not get.
    pub(crate) fn untold(&self) -> Vec<&String> {
        self.knows.keys().collect()
    }
}
