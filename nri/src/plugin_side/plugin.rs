//! The trait for plugins. `adopt.rs` builds its handler table.

use std::{
    pin::Pin,
    task::{self, Poll},
};

use proto_nri::*;

use crate::{
    mask::EventMask,
    plugin_side::{
        answer::{CreateAnswer, UpdateAnswer},
        context::Context,
        handlers::Result,
    },
};

/// Default methods of the trait. A line `name(arguments) -> Answer` below declares `async fn
/// name(&self, cx: &Context, arguments) -> Result<Answer>`.
macro_rules! unwritten {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $Arg:ty),*) -> $Answer:ty;)*) => {
        $($(#[$doc])*
        fn $name(
            &self,
            cx: &Context,
            $($arg: $Arg),*
        ) -> impl Future<Output = Result<$Answer>> + Send {
            let _ = (cx, $($arg),*);
            Unwritten::new(Ok(<$Answer>::default()))
        })*
    };
}

/// A plugin: one value with its state, one method for each event.
///
/// Implement the methods you need, as `async fn`. **The plugin subscribes to the events whose
/// methods it implements**, and to no others; [`events`](Plugin::events) can narrow that. State is
/// in `self`, behind a lock if it changes; all methods share the same value, across reconnects too.
///
/// ```
/// use std::sync::Mutex;
/// use nri::{Context, CreateAnswer, Handlers, Plugin, Result, adjust::Adjust, proto::*};
///
/// /// Numbers containers.
/// #[derive(Default)]
/// struct Numbers {
///     last: Mutex<u32>,
/// }
///
/// impl Plugin for Numbers {
///     async fn create_container(&self, _: &Context, pod: PodSandbox, _: Container) -> Result<CreateAnswer> {
///         if pod.name.is_empty() {
///             return Err("a pod without a name".into());      // vetoes the container
///         }
///         let mut last = self.last.lock().unwrap();
///         *last += 1;
///         let mut answer = CreateAnswer::default();
///         answer.adjust.add_env("NUMBER", last.to_string());
///         Ok(answer)
///     }
/// }
///
/// assert_eq!(Handlers::from(Numbers::default()).events().to_string(), "CreateContainer");
/// ```
///
/// `nri::Stub::builder(Numbers::default()).run().await` makes a program of it (feature `stub`);
/// [`Builder::in_process`](crate::Builder::in_process) a part of a runtime.
///
/// # Rules
///
/// - An error at RunPodSandbox, UpdatePodSandbox, CreateContainer, StartContainer and
///   UpdateContainer is a veto, at ValidateContainerAdjustment a rejection; elsewhere it is
///   reported and changes nothing (NRI-605).
/// - A handler that panics returns an error, which is a veto at these events.
/// - Do not block the thread: use `tokio::task::spawn_blocking` for slow system calls and
///   computations. A handler that blocks is not dropped at its deadline, and the plugin does not
///   notice that the runtime has closed its connection.
/// - After a veto every plugin gets Stop and Remove, also for unknown objects: be idempotent.
/// - The runtime waits for a limited time ([`Context::time_left`]); then it drops the method's
///   future.
/// - A conforming runtime calls one method at a time, but the library does not enforce it.
pub trait Plugin: Send + Sync + 'static {
    unwritten! {
        /// Called first on each connection. `config` is the text of the configuration file of a
        /// launched plugin; it is empty without such a file, and for a plugin that connects. An error
        /// ends the connection.
        configure(config: String) -> ();
    }

    /// The events to subscribe to, queried after [`configure`](Plugin::configure); `written` are
    /// those with a method. Only for plugins that need fewer: an event without a method is an error
    /// at start, an empty set stands for `written` (NRI-911).
    fn events(&self, written: EventMask) -> EventMask {
        written
    }

    /// The reaction to a missing answer (late, lost, garbage): fail the request, keep the plugin
    /// when it was only late. Without it, and by runtimes older than NRI v0.12.5, the request
    /// continues and the plugin is disconnected.
    fn failure_policy(&self) -> Option<FailurePolicy> {
        None
    }

    unwritten! {
        /// Called once on each connection with all existing objects, before any event; returns
        /// updates of listed containers. Objects that are not listed no longer exist.
        synchronize(pods: Vec<PodSandbox>, containers: Vec<Container>) -> Vec<ContainerUpdate>;
    }

    /// The runtime is about to close the connection.
    fn shutdown(&self, cx: &Context) -> impl Future<Output = ()> + Send {
        let _ = cx;
        Unwritten::new(())
    }

    unwritten! {
        /// The last step before the sandbox is ready; an error vetoes it.
        run_pod_sandbox(pod: PodSandbox) -> ();
        /// Experimental: RunPodSandbox, with an answer. Implement it instead of
        /// [`run_pod_sandbox`](Self::run_pod_sandbox) to give the pod addresses, in the network
        /// namespace named in the message; the plugin must release them at
        /// [`stop_pod_sandbox`](Self::stop_pod_sandbox).
        ///
        /// This is pull request 295 of containerd/nri. Runtimes without it, all of NRI v0.12.5,
        /// ignore the answer.
        adjust_pod_sandbox(pod: PodSandbox) -> PodSandboxAdjustment;
        /// Before a pod's resources change to `resources`, with `overhead` for the sandbox; an
        /// error vetoes it.
        update_pod_sandbox(
            pod: PodSandbox,
            overhead: LinuxResources,
            resources: LinuxResources
        ) -> ();
        /// A pod's resources have changed.
        post_update_pod_sandbox(pod: PodSandbox) -> ();
        /// All containers are stopped; teardown has not begun.
        stop_pod_sandbox(pod: PodSandbox) -> ();
        /// The pod is about to be removed from the list.
        remove_pod_sandbox(pod: PodSandbox) -> ();
        /// May veto the container, adjust it, update others and evict others.
        create_container(pod: PodSandbox, container: Container) -> CreateAnswer;
        /// The container is in the runtime's list.
        post_create_container(pod: PodSandbox, container: Container) -> ();
        /// The container's process is about to start; an error vetoes it.
        start_container(pod: PodSandbox, container: Container) -> ();
        /// The container's process has started.
        post_start_container(pod: PodSandbox, container: Container) -> ();
        /// May veto the update to `resources`, change it, update others and evict others.
        update_container(
            pod: PodSandbox,
            container: Container,
            resources: LinuxResources
        ) -> UpdateAnswer;
        /// A container's resources have changed.
        post_update_container(pod: PodSandbox, container: Container) -> ();
        /// The container stops, or has ended by itself; may update others.
        stop_container(pod: PodSandbox, container: Container) -> Vec<ContainerUpdate>;
        /// The container is about to be removed.
        remove_container(pod: PodSandbox, container: Container) -> ();
        /// Validates the merged adjustment of all plugins; an error rejects it with its text.
        /// [`Owners`](crate::owners::Owners) are the plugins that set its fields:
        ///
        /// ```
        /// use nri::{owners::Owners, prelude::*};
        ///
        /// struct NoHostConfig;
        ///
        /// impl Plugin for NoHostConfig {
        ///     async fn validate_container_adjustment(&self, _: &Context, request: ValidateContainerAdjustmentRequest) -> Result<()> {
        ///         let owners = Owners::try_from(&request.owners.unwrap_or_default())?;
        ///         let container = request.container.unwrap_or_default();
        ///         for mount in request.adjust.unwrap_or_default().mounts {
        ///             if mount.source.starts_with("/etc") {
        ///                 let set = owners.container(&container.id);
        ///                 let owner = set.and_then(|set| set.owner_of(Field::Mounts, &mount.destination));
        ///                 let owner = owner.map(ToString::to_string).unwrap_or_default();
        ///                 return Err(format!("{owner} may not mount {}", mount.source).into());
        ///             }
        ///         }
        ///         Ok(())
        ///     }
        /// }
        /// ```
        validate_container_adjustment(request: ValidateContainerAdjustmentRequest) -> ();
    }
}

/// The ready future of a default method. No other crate can name it, so it identifies such a
/// method.
pub(super) struct Unwritten<T>(Option<T>);

impl<T> Unwritten<T> {
    fn new(answer: T) -> Self {
        Self(Some(answer))
    }
}

impl<T: Unpin> Future for Unwritten<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, _: &mut task::Context<'_>) -> Poll<T> {
        match self.0.take() {
            Some(answer) => Poll::Ready(answer),
            None => Poll::Pending,
        }
    }
}
