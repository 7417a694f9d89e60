//! A plugin as a table of handlers: made from a [`Plugin`](crate::Plugin), or by hand in a program
//! that chooses its handlers at run time.

use std::{collections::BTreeMap, error, fmt, pin::Pin, sync::Arc};

use proto_nri::*;

use crate::{
    mask::EventMask,
    plugin_side::{answer::stop_reply, context::Context},
    wire::event::{HookRequest, Wire},
};

/// Error of a handler: any error, or a text by `.into()`. A [`Status`](crate::Status) keeps its
/// code.
pub type Error = Box<dyn error::Error + Send + Sync>;
/// Result of a handler.
pub type Result<T, E = Error> = std::result::Result<T, E>;

pub(crate) type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
pub(crate) type Handler<I, O> = Arc<dyn Fn(Context, I) -> Boxed<Result<O>> + Send + Sync>;

type AllThereIs = (Vec<PodSandbox>, Vec<Container>);

/// The handlers of a plugin, as a table that is filled at run time. The plugin subscribes to the
/// events that have handlers.
///
/// **Authors of plugins write a [`Plugin`](crate::Plugin)**; any becomes a table by
/// `Handlers::from(plugin)`. The table is for programs without a fixed set of methods: suites that
/// test runtimes, and generators of plugins. Its closures share state by clones of an `Arc`.
///
/// ```
/// use nri::{Handlers, proto::StartContainerRequest};
///
/// let mut handlers = Handlers::new().run_pod_sandbox(|pod| async move {
///     println!("pod {}/{}", pod.namespace, pod.name);
///     Ok(())
/// });
/// if std::env::args().any(|arg| arg == "--containers") {
///     handlers = handlers.on(|_: StartContainerRequest| async { Err("not today".into()) });
/// }
/// assert_eq!(handlers.events().to_string(), "RunPodSandbox");
/// ```
///
/// Events without a handler succeed with an empty answer (NRI-903). A handler's error is the answer
/// to the runtime: for setup events a veto, for a validator a rejection (NRI-605, NRI-918).
#[derive(Clone, Default)]
pub struct Handlers {
    pub(crate) events: BTreeMap<Event, Handler<Vec<u8>, Vec<u8>>>,
    pub(crate) configure: Option<Handler<ConfigureRequest, ConfigureResponse>>,
    pub(crate) synchronize: Option<Handler<AllThereIs, Vec<ContainerUpdate>>>,
    pub(crate) shutdown: Option<Handler<(), ()>>,
    pub(crate) failure_policy: Option<FailurePolicy>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handlers({})", self.events())
    }
}

/// A validator's answer: an error rejects, with its text.
pub(super) fn verdict(checked: Result<()>) -> ValidateContainerAdjustmentResponse {
    let rejected = checked.err().map(|e| e.to_string());
    ValidateContainerAdjustmentResponse {
        reject: rejected.is_some(),
        reason: rejected.unwrap_or_default(),
    }
}

/// The answer to Configure that subscribes to these events.
pub(super) fn wants(events: EventMask) -> ConfigureResponse {
    ConfigureResponse {
        events: events.to_wire(),
        failure_policy: None,
    }
}

