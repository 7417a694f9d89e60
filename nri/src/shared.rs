//! State shared by all plugins of one [`Adaptation`](crate::Adaptation), and how a plugin leaves
//! it.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::{
    sync::{Mutex as AsyncMutex, watch},
    time::Instant,
};

use crate::{
    backlog::Backlog,
    closing::{CloseReason, Closing},
    failed_joins::FailedJoins,
    limits::Admission,
    notices::Notices,
    observe::{Observer, PluginEvent},
    plugin::Session,
    plugin_id::PluginId,
    removed::RemovedPlugins,
    roster::Roster,
    seats::{MAX_SHADOWS, Seats},
    settings::{Settings, Timeouts},
    source::Source,
    wire::mux::Watches,
};

/// The runtime as plugins see it, and what it adds to their connections.
#[derive(Default)]
pub(crate) struct Runtime {
    pub(crate) name: String,
    pub(crate) version: String,
    /// Makes the observer of the bytes of a connection.
    pub(crate) watches: Option<Watches>,
}

pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) settings: Settings,
    pub(crate) roster: Arc<Roster>,
    pub(crate) seats: Seats,
    pub(crate) notices: Notices,
    pub(crate) admission: Admission,
    pub(crate) backlog: Backlog,
    pub(crate) failed_joins: FailedJoins,
    pub(crate) removed: RemovedPlugins,
    pub(crate) turn: Arc<AsyncMutex<()>>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) started: Instant,
    /// Restarts in a row, per launched plugin.
    pub(crate) restarts: Mutex<BTreeMap<PluginId, u32>>,
}

impl Shared {
    pub(crate) fn new(
        runtime: Runtime,
        settings: Settings,
        source: Arc<dyn Source>,
        observer: Option<Arc<dyn Observer>>,
    ) -> Self {
        let roster = Arc::new(Roster::new(source.clone()));
        Self {
            runtime,
            settings,
            roster: roster.clone(),
            seats: Seats::default(),
            notices: Notices::new(roster, observer),
            admission: Admission::default(),
            backlog: Backlog::default(),
            failed_joins: FailedJoins::default(),
            removed: RemovedPlugins::default(),
            turn: Arc::default(),
            source,
            stopping: watch::Sender::new(false),
            started: Instant::now(),
            restarts: Mutex::default(),
        }
    }

    pub(crate) fn timeouts(&self) -> Timeouts {
        self.settings.timeouts
    }

    /// A plugin gets no further events from now on; the first reason is kept. The task that watches
    /// the plugin ends the rest.
    pub(crate) fn close(&self, session: &Arc<Session>, reason: Closing) {
        // Marked first: `shadow` looks for the mark after it has added the session.
        let first = session.is_to_close(&reason);
        self.roster.leave(session);
        self.seats.remove_shadow(session);
        if first {
            let reason = reason.to_string();
            self.remember_removed(session, &reason);
            self.notices.count_changed();
            let closed = PluginEvent::Closed { reason };
            self.notices.report(&session.name(), &closed);
        }
    }

    /// Closes a plugin that failed before its events began.
    pub(crate) fn reject(&self, session: &Arc<Session>, reason: Closing) {
        let rejected = PluginEvent::Rejected {
            reason: reason.to_string(),
        };
        self.notices.report(&session.name(), &rejected);
        self.close(session, reason);
    }

    /// A newer instance is called instead of this one, until either is closed. The oldest beyond
    /// the bound is closed.
    pub(crate) fn shadow(&self, session: Arc<Session>) {
        session.set_shadowed(true);
        if let Some(oldest) = self.seats.add_shadow(&session) {
            let why = format!("{MAX_SHADOWS} newer ones are in its place");
            self.close(&oldest, CloseReason::InstanceReplaced.because(why));
        }
        if session.is_closing() {
            return self.seats.remove_shadow(&session);
        }
        let shadowed = PluginEvent::Shadowed;
        self.notices.report(&session.name(), &shadowed);
    }

    /// Resolves when the runtime stops.
    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut stopping = self.stopping.subscribe();
        async move {
            // An error means that the adaptation was dropped.
            let _ = stopping.wait_for(|stopping| *stopping).await;
        }
    }
}
