//! The trait that a plugin is written as. `adopt.rs` makes the table of it that is served.

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

/// Methods as they are where a plugin has not written them. A line `name(arguments) -> Answer` of the trait below is
/// `async fn name(&self, cx: &Context, arguments) -> Result<Answer>` to who writes it.
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
/// Write the methods you need, as `async fn`. **The plugin subscribes to the events whose methods it has
/// written**, and to no others; [`events`](Plugin::events) can narrow that. State is in `self`, behind a
/// lock where it changes; all methods see the same value, across reconnects too.
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
/// - An error at RunPodSandbox, UpdatePodSandbox, CreateContainer, StartContainer and UpdateContainer is a veto,
///   at ValidateContainerAdjustment a rejection; elsewhere it is reported and changes nothing (NRI-605).
/// - After a veto everyone is told of Stop and Remove, also of what they never saw: be idempotent.
/// - The runtime waits only so long ([`Context::time_left`]); then the method's future is dropped.
/// - A runtime that keeps the rules calls one method at a time, but nothing here insists on it.
pub trait Plugin: Send + Sync + 'static {
    unwritten! {
        /// Called first on each connection, with the configuration that the runtime has for the plugin, often
        /// none. An error ends the connection.
        configure(config: String) -> ();
    }

    /// The events to subscribe to, asked after [`configure`](Plugin::configure); `written` are those with a
    /// method. Only for plugins that want fewer: one without a method among them is an error at start, none
    /// at all stands for `written` (NRI-911).
    fn events(&self, written: EventMask) -> EventMask {
        written
    }

    /// What the runtime is to do where the plugin gives no answer (late, lost, garbage): fail the request,
    /// keep the plugin when it was only late. Without it, and by runtimes older than NRI v0.12.5, the request
    /// goes on and the plugin is disconnected.
    fn failure_policy(&self) -> Option<FailurePolicy> {
        None
    }

    unwritten! {
        /// Called once on each connection with all there is, before any event; returns updates of what is listed.
        /// What the plugin knows and is not listed is gone.
        synchronize(pods: Vec<PodSandbox>, containers: Vec<Container>) -> Vec<ContainerUpdate>;
    }

    /// The runtime is about to close the connection, for this reason; v1alpha1 does not carry one, and it is
    /// empty (NRI-1051).
    fn shutdown(&self, cx: &Context, reason: String) -> impl Future<Output = ()> + Send {
        let _ = (cx, reason);
        Unwritten::new(())
    }

    unwritten! {
        /// The sandbox is ready but for this; an error vetoes it.
        run_pod_sandbox(pod: PodSandbox) -> ();
        /// Experimental: RunPodSandbox, with an answer. Write this one instead of [`run_pod_sandbox`](Self::run_pod_sandbox) to
        /// give the pod addresses, in the network namespace that the message names; they are yours to take back at
        /// [`stop_pod_sandbox`](Self::stop_pod_sandbox).
        ///
        /// This is pull request 295 of containerd/nri. Runtimes that do not know it, all of NRI v0.12.5, ignore the answer.
        adjust_pod_sandbox(pod: PodSandbox) -> PodSandboxAdjustment;
        /// Before a pod's resources change to `resources`, with `overhead` for the sandbox; an error vetoes it.
        update_pod_sandbox(
            pod: PodSandbox,
            overhead: LinuxResources,
            resources: LinuxResources
        ) -> ();
        /// A pod's resources have changed.
        post_update_pod_sandbox(pod: PodSandbox) -> ();
        /// All containers are stopped, nothing is torn down yet.
        stop_pod_sandbox(pod: PodSandbox) -> ();
        /// The pod is about to leave the list.
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
        /// Judges what all plugins together made of a container; an error rejects it with its text.
        validate_container_adjustment(request: ValidateContainerAdjustmentRequest) -> ();
    }
}

/// The future of a method that a plugin has not written: its answer, at once. No other crate can name it, so
/// that it tells such a method from all others.
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
