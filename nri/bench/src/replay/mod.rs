//! Replays a recording to a plugin, over the real wire, and compares its answers with the recorded
//! ones.
//!
//! ```text
//!   recording ─► script ─► Replay ─► runtime (frames) ◄─ tap/ ◄─ the plugin (plugin.rs)
//!                             │ differ, check
//!                             ▼
//!                           report/
//! ```

mod check;
mod own_calls;
mod runtime;
mod script;

use std::{path::PathBuf, time::Duration};

use nri::{Code, is_plain, mask::event_named};
use nri_record::Side;
use tokio::{
    net::UnixListener,
    time::{Instant, sleep},
};

pub(crate) use check::subscribed;
pub(crate) use script::{Answer, Call, Script, scripts};

use crate::{
    adjustment::Host,
    differ::differences,
    plugin::{GRACE, How, Instance, Program},
    report::{Report, StepReport},
    rules::{Finding, Rule},
    scenario::unnamed,
    tap::{Manner, Tap},
};
use check::Known;

use runtime::{Came, Runtime};

/// Time limit of the plugin's registration.
const JOIN: Duration = Duration::from_secs(10);
/// For a call without a recorded limit.
const CALL: Duration = Duration::from_secs(2);
const LOOK: Duration = Duration::from_millis(5);

/// Options of a replay.
#[derive(Debug, Clone)]
pub(crate) struct Manners {
    pub how: How,
    /// The plugins' socket; a temporary one by default.
    pub socket: Option<PathBuf>,
    /// At the recorded pace instead of the plugin's.
    pub pace: bool,
}

/// Replays one connection. `name` is the title of the report.
pub(crate) async fn replay(
    name: String,
    script: Script,
    manners: &Manners,
) -> Result<Report, String> {
    let mut replay = Replay::new(name, script, manners).await?;
    if let Err(why) = replay.play(manners.pace).await {
        replay.report.not_joined = Some(why);
    }
    replay.end().await;
    replay.report.finish();
    if !replay.report.held() {
        replay.report.output = replay.program.tail();
    }
    Ok(replay.report)
}

struct Replay {
    script: Script,
    tap: Tap,
    listener: UnixListener,
    program: Program,
    instance: Option<Instance>,
    known: Known,
    /// The plugin's current subscription; `None` before Configure.
    events: Option<nri::EventMask>,
    /// It lacks the calls that otherwise are a StateChange.
    old: bool,
    /// Recorded calls of the plugin that are still missing.
    awaited: Vec<Call>,
    report: Report,
    _dir: tempfile::TempDir,
}

impl Replay {
    async fn new(name: String, script: Script, manners: &Manners) -> Result<Self, String> {
        let dir = tempfile::Builder::new().prefix("nri-bench-").tempdir();
        let dir = dir.map_err(|e| e.to_string())?;
        let own = dir.path().join("runtime.sock");
        let listener = UnixListener::bind(&own).map_err(|e| format!("{}: {e}", own.display()))?;
        let id = script.plugin.parse().unwrap_or_else(|_| unnamed());
        let socket = manners.socket.clone();
        let socket = socket.unwrap_or_else(|| dir.path().join("nri.sock"));
        let tap = Tap::new(&own, &socket, Manner::default());
        let program = Program {
            how: manners.how.clone(),
            id,
            socket,
            output: dir.path().join("output"),
        };
        Ok(Self {
            script,
            tap,
            listener,
            program,
            instance: None,
            known: Known::new(Host::here(None)),
            events: None,
            old: false,
            awaited: Vec::new(),
            report: Report {
                scenario: name,
                replayed: true,
                ..Report::default()
            },
            _dir: dir,
        })
    }

