//! How a [`Plugin`] becomes the table that is served.
//!
//! A plugin subscribes to the events whose methods it has written. Which those are is read off the types:
//! a method that is not written returns the future [`Unwritten`]. Nothing is called to find out.

use std::{any::TypeId, sync::Arc};

use proto_nri::*;

use crate::plugin_side::{
    answer::{CreateAnswer, UpdateAnswer, stop_reply},
    context::Context,
    handlers::{Handlers, Result, verdict},
    plugin::{Plugin, Unwritten},
};

/// Whether the method that is called here has been written. The call is never made; only its type counts.
fn is_written<P: 'static, Q, F: Future + 'static>(
    _: impl FnOnce(&'static P, &'static Context, Q) -> F,
) -> bool
where
    F::Output: 'static,
{
    TypeId::of::<F>() != TypeId::of::<Unwritten<F::Output>>()
}

/// Puts the method of an event into the table, if it is written.
macro_rules! adopt {
    ($table:ident, $plugin:ident: $P:ident, $(
        $method:ident($request:ident: $Request:ty; $($arg:expr),*) => $reply:expr;
    )*) => {
        $(if is_written(|plugin: &'static $P, cx: &'static Context, $request: $Request| {
            plugin.$method(cx, $($arg),*)
        }) {
            let plugin = $plugin.clone();
            $table = $table.on_call(move |cx: Context, $request: $Request| {
                let plugin = plugin.clone();
                async move { $reply(plugin.$method(&cx, $($arg),*).await) }
            });
        })*
    };
}

/// The reply to an event to which there is nothing to say.
fn done<T: Default>(answer: Result<()>) -> Result<T> {
    answer.map(|()| T::default())
}

/// The reply with what is for the pod.
fn adjusted(answer: Result<PodSandboxAdjustment>) -> Result<RunPodSandboxResponse> {
    answer.map(|adjust| RunPodSandboxResponse {
        adjust: Some(adjust),
    })
}

impl<P: Plugin> From<P> for Handlers {
    /// The table of a plugin.
    fn from(plugin: P) -> Self {
        Arc::new(plugin).into()
    }
}

impl<P: Plugin> From<Arc<P>> for Handlers {
    /// The table of a plugin that others hold too.
    fn from(plugin: Arc<P>) -> Self {
        let table = with_containers(with_pods(Self::new(), &plugin), &plugin);
        with_control(table, plugin)
    }
}

fn with_pods<P: Plugin>(mut table: Handlers, plugin: &Arc<P>) -> Handlers {
    adopt! { table, plugin: P,
        run_pod_sandbox(r: RunPodSandboxRequest; r.pod.unwrap_or_default()) => done;
        // Of the same event: it is what is served where both are written.
        adjust_pod_sandbox(r: RunPodSandboxRequest; r.pod.unwrap_or_default()) => adjusted;
        update_pod_sandbox(
            r: UpdatePodSandboxRequest;
            r.pod.unwrap_or_default(),
            r.overhead_linux_resources.unwrap_or_default(),
            r.linux_resources.unwrap_or_default()
        ) => done;
        post_update_pod_sandbox(r: PostUpdatePodSandboxRequest; r.pod.unwrap_or_default()) => done;
        stop_pod_sandbox(r: StopPodSandboxRequest; r.pod.unwrap_or_default()) => done;
        remove_pod_sandbox(r: RemovePodSandboxRequest; r.pod.unwrap_or_default()) => done;
    }
    table
}

fn with_containers<P: Plugin>(mut table: Handlers, plugin: &Arc<P>) -> Handlers {
    adopt! { table, plugin: P,
        create_container(
            r: CreateContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => |answer: Result<CreateAnswer>| answer.map(CreateAnswer::into_reply);
        post_create_container(
            r: PostCreateContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => done;
        start_container(
            r: StartContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => done;
        post_start_container(
            r: PostStartContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => done;
        update_container(
            r: UpdateContainerRequest;
            r.pod.unwrap_or_default(),
            r.container.unwrap_or_default(),
            r.linux_resources.unwrap_or_default()
        ) => |answer: Result<UpdateAnswer>| answer.map(UpdateAnswer::into_reply);
        post_update_container(
            r: PostUpdateContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => done;
        stop_container(
            r: StopContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => |answer: Result<Vec<ContainerUpdate>>| answer.map(stop_reply);
        remove_container(
            r: RemoveContainerRequest;
            r.pod.unwrap_or_default(), r.container.unwrap_or_default()
        ) => done;
        validate_container_adjustment(r: ValidateContainerAdjustmentRequest; r) => |answer| Ok(verdict(answer));
    }
    table
}

/// Configure, Synchronize, Shutdown, and what is said about failures.
fn with_control<P: Plugin>(mut table: Handlers, plugin: Arc<P>) -> Handlers {
    if let Some(policy) = plugin.failure_policy() {
        table = table.failure_policy(policy);
    }
    // One that does not look at the list does not keep it either.
    if is_written(|p: &'static P, cx: &'static Context, (pods, containers)| {
        p.synchronize(cx, pods, containers)
    }) {
        let synchronize = plugin.clone();
        table = table.synchronize_call(move |cx, pods, containers| {
            let plugin = synchronize.clone();
            async move { plugin.synchronize(&cx, pods, containers).await }
        });
    }
    let (written, configure) = (table.events(), plugin.clone());
    table
        .configure_call(move |cx, request| {
            let plugin = configure.clone();
            async move {
                plugin.configure(&cx, request.config).await?;
                Ok(plugin.events(written))
            }
        })
        .shutdown_call(move |cx, reason| {
            let plugin = plugin.clone();
            async move { plugin.shutdown(&cx, reason).await }
        })
}
