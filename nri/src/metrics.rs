//! Counts and latencies: per plugin, and in total since the start as Prometheus text.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::{
    observe::{Delivery, PluginInfo, PluginState},
    plugin_id::PluginId,
    policy::Outcome,
};

const RECENT: usize = 256;

/// Counts of one connected plugin.
#[derive(Debug, Default)]
pub(crate) struct Stats(Mutex<StatsInner>);

#[derive(Debug, Default)]
struct StatsInner {
    calls: u64,
    errors: u64,
    last_error: Option<(String, Instant)>,
    recent: Vec<Duration>,
}

impl Stats {
    pub(crate) fn record(&self, took: Duration, error: Option<&str>) {
        let mut s = self.0.lock();
        let at = usize::try_from(s.calls).unwrap_or(0) % RECENT;
        s.calls += 1;
        if s.recent.len() < RECENT {
            s.recent.push(took);
        } else {
            s.recent[at] = took;
        }
        if let Some(error) = error {
            s.errors += 1;
            s.last_error = Some((error.to_owned(), Instant::now()));
        }
    }

    /// The plugin answered, but its request failed.
    pub(crate) fn blame(&self, what: &str) {
        let mut s = self.0.lock();
        s.errors += 1;
        s.last_error = Some((what.to_owned(), Instant::now()));
    }

    pub(crate) fn fill(&self, info: &mut PluginInfo) {
        let s = self.0.lock();
        let mut recent = s.recent.clone();
        recent.sort_unstable();
        info.calls = s.calls;
        info.errors = s.errors;
        if let Some((error, at)) = &s.last_error {
            info.last_error = Some(error.clone());
            info.last_error_age = at.elapsed();
        }
        info.p50 = percentile(&recent, 50);
        info.p99 = percentile(&recent, 99);
    }
}

fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// Upper bounds of the latency histogram, in seconds.
const BUCKETS: [f64; 8] = [0.0001, 0.0005, 0.001, 0.005, 0.025, 0.1, 0.5, 2.0];

#[derive(Debug, Default)]
struct Operation {
    /// Error label ("" for success) → count.
    outcomes: BTreeMap<&'static str, u64>,
    buckets: [u64; BUCKETS.len()],
    count: u64,
    sum: f64,
    updates: u64,
    evictions: u64,
    adjustments: u64,
}

/// All counts since the start, including closed plugins (NRI-450).
#[derive(Debug, Default)]
pub(crate) struct Metrics(Mutex<MetricsInner>);

#[derive(Debug, Default)]
struct MetricsInner {
    operations: BTreeMap<(PluginId, &'static str), Operation>,
    timeouts: BTreeMap<PluginId, u64>,
}

/// Plugins counted by name; further ones are left out, so that a hostile plugin that reconnects
/// under new names cannot grow the table without bound.
const MAX_OPERATIONS: usize = 4096;

impl Metrics {
    /// Counts one call by its name. False: no call was made.
    pub(crate) fn record(&self, operation: &'static str, delivery: &Delivery) -> bool {
        let Some(error) = error_label(&delivery.outcome) else {
            return false;
        };
        let mut inner = self.0.lock();
        let key = (delivery.plugin.clone(), operation);
        if inner.operations.len() >= MAX_OPERATIONS && !inner.operations.contains_key(&key) {
            return true;
        }
        if delivery.outcome == Outcome::TimedOut {
            *inner.timeouts.entry(delivery.plugin.clone()).or_default() += 1;
        }
        let op = inner.operations.entry(key).or_default();
        let seconds = delivery.took.as_secs_f64();
        *op.outcomes.entry(error).or_default() += 1;
        for (bucket, bound) in op.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(seconds <= bound);
        }
        op.count += 1;
        op.sum += seconds;
        op.updates += delivery.updates as u64;
        op.evictions += delivery.evictions as u64;
        op.adjustments += u64::from(delivery.adjusted);
        true
    }

