//! Reports of this helper: messages on the report socket, also from the processes libcontainer forks.
//!
//! A tracing subscriber sends each ERROR line at once, by write(2) on an inherited descriptor, so that it also works
//! after pivot_root. libcontainer's returned errors are shallow; its first ERROR line names path and cause.

use std::fmt::Write as _;

use cairn_monitor::report::{MAX, REPORT_FD, Report};
use cairn_monitor::sys;
use tracing::field::{Field, Visit};
use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::inherited;

/// Whether descriptor 6 is a socket, which only the monitor hands out.
pub(crate) fn has_socket() -> bool {
    std::fs::read_link(format!("/proc/self/fd/{REPORT_FD}"))
        .is_ok_and(|target| target.to_string_lossy().starts_with("socket:"))
}

pub(crate) fn send(report: &Report) {
    // The reader may have ended.
    let _ = sys::write(inherited::report(), &report.encode());
}

/// Makes libcontainer's ERROR lines reports.
pub(crate) fn install() {
    // It is set once.
    let _ = tracing::subscriber::set_global_default(Errors);
}

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _infallible = write!(text, ": {cause_text}");
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
            let _infallible = write!(text, " ({})", line.fields.trim_start_matches(", "));
        }
        send(&Report::Error(text.replace('\n', " ")));
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
        // Arguments may hold secrets.
        if self.fields.len() > MAX || field.name() == "args" {
            return;
        }
        let _infallible = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, ", {name}: {value:?}"),
        };
    }
}
