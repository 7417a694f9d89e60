//! The contract points (CONTRACT.md): every call of NRI plugins. Only this file uses the dispatch
//! of crate `nri`, so that it can be read beside the contract. A hook has the name of its event.
//!
//! Nothing is applied here. Requests of plugins are returned: for the object itself, and for other
//! containers as [`SideEffects`]. Events whose answers carry updates keep the NRI turn until the
//! caller has applied them; nothing else is awaited in the turn (ARCHITECTURE.md, "Who waits for
//! whom" 3).

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use nri::{
    Adaptation, Handlers, Observer, PluginId, Requester, Source,
    merge::Askers,
    owners::{ContainerOwners, Owners},
};
use nri_record::Recorder;
use parking_lot::Mutex;
use proto_cri::v1 as cri;
use proto_nri::Event;
use tokio::sync::SetOnce;

use super::{
    contract_point::Point,
    error::{Error, Result},
    event_log, message,
    node::Node,
    plugin_answer::{Adjusted, Answer, Changed, HeldTurn, SideEffects},
    recording,
    spec::Specs,
    state::{Container, Pod},
};
use crate::{oci, trace::EventLog};

/// Time between two reports of plugins that connect to the CRI socket.
const MISTAKEN: Duration = Duration::from_secs(1);

pub struct Hooks {
    /// Empty until NRI has started, and always if it is disabled.
    adaptation: SetOnce<Adaptation>,
    /// Ended with the daemon.
    recorder: OnceLock<Recorder>,
    node: Arc<Node>,
    log: EventLog,
    /// In-process plugins.
    in_process: Vec<(PluginId, Handlers)>,
    /// The last report of a plugin at the CRI socket.
    last_mistaken: Mutex<Option<Instant>>,
}

impl Hooks {
    pub fn new(node: Arc<Node>, log: EventLog, in_process: Vec<(PluginId, Handlers)>) -> Self {
        Self {
            adaptation: SetOnce::new(),
            recorder: OnceLock::new(),
            node,
            log,
            in_process,
            last_mistaken: Mutex::default(),
        }
    }

    /// Opens the socket and launches plugins. Recovery has already registered every pod, so that
    /// Synchronize lists them.
    ///
    /// # Errors
    /// One line: another process answers at the socket, or a directory cannot be read.
    pub async fn start(&self, plugins: Arc<impl Source + Observer>) -> Result<()> {
        let config = &self.node.config;
        if !config.nri.enable {
            return Ok(());
        }
        let mut builder = Adaptation::builder("cairn", env!("CARGO_PKG_VERSION"));
        if let Some(recorder) = recording::begin(&config.nri)? {
            let watched = recorder.clone();
            builder = builder.watch(move || watched.connection());
            let _ = self.recorder.set(recorder);
        }
        let mut settings = config.nri_settings();
        settings.wasm_host = Some(self.node.wasm_host.clone());
        let dirs = [&settings.plugin_dir, &settings.plugin_config_dir];
        let dirs = dirs.into_iter().flatten().cloned().collect();
        if let Err(error) = self.node.lookups.answer(dirs).await {
            tracing::error!(%error, "NRI: no plugin is launched");
            settings.plugin_dir = None;
        }
        for (id, plugin) in &self.in_process {
            builder = builder.in_process(id.clone(), plugin.clone());
        }
        let adaptation = builder
            .settings(settings)
            .default_validator(config.nri.default_validator.clone())
            .source(Arc::clone(&plugins) as Arc<dyn Source>)
            .observer(plugins)
            .start()
            .await
            .map_err(|error| Error::failed(format!("NRI: {error}")))?;
        let _ = self.adaptation.set(adaptation);
        Ok(())
    }

    /// The connected and the expected plugins.
    pub fn plugins(&self) -> Vec<nri::PluginInfo> {
        let adaptation = self.adaptation.get();
        adaptation.map(Adaptation::plugins).unwrap_or_default()
    }

