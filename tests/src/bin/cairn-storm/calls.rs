//! One CRI call: made, timed and checked. Only a fault may explain an error, a delay or a loss.

use std::{
    collections::HashSet,
    error::Error as _,
    sync::Arc,
    time::{Duration, Instant},
};

use cairn_tests::client::Cri;
use parking_lot::Mutex;
use tokio::sync::watch;
use tonic::{Code, Status};

use crate::{
    report::{End, History, Op, Report},
    weather::{Cause, Weather},
};

/// The subject of a call: its object, its age, and the ids that affect it.
#[derive(Clone, Debug)]
pub(crate) struct Subject {
    pub(crate) name: String,
    /// Known ids of the pod and of containers, one of which names a monitor.
    pub(crate) ids: HashSet<String>,
    pub(crate) born: Instant,
    pub(crate) history: Arc<History>,
}

/// The outcome of a call.
#[derive(Debug)]
pub(crate) enum Outcome<T> {
    Done(T),
    Refused(Status),
    /// The outcome is unknown.
    Lost,
}

impl<T> Outcome<T> {
    pub(crate) fn done(self) -> Option<T> {
        match self {
            Self::Done(value) => Some(value),
            _ => None,
        }
    }
    pub(crate) fn refused_as(&self, code: Code) -> bool {
        matches!(self, Self::Refused(status) if status.code() == code)
    }
}

/// The options of a call.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// The client leaves after this time.
    pub(crate) leaves_after: Option<Duration>,
    /// Additional time beyond any call's limit: a grace period, an exec's own time.
    pub(crate) longer: Duration,
    /// An error that the caller expects.
    pub(crate) expected: Option<Code>,
}

/// A slower call is stuck.
const PATIENCE: Duration = Duration::from_secs(60);

/// A client's connection to the daemon, across its restarts.
#[derive(Clone)]
pub(crate) struct Link {
    pub(crate) line: watch::Receiver<Option<Cri>>,
    pub(crate) weather: Arc<Weather>,
    pub(crate) report: Arc<Report>,
    /// Objects with a reported violation, so that each is reported once.
    pub(crate) reported: Arc<Mutex<HashSet<String>>>,
}

impl Link {
    /// Waits for a serving daemon.
    pub(crate) async fn cri(&self) -> Cri {
        let mut line = self.line.clone();
        let there = line.wait_for(Option::is_some).await;
        let there = there.expect("the arena outlives the clients");
        there.clone().expect("it was waited for")
    }

    /// Makes one call and checks its outcome.
    pub(crate) async fn call<T, Fut>(
        &self,
        op: Op,
        subject: &Subject,
        manner: Manner,
        make: impl FnOnce(Cri) -> Fut,
    ) -> Outcome<T>
    where
        Fut: Future<Output = Result<T, Status>>,
    {
        let cri = self.cri().await;
        let from = Instant::now();
        let patience = manner.leaves_after.unwrap_or(PATIENCE + manner.longer);
        let answer = tokio::time::timeout(patience, make(cri)).await;
        let took = from.elapsed();
        let (end, reported, words) = match answer {
            Ok(Ok(value)) => (End::Done, Outcome::Done(value), "done".to_owned()),
            Ok(Err(status)) if is_transport(&status) => {
                let words = format!("lost: {}", status.message());
                (End::Lost, Outcome::Lost, words)
            }
            Ok(Err(status)) => {
                let words = format!("refused: {:?}: {}", status.code(), status.message());
                (End::Refused, Outcome::Refused(status), words)
            }
            Err(_) if manner.leaves_after.is_some() => {
                (End::Lost, Outcome::Lost, "the client left".to_owned())
            }
            Err(_) => (
                End::Lost,
                Outcome::Lost,
                format!("no answer in {patience:?}"),
            ),
        };
        let millis = took.as_secs_f64() * 1000.0;
        let line = format!("{op:?} {words} ({millis:.1} ms)");
        if end != End::Done || !matches!(op, Op::ListPodSandbox | Op::ListContainers) {
            subject.history.note(&line);
        }
        self.report.call(op, &subject.name, end, took);
        let fine = match &reported {
            Outcome::Done(_) => true,
            Outcome::Refused(status) => {
                manner.expected == Some(status.code())
                    || self.excuses_refusal(op, subject, from, status)
            }
            Outcome::Lost => manner.leaves_after.is_some() || self.excuses_loss(subject, from),
        };
        if !fine {
            self.violation(subject, &line);
        }
        reported
    }

