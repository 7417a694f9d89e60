//! Runs a scenario: one step after the other, each with what came back, what the tap saw and which rules were broken.
//!
//! ```text
//!   join ─► step ─► … ─► step ─► end          a plugin that is not there any more ends it early
//! ```

mod churn;
mod judge;
mod life;
mod steps;

use std::{
    io,
    path::PathBuf,
    time::{Duration, Instant},
};

use nri::{Handlers, PluginId, StartError, Timeouts};
use nri_testing::{Failed, FakeRuntime, container, pod};

use crate::{
    plugin::{How, Instance, Program},
    report::{Report, StepReport},
    rules::Finding,
    scenario::{Act, Expect, Scenario, Step},
    tap::{Manner, Tap},
};

/// How long what a plugin is to print may take.
const PRINTS: Duration = Duration::from_secs(1);

/// Why nothing could be tried at all.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misuse {
    #[error("the runtime: {0}")]
    Runtime(#[from] StartError),
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("line {line}: {why}")]
    Step { line: usize, why: String },
}

/// Why a step ends the run.
enum Over {
    Misuse(Misuse),
    /// The plugin is not in.
    NotJoined(String),
}

impl<E: Into<Misuse>> From<E> for Over {
    fn from(cause: E) -> Self {
        Self::Misuse(cause.into())
    }
}

/// A scenario while it is run.
struct Bench {
    scenario: Scenario,
    runtime: FakeRuntime,
    tap: Tap,
    program: Program,
    instances: Vec<Instance>,
    /// Ids of the plugins under test that have joined.
    plugins: Vec<PluginId>,
    report: Report,
    _dir: tempfile::TempDir,
}

/// Runs one scenario. `socket`: where plugins connect; one of its own if there is none.
pub(crate) async fn run(
    scenario: Scenario,
    how: How,
    socket: Option<PathBuf>,
) -> Result<Report, Misuse> {
    let mut bench = Bench::new(scenario, how, socket).await?;
    match bench.steps().await {
        Ok(()) => {}
        Err(Over::NotJoined(why)) => bench.report.not_joined = Some(why),
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
        if let Some(Act::Join {
            pods, containers, ..
        }) = scenario.steps.first().map(|step| &step.act)
        {
            for p in 0..*pods {
                let name = format!("existing-{p}");
                let containers = (0..*containers).map(|c| container(format!("{name}-{c}")));
                builder = builder.existing(pod(&name), containers);
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
            ..Report::default()
        };
        Ok(Self {
            scenario,
            runtime,
            tap,
            program,
            instances: Vec::new(),
            plugins: Vec::new(),
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
                    pods: 0,
                    containers: 0,
                    plugins: Vec::new(),
                },
                expect: Expect::default(),
            };
            steps.insert(0, join);
        }
        for step in steps {
            let done = self.step(&step).await?;
            let failed = !done.failures.is_empty();
            self.report.steps.push(done);
            if !self.is_there() {
                let why = "the plugin is not there any more: later steps were not made";
                if let (false, Some(last)) = (failed, self.report.steps.last_mut()) {
                    last.failures.push(why.to_owned());
                }
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
            after_failure: !self.report.held(),
            ..StepReport::default()
        };
        let began = Instant::now();
        let printed = self.program.printed();
        match Box::pin(self.act(step, &mut report)).await {
            // The first step's, before anything was tried, is the run's.
            Err(Over::NotJoined(why)) if !self.report.steps.is_empty() => report.fail(why),
            made => made?,
        }
        report.took = began.elapsed();
        self.await_printed(printed, &step.expect, &mut report).await;
        self.judge(&step.expect, &mut report);
        Ok(report)
    }

    /// What it prints may come a little after its answer.
    async fn await_printed(&self, from: usize, expect: &Expect, report: &mut StepReport) {
        let deadline = tokio::time::Instant::now() + PRINTS;
        for wanted in &expect.prints {
            while !self.program.printed_since(from).contains(wanted) {
                if tokio::time::Instant::now() >= deadline {
                    report.fail(format!("{wanted:?} was not printed"));
                    break;
                }
                tokio::time::sleep(PRINTS / 200).await;
            }
        }
    }

    /// What `Failed` means for a step: an answer of the plugin, or a scenario that makes no sense, unless it is what an
    /// earlier step that failed has left.
    fn refusal(step: &Step, failed: Failed, report: &StepReport) -> Result<String, Misuse> {
        match failed {
            Failed::Refused(refused) => Ok(refused.reason),
            other if report.after_failure => Ok(other.to_string()),
            other => Err(Misuse::Step {
                line: step.line,
                why: other.to_string(),
            }),
        }
    }

    /// Sorts findings into those that count and those that the scenario allows.
    fn file(&self, findings: Vec<Finding>, report: &mut StepReport) {
        for finding in findings {
            let allowed = self.scenario.allow.contains(&finding.rule);
            let list = match allowed {
                true => &mut report.allowed,
                false => &mut report.findings,
            };
            if !list.contains(&finding) {
                list.push(finding);
            }
        }
    }
}
