//! Runs a scenario: one step after the other, each with its results, the tap's records and broken
//! rules.
//!
//! ```text
//!   join ─► step ─► … ─► step ─► end       a lost plugin is restarted; if that fails, the run ends
//! ```

mod check;
mod churn;
mod life;
mod steps;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use nri::{Handlers, PluginId, StartError, Timeouts};
use nri_testing::FakeRuntime;

use crate::{
    adjustment::Host,
    expect::{Came, Expected},
    plugin::{How, Instance, Program},
    report::{Report, StepReport},
    rules::Finding,
    scenario::{Act, Scenario, Step},
    tap::{Manner, Tap},
};

/// Wait for effects without an answer: output, unsolicited updates, the plugin's end.
const PATIENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(5);

/// Why no step could be run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misuse {
    #[error("the runtime: {0}")]
    Runtime(#[from] StartError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{why}")]
    Step { line: usize, why: String },
}

/// Why a step ends the run.
enum Over {
    Misuse(Misuse),
    /// The plugin has not joined.
    NotJoined(String),
    /// The pod or container of the step does not exist, or exists already.
    NotMade(String),
}

impl<E: Into<Misuse>> From<E> for Over {
    fn from(cause: E) -> Self {
        Self::Misuse(cause.into())
    }
}

/// A running scenario.
struct Bench {
    scenario: Scenario,
    runtime: FakeRuntime,
    tap: Tap,
    program: Program,
    instances: Vec<Instance>,
    /// Ids of the plugins under test that have joined.
    plugins: Vec<PluginId>,
    host: Host,
    report: Report,
    _dir: tempfile::TempDir,
}

/// The key of a step that requires a plugin's own process.
fn needs_own(step: &Step) -> Option<&'static str> {
    let of_expected = |expected: &Expected| match expected {
        Expected::Prints(_) => Some("expect.prints"),
        Expected::Exit(_) => Some("expect.exit"),
        _ => None,
    };
    match step.act {
        Act::Rollout(Some(_)) => Some("with"),
        _ => step.expect.iter().find_map(of_expected),
    }
}

/// Runs one scenario. `socket`: the plugins' socket; a temporary one by default.
pub(crate) async fn run(
    scenario: Scenario,
    how: How,
    socket: Option<PathBuf>,
) -> Result<Report, Misuse> {
    let mut bench = Bench::new(scenario, how, socket).await?;
    match bench.steps().await {
        Ok(()) => {}
        Err(Over::NotJoined(why) | Over::NotMade(why)) => bench.report.not_joined = Some(why),
        Err(Over::Misuse(misuse)) => return Err(misuse),
    }
    bench.report.finish();
    if !bench.report.held() {
        bench.report.output = bench.program.tail();
    }
    Ok(bench.report)
}

impl Bench {
    async fn new(scenario: Scenario, how: How, socket: Option<PathBuf>) -> Result<Self, Misuse> {
        let needs_own = scenario
            .steps
            .iter()
            .find_map(|step| Some((step.line, needs_own(step)?)));
        if let (How::Awaited, Some((line, key))) = (&how, needs_own) {
            let why = format!("`{key}` is for a plugin that nri-bench starts, not with --listen");
            return Err(Misuse::Step { line, why });
        }
        let dir = tempfile::Builder::new().prefix("nri-bench-").tempdir()?;
        let (name, version) = scenario.identity.clone();
        let mut builder = FakeRuntime::builder()
            .flavor(scenario.flavor)
            .identity(name, version)
            .validator(scenario.validator.clone())
            .timeouts(Timeouts {
                request: scenario.request_timeout,
                ..Timeouts::default()
            });
        for other in &scenario.others {
            let adjust = other.adjust.clone();
            let handlers = Handlers::new().create_container(move |_, _| {
                let adjust = adjust.clone();
                async move { Ok((Some(adjust), Vec::new())) }
            });
            builder = builder.plugin(other.id.clone(), handlers);
        }
        if let Some(Act::Join { pods, .. }) = scenario.steps.first().map(|step| &step.act) {
            for (name, containers) in pods {
                let all = containers.iter().map(|name| scenario.container(name));
                builder = builder.existing(scenario.pod(name), all);
            }
        }
        let runtime = builder.start().await?;
        let socket = socket.unwrap_or_else(|| dir.path().join("nri.sock"));
        let manner = Manner {
            speaks: scenario.speaks,
            config: scenario.config.clone(),
            ..Manner::default()
        };
        let tap = Tap::new(runtime.socket(), &socket, manner);
        let program = Program {
            how,
            id: scenario.plugin.clone(),
            socket,
            output: dir.path().join("output"),
        };
        let report = Report {
            scenario: scenario.name.clone(),
            file: scenario.file.clone(),
            ..Report::default()
        };
        let host = Host::here(scenario.cpus.clone());
        Ok(Self {
            scenario,
            runtime,
            tap,
            program,
            instances: Vec::new(),
            plugins: Vec::new(),
            host,
            report,
            _dir: dir,
        })
    }

