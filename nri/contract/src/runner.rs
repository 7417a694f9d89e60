//! Runs points one after the other, each with pods of its own, and always removes the objects of
//! each.

use std::{
    io::{IsTerminal, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    cri,
    expect::Deviations,
    point::Point,
    stage::{Run, Stage},
};
use testkit::{
    journal::Journal,
    verdict::{Checked, Miss},
};

/// The time limit of a point.
const LIMIT: Duration = Duration::from_secs(90);
/// The attempts for a point whose inspection took longer than the runtime lets a hook block.
const ATTEMPTS: u32 = 4;

/// The result of a point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Fail {
        expected: String,
        seen: String,
        /// The events of its plugins before the failure.
        events: Vec<String>,
    },
    Skip(String),
    /// It fails, as listed in the file of deviations.
    Known {
        expected: String,
        seen: String,
        because: String,
    },
    /// It passes, although the file of deviations lists it.
    Unexpected(String),
}

/// A row of the report.
#[derive(Clone)]
pub(crate) struct Row {
    pub point: Point,
    pub verdict: Verdict,
    pub took: Duration,
}

/// The state of the runner.
pub(crate) struct Runner {
    pub run: Arc<Run>,
    pub deviations: Deviations,
    pub repeat: u32,
    started: u32,
    /// A point whose pods the runtime does not remove. Later points could not rely on their
    /// preconditions.
    stuck: Option<String>,
}

impl Runner {
    pub(crate) fn new(run: Arc<Run>, deviations: Deviations, repeat: u32) -> Self {
        Self {
            run,
            deviations,
            repeat,
            started: 0,
            stuck: None,
        }
    }

    /// Runs all points. `rows` has the finished ones even if this future is dropped.
    pub(crate) async fn all(&mut self, points: &[Point], rows: &mut Vec<Row>) {
        let progress = std::io::stderr().is_terminal();
        let mut failed = 0;
        for (done, point) in points.iter().enumerate() {
            if progress {
                let line = format!(
                    "{}/{} points, {failed} failed   {}",
                    done + 1,
                    points.len(),
                    point.id
                );
                eprint!("\r\x1b[K{line:.100}");
                let _ = std::io::stderr().flush();
            }
            let row = match &self.stuck {
                None => self.repeated(point).await,
                Some(by) => Row {
                    point: point.clone(),
                    verdict: Verdict::Skip(format!("a runtime without the pods of {by}")),
                    took: Duration::ZERO,
                },
            };
            if matches!(row.verdict, Verdict::Fail { .. } | Verdict::Unexpected(_)) {
                failed += 1;
            }
            rows.push(row);
        }
        if progress {
            eprint!("\r\x1b[K");
        }
    }

    async fn repeated(&mut self, point: &Point) -> Row {
        let begun = Instant::now();
        let mut verdict = Verdict::Pass;
        for n in 1..=self.repeat {
            let (checked, events) = self.attempts(point).await;
            verdict = match checked {
                Ok(()) => Verdict::Pass,
                Err(Miss::Skip(why)) => Verdict::Skip(why),
                Err(Miss::Fail { expected, seen }) => {
                    let seen = match self.repeat {
                        1 => seen,
                        all => format!("{seen} (run {n} of {all})"),
                    };
                    Verdict::Fail {
                        expected,
                        seen,
                        events,
                    }
                }
            };
            if verdict != Verdict::Pass {
                break;
            }
        }
        Row {
            point: point.clone(),
            verdict: self.as_known(point, verdict),
            took: begun.elapsed(),
        }
    }

    fn as_known(&self, point: &Point, verdict: Verdict) -> Verdict {
        let Some(deviation) = self.deviations.of(&point.id) else {
            return verdict;
        };
        let because = deviation.reported();
        match verdict {
            Verdict::Pass if !deviation.sometimes => Verdict::Unexpected(because),
            Verdict::Fail { expected, seen, .. } => Verdict::Known {
                expected,
                seen,
                because,
            },
            other => other,
        }
    }

    async fn attempts(&mut self, point: &Point) -> (Checked, Vec<String>) {
        let mut answer = (Ok(()), Vec::new());
        for _ in 0..ATTEMPTS {
            let (checked, stage) = self.once(point).await;
            let failed = matches!(checked, Err(Miss::Fail { .. }));
            let hurried = stage.was_hurried();
            answer = (checked, lines(&stage.journal));
            if !(failed && hurried) || self.stuck.is_some() {
                break;
            }
        }
        answer
    }

    async fn once(&mut self, point: &Point) -> (Checked, Arc<Stage>) {
        self.started += 1;
        let stage = Stage::new(&self.run, self.started.to_string());
        let task = tokio::spawn((point.body)(stage.clone()));
        let ended = Abort(task.abort_handle());
        let checked = match tokio::time::timeout(LIMIT, task).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(error)) => fail("the suite asks", format!("it panicked: {error}")),
            Err(_) => fail(format!("an answer within {LIMIT:?}"), "none"),
        };
        // The point's plugins ended with its task, which releases blocked calls.
        drop(ended);
        stage.settled().await;
        let cleared = match tokio::time::timeout(LIMIT, cri::clear(&stage.cri())).await {
            Ok(cleared) => cleared,
            Err(_) => Err(format!("pods that are not removed within {LIMIT:?}")),
        };
        let checked = match (checked, cleared) {
            (Ok(()), Err(left)) => {
                self.stuck = Some(point.id.clone());
                fail("all that the point made can be removed", left)
            }
            (checked, Err(_)) => {
                self.stuck = Some(point.id.clone());
                checked
            }
            (checked, Ok(())) => checked,
        };
        (checked, stage)
    }
}

/// Ends the task of a point when the runner continues or is dropped.
struct Abort(tokio::task::AbortHandle);

impl Drop for Abort {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn fail(expected: impl Into<String>, seen: impl Into<String>) -> Checked {
    Err(Miss::Fail {
        expected: expected.into(),
        seen: seen.into(),
    })
}

/// Returns the last events, which are the relevant ones.
fn lines(journal: &Journal) -> Vec<String> {
    const MOST: usize = 30;
    let mut lines = journal.lines();
    let over = lines.len().saturating_sub(MOST);
    if over > 0 {
        lines.drain(..over);
        lines.insert(0, format!("… {over} before these"));
    }
    lines
}