    /// An error means that nothing was replayed.
    async fn play(&mut self, pace: bool) -> Result<(), String> {
        self.tap.listen().map_err(|e| e.to_string())?;
        self.instance = self.program.start(&self.tap).map_err(|e| e.to_string())?;
        let mut runtime = self.register().await?;
        let calls = std::mem::take(&mut self.script.calls);
        let mut last = calls.first().map_or(0.0, |call| call.at);
        for (played, call) in calls.iter().enumerate() {
            if pace {
                let pause = Duration::try_from_secs_f64(call.at - last).unwrap_or_default();
                // A lost connection is noticed at the call.
                let _ = runtime.until(Instant::now() + pause, |_| false).await;
                last = call.at;
            }
            // The last call to the runtime must arrive before it sends Shutdown.
            if call.method == "Shutdown" {
                self.settle(&mut runtime).await;
            }
            let step = match call.from {
                Side::Runtime => self.call(&mut runtime, call).await,
                Side::Plugin => self.update(&mut runtime, call).await,
            };
            let Some(step) = step else {
                continue;
            };
            let lost = step.outcome == Some(LOST);
            self.file(step);
            if lost {
                let left = calls.len() - played - 1;
                let step = self.report.steps.last_mut();
                step.into_iter().for_each(|step| {
                    step.fail(format!(
                        "the plugin is not there any more: {left} later ones were not played"
                    ));
                });
                return Ok(());
            }
        }
        self.settle(&mut runtime).await;
        Ok(())
    }

    async fn register(&mut self) -> Result<Runtime, String> {
        let deadline = Instant::now() + JOIN;
        let began = std::time::Instant::now();
        let mut runtime: Option<Runtime> = None;
        loop {
            match &mut runtime {
                None => tokio::select! {
                    accepted = self.listener.accept() => {
                        let (stream, _) = accepted.map_err(|e| e.to_string())?;
                        let calls = self.script.calls.iter();
                        let updates = calls.filter(|call| call.from == Side::Plugin).cloned();
                        runtime = Some(Runtime::new(stream, self.script.env, updates));
                    }
                    () = sleep(LOOK) => {}
                },
                Some(there) => {
                    let soon = Instant::now() + LOOK;
                    match there.until(soon, |r| r.registered.is_some()).await {
                        Ok(true) => break,
                        Ok(false) => {}
                        // Another connection may follow.
                        Err(_) => runtime = None,
                    }
                }
            }
            if let Some(status) = self.instance.as_mut().and_then(Instance::ended) {
                return Err(format!(
                    "the plugin ended with {status} before it had registered"
                ));
            }
            if Instant::now() >= deadline {
                let socket = self.program.socket.display();
                return Err(format!(
                    "no plugin has registered within {JOIN:?}: it must connect to {socket}{}",
                    self.program.hint()
                ));
            }
        }
        let runtime = runtime.ok_or("no connection")?;
        let registered = runtime.registered.clone().ok_or("no registration")?;
        let step = StepReport {
            title: format!("RegisterPlugin {registered}"),
            took: began.elapsed(),
            notes: std::mem::take(&mut self.script.notes),
            outcome: Some(SAME),
            ..StepReport::default()
        };
        self.report.plugins = vec![registered];
        self.old = !self.script.dedicated;
        self.file(step);
        Ok(runtime)
    }

    /// One call of the recorded runtime. `None`: the plugin does not subscribe to it, and the
    /// recorded answer was empty.
    async fn call(&mut self, runtime: &mut Runtime, call: &Call) -> Option<StepReport> {
        let began = std::time::Instant::now();
        let mut step = StepReport {
            title: title(call),
            ..StepReport::default()
        };
        self.known.sees(call);
        if event_named(&call.method).is_some_and(|event| self.events.is_some_and(|e| !e.has(event)))
        {
            step.outcome = Some(NOT_SUBSCRIBED);
            let nothing = serde_json::json!({});
            step.differences = match call.answer.as_value() {
                Some(recorded) => differences(&recorded, &nothing),
                None => Vec::new(),
            };
            // A missing subscription is reported once, at Configure.
            return (!step.differences.is_empty()).then_some(step);
        }
        let limit = call.timeout.unwrap_or(CALL);
        let came = self.ask(runtime, call, limit).await;
        step.took = began.elapsed();
        self.report.took(&call.method, step.took);
        self.check(call, &came, limit, &mut step);
        if call.method == "Configure"
            && let Came::Answer { message, .. } = &came
        {
            self.events = check::subscribed(message);
        }
        Some(step)
    }

