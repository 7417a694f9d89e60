//! Helpers that the test suites share: an in-memory runtime, a plugin that records its events, and
//! waiting with a deadline.
#![allow(dead_code, reason = "each suite uses a part of it")]

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

pub(crate) mod go;

use nri::{
    Adaptation, BoxFuture, Builder, Delivery, FailedUpdate, Handlers, Observer, PluginEvent,
    PluginName, Requester, Snapshot, Source,
    proto::*,
    stub::{Stub, StubBuilder},
};

/// A runtime without containers: its lists, the requested updates and evictions.
#[derive(Default)]
pub(crate) struct Runtime {
    pub all: Mutex<Snapshot>,
    pub updates: Mutex<Vec<ContainerUpdate>>,
    pub evictions: Mutex<Vec<(String, String)>>,
    /// Updates and evictions of this container fail.
    pub fails_for: Mutex<Option<String>>,
}

impl Source for Runtime {
    fn snapshot(&self) -> Snapshot {
        self.all.lock().unwrap().clone()
    }

    fn update(
        &self,
        _: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        Box::pin(async move {
            let fails = self.fails_for.lock().unwrap().clone();
            let (failed, done) = updates
                .into_iter()
                .partition(|u| Some(&u.container_id) == fails.as_ref());
            self.updates.lock().unwrap().extend::<Vec<_>>(done);
            let failed: Vec<ContainerUpdate> = failed;
            let failed = failed
                .into_iter()
                .map(|update| FailedUpdate::new(update, "it fails"));
            failed.collect()
        })
    }

    fn evict(
        &self,
        _: &nri::PluginId,
        container: String,
        reason: String,
    ) -> BoxFuture<'_, Result<(), String>> {
        if self.fails_for.lock().unwrap().as_ref() == Some(&container) {
            return Box::pin(async { Err("it fails".into()) });
        }
        self.evictions.lock().unwrap().push((container, reason));
        Box::pin(async { Ok(()) })
    }
}

/// Everything that the adaptation reported to its observer.
#[derive(Default)]
pub(crate) struct Seen {
    pub deliveries: Mutex<Vec<Delivery>>,
    pub plugins: Mutex<Vec<(String, PluginEvent)>>,
}

impl Observer for Seen {
    fn delivered(&self, delivery: &Delivery) {
        self.deliveries.lock().unwrap().push(delivery.clone());
    }

    fn plugin(&self, name: &PluginName<'_>, event: &PluginEvent) {
        let name = name.id.map_or_else(|| "??".to_owned(), ToString::to_string);
        self.plugins.lock().unwrap().push((name, event.clone()));
    }
}

impl Seen {
    pub(crate) fn saw(&self, plugin: &str, what: impl Fn(&PluginEvent) -> bool) -> bool {
        let all = self.plugins.lock().unwrap();
        all.iter()
            .any(|(name, event)| name == plugin && what(event))
    }
}

/// A directory for one adaptation and its runtime, before the start.
pub(crate) struct Place {
    pub dir: tempfile::TempDir,
    pub runtime: Arc<Runtime>,
    pub seen: Arc<Seen>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            runtime: Arc::default(),
            seen: Arc::default(),
        }
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("nri.sock")
    }

    pub(crate) fn builder(&self) -> Builder {
        Adaptation::builder("test", "v1.2.3")
            .socket(self.socket())
            .plugin_dir(self.dir.path().join("plugins"))
            .plugin_config_dir(self.dir.path().join("conf.d"))
            .request_timeout(Duration::from_secs(2) * patience())
            .source(self.runtime.clone())
            .observer(self.seen.clone())
    }
}

pub(crate) fn pod(id: &str) -> PodSandbox {
    PodSandbox {
        id: id.into(),
        name: format!("name-of-{id}"),
        uid: format!("uid-of-{id}"),
        namespace: "default".into(),
        annotations: BTreeMap::from([("a".into(), "b".into())]),
        ..Default::default()
    }
}

pub(crate) fn container(id: &str, pod: &str) -> Container {
    Container {
        id: id.into(),
        pod_sandbox_id: pod.into(),
        name: format!("name-of-{id}"),
        state: ContainerState::ContainerCreated as i32,
        args: vec!["sleep".into(), "1".into()],
        env: vec!["A=1".into()],
        ..Default::default()
    }
}

/// The events of a recording plugin, as `Event pod container`.
#[derive(Clone, Default)]
pub(crate) struct Record(pub Arc<Mutex<Vec<String>>>);

