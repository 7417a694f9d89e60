//! The plugin's service on one connection.

use std::sync::Arc;

use parking_lot::Mutex;
use proto_nri::ShutdownRequest;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    plugin_side::{
        runtime::Connection,
        service::{Call, PluginService},
    },
    shorten,
    wire::{
        event::{Wire, is_plain},
        rpc::{Code, Incoming, Serve, Status},
        version::Version,
    },
};

/// Serves the plugin's methods, and records the outcome of Configure and Shutdown.
pub(super) struct PluginServer {
    pub(super) service: PluginService,
    /// Takes no requests after Shutdown: a runtime that ends does not answer them.
    pub(super) connection: Connection,
    pub(super) configured: Mutex<Option<oneshot::Sender<Result<(), Status>>>>,
    /// The reason of a received Shutdown.
    pub(super) dismissed: Arc<Mutex<Option<String>>>,
    pub(super) state_change_only: bool,
}

#[async_trait::async_trait]
impl Serve for PluginServer {
    async fn answer(&self, incoming: Incoming) -> Result<Vec<u8>, Status> {
        let Incoming {
            service,
            method,
            payload,
            limit,
            mut metadata,
        } = incoming;
        if self.state_change_only && is_plain(method) {
            let text = format!("method {method} is not implemented");
            return Err(Status::new(Code::Unimplemented, text));
        }
        if method == "Shutdown" {
            let reason = ShutdownRequest::from_wire(&payload).unwrap_or_default();
            let mut dismissed = self.dismissed.lock();
            *dismissed = Some(reason.reason);
            self.connection.dismiss();
        }
        let call = Call {
            version: Version::of_service(service),
            deadline: limit.map(|limit| Instant::now() + limit),
            left_out: metadata.remove(shorten::KEY).unwrap_or_default(),
        };
        let answer = self.service.answer(method, payload, call).await;
        if method == "Configure" {
            let configured = self.configured.lock().take();
            if let Some(configured) = configured {
                let outcome = answer.as_ref().map(drop).map_err(Clone::clone);
                // No receiver: the stub was dropped.
                let _ = configured.send(outcome);
            }
        }
        answer
    }
}
