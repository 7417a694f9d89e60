//! A plugin as a runtime calls it: methods from bytes to bytes, behind a socket (`stub`) or in the
//! same process.

use std::sync::Arc;

use parking_lot::Mutex;
use proto_nri::*;
use tokio::time::Instant;

use crate::{
    mask::event_named,
    plugin_side::{
        context::{self, CallInfo, Context},
        handlers::{Boxed, Handlers, Result},
        runtime::{Connection, Runtime},
        runtime_info::RuntimeInfo,
    },
    wire::{
        event::{Wire, has_state_change},
        rpc::{Code, Status, without_panic},
    },
};

/// The received parts of a split Synchronize (NRI-320).
#[derive(Debug, Default)]
struct Parts {
    pods: Vec<PodSandbox>,
    containers: Vec<Container>,
    left_out: Vec<String>,
}

/// Answers the calls of one connection.
#[derive(Debug)]
pub(crate) struct PluginService {
    handlers: Handlers,
    parts: Mutex<Parts>,
    /// Notified of the plugin's progress.
    connection: Connection,
}

impl PluginService {
    /// Of an in-process plugin, which has no connection for requests to the runtime.
    pub(crate) fn in_process(handlers: Handlers) -> Self {
        Self::connected(handlers, Runtime::detached().connection())
    }

    pub(crate) fn connected(handlers: Handlers, connection: Connection) -> Self {
        Self {
            handlers,
            parts: Mutex::default(),
            connection,
        }
    }

    /// Answers one call. An unknown method is UNIMPLEMENTED. `deadline`: when the caller stops
    /// waiting for the answer. `left_out`: fields missing from the request.
    pub(crate) async fn answer(
        &self,
        method: &str,
        payload: Vec<u8>,
        deadline: Option<Instant>,
        left_out: Vec<String>,
    ) -> Result<Vec<u8>, Status> {
        let left_out = match method {
            "Synchronize" => self.lacks_besides(left_out),
            _ => left_out,
        };
        let left_out = left_out.into();
        let info = CallInfo { deadline, left_out };
        // Boxed: an in-process plugin's future is polled deep within the runtime's own futures.
        let answer = Box::pin(self.answer_method(method, payload, info.clone()));
        context::during(info, answer).await
    }

    async fn answer_method(
        &self,
        method: &str,
        payload: Vec<u8>,
        call: CallInfo,
    ) -> Result<Vec<u8>, Status> {
        let cx = Context {
            call,
            info: self.connection.runtime.known(),
            runtime: self.connection.runtime.clone(),
        };
        match method {
            "Configure" => {
                let request: ConfigureRequest = decode(&payload)?;
                let info = Arc::new(RuntimeInfo::of(&request));
                self.connection.configured(info.clone());
                self.configure(Context { info, ..cx }, request).await
            }
            "Synchronize" => self.synchronize(cx, decode(&payload)?).await,
            "Shutdown" => {
                let Empty {} = decode(&payload)?;
                if let Some(handler) = &self.handlers.shutdown {
                    run(handler(cx, ())).await?;
                }
                Ok(Vec::new())
            }
            "StateChange" => self.state_change(cx, decode(&payload)?).await,
            _ => {
                let event = event_named(method).ok_or_else(|| {
                    Status::new(Code::Unimplemented, format!("method {method} is not known"))
                })?;
                self.event(cx, event, payload).await
            }
        }
    }

    async fn event(&self, cx: Context, event: Event, payload: Vec<u8>) -> Result<Vec<u8>, Status> {
        match self.handlers.events.get(&event) {
            Some(handler) => run(handler(cx, payload)).await,
            None => Ok(Vec::new()),
        }
    }

    async fn configure(&self, cx: Context, request: ConfigureRequest) -> Result<Vec<u8>, Status> {
        let handled = self.handlers.events();
        let answer = match &self.handlers.configure {
            Some(handler) => run(handler(cx, request)).await?,
            None => ConfigureResponse::default(),
        };
        let events = match answer.events {
            0 => handled,
            bits => crate::mask::EventMask::from_bits(bits.cast_unsigned()),
        };
        let unhandled = events - handled;
        if !unhandled.is_empty() {
            let text = format!("configured for events without handlers: {unhandled}");
            return Err(Status::new(Code::Unknown, text));
        }
        let events = events.to_wire();
        let failure_policy = answer.failure_policy.or(self.handlers.failure_policy);
        let reply = ConfigureResponse {
            events,
            failure_policy,
        };
        Ok(reply.to_wire())
    }

