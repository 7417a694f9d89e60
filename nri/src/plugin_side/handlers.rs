//! A plugin as its author sees it: a set of handlers; and as a runtime sees it: methods that take
//! bytes and give bytes, whether it stands behind a socket (`stub.rs`) or in the same process.
//!
//! What is not handled succeeds with an empty answer (NRI-903). A handler's error is the answer to
//! the runtime: for setup events a veto, for a validator a rejection (NRI-605, NRI-918).

use std::{collections::BTreeMap, error, fmt, pin::Pin, sync::Arc};

use parking_lot::Mutex;
use prost::Message;
use proto_nri::*;

use crate::{
    mask::{EVENTS, EventMask, event_name},
    wire::event::{HookRequest, has_state_change},
    wire::rpc::{Code, Status, without_panic},
};

/// Error of a handler: any error, or a text by `.into()`. A [`Status`] keeps its code.
pub type Error = Box<dyn error::Error + Send + Sync>;
/// Result of a handler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Handler<I, O> = Arc<dyn Fn(I) -> Boxed<Result<O>> + Send + Sync>;

type AllThereIs = (Vec<PodSandbox>, Vec<Container>);

/// The handlers of a plugin. The events it subscribes to are those it has handlers for.
///
/// Handlers are called one at a time by a runtime that keeps the rules, but nothing here insists on
/// it. Never wait for an answer of the runtime inside a handler: it may wait for yours.
#[derive(Clone, Default)]
pub struct Handlers {
    events: BTreeMap<Event, Handler<Vec<u8>, Vec<u8>>>,
    configure: Option<Handler<ConfigureRequest, EventMask>>,
    synchronize: Option<Handler<AllThereIs, Vec<ContainerUpdate>>>,
    shutdown: Option<Handler<String, ()>>,
    failure_policy: Option<FailurePolicy>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handlers({})", self.events())
    }
}

