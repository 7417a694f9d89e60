//! The list of plugins: connected, expected but absent, and most recently closed.

use std::{sync::Arc, time::Duration};

use crate::{
    mask::EventMask,
    observe::{Kind, PluginInfo, PluginState},
    plugin::Session,
    plugin_id::PluginId,
    roster::Occupant,
    shared::Shared,
};

impl Shared {
    /// Records a closed plugin and the reason, for [`Shared::plugins`].
    pub(crate) fn remember_removed(&self, session: &Session, reason: &str) {
        let mut info = self.info_of(session, PluginState::Ended);
        info.last_error = Some(reason.to_owned());
        self.removed.remember(info, session.stats.clone());
    }

    /// As [`Shared::remember_removed`], of a plugin that was rejected before it was configured.
    pub(crate) fn remember_failed(
        &self,
        id: &PluginId,
        kind: Kind,
        pid: Option<u32>,
        reason: &str,
    ) {
        let mut info = self.absent(id);
        info.state = PluginState::Ended;
        info.kind = Some(kind);
        info.pid = pid;
        info.last_error = Some(reason.to_owned());
        self.removed.remember(info, Arc::default());
    }

    /// See [`Metrics::render`](crate::metrics::Metrics::render).
    pub(crate) fn metrics(&self, prefix: &str) -> String {
        self.notices.metrics.render(prefix, &self.plugins())
    }

    /// In call order, then the absent ones, then the most recently closed.
    pub(crate) fn plugins(&self) -> Vec<PluginInfo> {
        let slots = self.roster.slots();
        let mut all: Vec<PluginInfo> = Vec::new();
        for slot in &slots {
            all.push(match slot.occupant() {
                Occupant::Joining(session) => self.info_of(&session, PluginState::Joining),
                Occupant::Active(session) => self.info_of(&session, PluginState::Active),
                Occupant::Removed => continue,
            });
        }
        for session in self.seats.shadows() {
            all.push(self.info_of(&session, PluginState::Shadowed));
        }
        let named = self.settings.plugins.iter();
        for (id, _) in named.filter(|(_, s)| s.policy.required || s.policy.must_run) {
            if !slots.iter().any(|s| s.id == *id) {
                all.push(self.absent(id));
            }
        }
        self.removed.add_to(&mut all);
        all
    }

    fn info_of(&self, session: &Session, state: PluginState) -> PluginInfo {
        let mut info = self.absent(&session.id);
        let overdue = session.overdue.since();
        (info.state, info.since) = match overdue.filter(|_| state == PluginState::Active) {
            Some(since) => (PluginState::Overdue, since.elapsed()),
            None => (state, session.age()),
        };
        info.kind = Some(session.kind);
        info.pid = session.pid;
        info.old_style = session.is_old_style();
        info.events = session.events();
        info.on_timeout = session.settings.policy.on_timeout();
        info.fail_request = session.settings.policy.fails_request();
        session.stats.fill(&mut info);
        info
    }

    fn absent(&self, id: &PluginId) -> PluginInfo {
        let policy = self.settings.plugin(id).policy;
        PluginInfo {
            id: id.clone(),
            state: PluginState::Absent,
            since: self.started.elapsed(),
            kind: None,
            pid: None,
            old_style: false,
            events: EventMask::NONE,
            required: policy.required,
            must_run: policy.must_run,
            on_timeout: policy.on_timeout(),
            fail_request: policy.fails_request(),
            calls: 0,
            errors: 0,
            p50: Duration::ZERO,
            p99: Duration::ZERO,
            backlog: self.backlog.backlog(id),
            last_error: None,
            last_error_age: Duration::ZERO,
        }
    }
}