/// Methods that take a handler of one event: its arguments are fields of the request, and its
/// answer becomes the reply.
macro_rules! sugar {
    ($Answer:ty => $reply:expr; $(
        $(#[$doc:meta])* $name:ident($($field:ident: $arg:ty),*) on $request:ident;
    )*) => {
        $($(#[$doc])*
        pub fn $name<F, Fut>(self, handler: F) -> Self
        where
            F: Fn($($arg),*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<$Answer>> + Send + 'static,
        {
            self.on(move |request: $request| {
                let done = handler($(request.$field.unwrap_or_default()),*);
                async move { done.await.map($reply) }
            })
        })*
    };
}

impl Handlers {
    /// No handlers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Handles the event of `R` with the wire messages. The methods below are shorter forms.
    pub fn on<R, F, Fut>(self, handler: F) -> Self
    where
        R: HookRequest,
        F: Fn(R) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R::Reply>> + Send + 'static,
    {
        self.on_call(move |_, request| handler(request))
    }

    pub(crate) fn on_call<R, F, Fut>(mut self, handler: F) -> Self
    where
        R: HookRequest,
        F: Fn(Context, R) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R::Reply>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let on_bytes = move |cx: Context, payload: Vec<u8>| -> Boxed<Result<Vec<u8>>> {
            let handler = handler.clone();
            Box::pin(async move {
                let request = R::from_wire(&payload)?;
                Ok(handler(cx, request).await?.to_wire())
            })
        };
        self.events.insert(R::EVENT, Arc::new(on_bytes));
        self
    }

    /// The reaction to a missing answer (late, lost, garbage): fail the request, and keep the
    /// plugin when it is only late. Without it, and by runtimes older than NRI v0.12.5, the request
    /// continues and the plugin is disconnected. An error that a handler returns is an answer.
    pub fn failure_policy(mut self, policy: FailurePolicy) -> Self {
        self.failure_policy = Some(policy);
        self
    }

    /// Called first, with the configuration and the runtime's name and versions. Returns the
    /// subscribed events; the empty set stands for all that have handlers (NRI-911).
    pub fn configure<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(ConfigureRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<EventMask>> + Send + 'static,
    {
        self.configure_answer(move |request| {
            let done = handler(request);
            async move { done.await.map(wants) }
        })
    }

    /// As [`configure`](Self::configure), with the complete answer: its failure policy overrides
    /// [`failure_policy`](Self::failure_policy).
    pub fn configure_answer<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(ConfigureRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<ConfigureResponse>> + Send + 'static,
    {
        self.configure = Some(Arc::new(move |_, request| Box::pin(handler(request))));
        self
    }

    /// Called once after `configure` with all objects; returns updates of listed containers.
    pub fn synchronize<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn(Vec<PodSandbox>, Vec<Container>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<Vec<ContainerUpdate>>> + Send + 'static,
    {
        self.synchronize = Some(Arc::new(move |_, (pods, containers)| {
            Box::pin(handler(pods, containers))
        }));
        self
    }

    /// Called when the runtime is about to close the connection.
    pub fn shutdown<F, Fut>(mut self, handler: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        self.shutdown = Some(Arc::new(move |_, ()| {
            let done = handler();
            Box::pin(async move {
                done.await;
                Ok(())
            })
        }));
        self
    }

    /// Validates the merged adjustment of all plugins; an error rejects it with its text.
    pub fn validate_container_adjustment<F, Fut>(self, handler: F) -> Self
    where
        F: Fn(ValidateContainerAdjustmentRequest) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<()>> + Send + 'static,
    {
        self.on(move |request: ValidateContainerAdjustmentRequest| {
            let done = handler(request);
            async move { Ok(verdict(done.await)) }
        })
    }

    sugar! { () => |()| Default::default();
        /// The last step before the sandbox is ready; an error vetoes it.
        run_pod_sandbox(pod: PodSandbox) on RunPodSandboxRequest;
        /// Before a pod's resources change: pod, overhead, resources; an error vetoes it.
        update_pod_sandbox(
            pod: PodSandbox,
            overhead_linux_resources: LinuxResources,
            linux_resources: LinuxResources
        ) on UpdatePodSandboxRequest;
        /// A pod's resources have changed.
        post_update_pod_sandbox(pod: PodSandbox) on PostUpdatePodSandboxRequest;
        /// All containers are stopped; teardown has not begun.
        stop_pod_sandbox(pod: PodSandbox) on StopPodSandboxRequest;
        /// The pod is about to be removed from the list.
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

    sugar! { (Option<ContainerAdjustment>, Vec<ContainerUpdate>) =>
        |(adjust, update)| CreateContainerResponse { adjust, update, evict: Vec::new() };
        /// May veto the container, adjust it, and update others.
        create_container(pod: PodSandbox, container: Container) on CreateContainerRequest;
    }

    sugar! { Vec<ContainerUpdate> => |update| UpdateContainerResponse { update, evict: Vec::new() };
        /// May veto the update, change it, and update others.
        update_container(
            pod: PodSandbox,
            container: Container,
            linux_resources: LinuxResources
        ) on UpdateContainerRequest;
    }

    sugar! { Vec<ContainerUpdate> => stop_reply;
        /// May update other containers.
        stop_container(pod: PodSandbox, container: Container) on StopContainerRequest;
    }

    /// The events that have handlers.
    pub fn events(&self) -> EventMask {
        self.events
            .keys()
            .fold(EventMask::NONE, |mask, event| mask.with(*event))
    }
}