    async fn steps(&mut self) -> Result<(), Over> {
        let mut steps = self.scenario.steps.clone();
        if !matches!(steps.first().map(|s| &s.act), Some(Act::Join { .. })) {
            let join = Step {
                line: 1,
                what: "join".to_owned(),
                act: Act::Join {
                    pods: Vec::new(),
                    plugins: Vec::new(),
                },
                expect: Vec::new(),
            };
            steps.insert(0, join);
        }
        for step in steps {
            let mut done = self.step(&step).await?;
            let is_there = self.is_there();
            if !is_there {
                done.fail("the plugin is not there any more: later steps were not made");
            }
            self.report.steps.push(done);
            if !is_there {
                return Ok(());
            }
        }
        let ended = self.end().await;
        self.report.steps.push(ended);
        Ok(())
    }

    async fn step(&mut self, step: &Step) -> Result<StepReport, Over> {
        let mut report = StepReport {
            line: step.line,
            ..StepReport::default()
        };
        let mut came = Came::default();
        let began = Instant::now();
        let printed = self.program.printed();
        match Box::pin(self.act(step, &mut came, &mut report)).await {
            Ok(()) => {}
            // A failure of the first step is reported for the complete run.
            Err(Over::NotJoined(why)) if !self.report.steps.is_empty() => {
                report.fail(why);
                return Ok(report);
            }
            // A result of a failed step, or of an invalid scenario.
            Err(Over::NotMade(why)) if !self.report.held() => {
                report.skipped = Some(format!("{why}; a step before this one has failed"));
                return Ok(report);
            }
            Err(Over::NotMade(why)) => {
                let line = step.line;
                return Err(Misuse::Step { line, why }.into());
            }
            Err(over) => return Err(over),
        }
        report.took = began.elapsed();
        self.await_later(printed, &step.expect, &mut came, &mut report)
            .await;
        if !self.is_there()
            && let Err(why) = self.return_plugin(&mut came, &mut report).await
        {
            report.fail(why);
        }
        self.collect(&mut came, &mut report);
        self.conclude(&step.expect, came, &mut report);
        Ok(report)
    }

    /// Waits for effects without an answer.
    async fn await_later(
        &mut self,
        printed: usize,
        expect: &[Expected],
        came: &mut Came,
        report: &mut StepReport,
    ) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            // A request before the answer belongs to the step.
            let is_asking = self.tap.seen(|seen| seen.asking > 0);
            self.collect(came, report);
            came.printed = self.program.printed_since(printed);
            let is_missing = |expected: &Expected| match expected {
                // Its status is known when it is restarted.
                Expected::Exit(_) => came.lost.is_none(),
                expected => expected.may_come_later() && !expected.compare(came).is_empty(),
            };
            let is_done = !is_asking && !expect.iter().any(is_missing);
            if is_done || tokio::time::Instant::now() >= deadline {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Separates findings that count from those that the scenario allows.
    fn file(&self, findings: Vec<Finding>, report: &mut StepReport) {
        for finding in findings {
            let allowed = self.scenario.allow.contains(&finding.rule);
            let list = if allowed {
                &mut report.allowed
            } else {
                &mut report.findings
            };
            if !list.contains(&finding) {
                list.push(finding);
            }
        }
    }
}
