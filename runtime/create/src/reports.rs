//! Reports of this helper on the report socket, also from processes that libcontainer forks.
//!
//! A tracing subscriber sends each ERROR line at once, by write(2) on an inherited descriptor,
//! which works after pivot_root too. libcontainer's errors are shallow; its first ERROR line names
//! path and cause.

#![expect(clippy::disallowed_methods, reason = "the descriptors of this process")]

use std::fmt::Write as _;
use std::path::Path;
use std::sync::OnceLock;

use cairn_monitor::report::{MAX, REPORT_FD, Report};
use cairn_monitor::sys;
use tracing::field::{Field, Visit};
use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::adjust::{Origin, Plan};
use crate::inherited;

/// What libcontainer's errors call the mounts of the shell and the sources on the stage.
static NAMES: OnceLock<Names> = OnceLock::new();

#[derive(Default)]
struct Names {
    /// A mount's place in the shell, and its destination.
    mounts: Vec<(String, String)>,
    /// A source on the stage, and the one that was asked for.
    sources: Vec<(String, String)>,
}

/// Makes libcontainer's errors name mounts and sources as they were asked for.
pub(crate) fn name(plan: &Plan) {
    let quoted = |path: &Path| format!("{path:?}");
    let mounts = plan.places.iter().filter_map(|place| match &place.from {
        Origin::Shell(at) => Some((quoted(at), place.destination.display().to_string())),
        Origin::Tree(_) => None,
    });
    let sources = plan.stage.iter();
    let sources = sources.map(|staged| (quoted(&staged.at), quoted(&staged.source)));
    let names = Names {
        mounts: mounts.collect(),
        sources: sources.collect(),
    };
    let _ = NAMES.set(names); // the only call
}

fn named(text: String) -> String {
    let Some(names) = NAMES.get() else {
        return text;
    };
    let mut text = text;
    for (staged, asked) in &names.sources {
        text = text.replace(staged, asked);
    }
    for (at, destination) in &names.mounts {
        let place = format!("destination: {at},");
        if text.contains(&place) {
            let text = text.replace(&place, &format!("destination: {destination:?},"));
            return format!("mount {destination}: {text}");
        }
    }
    text
}

/// Whether descriptor 6 is a socket: only the monitor passes one.
pub(crate) fn has_socket() -> bool {
    std::fs::read_link(format!("/proc/self/fd/{REPORT_FD}"))
        .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

pub(crate) fn send(report: &Report) {
    let _ = sys::write(inherited::report(), &report.encode()); // the monitor may be dead
}

/// Turns libcontainer's ERROR lines into reports.
pub(crate) fn install() {
    let _ = tracing::subscriber::set_global_default(Errors); // the only call
}

/// An error and its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        source = cause.source();
    }
    text
}

struct Errors;

impl Subscriber for Errors {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::ERROR)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let mut text = line.message;
        if !line.fields.is_empty() {
            let _ = write!(text, " ({})", line.fields.trim_start_matches(", "));
        }
        send(&Report::Error(named(text.replace('\n', " "))));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        // Arguments may contain secrets.
        if self.fields.len() > MAX || field.name() == "args" {
            return;
        }
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
}