    /// Uses StateChange if the plugin, or the recorded runtime, supports only that.
    async fn ask(&mut self, runtime: &mut Runtime, call: &Call, limit: Duration) -> Came {
        let plain = is_plain(&call.method);
        if !(plain && self.old) {
            let came = runtime.call(&call.method, &call.message, limit).await;
            let unknown =
                matches!(&came, Came::Error(failure) if failure.code == Code::Unimplemented as i32);
            if !(plain && unknown) {
                return came;
            }
            self.old = true;
        }
        let mut message = call.message.clone();
        if let (Some(fields), Some(event)) = (message.as_object_mut(), event_named(&call.method)) {
            fields.insert("event".to_owned(), (event as i32).into());
        }
        runtime.call("StateChange", &message, limit).await
    }

    fn check(&mut self, call: &Call, came: &Came, limit: Duration, step: &mut StepReport) {
        let (now, outcome) = match came {
            Came::Answer { message, .. } => (message.clone(), SAME),
            Came::Error(failure) => (script::of_failure(failure), ERROR),
            Came::Garbage(why) => (serde_json::json!({ "error": why }), ERROR),
            Came::TimedOut => (serde_json::json!({ "error": "no answer" }), TIMED_OUT),
            Came::Lost(why) => (serde_json::json!({ "error": why }), LOST),
        };
        match call.answer.as_value() {
            Some(recorded) => step.differences = differences(&recorded, &now),
            None => step.note("the recorded answer is not on file: not compared"),
        }
        step.outcome = Some(match (outcome, step.differences.is_empty()) {
            (SAME, false) => DIFFERENT,
            // An error is the same if it equals the recorded one.
            (ERROR | TIMED_OUT, true) => SAME,
            (outcome, _) => outcome,
        });
        step.findings = check::of_answer(call, came, limit, &self.known);
    }

    fn file(&mut self, mut step: StepReport) {
        for finding in self.tap.take_findings() {
            if !step.findings.contains(&finding) {
                step.findings.push(finding);
            }
        }
        self.report.steps.push(step);
    }

    /// Closes the connection; a launched plugin ends with it.
    async fn end(&mut self) {
        self.tap.drained().await;
        let mut findings = self.tap.take_findings();
        if let Some(mut instance) = self.instance.take() {
            let launched = self.program.is_launched() && self.report.not_joined.is_none();
            if launched && instance.ends_within(GRACE).await.is_none() {
                let what = format!("it was there {GRACE:?} after its connection was lost");
                findings.push(Finding::new(Rule::OutlivesRuntime, what));
            }
            instance.stop().await;
        }
        // The reason of a plugin's end may be in its last output only.
        if let (false, Some(last)) = (findings.is_empty(), self.report.steps.last_mut()) {
            last.findings.extend(findings);
        }
    }
}

const SAME: &str = "same";
const DIFFERENT: &str = "different";
const ERROR: &str = "error";
const TIMED_OUT: &str = "timed out";
const LOST: &str = "lost";
const NOT_SUBSCRIBED: &str = "not subscribed";

fn title(call: &Call) -> String {
    let name = |what: &str| {
        let name = call.message.get(what)?.get("name")?.as_str()?;
        Some(name.to_owned())
    };
    let about = [name("pod"), name("container")];
    let about: Vec<_> = about.into_iter().flatten().collect();
    let by = match call.method.as_str() {
        "UpdateContainers" => " of the plugin",
        _ => "",
    };
    format!("{}{by} {}", call.method, about.join("/"))
        .trim_end()
        .replace(char::is_control, "?")
}
