//! Results of a run, for people and for programs.

pub(crate) mod human;
pub(crate) mod junit;

use std::{collections::BTreeMap, time::Duration};

use nri::{Delivery, Outcome};
use serde::{Serialize, Serializer};

use crate::{changes::Change, differ::Difference, rules::Finding};

/// One scenario run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Report {
    pub scenario: String,
    /// The path of the scenario or recording.
    pub file: String,
    pub plugins: Vec<String>,
    pub steps: Vec<StepReport>,
    /// The plugin did not join: no step was run.
    pub not_joined: Option<String>,
    /// Answers by event, in seconds.
    pub latencies: BTreeMap<String, Latency>,
    /// It replayed a recording.
    #[serde(skip)]
    pub replayed: bool,
    /// The end of the plugin's output, if a step failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub output: String,
}

/// One step run.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct StepReport {
    /// Its action and object: `create web/greeter`.
    pub title: String,
    pub line: usize,
    /// Why it was skipped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<String>,
    #[serde(serialize_with = "seconds")]
    pub took: Duration,
    pub changes: Vec<Change>,
    pub notes: Vec<String>,
    /// Of a replayed event: whether the answer equals the recorded one, or another outcome.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<&'static str>,
    /// Differences from the recorded answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// Unmet expectations.
    pub failures: Vec<String>,
    pub findings: Vec<Finding>,
    /// Findings that the scenario allows.
    pub allowed: Vec<Finding>,
}

impl StepReport {
    pub(crate) fn fail(&mut self, why: impl Into<String>) {
        self.failures.push(why.into());
    }

    pub(crate) fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    pub(crate) fn held(&self) -> bool {
        self.failures.is_empty() && self.findings.is_empty() && self.differences.is_empty()
    }
}

/// Answers to one event.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct Latency {
    pub count: usize,
    #[serde(serialize_with = "seconds")]
    pub p50: Duration,
    #[serde(serialize_with = "seconds")]
    pub max: Duration,
    #[serde(skip)]
    all: Vec<Duration>,
}

impl Report {
    pub(crate) fn held(&self) -> bool {
        self.not_joined.is_none() && self.steps.iter().all(StepReport::held)
    }

    /// Counts the answers of plugins.
    pub(crate) fn count(&mut self, deliveries: &[Delivery]) {
        for delivery in deliveries.iter().filter(|d| was_called(d)) {
            self.took(nri::mask::event_name(delivery.event), delivery.took);
        }
    }

    /// Counts one answer.
    pub(crate) fn took(&mut self, method: &str, took: Duration) {
        let latency = self.latencies.entry(method.to_owned()).or_default();
        latency.all.push(took);
    }

    /// Computes the summary.
    pub(crate) fn finish(&mut self) {
        for latency in self.latencies.values_mut() {
            let all = &mut latency.all;
            all.sort_unstable();
            latency.count = all.len();
            latency.p50 = all.get(all.len() / 2).copied().unwrap_or_default();
            latency.max = all.last().copied().unwrap_or_default();
        }
    }
}

/// Whether the plugin was called.
fn was_called(delivery: &Delivery) -> bool {
    let outcome = &delivery.outcome;
    !matches!(
        outcome,
        Outcome::NotSubscribed | Outcome::Skipped | Outcome::Joining | Outcome::Absent
    )
}

/// A time with about three digits.
pub(crate) fn short(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..1000 => format!("{micros} us"),
        1000..1_000_000 => format!("{:.1} ms", duration.as_secs_f64() * 1e3),
        _ => format!("{:.2} s", duration.as_secs_f64()),
    }
}

fn seconds<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}
