//! A dispatch at a contract point (CONTRACT.md), as the event log and the caller see it.

use std::time::Instant;

use nri::{Notified, Refused};
use proto_nri::Event;

use super::error::{Error, Kind, Result};
use crate::{
    clock::nanoseconds,
    trace::{EventLog, Subject, What},
};

/// One dispatch at a contract point, for the event log. [`Plugins`](super::plugins::Plugins) logs
/// each plugin's answer when it arrives.
pub(super) struct Point<'a> {
    log: &'a EventLog,
    subject: Subject,
    event: Event,
    begun: Instant,
}

impl<'a> Point<'a> {
    pub(super) fn reach(log: &'a EventLog, subject: Subject, event: Event) -> Self {
        let point = Self {
            log,
            subject,
            event,
            begun: Instant::now(),
        };
        point.record(What::Point {
            point: contract_point(event),
            hook: nri::mask::event_name(event).to_owned(),
        });
        point
    }

    fn record(&self, what: What) {
        self.log.record(self.subject.clone(), what);
    }

    pub(super) fn passed(&self, aborted: Option<String>) {
        self.record(What::Passed {
            hook: nri::mask::event_name(self.event).to_owned(),
            took_ns: nanoseconds(self.begun.elapsed()),
            aborted,
        });
    }

    /// A notification: failures are in the plugins' lines.
    pub(super) fn noted(&self, _: &Notified) {
        self.passed(None);
    }

    /// A teardown: failures do not stop it and are reported at its end.
    pub(super) fn notified(&self, notified: &Notified) -> Result<()> {
        self.passed(None);
        match &notified.failed {
            None => Ok(()),
            Some(why) => Err(Error::failed(format!("NRI: {why}"))),
        }
    }

    pub(super) fn end(&self, notified: std::result::Result<Notified, Refused>) -> Result<()> {
        match notified {
            Ok(_) => {
                self.passed(None);
                Ok(())
            }
            Err(refused) => self.refused(refused),
        }
    }

    pub(super) fn refused<T>(&self, refused: Refused) -> Result<T> {
        self.passed(Some(refused.reason.clone()));
        Err(Error::new(Kind::Failed, format!("NRI: {}", refused.reason)))
    }
}

/// CONTRACT.md numbers the points as NRI numbers its events.
fn contract_point(event: Event) -> String {
    format!("C-{:02}", event as i32)
}