macro_rules! sugar {
    ($($(#[$doc:meta])* $name:ident($($field:ident: $arg:ty),*) on $request:ident;)*) => {
        $($(#[$doc])*
        pub fn $name<F, Fut>(self, handler: F) -> Self
        where
            F: Fn($($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<()>> + Send + 'static,
        {
            self.on(move |request: $request| {
                let done = handler($(request.$field.unwrap_or_default()),*);
                async move { done.await.map(|()| Default::default()) }
            })
        })*
    };
}

impl Handlers {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the event of `R` with the messages as they are on the wire. The methods below say
    /// the same with less to write.
    pub fn on<R, F, Fut>(mut self, handler: F) -> Self
    where
        R: HookRequest,
        F: Fn(R) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R::Reply>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let on_bytes = move |payload: Vec<u8>| -> Boxed<Result<Vec<u8>>> {
            let handler = handler.clone();
            Box::pin(async move {
                let request = R::decode(payload.as_slice())?;
                Ok(handler(request).await?.encode_to_vec())
            })
        };
        self.events.insert(R::EVENT, Arc::new(on_bytes));
        self
    }

    /// What the runtime does where the plugin gives no answer (late, lost, garbage): fail the request,
    /// and keep the plugin when it is only late. Without it, and by runtimes older than NRI v0.12.5, the
    /// request goes on and the plugin is disconnected. An error that a handler returns is an answer.
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = Some(policy);
        self
    }

    /// Called first, with the configuration and the runtime's name and versions. Returns the events
    /// wanted; the empty set stands for all that have handlers (NRI-911).
    pub fn configure<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(ConfigureRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<EventMask>> + Send + 'static,
    {
        self.configure = Some(Arc::new(move |request| Box::pin(handler(request))));
        self
    }

    /// Called once after `configure` with all there is; returns updates of what is listed.
    pub fn synchronize<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Vec<PodSandbox>, Vec<Container>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<ContainerUpdate>>> + Send + 'static,
    {
        self.synchronize = Some(Arc::new(move |(pods, containers)| {
            Box::pin(handler(pods, containers))
        }));
        self
    }

    /// Called when the runtime is about to close the connection, with the reason, which v1alpha1
    /// does not carry (NRI-1051).
    pub fn shutdown<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.shutdown = Some(Arc::new(move |reason| {
            let done = handler(reason);
            Box::pin(async move {
                done.await;
                Ok(())
            })
        }));
        self
    }

    /// May veto the container, adjust it, and update others.
    pub fn create_container<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(PodSandbox, Container) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(Option<ContainerAdjustment>, Vec<ContainerUpdate>)>>
            + Send
            + 'static,
    {
        self.on(move |r: CreateContainerRequest| {
            let done = handler(r.pod.unwrap_or_default(), r.container.unwrap_or_default());
            async move {
                let (adjust, update) = done.await?;
                Ok(CreateContainerResponse {
                    adjust,
                    update,
                    evict: Vec::new(),
                })
            }
        })
    }

    /// May veto the update, change it, and update others.
    pub fn update_container<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(PodSandbox, Container, LinuxResources) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<ContainerUpdate>>> + Send + 'static,
    {
        self.on(move |r: UpdateContainerRequest| {
            let done = handler(
                r.pod.unwrap_or_default(),
                r.container.unwrap_or_default(),
                r.linux_resources.unwrap_or_default(),
            );
            async move {
                Ok(UpdateContainerResponse {
                    update: done.await?,
                    evict: Vec::new(),
                })
            }
        })
    }

    /// May update other containers.
    pub fn stop_container<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(PodSandbox, Container) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<ContainerUpdate>>> + Send + 'static,
    {
        self.on(move |r: StopContainerRequest| {
            let done = handler(r.pod.unwrap_or_default(), r.container.unwrap_or_default());
            async move {
                Ok(StopContainerResponse {
                    update: done.await?,
                })
            }
        })
    }

    /// Judges what all plugins together made of a container; an error rejects it with its text.
    pub fn validate_container_adjustment<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(ValidateContainerAdjustmentRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on(move |request: ValidateContainerAdjustmentRequest| {
            let done = handler(request);
            async move {
                let verdict = done.await.err().map(|e| e.to_string());
                Ok(ValidateContainerAdjustmentResponse {
                    reject: verdict.is_some(),
                    reason: verdict.unwrap_or_default(),
                })
            }
        })
    }

    sugar! {
        /// The sandbox is ready but for this; an error vetoes it.
        run_pod_sandbox(pod: PodSandbox) on RunPodSandboxRequest;
        /// Before a pod's resources change: pod, overhead, resources; an error vetoes it.
        update_pod_sandbox(
            pod: PodSandbox,
            overhead_linux_resources: LinuxResources,
            linux_resources: LinuxResources
        ) on UpdatePodSandboxRequest;
        /// A pod's resources have changed.
        post_update_pod_sandbox(pod: PodSandbox) on PostUpdatePodSandboxRequest;
        /// All containers are stopped, nothing is torn down yet.
        stop_pod_sandbox(pod: PodSandbox) on StopPodSandboxRequest;
        /// The pod is about to leave the list.
        remove_pod_sandbox(pod: PodSandbox) on RemovePodSandboxRequest;
        /// The container is in the runtime's list.
        post_create_container(pod: PodSandbox, container: Container)
            on PostCreateContainerRequest;
        /// The container's process is about to start; an error vetoes it.
        start_container(pod: PodSandbox, container: Container) on StartContainerRequest;
        /// The container's process has started.
        post_start_container(pod: PodSandbox, container: Container)
            on PostStartContainerRequest;
        /// A container's resources have changed.
        post_update_container(pod: PodSandbox, container: Container)
            on PostUpdateContainerRequest;
        /// The container is about to be removed.
        remove_container(pod: PodSandbox, container: Container) on RemoveContainerRequest;
    }

    /// The events that have handlers.
    pub fn events(&self) -> EventMask {
        self.events
            .keys()
            .fold(EventMask::NONE, |mask, event| mask.with(*event))
    }
}

/// What has arrived of a split Synchronize (NRI-320).
#[derive(Debug, Default)]
struct Parts {
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
}

/// One connection's worth of a plugin: answers its methods.
#[derive(Debug)]
pub(crate) struct PluginService {
    handlers: Handlers,
    parts: Mutex<Parts>,
}

impl PluginService {
    pub(crate) fn new(handlers: Handlers) -> Self {
        Self {
            handlers,
            parts: Mutex::default(),
        }
    }

    /// Answers one call. An unknown method is UNIMPLEMENTED.
    pub(crate) async fn answer(
        &self,
        method: &str,
        payload: Vec<u8>,
    ) -> std::result::Result<Vec<u8>, Status> {
        match method {
            "Configure" => self.configure(decode(&payload)?).await,
            "Synchronize" => self.synchronize(decode(&payload)?).await,
            "Shutdown" => {
                let reason: ShutdownRequest = decode(&payload)?;
                if let Some(handler) = &self.handlers.shutdown {
                    run(handler(reason.reason)).await?;
                }
                Ok(Vec::new())
            }
            "StateChange" => self.state_change(decode(&payload)?).await,
            _ => {
                let known = EVENTS.iter().find(|(_, name)| *name == method);
                let (event, _) = known.ok_or_else(|| {
                    Status::new(Code::Unimplemented, format!("method {method} is not known"))
                })?;
                self.event(*event, payload).await
            }
        }
    }

    async fn event(&self, event: Event, payload: Vec<u8>) -> std::result::Result<Vec<u8>, Status> {
        match self.handlers.events.get(&event) {
            Some(handler) => run(handler(payload)).await,
            None => Ok(Vec::new()),
        }
    }

    async fn configure(&self, request: ConfigureRequest) -> std::result::Result<Vec<u8>, Status> {
        let handled = self.handlers.events();
        let mut events = match &self.handlers.configure {
            Some(handler) => run(handler(request)).await?,
            None => handled,
        };
        if events.is_empty() {
            events = handled;
        }
        let unhandled = events - handled;
        if !unhandled.is_empty() {
            let text = format!("configured for events without handlers: {unhandled}");
            return Err(Status::new(Code::Unknown, text));
        }
        let events = events.to_wire();
        let failure_policy = self.handlers.failure_policy;
        let reply = ConfigureResponse {
            events,
            failure_policy,
        };
        Ok(reply.encode_to_vec())
    }

    async fn synchronize(
        &self,
        request: SynchronizeRequest,
    ) -> std::result::Result<Vec<u8>, Status> {
        let more = request.more;
        let all = {
            let mut parts = self.parts.lock();
            if self.handlers.synchronize.is_some() {
                parts.pods.extend(request.pods);
                parts.containers.extend(request.containers);
            }
            if more {
                None
            } else {
                Some(std::mem::take(&mut *parts))
            }
        };
        let update = match (&self.handlers.synchronize, all) {
            (Some(handler), Some(Parts { pods, containers })) => {
                run(handler((pods, containers))).await?
            }
            _ => Vec::new(),
        };
        Ok(SynchronizeResponse { update, more }.encode_to_vec())
    }

    /// An old runtime's way to tell of nine events; what it does not fit is no error (NRI-335).
    async fn state_change(&self, change: StateChangeEvent) -> std::result::Result<Vec<u8>, Status> {
        let event = change.event();
        if !has_state_change(event) {
            return Ok(Vec::new());
        }
        // All nine requests are {pod=1, container=2}, so one of them encodes for all.
        let request = PostCreateContainerRequest {
            pod: change.pod,
            container: change.container,
        };
        self.event(event, request.encode_to_vec())
            .await
            .map(|_| Vec::new())
    }
}

fn decode<M: Message + Default>(payload: &[u8]) -> std::result::Result<M, Status> {
    M::decode(payload).map_err(|e| Status::new(Code::InvalidArgument, e.to_string()))
}

async fn run<T>(handler: Boxed<Result<T>>) -> std::result::Result<T, Status> {
    without_panic(async {
        handler.await.map_err(|e| match e.downcast::<Status>() {
            Ok(status) => *status,
            Err(e) => Status::new(Code::Unknown, e.to_string()),
        })
    })
    .await
}

/// The name of an event's method.
pub(crate) fn method(event: Event) -> &'static str {
    event_name(event)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn service() -> PluginService {
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| async { Ok(()) })
            .create_container(|_, _| async { Ok((None, Vec::new())) })
            .synchronize(|_, _| async { Ok(Vec::new()) });
        PluginService::new(handlers)
    }

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_method_panic(
            method in prop::sample::select(vec![
                "Configure", "Synchronize", "Shutdown", "StateChange", "RunPodSandbox",
                "CreateContainer", "Invented",
            ]),
            payload in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            // An answer or an error; a panic would come back as the error that says so.
            if let Err(status) = block_on(service().answer(method, payload)) {
                prop_assert!(!status.message.contains("panicked"), "{}", status.message);
            }
        }
    }

    #[test]
    fn parts_of_a_list_are_echoed_and_handled_once() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let into = seen.clone();
        let handlers = Handlers::new().synchronize(move |pods, _| {
            into.lock().push(pods.len());
            async { Ok(Vec::new()) }
        });
        let service = PluginService::new(handlers);
        for more in [true, true, false] {
            let part = SynchronizeRequest {
                pods: vec![PodSandbox::default()],
                containers: Vec::new(),
                more,
            };
            let reply = block_on(service.answer("Synchronize", part.encode_to_vec())).unwrap();
            assert_eq!(
                SynchronizeResponse::decode(reply.as_slice()).unwrap().more,
                more
            );
        }
        assert_eq!(*seen.lock(), [3]);
    }

    #[test]
    fn without_a_handler_parts_are_echoed_too() {
        let service = PluginService::new(Handlers::new());
        let part = SynchronizeRequest {
            more: true,
            ..Default::default()
        };
        let reply = block_on(service.answer("Synchronize", part.encode_to_vec())).unwrap();
        assert!(SynchronizeResponse::decode(reply.as_slice()).unwrap().more);
    }

    #[test]
    fn configure_wants_what_is_handled_and_refuses_what_is_not() {
        let configure = |wanted: EventMask| {
            let handlers = Handlers::new()
                .run_pod_sandbox(|_| async { Ok(()) })
                .stop_pod_sandbox(|_| async { Ok(()) })
                .configure(move |_| async move { Ok(wanted) });
            let answer = PluginService::new(handlers);
            let reply = block_on(answer.answer("Configure", Vec::new()))?;
            ConfigureResponse::decode(reply.as_slice())
                .map(|r| r.events)
                .map_err(|e| Status::new(Code::Unknown, e.to_string()))
        };
        assert_eq!(configure(EventMask::NONE).unwrap(), 3);
        assert_eq!(configure(EventMask::of(Event::StopPodSandbox)).unwrap(), 2);
        let refused = configure(EventMask::ALL).unwrap_err().to_string();
        assert!(refused.contains("CreateContainer"), "{refused}");
    }

    #[test]
    fn a_state_change_reaches_the_handler_of_its_event_and_others_do_nothing() {
        let seen = Arc::new(Mutex::new(String::new()));
        let into = seen.clone();
        let handlers = Handlers::new().start_container(move |pod, container| {
            *into.lock() = format!("{} {}", pod.id, container.id);
            async { Ok(()) }
        });
        let service = PluginService::new(handlers);
        let change = |event: i32| StateChangeEvent {
            event,
            pod: Some(PodSandbox {
                id: "p".into(),
                ..Default::default()
            }),
            container: Some(Container {
                id: "c".into(),
                ..Default::default()
            }),
        };
        for event in [
            Event::CreateContainer as i32,
            0,
            99,
            Event::RunPodSandbox as i32,
        ] {
            let answer = service.answer("StateChange", change(event).encode_to_vec());
            assert!(block_on(answer).unwrap().is_empty());
        }
        assert_eq!(*seen.lock(), "");
        let start = change(Event::StartContainer as i32).encode_to_vec();
        block_on(service.answer("StateChange", start)).unwrap();
        assert_eq!(*seen.lock(), "p c");
    }
}
