//! Many complete lives of one pod: does the plugin grow, and does it forget?

use super::{
    Bench, Over,
    steps::{as_json, settle},
};
use crate::{
    expect::Came,
    plugin::resident,
    report::StepReport,
    rules::{Finding, Rule},
};

/// Lives before the first memory measurement: initial allocations are not growth.
const WARM_UP: u32 = 100;

impl Bench {
    pub(super) async fn churn(
        &mut self,
        pod: &str,
        container: &str,
        times: u32,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        let mut first = None;
        for _ in 0..WARM_UP.min(times) {
            let Some(created) = self.life(pod, container, came, report).await? else {
                return Ok(());
            };
            first.get_or_insert(created);
        }
        let pid = self.pid();
        let before = pid.and_then(resident);
        let mut last = None;
        for _ in 0..times {
            let Some(created) = self.life(pod, container, came, report).await? else {
                return Ok(());
            };
            last = Some(created);
        }
        let mut findings = Vec::new();
        match (before, pid.and_then(resident)) {
            (Some(before), Some(after)) => {
                let grown = after.saturating_sub(before);
                let line = format!(
                    "memory {} KiB before, {} KiB after {times} pods",
                    before >> 10,
                    after >> 10
                );
                if grown > self.scenario.growth {
                    findings.push(Finding::new(Rule::Growth, line.clone()));
                }
                report.note(line);
            }
            _ => report.note("memory not measured: its process is not known"),
        }
        if let (Some(first), Some(last)) = (first, last)
            && first != last
        {
            let what =
                "the same pod and container are adjusted otherwise after earlier ones were removed";
            findings.push(Finding::new(Rule::KeptAfterRemove, what));
        }
        self.file(findings, report);
        Ok(())
    }

    /// One life; returns the adjustment, without the ids that differ. `None`: it was rejected, or
    /// the plugin was lost.
    async fn life(
        &mut self,
        pod: &str,
        container: &str,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<Option<String>, Over> {
        let ran = self.runtime.run_pod(self.scenario.pod(pod)).await;
        if settle(ran, came)?.is_none() {
            return Ok(None);
        }
        self.create(pod, container, came, report).await?;
        let Some(adjust) = came.adjust.take() else {
            return Ok(None);
        };
        let ids = self.runtime.container(container);
        let started = self.runtime.start_container(container).await;
        if settle(started, came)?.is_none() {
            return Ok(None);
        }
        settle(self.runtime.remove_pod(pod).await, came)?;
        // Collected as they arrive, to keep memory bounded.
        self.collect(came, report);
        let mut text = as_json(&adjust).to_string();
        if let Ok((pod, container)) = ids {
            text = text.replace(&container.id, "CONTAINER");
            text = text.replace(&pod.id, "POD");
        }
        Ok(self.is_there().then_some(text))
    }
}