    /// Reports a violation, once per object.
    pub(crate) fn violation(&self, subject: &Subject, what: &str) {
        let mut reported = self.reported.lock();
        if reported.insert(subject.name.clone()) {
            let lately = self.weather.lately(5);
            subject.history.note(format!("faults of late: {lately}"));
            let what = format!("{}: {what}", subject.name);
            self.report.violation(&what, &subject.history);
        } else {
            subject.history.note(format!("also: {what}"));
        }
    }

    fn excuses_loss(&self, subject: &Subject, from: Instant) -> bool {
        self.weather.since(from, |cause| match cause {
            Cause::Daemon | Cause::Reboot | Cause::Scarce => true,
            Cause::MonitorHeld(id) => subject.ids.contains(id),
            Cause::Create | Cause::Unpack | Cause::Cni => true,
            _ => false,
        })
    }

    fn excuses_refusal(&self, op: Op, subject: &Subject, from: Instant, status: &Status) -> bool {
        let during = |is: &dyn Fn(&Cause) -> bool| self.weather.since(from, is);
        let ever = |is: &dyn Fn(&Cause) -> bool| self.weather.since(subject.born, is);
        let ours = |id: &String| subject.ids.contains(id);
        if during(&|c| *c == Cause::Scarce) {
            return true;
        }
        // A held object can only be removed, and its pod cannot be stopped.
        let held = |c: &Cause| match c {
            Cause::Torn { id, pod } => {
                ours(id) || ours(pod) && matches!(op, Op::StopPodSandbox | Op::RemovePodSandbox)
            }
            _ => false,
        };
        if during(&held) {
            return true;
        }
        // A daemon at shutdown finishes some calls, and cuts off the rest.
        if status.code() == Code::Unavailable && during(&|c| *c == Cause::Daemon) {
            return true;
        }
        let lives = matches!(
            op,
            Op::CreateContainer
                | Op::StartContainer
                | Op::ExecSync
                | Op::UpdateResources
                | Op::ReopenContainerLog
        );
        let lost = |c: &Cause| match c {
            Cause::Reboot => true,
            Cause::MonitorKilled(id) | Cause::MonitorHeld(id) => ours(id),
            _ => false,
        };
        if lives && ever(&lost) {
            return true;
        }
        match op {
            // An earlier attempt and its undo failed: the sandbox keeps its name until removed.
            Op::RunPodSandbox if status.code() == Code::AlreadyExists => ever(&|c| {
                matches!(
                    c,
                    Cause::Create
                        | Cause::Reboot
                        | Cause::Cni
                        | Cause::Scarce
                        | Cause::MonitorKilled(_)
                        | Cause::MonitorHeld(_)
                )
            }),
            Op::StartContainer | Op::RunPodSandbox => during(&|c| {
                matches!(c, Cause::Create | Cause::Reboot)
                    || matches!(c, Cause::Cni if op == Op::RunPodSandbox)
                    || matches!(c, Cause::MonitorKilled(_) | Cause::MonitorHeld(_) if op == Op::RunPodSandbox)
            }),
            Op::StopPodSandbox | Op::RemovePodSandbox | Op::StopContainer | Op::RemoveContainer => {
                during(&|c| match c {
                    Cause::Cni => matches!(op, Op::StopPodSandbox | Op::RemovePodSandbox),
                    Cause::MonitorHeld(id) => ours(id),
                    _ => false,
                })
            }
            // An unreachable validator rejects; a stopped daemon finds its calls timed out.
            Op::CreateContainer => during(&|c| matches!(c, Cause::Plugin | Cause::Daemon)),
            Op::PullImage => during(&|c| *c == Cause::Unpack),
            _ => false,
        }
    }
}

/// Whether the client's own side made this status, after a broken connection or its timeout; the
/// daemon may report the latter first.
fn is_transport(status: &Status) -> bool {
    status.source().is_some()
        || (status.code() == Code::Unknown && status.message().contains("transport error"))
        || (status.code() == Code::Cancelled && status.message().contains("Timeout expired"))
        || (status.code() == Code::DeadlineExceeded
            && status.message().contains("the caller's deadline"))
}