    /// Connections and files that were rejected, and are none of [`Hooks::plugins`].
    pub fn rejections(&self) -> Vec<nri::Rejection> {
        let adaptation = self.adaptation.get();
        adaptation.map(Adaptation::rejections).unwrap_or_default()
    }

    /// An NRI plugin connected to the CRI socket. One per second is reported.
    pub fn mistaken(&self, pid: Option<u32>) {
        {
            let mut last = self.last_mistaken.lock();
            if last.is_some_and(|last| last.elapsed() < MISTAKEN) {
                return;
            }
            *last = Some(Instant::now());
        }
        let right = match &self.node.config.nri_settings().socket {
            _ if !self.node.config.nri.enable => "NRI is disabled (nri.enable)".to_owned(),
            Some(socket) => format!("the NRI socket is {}", socket.display()),
            None => "plugins cannot connect (nri.disable_connections)".to_owned(),
        };
        let reason = format!("an NRI plugin connected to the CRI socket; {right}");
        match self.adaptation.get() {
            Some(adaptation) => adaptation.rejected(pid, reason),
            None => tracing::warn!(pid, "{reason}"),
        }
    }

    /// Prometheus text of the families of containerd and ours (NRI-450, NRI-451).
    pub fn metrics(&self) -> String {
        let adaptation = self.adaptation.get();
        adaptation
            .map(|adaptation| adaptation.metrics("cairn_nri"))
            .unwrap_or_default()
    }

    /// Notifies plugins of the shutdown and ends the launched ones.
    pub async fn shutdown(&self, reason: &str) {
        if let Some(adaptation) = self.adaptation.get() {
            adaptation.shutdown(reason).await;
        }
        if let Some(recorder) = self.recorder.get() {
            recording::end(recorder).await;
        }
    }

    /// Whether plugins can join at all. Then every creation is marked: a plugin that joins between
    /// mark and hook is asked, and must be notified of the end (G-12).
    pub fn enabled(&self) -> bool {
        self.node.config.nri.enable
    }

    /// False without plugins: a stop or removal then needs no mark. A plugin that joins at that
    /// moment gets from Synchronize the state that a crash kept from it.
    pub fn active(&self) -> bool {
        let adaptation = self.adaptation.get();
        self.enabled() && adaptation.is_none_or(Adaptation::has_plugins)
    }

    /// Whether a connected plugin gets this event.
    pub fn selects(&self, event: Event) -> bool {
        let plugins = self.plugins();
        let mut active = plugins
            .iter()
            .filter(|p| p.state == nri::PluginState::Active);
        active.any(|plugin| plugin.events.has(event))
    }

