//! Events of invented pods.

use crate::trace::{Action, Event, Life, Outcome, SCHEMA, Subject, Values, What};

/// Records events with invented times.
pub(super) struct Script {
    pub events: Vec<Event>,
    pub now_us: u64,
}

impl Script {
    pub(super) fn new() -> Self {
        Self {
            events: Vec::new(),
            now_us: 0,
        }
    }

    /// Records an event this many microseconds after the previous one.
    pub(super) fn after(&mut self, us: u64, subject: &Subject, what: impl Into<What>) -> &mut Self {
        self.now_us += us;
        self.events.push(Event {
            schema: SCHEMA,
            seq: self.events.len() as u64 + 1,
            wall_ns: 1_795_229_467_120_000_000 + self.now_us as i64 * 1000,
            mono_ns: 5_000_000_000 + self.now_us * 1000,
            subject: subject.clone(),
            what: what.into(),
        });
        self
    }

    pub(super) fn point(&mut self, subject: &Subject, point: &str, hook: &str) -> &mut Self {
        let (point, hook) = (point.to_owned(), hook.to_owned());
        self.after(50, subject, What::Point { point, hook })
    }

    pub(super) fn answer(
        &mut self,
        subject: &Subject,
        hook: &str,
        plugin: &str,
        outcome: Outcome,
    ) -> &mut Self {
        let what = What::Plugin {
            hook: hook.to_owned(),
            plugin: plugin.to_owned(),
            outcome,
            took_ns: 420_000,
            adjusted: false,
            changed: Vec::new(),
            values: Values::default(),
            updates: 0,
            evictions: 0,
            left_out: Vec::new(),
        };
        self.after(420, subject, what)
    }

    pub(super) fn passed(
        &mut self,
        subject: &Subject,
        hook: &str,
        aborted: Option<&str>,
    ) -> &mut Self {
        let what = What::Passed {
            hook: hook.to_owned(),
            took_ns: 500_000,
            aborted: aborted.map(str::to_owned),
        };
        self.after(30, subject, what)
    }

    pub(super) fn ended(
        &mut self,
        subject: &Subject,
        took_us: u64,
        error: Option<&str>,
    ) -> &mut Self {
        let what = What::CallEnded {
            took_ns: took_us * 1000,
            error: error.map(str::to_owned),
        };
        self.after(40, subject, what)
    }
}

pub(super) fn pod(name: &str) -> Subject {
    Subject::pod(&format!("id-of-{name}"), "default", name)
}

/// Daemon and plugin start; then plugin `10-quota` rejects a pod's container with the reason `why`.
pub(super) fn refused(name: &str, why: &str) -> Script {
    let mut script = Script::new();
    let version = "0.1.0".to_owned();
    script.after(0, &Subject::daemon(), Action::DaemonStarted { version });
    let plugin = "10-quota".to_owned();
    let life = Life::Launched;
    script.after(900, &Subject::daemon(), What::PluginLife { plugin, life });
    let subject = pod(name).during("RunPodSandbox");
    let ips = vec!["10.88.0.5".to_owned()];
    script
        .after(2_000_000, &subject, What::CallBegun)
        .after(2_100, &subject, Action::Namespaces)
        .after(9_000, &subject, Action::Network { ips })
        .point(&subject, "C-01", "RunPodSandbox")
        .answer(&subject, "RunPodSandbox", "10-quota", Outcome::Answered)
        .passed(&subject, "RunPodSandbox", None)
        .after(100, &subject, Action::Ready)
        .ended(&subject, 11_740, None);
    let subject = pod(name).container("c1", "app").during("CreateContainer");
    let error = format!("10-quota refused CreateContainer: {why}");
    let refused = Outcome::Refused(why.to_owned().into());
    script
        .after(8_000, &subject, What::CallBegun)
        .point(&subject, "C-04", "CreateContainer")
        .answer(&subject, "CreateContainer", "10-quota", refused)
        .passed(&subject, "CreateContainer", Some(&error))
        .ended(&subject, 540, Some(&error));
    script
}
