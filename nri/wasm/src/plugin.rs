//! A module as a table of handlers: it subscribes to the events whose functions it exports.
//!
//! A module older than the dedicated functions exports `plugin_state_change` instead: it receives
//! nine events, like an old plugin that is a program.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use nri::{Handlers, Result};
use parking_lot::Mutex;
use prost::Message;
use proto_nri::*;

use crate::{
    host::say,
    module::{Module, ModuleError},
};

/// For a call whose caller reports no limit.
const USUAL: Duration = Duration::from_secs(2);

const STATE_CHANGE: &str = "plugin_state_change";

type Shared = Arc<Mutex<Module>>;

/// One call at a time: an instance has one thread. It runs on a separate thread, so that the
/// connection is served meanwhile.
async fn ask(module: &Shared, function: &'static str, request: Vec<u8>) -> Result<Vec<u8>> {
    answer(module, move |module, deadline| {
        module.call(function, &request, deadline)
    })
    .await
}

async fn answer(
    module: &Shared,
    call: impl FnOnce(&mut Module, Instant) -> Result<Vec<u8>, ModuleError> + Send + 'static,
) -> Result<Vec<u8>> {
    let (module, deadline) = (module.clone(), deadline());
    let answer = tokio::task::spawn_blocking(move || call(&mut module.lock(), deadline)).await?;
    let answer = answer.inspect_err(|error| say("error", &error.to_string()));
    if matches!(answer, Err(ModuleError::TimedOut(_))) && nri::time_left().is_some() {
        // The runtime stops waiting now and decides the outcome: an error would race with that.
        std::future::pending::<()>().await;
    }
    Ok(answer?)
}

fn deadline() -> Instant {
    Instant::now() + nri::time_left().unwrap_or(USUAL)
}

/// Every event that `module` can take.
pub(crate) fn handlers(module: Module) -> Handlers {
    let module = Arc::new(Mutex::new(module));
    with_events(with_control(Handlers::new(), &module), &module)
}

fn with_control(handlers: Handlers, module: &Shared) -> Handlers {
    let (configured, synchronised, ended) = (module.clone(), module.clone(), module.clone());
    handlers
        .configure_answer(move |request: ConfigureRequest| {
            let module = configured.clone();
            async move {
                let request = request.encode_to_vec();
                let answer = answer(&module, move |module, deadline| {
                    module.configure(request, deadline)
                })
                .await?;
                Ok(ConfigureResponse::decode(&*answer)?)
            }
        })
        .synchronize(move |pods, containers| {
            let module = synchronised.clone();
            async move {
                let request = SynchronizeRequest {
                    pods,
                    containers,
                    more: false,
                };
                let answer = ask(&module, "plugin_synchronize", request.encode_to_vec()).await?;
                Ok(SynchronizeResponse::decode(&*answer)?.update)
            }
        })
        .shutdown(move || {
            let module = ended.clone();
            // The answer to a notification is ignored.
            async move { drop(ask(&module, "plugin_shutdown", Vec::new()).await) }
        })
}

/// A handler for each event with an exported function. The last word is the object passed to
/// `plugin_state_change` otherwise: `none` for events without it.
macro_rules! events {
    ($handlers:ident, $module:ident; $($function:literal $request:ident $event:ident $old:tt;)*) => {
        $(if $module.lock().has($function) {
            let module = $module.clone();
            $handlers = $handlers.on(move |request: $request| {
                let module = module.clone();
                async move {
                    let answer = ask(&module, $function, request.encode_to_vec()).await?;
                    Ok(Message::decode(&*answer)?)
                }
            });
        } else { events!(@old $handlers $module $request $event $old); })*
    };
    (@old $handlers:ident $module:ident $request:ident $event:ident none) => {};
    (@old $handlers:ident $module:ident $request:ident $event:ident pod) => {
        events!(@changed $handlers $module $request $event, |_| None);
    };
    (@old $handlers:ident $module:ident $request:ident $event:ident container) => {
        events!(@changed $handlers $module $request $event, |request: &mut $request| request.container.take());
    };
    (@changed $handlers:ident $module:ident $request:ident $event:ident, $container:expr) => {
        if $module.lock().has(STATE_CHANGE) {
            let module = $module.clone();
            $handlers = $handlers.on(move |mut request: $request| {
                let module = module.clone();
                async move {
                    let container: fn(&mut $request) -> Option<Container> = $container;
                    let change = StateChangeEvent {
                        event: Event::$event as i32,
                        container: container(&mut request),
                        pod: request.pod,
                    };
                    ask(&module, STATE_CHANGE, change.encode_to_vec()).await?;
                    Ok(Default::default())
                }
            });
        }
    };
}

fn with_events(mut handlers: Handlers, module: &Shared) -> Handlers {
    events! { handlers, module;
        "plugin_run_pod_sandbox" RunPodSandboxRequest RunPodSandbox pod;
        "plugin_update_pod_sandbox" UpdatePodSandboxRequest UpdatePodSandbox none;
        "plugin_post_update_pod_sandbox" PostUpdatePodSandboxRequest PostUpdatePodSandbox pod;
        "plugin_stop_pod_sandbox" StopPodSandboxRequest StopPodSandbox pod;
        "plugin_remove_pod_sandbox" RemovePodSandboxRequest RemovePodSandbox pod;
        "plugin_create_container" CreateContainerRequest CreateContainer none;
        "plugin_post_create_container" PostCreateContainerRequest PostCreateContainer container;
        "plugin_start_container" StartContainerRequest StartContainer container;
        "plugin_post_start_container" PostStartContainerRequest PostStartContainer container;
        "plugin_update_container" UpdateContainerRequest UpdateContainer none;
        "plugin_post_update_container" PostUpdateContainerRequest PostUpdateContainer container;
        "plugin_stop_container" StopContainerRequest StopContainer none;
        "plugin_remove_container" RemoveContainerRequest RemoveContainer container;
        "plugin_validate_container_adjustment" ValidateContainerAdjustmentRequest ValidateContainerAdjustment none;
    }
    handlers
}