    /// The metric families of containerd (NRI-451) and ours, as Prometheus text. `prefix` precedes
    /// each name: `containerd_nri` there.
    pub(crate) fn render(&self, prefix: &str, plugins: &[PluginInfo]) -> String {
        let mut text = String::new();
        let inner = self.0.lock();
        render_operations(&mut text, prefix, &inner.operations);
        family(&mut text, prefix, "plugin_timeouts_total", "counter");
        for (plugin, count) in &inner.timeouts {
            let _ = writeln!(
                text,
                "{prefix}_plugin_timeouts_total{{plugin=\"{plugin}\"}} {count}"
            );
        }
        drop(inner);
        render_plugins(&mut text, prefix, plugins);
        text
    }
}

fn family(text: &mut String, prefix: &str, name: &str, kind: &str) {
    let _ = writeln!(text, "# TYPE {prefix}_{name} {kind}");
}

fn render_operations(
    text: &mut String,
    prefix: &str,
    operations: &BTreeMap<(PluginId, &'static str), Operation>,
) {
    family(text, prefix, "plugin_invocations_total", "counter");
    for ((plugin, operation), op) in operations {
        for (error, count) in &op.outcomes {
            let status = if error.is_empty() { "success" } else { "error" };
            let _ = writeln!(
                text,
                "{prefix}_plugin_invocations_total{{plugin=\"{plugin}\",operation=\"{operation}\",status=\"{status}\",error=\"{error}\"}} {count}"
            );
        }
    }
    family(text, prefix, "plugin_latency_seconds", "histogram");
    for ((plugin, operation), op) in operations {
        let name = format!("{prefix}_plugin_latency_seconds");
        let labels = format!("plugin=\"{plugin}\",operation=\"{operation}\"");
        for (count, bound) in op.buckets.iter().zip(BUCKETS) {
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{bound}\"}} {count}");
        }
        let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", op.count);
        let _ = writeln!(text, "{name}_sum{{{labels}}} {}", op.sum);
        let _ = writeln!(text, "{name}_count{{{labels}}} {}", op.count);
    }
    family(text, prefix, "plugin_adjustments_total", "counter");
    for ((plugin, operation), op) in operations {
        let kinds = [
            ("adjust", op.adjustments),
            ("update", op.updates),
            ("evict", op.evictions),
        ];
        for (kind, count) in kinds.into_iter().filter(|(_, count)| *count > 0) {
            let _ = writeln!(
                text,
                "{prefix}_plugin_adjustments_total{{plugin=\"{plugin}\",operation=\"{operation}\",type=\"{kind}\"}} {count}"
            );
        }
    }
}

fn render_plugins(text: &mut String, prefix: &str, plugins: &[PluginInfo]) {
    let active = plugins
        .iter()
        .filter(|p| matches!(p.state, PluginState::Active | PluginState::Overdue))
        .count();
    family(text, prefix, "active_plugins_total", "gauge");
    let _ = writeln!(text, "{prefix}_active_plugins_total {active}");
    let missing = |p: &&PluginInfo| p.required && p.state == PluginState::Absent;
    family(text, prefix, "missing_required_plugins", "gauge");
    let _ = writeln!(
        text,
        "{prefix}_missing_required_plugins {}",
        plugins.iter().filter(missing).count()
    );
    family(text, prefix, "plugin_backlog", "gauge");
    for p in plugins.iter().filter(|p| p.must_run) {
        let _ = writeln!(
            text,
            "{prefix}_plugin_backlog{{plugin=\"{}\"}} {}",
            p.id, p.backlog
        );
    }
}

/// The `error` label; "" for success, `None` if the plugin was not called (NRI-403, NRI-451).
fn error_label(outcome: &Outcome) -> Option<&'static str> {
    Some(match outcome {
        Outcome::Answered => "",
        Outcome::TimedOut => "deadline_exceeded",
        Outcome::Cancelled => "canceled",
        Outcome::Lost(_) => "unavailable",
        Outcome::Refused(status) => status.name(),
        Outcome::Unsent(_) => "resource_exhausted",
        Outcome::Garbled(_) => "internal",
        Outcome::Conflict(_) | Outcome::Invalid(_) | Outcome::Denied(_) => "other",
        Outcome::Skipped | Outcome::NotSubscribed | Outcome::Joining | Outcome::Absent => {
            return None;
        }
    })
}
