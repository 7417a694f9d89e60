//! Connections of the plugin: join, crash, restart, rollout, end.

use std::process::ExitStatus;

use nri::{Kind, PluginEvent, PluginId, PluginInfo, PluginState};
use nri_testing::Happening;
use tokio::time::{Instant, sleep};

use super::{Bench, LOOK, Over};
use crate::{
    expect::Came,
    plugin::GRACE,
    report::StepReport,
    rules::{Finding, Rule},
};

impl Bench {
    /// The first step.
    pub(super) async fn join(
        &mut self,
        plugins: &[PluginId],
        report: &mut StepReport,
    ) -> Result<(), Over> {
        self.tap.listen()?;
        self.start_one()?;
        let infos = self.await_joined(plugins).await.map_err(Over::NotJoined)?;
        self.plugins = infos.iter().map(|info| info.id.clone()).collect();
        self.report.plugins = self.plugins.iter().map(ToString::to_string).collect();
        report.title = format!("join {}", self.report.plugins.join(", "));
        for info in &infos {
            report.note(format!("events = \"{}\"", info.events));
        }
        Ok(())
    }

    fn start_one(&mut self) -> std::io::Result<()> {
        if let Some(instance) = self.program.start(&self.tap)? {
            self.instances.push(instance);
        }
        Ok(())
    }

    /// The plugins that connected and get events.
    pub(super) fn active(&self) -> Vec<PluginInfo> {
        let mut plugins = self.runtime.adaptation().plugins();
        plugins.retain(|p| p.kind == Some(Kind::External) && p.state == PluginState::Active);
        plugins
    }

    /// Whether every plugin that joined still gets events.
    pub(super) fn is_there(&self) -> bool {
        let active = self.active();
        let there = |id: &PluginId| active.iter().any(|info| info.id == *id);
        self.plugins.iter().all(there)
    }

    /// Waits until these plugins have joined, or any if none is named; the error has the reason.
    async fn await_joined(&mut self, wanted: &[PluginId]) -> Result<Vec<PluginInfo>, String> {
        let limit = self.scenario.join_timeout;
        let deadline = Instant::now() + limit;
        let mut rejected = None;
        loop {
            let active = self.active();
            let in_ = |id: &PluginId| active.iter().any(|info| info.id == *id);
            if !active.is_empty() && wanted.iter().all(in_) {
                return Ok(active);
            }
            for Happening { plugin, event } in self.runtime.take_happenings() {
                if let PluginEvent::Rejected { reason } = event {
                    let who = plugin.map_or_else(|| "it".to_owned(), |id| id.to_string());
                    rejected = Some(format!("{who} was rejected: {reason}"));
                }
            }
            let ended = self.instances.last_mut().and_then(|i| i.ended());
            let why = match (&rejected, ended) {
                (Some(rejected), Some(status)) => format!("{rejected}; it ended with {status}"),
                (None, Some(status)) => {
                    format!("the plugin ended with {status} before it had joined")
                }
                (Some(rejected), None) => rejected.clone(),
                (None, None) => format!(
                    "no plugin has joined within {limit:?}: it must connect to {}",
                    self.program.socket.display()
                ),
            };
            let why = why + self.program.hint();
            if ended.is_some() || Instant::now() >= deadline {
                return Err(why);
            }
            sleep(LOOK).await;
        }
    }

    /// The runtime disappears without Shutdown, and restarts.
    pub(super) async fn crash(
        &mut self,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        self.tap.cut();
        self.end_launched(report, false).await;
        self.come_back(came, report).await
    }

    /// The runtime sends Shutdown, and restarts.
    pub(super) async fn restart(
        &mut self,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        self.runtime.shutdown().await;
        self.tap.drained().await;
        self.end_launched(report, true).await;
        self.come_back(came, report).await
    }

    /// Launched plugins end with their connection; a present runtime ends them. Returns the last
    /// one's own exit, if any.
    async fn end_launched(
        &mut self,
        report: &mut StepReport,
        by_signal: bool,
    ) -> Option<ExitStatus> {
        if !self.program.is_launched() {
            return None;
        }
        let mut status = None;
        for mut instance in std::mem::take(&mut self.instances) {
            status = instance.ends_within(GRACE).await;
            let mut ended = status.is_some();
            if !ended {
                let by_sigterm = instance.stop().await;
                ended = by_signal && by_sigterm;
            }
            if !ended {
                let what = if by_signal {
                    format!("it was there {GRACE:?} after SIGTERM")
                } else {
                    format!("it was there {GRACE:?} after its connection was lost")
                };
                self.file(vec![Finding::new(Rule::OutlivesRuntime, what)], report);
            }
        }
        status
    }