    /// C-01. NRI-1110 to NRI-1117: the sandbox is complete and not listed yet. Returns the
    /// addresses that plugins assigned.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn run_pod_sandbox(&self, pod: &Pod) -> Result<Vec<IpAddr>> {
        let Some((adaptation, point)) = self.reach(pod, None, Event::RunPodSandbox).await else {
            return Ok(Vec::new());
        };
        match adaptation
            .run_pod_sandbox(message::pod(&self.node, pod))
            .await
        {
            Ok(ran) => {
                point.passed(None);
                Ok(ran.ips)
            }
            Err(refused) => point.refused(refused),
        }
    }

    /// Undoes a sandbox whose Run hook has begun: all plugins get Stop and Remove (NRI-1118).
    pub async fn undo_run_pod_sandbox(&self, pod: &Pod) {
        // The caller already has an error.
        let _ = self.stop_pod_sandbox(pod).await;
        let _ = self.remove_pod_sandbox(pod).await;
    }

    /// C-02. NRI-1130 to NRI-1134: containers are stopped; network and namespaces still exist.
    ///
    /// # Errors
    /// All plugins were notified, and the teardown goes on. The caller reports the error after it:
    /// a plugin whose failures must fail the request did not answer.
    pub async fn stop_pod_sandbox(&self, pod: &Pod) -> Result<()> {
        let Some((adaptation, point)) = self.reach(pod, None, Event::StopPodSandbox).await else {
            return Ok(());
        };
        point.notified(
            &adaptation
                .stop_pod_sandbox(message::pod(&self.node, pod))
                .await,
        )
    }

    /// C-03. NRI-1140 to NRI-1143: just before the pod leaves the list.
    ///
    /// # Errors
    /// As [`Hooks::stop_pod_sandbox`].
    pub async fn remove_pod_sandbox(&self, pod: &Pod) -> Result<()> {
        let Some((adaptation, point)) = self.reach(pod, None, Event::RemovePodSandbox).await else {
            return Ok(());
        };
        point.notified(
            &adaptation
                .remove_pod_sandbox(message::pod(&self.node, pod))
                .await,
        )
    }

    /// C-12. NRI-1240.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn update_pod_sandbox(
        &self,
        pod: &Pod,
        overhead: Option<&cri::LinuxContainerResources>,
        resources: Option<&cri::LinuxContainerResources>,
    ) -> Result<()> {
        let Some((adaptation, point)) = self.reach(pod, None, Event::UpdatePodSandbox).await else {
            return Ok(());
        };
        let wire = |cri: Option<&cri::LinuxContainerResources>| {
            cri.map(oci::cri_to_nri).unwrap_or_default()
        };
        let (message, overhead, resources) = (
            message::pod(&self.node, pod),
            wire(overhead),
            wire(resources),
        );
        point.end(
            adaptation
                .update_pod_sandbox(message, overhead, resources)
                .await,
        )
    }

    /// C-13.
    pub async fn post_update_pod_sandbox(&self, pod: &Pod) {
        if let Some((adaptation, point)) = self.reach(pod, None, Event::PostUpdatePodSandbox).await
        {
            let notified = adaptation.post_update_pod_sandbox(message::pod(&self.node, pod));
            point.noted(&notified.await);
        }
    }

    /// C-04. The spec is ready; no process exists.
    ///
    /// # Errors
    /// A veto, a conflict or a validator's rejection.
    pub async fn create_container(
        &self,
        pod: &Pod,
        container: &Container,
        specs: &Specs,
    ) -> Result<Answer<Adjusted>> {
        let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::CreateContainer)
            .await
        else {
            return Ok(Answer::none());
        };
        container.set_message(&message::from_spec(&self.node, pod, container, specs));
        let turn = HeldTurn::new(adaptation.turn(Event::CreateContainer).await);
        let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
        let created = match adaptation.create_container(&turn, sandbox, message).await {
            Ok(created) => created,
            Err(refused) => return point.refused(refused),
        };
        point.passed(None);
        let merged = created.merged;
        let adjusted = created.deliveries.iter().any(|delivery| delivery.adjusted);
        let by = requester(Event::CreateContainer, &merged.askers, &merged.owners);
        Ok(Answer {
            own: adjusted.then_some(Adjusted {
                adjustment: merged.adjust,
                owners: merged.owners,
            }),
            others: SideEffects {
                updates: merged.update,
                evictions: merged.evict,
                by,
            },
            _turn: Some(turn),
        })
    }

    /// C-05. The container is listed.
    pub async fn post_create_container(&self, pod: &Pod, container: &Container) {
        if let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::PostCreateContainer)
            .await
        {
            let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
            point.noted(&adaptation.post_create_container(sandbox, message).await);
        }
    }

    /// C-06. The process exists and has not run its program.
    ///
    /// # Errors
    /// The first plugin's veto.
    pub async fn start_container(&self, pod: &Pod, container: &Container, pid: u32) -> Result<()> {
        let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::StartContainer)
            .await
        else {
            return Ok(());
        };
        let (sandbox, mut message) = (message::pod(&self.node, pod), message::container(container));
        message.pid = pid;
        point.end(adaptation.start_container(sandbox, message).await)
    }

    /// C-07.
    pub async fn post_start_container(&self, pod: &Pod, container: &Container) {
        if let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::PostStartContainer)
            .await
        {
            let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
            point.noted(&adaptation.post_start_container(sandbox, message).await);
        }
    }

    /// C-08. The merged values replace the request's; the caller applies both within the turn.
    ///
    /// # Errors
    /// A veto or a conflict.
    pub async fn update_container(
        &self,
        pod: &Pod,
        container: &Container,
        wanted: &cri::LinuxContainerResources,
    ) -> Result<Answer<Changed>> {
        let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::UpdateContainer)
            .await
        else {
            return Ok(Answer::none());
        };
        let turn = HeldTurn::new(adaptation.turn(Event::UpdateContainer).await);
        let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
        let updated = adaptation
            .update_container(&turn, sandbox, message, oci::cri_to_nri(wanted))
            .await;
        let merged = match updated {
            Ok(updated) => updated.merged,
            Err(refused) => return point.refused(refused),
        };
        point.passed(None);
        let owners = merged.owners.container(&container.id);
        Ok(Answer {
            own: merged.target.map(|resources| Changed {
                resources,
                plugins: owners.map_or_else(Vec::new, ContainerOwners::all_setters),
            }),
            others: SideEffects {
                updates: merged.others,
                evictions: merged.evict,
                by: requester(Event::UpdateContainer, &merged.askers, &merged.owners),
            },
            _turn: Some(turn),
        })
    }

    /// C-09.
    pub async fn post_update_container(&self, pod: &Pod, container: &Container) {
        if let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::PostUpdateContainer)
            .await
        {
            let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
            point.noted(&adaptation.post_update_container(sandbox, message).await);
        }
    }

    /// C-10. The process has ended; its exit is recorded.
    pub async fn stop_container(&self, pod: &Pod, container: &Container) -> Answer<()> {
        let Some((adaptation, point)) =
            self.reach(pod, Some(container), Event::StopContainer).await
        else {
            return Answer::none();
        };
        let turn = HeldTurn::new(adaptation.turn(Event::StopContainer).await);
        let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
        let stopped = adaptation.stop_container(&turn, sandbox, message).await;
        point.passed(None);
        let merged = stopped.merged;
        Answer {
            own: None,
            others: SideEffects {
                updates: merged.update,
                evictions: Vec::new(),
                by: requester(Event::StopContainer, &merged.askers, &merged.owners),
            },
            _turn: Some(turn),
        }
    }

    /// C-11. Just before the container leaves the list.
    ///
    /// # Errors
    /// As [`Hooks::stop_pod_sandbox`].
    pub async fn remove_container(&self, pod: &Pod, container: &Container) -> Result<()> {
        let Some((adaptation, point)) = self
            .reach(pod, Some(container), Event::RemoveContainer)
            .await
        else {
            return Ok(());
        };
        let (sandbox, message) = (message::pod(&self.node, pod), message::container(container));
        point.notified(&adaptation.remove_container(sandbox, message).await)
    }

    /// Notifies a plugin that a change to another container, which its answer requested, failed.
    pub fn side_effect_failed(&self, plugin: &PluginId, why: &str) {
        if let Some(adaptation) = self.adaptation.get() {
            adaptation.request_failed(plugin, why);
        }
    }

    /// A contract point, and who is called there; none where NRI is off. Waits for the start of
    /// NRI, which plugins can hold up for as long as they may take to register.
    async fn reach(
        &self,
        pod: &Pod,
        container: Option<&Container>,
        event: Event,
    ) -> Option<(&Adaptation, Point<'_>)> {
        if !self.enabled() {
            return None;
        }
        let adaptation = self.adaptation.wait().await;
        let subject = event_log::subject(pod, container);
        Some((adaptation, Point::reach(&self.log, subject, event)))
    }
}

/// The plugins behind the updates and evictions in the answers to an event.
fn requester(event: Event, askers: &Askers, owners: &Owners) -> Arc<Requester> {
    Arc::new(Requester::merged(
        nri::mask::event_name(event),
        askers,
        owners,
    ))
}