    async fn synchronize(
        &self,
        cx: Context,
        request: SynchronizeRequest,
    ) -> Result<Vec<u8>, Status> {
        let more = request.more;
        let Some(Parts {
            pods, containers, ..
        }) = self.put_together(request)
        else {
            let part = SynchronizeResponse {
                more,
                ..Default::default()
            };
            return Ok(part.to_wire());
        };
        let update = match &self.handlers.synchronize {
            Some(handler) => run(handler(cx, (pods, containers))).await,
            None => Ok(Vec::new()),
        };
        let outcome = update.as_ref().map(drop).map_err(Clone::clone);
        self.connection.synchronize_answered(outcome);
        let update = update?;
        Ok(SynchronizeResponse { update, more }.to_wire())
    }

    /// Fields missing from the list, including its earlier parts.
    fn lacks_besides(&self, more: Vec<String>) -> Vec<String> {
        let mut parts = self.parts.lock();
        parts.left_out.extend(more);
        parts.left_out.clone()
    }

    /// The complete list, once its last part has arrived.
    fn put_together(&self, part: SynchronizeRequest) -> Option<Parts> {
        let mut parts = self.parts.lock();
        if self.handlers.synchronize.is_some() {
            parts.pods.extend(part.pods);
            parts.containers.extend(part.containers);
        }
        (!part.more).then(|| std::mem::take(&mut *parts))
    }

    /// An old runtime's call for nine events; unmatched contents are ignored (NRI-335).
    async fn state_change(&self, cx: Context, change: StateChangeEvent) -> Result<Vec<u8>, Status> {
        let event = change.event();
        if !has_state_change(event) {
            return Ok(Vec::new());
        }
        // All nine requests are {pod=1, container=2}, so one of them encodes for all.
        let request = PostCreateContainerRequest {
            pod: change.pod,
            container: change.container,
        };
        self.event(cx, event, request.to_wire())
            .await
            .map(|_| Vec::new())
    }
}

fn decode<M: Wire>(payload: &[u8]) -> Result<M, Status> {
    M::from_wire(payload).map_err(|e| Status::new(Code::InvalidArgument, e))
}

async fn run<T>(handler: Boxed<Result<T>>) -> Result<T, Status> {
    without_panic(async {
        handler.await.map_err(|e| match e.downcast::<Status>() {
            Ok(status) => *status,
            Err(e) => Status::new(Code::Unknown, e.to_string()),
        })
    })
    .await
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::mask::EventMask;

    fn service() -> PluginService {
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| async { Ok(()) })
            .create_container(|_, _| async { Ok((None, Vec::new())) })
            .synchronize(|_, _| async { Ok(Vec::new()) });
        PluginService::in_process(handlers)
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
            // An answer or an error; a panic would return as its own error.
            if let Err(status) = block_on(service().answer(method, payload, None, Vec::new())) {
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
        let service = PluginService::in_process(handlers);
        for more in [true, true, false] {
            let part = SynchronizeRequest {
                pods: vec![PodSandbox::default()],
                containers: Vec::new(),
                more,
            };
            let reply =
                block_on(service.answer("Synchronize", part.to_wire(), None, Vec::new())).unwrap();
            assert_eq!(SynchronizeResponse::from_wire(&reply).unwrap().more, more);
        }
        assert_eq!(*seen.lock(), [3]);
    }

    #[test]
    fn without_a_handler_parts_are_echoed_too() {
        let service = PluginService::in_process(Handlers::new());
        let part = SynchronizeRequest {
            more: true,
            ..Default::default()
        };
        let reply =
            block_on(service.answer("Synchronize", part.to_wire(), None, Vec::new())).unwrap();
        assert!(SynchronizeResponse::from_wire(&reply).unwrap().more);
    }

    #[test]
    fn configure_wants_what_is_handled_and_refuses_what_is_not() {
        let configure = |wanted: EventMask| {
            let handlers = Handlers::new()
                .run_pod_sandbox(|_| async { Ok(()) })
                .stop_pod_sandbox(|_| async { Ok(()) })
                .configure(move |_| async move { Ok(wanted) });
            let answer = PluginService::in_process(handlers);
            let reply = block_on(answer.answer("Configure", Vec::new(), None, Vec::new()))?;
            ConfigureResponse::from_wire(&reply)
                .map(|r| r.events)
                .map_err(|e| Status::new(Code::Unknown, e))
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
        let service = PluginService::in_process(handlers);
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
            let answer = service.answer("StateChange", change(event).to_wire(), None, Vec::new());
            assert!(block_on(answer).unwrap().is_empty());
        }
        assert_eq!(*seen.lock(), "");
        let start = change(Event::StartContainer as i32).to_wire();
        block_on(service.answer("StateChange", start, None, Vec::new())).unwrap();
        assert_eq!(*seen.lock(), "p c");
    }
}