impl Record {
    pub(crate) fn add(&self, event: &str, pod: &str, container: &str) {
        let line = format!("{event} {pod} {container}");
        self.0.lock().unwrap().push(line.trim_end().to_owned());
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// Handlers for all thirteen events and Synchronize that record and accept each.
    pub(crate) fn handlers(&self) -> Handlers {
        macro_rules! pods {
            ($handlers:expr, $($name:ident $event:literal),*) => {{
                let handlers = $handlers;
                $(let handlers = {
                    let record = self.clone();
                    handlers.$name(move |pod: PodSandbox| {
                        record.add($event, &pod.id, "");
                        async { Ok(()) }
                    })
                };)*
                handlers
            }};
        }
        macro_rules! containers {
            ($handlers:expr, $($name:ident $event:literal $ok:expr),*) => {{
                let handlers = $handlers;
                $(let handlers = {
                    let record = self.clone();
                    handlers.$name(move |pod: PodSandbox, c: Container| {
                        record.add($event, &pod.id, &c.id);
                        async { Ok($ok) }
                    })
                };)*
                handlers
            }};
        }
        let handlers = pods!(
            Handlers::new(),
            run_pod_sandbox "RunPodSandbox",
            post_update_pod_sandbox "PostUpdatePodSandbox",
            stop_pod_sandbox "StopPodSandbox",
            remove_pod_sandbox "RemovePodSandbox"
        );
        let handlers = containers!(
            handlers,
            create_container "CreateContainer" (None, Vec::new()),
            post_create_container "PostCreateContainer" (),
            start_container "StartContainer" (),
            post_start_container "PostStartContainer" (),
            post_update_container "PostUpdateContainer" (),
            stop_container "StopContainer" Vec::new(),
            remove_container "RemoveContainer" ()
        );
        let (a, b, c) = (self.clone(), self.clone(), self.clone());
        handlers
            .update_pod_sandbox(move |pod, _, _| {
                a.add("UpdatePodSandbox", &pod.id, "");
                async { Ok(()) }
            })
            .update_container(move |pod, container, _| {
                b.add("UpdateContainer", &pod.id, &container.id);
                async { Ok(Vec::new()) }
            })
            .synchronize(move |pods, containers| {
                let pods: Vec<_> = pods.into_iter().map(|p| p.id).collect();
                let containers: Vec<_> = containers.into_iter().map(|c| c.id).collect();
                c.add("Synchronize", &pods.join(","), &containers.join(","));
                async { Ok(Vec::new()) }
            })
    }
}

/// Returns the connected and the expected plugins, without those that have ended.
pub(crate) fn there(nri: &Adaptation) -> Vec<nri::PluginInfo> {
    let mut plugins = nri.plugins();
    plugins.retain(|p| p.state != nri::PluginState::Ended);
    plugins
}

/// The factor for time limits on a slow (emulated) machine, from `NRI_PATIENCE`.
pub(crate) fn patience() -> u32 {
    let asked = std::env::var("NRI_PATIENCE").ok();
    asked.map_or(1, |asked| asked.parse().expect("NRI_PATIENCE is a number"))
}

/// Settings with a short event timeout for one plugin, but enough time to join. Other plugins keep
/// a timeout that suits a busy machine.
pub(crate) fn hasty(id: &str, limit: Duration) -> BTreeMap<nri::PluginId, nri::PluginSettings> {
    let mut settings = nri::PluginSettings::default();
    settings.policy.request_timeout = Some(limit * patience());
    BTreeMap::from([(id.parse().unwrap(), settings)])
}

/// Polls a condition until it holds; fails after twenty seconds.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let limit = Duration::from_secs(20) * patience();
    let deadline = Instant::now() + limit;
    while !holds() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Waits until the plugin is active.
pub(crate) async fn until_active(nri: &Adaptation, id: &str) {
    until(&format!("{id} is active"), || {
        let plugins = nri.plugins();
        plugins
            .iter()
            .any(|p| p.id.to_string() == id && p.state == nri::PluginState::Active)
    })
    .await;
}

/// Records a passed cell of the hostile table, for the count of `hack/test nri`.
pub(crate) fn held(cell: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("CAIRN_TEST_CELLS") {
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(path);
        let line = format!("{cell}\n");
        file.as_mut().unwrap().write_all(line.as_bytes()).unwrap();
    }
}

pub(crate) fn plugin(place: &Place, id: &str, handlers: Handlers) -> StubBuilder {
    let (index, name) = id.split_once('-').unwrap();
    Stub::builder(handlers)
        .index(index)
        .name(name)
        .socket(place.socket())
}

pub(crate) async fn registered(place: &Place, id: &str, handlers: Handlers) -> Stub {
    plugin(place, id, handlers).register().await.unwrap()
}

/// A plugin that gets events.
pub(crate) async fn active(nri: &Adaptation, place: &Place, id: &str, handlers: Handlers) -> Stub {
    let stub = registered(place, id, handlers).await;
    until_active(nri, id).await;
    stub
}

pub(crate) fn update(container: &str) -> ContainerUpdate {
    ContainerUpdate {
        container_id: container.into(),
        ..Default::default()
    }
}
