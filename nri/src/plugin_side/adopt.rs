//! Builds the handler table of a [`Plugin`].
//!
//! A plugin subscribes to the events whose methods it implements. The type of a method's future
//! shows whether it is implemented: the default returns [`Unwritten`]. So no method is called at
//! registration.

use std::{any::TypeId, sync::Arc};

use proto_nri::*;

use crate::plugin_side::{
    answer::{CreateAnswer, UpdateAnswer, stop_reply},
    context::Context,
    handlers::{Handlers, verdict, wants},
    plugin::{Plugin, Unwritten},
};

/// Whether the called method is implemented. The call is never made; only its type counts.
fn is_written<P: 'static, Q, F: Future + 'static>(
    _: impl FnOnce(&'static P, &'static Context, Q) -> F,
) -> bool
where
    F::Output: 'static,
{
    TypeId::of::<F>() != TypeId::of::<Unwritten<F::Output>>()
}

/// Adds the implemented event methods to the table. A method's arguments are fields of the request,
/// and its answer becomes the reply.
macro_rules! adopt {
    ($table:ident, $plugin:ident: $P:ident, $(
        $method:ident($Request:ident: $($field:ident),*) => $reply:expr;
    )*) => {
        $(if is_written(|plugin: &'static $P, cx: &'static Context, request: $Request| {
            plugin.$method(cx, $(request.$field.unwrap_or_default()),*)
        }) {
            let plugin = $plugin.clone();
            $table = $table.on_call(move |cx: Context, request: $Request| {
                let plugin = plugin.clone();
                async move {
                    let answer = plugin.$method(&cx, $(request.$field.unwrap_or_default()),*).await;
                    answer.map($reply)
                }
            });
        })*
    };
}

/// The empty reply.
fn done<T: Default>((): ()) -> T {
    T::default()
}

/// The reply with the pod's adjustment.
fn adjusted(adjust: PodSandboxAdjustment) -> RunPodSandboxResponse {
    RunPodSandboxResponse {
        adjust: Some(adjust),
    }
}

impl<P: Plugin> From<P> for Handlers {
    /// The table of a plugin.
    fn from(plugin: P) -> Self {
        Arc::new(plugin).into()
    }
}

impl<P: Plugin> From<Arc<P>> for Handlers {
    /// The table of a shared plugin.
    fn from(plugin: Arc<P>) -> Self {
        let table = with_events(Self::new(), &plugin);
        with_control(table, plugin)
    }
}

fn with_events<P: Plugin>(mut table: Handlers, plugin: &Arc<P>) -> Handlers {
    adopt! { table, plugin: P,
        run_pod_sandbox(RunPodSandboxRequest: pod) => done;
        // For the same event: it is served if both are implemented.
        adjust_pod_sandbox(RunPodSandboxRequest: pod) => adjusted;
        update_pod_sandbox(
            UpdatePodSandboxRequest: pod, overhead_linux_resources, linux_resources
        ) => done;
        post_update_pod_sandbox(PostUpdatePodSandboxRequest: pod) => done;
        stop_pod_sandbox(StopPodSandboxRequest: pod) => done;
        remove_pod_sandbox(RemovePodSandboxRequest: pod) => done;
        create_container(CreateContainerRequest: pod, container) => CreateAnswer::into_reply;
        post_create_container(PostCreateContainerRequest: pod, container) => done;
        start_container(StartContainerRequest: pod, container) => done;
        post_start_container(PostStartContainerRequest: pod, container) => done;
        update_container(
            UpdateContainerRequest: pod, container, linux_resources
        ) => UpdateAnswer::into_reply;
        post_update_container(PostUpdateContainerRequest: pod, container) => done;
        stop_container(StopContainerRequest: pod, container) => stop_reply;
        remove_container(RemoveContainerRequest: pod, container) => done;
    }
    if is_written(|p: &'static P, cx: &'static Context, request| {
        p.validate_container_adjustment(cx, request)
    }) {
        let plugin = plugin.clone();
        table = table.on_call(move |cx: Context, request| {
            let plugin = plugin.clone();
            async move {
                let checked = plugin.validate_container_adjustment(&cx, request).await;
                Ok(verdict(checked))
            }
        });
    }
    table
}

/// Configure, Synchronize, Shutdown, and the failure policy.
fn with_control<P: Plugin>(mut table: Handlers, plugin: Arc<P>) -> Handlers {
    table.failure_policy = plugin.failure_policy();
    // A plugin that does not read the list does not keep it.
    if is_written(|p: &'static P, cx: &'static Context, (pods, containers)| {
        p.synchronize(cx, pods, containers)
    }) {
        let plugin = plugin.clone();
        table.synchronize = Some(Arc::new(move |cx, (pods, containers)| {
            let plugin = plugin.clone();
            Box::pin(async move { plugin.synchronize(&cx, pods, containers).await })
        }));
    }
    let (written, configure) = (table.events(), plugin.clone());
    table.configure = Some(Arc::new(move |cx, request| {
        let plugin = configure.clone();
        Box::pin(async move {
            plugin.configure(&cx, request.config).await?;
            Ok(wants(plugin.events(written)))
        })
    }));
    table.shutdown = Some(Arc::new(move |cx, ()| {
        let plugin = plugin.clone();
        Box::pin(async move {
            plugin.shutdown(&cx).await;
            Ok(())
        })
    }));
    table
}