    async fn come_back(&mut self, came: &mut Came, report: &mut StepReport) -> Result<(), Over> {
        self.runtime.restart().await?;
        // The lost connections are caused by the bench.
        self.runtime.take_happenings();
        self.runtime.take_deliveries();
        self.tap.listen()?;
        self.join_again(came, report).await.map_err(Over::NotJoined)
    }

    /// Restarts a plugin that was lost, or closed for being late.
    pub(super) async fn return_plugin(
        &mut self,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), String> {
        let ended = self.end_launched(report, false).await;
        came.ended = ended.map(|status| status.to_string());
        self.join_again(came, report).await
    }

    /// Waits for the plugin; one that has ended, or ends now, is started again.
    async fn join_again(&mut self, came: &mut Came, report: &mut StepReport) -> Result<(), String> {
        let began = Instant::now();
        let plugins = self.plugins.clone();
        let is_new = self.start_ended(came, report)?;
        let mut joined = self.await_joined(&plugins).await;
        if joined.is_err() && !is_new && self.start_ended(came, report)? {
            joined = self.await_joined(&plugins).await;
        }
        joined?;
        let took = began.elapsed();
        report.note(format!("it was back after {:.1} s", took.as_secs_f64()));
        Ok(())
    }

    /// Starts an ended plugin again; false if it runs, or is started externally.
    fn start_ended(&mut self, came: &mut Came, report: &mut StepReport) -> Result<bool, String> {
        for instance in &mut self.instances {
            match instance.ended() {
                Some(status) => came.ended = Some(status.to_string()),
                None => return Ok(false),
            }
        }
        self.instances.clear();
        self.start_one().map_err(|e| e.to_string())?;
        let started = !self.instances.is_empty();
        if started {
            report.note("it had ended: started anew, as a supervisor would");
        }
        Ok(started)
    }

    /// A second instance joins, and gets the events; then the first one ends.
    pub(super) async fn rollout(
        &mut self,
        with: Option<&[String]>,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        self.runtime.take_happenings();
        if let Some(words) = with {
            self.program.replace(words);
        }
        self.start_one()?;
        let deadline = Instant::now() + self.scenario.join_timeout;
        let mut seen = Vec::new();
        let replaced = |seen: &[Happening]| {
            seen.iter().any(|h| match &h.event {
                PluginEvent::Shadowed => true,
                PluginEvent::Closed { reason } => reason.starts_with("instance-replaced"),
                _ => false,
            })
        };
        while !(replaced(&seen) && self.is_there()) {
            if Instant::now() >= deadline {
                let limit = self.scenario.join_timeout;
                let why = format!(
                    "the newer instance had not taken the older one's place within {limit:?}"
                );
                report.fail(why);
                break;
            }
            sleep(LOOK).await;
            seen.extend(self.runtime.take_happenings());
        }
        if self.instances.len() > 1 {
            let older = self.instances.remove(0);
            older.stop().await;
            let gone = Instant::now() + GRACE;
            while !seen
                .iter()
                .any(|h| matches!(h.event, PluginEvent::Closed { .. }))
            {
                if Instant::now() >= gone {
                    break;
                }
                sleep(LOOK).await;
                seen.extend(self.runtime.take_happenings());
            }
        }
        let rejected = seen.iter().filter_map(|h| match &h.event {
            PluginEvent::Rejected { reason } => Some(format!("an instance was rejected: {reason}")),
            _ => None,
        });
        report.failures.extend(rejected);
        Ok(())
    }

    /// The last step of every scenario: the runtime sends Shutdown.
    pub(super) async fn end(&mut self) -> StepReport {
        let began = std::time::Instant::now();
        let mut report = StepReport {
            title: "shutdown".to_owned(),
            ..StepReport::default()
        };
        // Results up to now are the plugin's; effects of Shutdown are not.
        let mut came = Came::default();
        self.collect(&mut came, &mut report);
        self.conclude(&[], came, &mut report);
        self.runtime.shutdown().await;
        self.tap.drained().await;
        self.end_launched(&mut report, true).await;
        for instance in std::mem::take(&mut self.instances) {
            instance.stop().await;
        }
        let findings = self.tap.take_findings();
        self.file(findings, &mut report);
        report.took = began.elapsed();
        report
    }

    /// The process whose memory is measured.
    pub(super) fn pid(&self) -> Option<u32> {
        let started = self.instances.last().map(|instance| instance.pid);
        started.or_else(|| self.tap.seen(|seen| seen.pid))
    }
}
