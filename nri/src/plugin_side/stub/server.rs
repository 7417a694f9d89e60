//! The plugin's service on one connection.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use crate::{
    plugin_side::{runtime::Connection, service::PluginService},
    shorten,
    wire::{
        event::is_plain,
        rpc::{Code, Incoming, Serve, Status},
    },
};

/// Serves the plugin's methods, and records the outcome of Configure and Shutdown.
pub(super) struct PluginServer {
    pub(super) service: PluginService,
    /// Takes no requests after Shutdown: a runtime that ends does not answer them.
    pub(super) connection: Connection,
    pub(super) configured: Mutex<Option<oneshot::Sender<Result<(), Status>>>>,
    /// Shutdown was received.
    pub(super) dismissed: Arc<AtomicBool>,
    pub(super) state_change_only: bool,
}

#[async_trait::async_trait]
impl Serve for PluginServer {
    async fn answer(&self, incoming: Incoming) -> Result<Vec<u8>, Status> {
        let Incoming {
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
            self.dismissed.store(true, Ordering::SeqCst);
            self.connection.dismiss();
        }
        let deadline = limit.map(|limit| Instant::now() + limit);
        let left_out = metadata.remove(shorten::KEY).unwrap_or_default();
        let answer = self.service.answer(method, payload, deadline, left_out);
        let answer = answer.await;
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
