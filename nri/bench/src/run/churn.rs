//! Many whole lives of one pod: does the plugin grow, and does it forget?

use nri::merge::MergedCreate;
use serde_json::Value;

use super::{
    Bench, Over,
    steps::{as_json, settle},
};
use crate::{
    plugin::resident,
    report::StepReport,
    rules::{Finding, Rule},
    scenario::Step,
};

/// Lives before the first look at memory: what a program takes once is no growth.
const WARM_UP: u32 = 100;

impl Bench {
    pub(super) async fn churn(
        &mut self,
        step: &Step,
        pod: &str,
        container: &str,
        times: u32,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        let mut first = None;
        for _ in 0..WARM_UP.min(times) {
            let Some(created) = self.life(step, pod, container, report).await? else {
                return Ok(());
            };
            first.get_or_insert(created);
        }
        let pid = self.pid();
        let before = pid.and_then(resident);
        let mut last = None;
        for _ in 0..times {
            let Some(created) = self.life(step, pod, container, report).await? else {
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

    /// One life; gives what was adjusted, without the ids that differ. `None`: it was refused, which is in the report.
    async fn life(
        &mut self,
        step: &Step,
        pod: &str,
        container: &str,
        report: &mut StepReport,
    ) -> Result<Option<Value>, Over> {
        let runtime = &self.runtime;
        let came = runtime.run_pod(self.pod(pod)).await;
        if settle(step, came, report)?.is_none() {
            return Ok(None);
        }
        let came = runtime.create(pod, self.container(container)).await;
        let Some(created) = settle(step, came, report)? else {
            return Ok(None);
        };
        let came = runtime.start_container(container).await;
        if settle(step, came, report)?.is_none() {
            return Ok(None);
        }
        let came = runtime.remove_pod(pod).await;
        if settle(step, came, report)?.is_none() {
            return Ok(None);
        }
        // Counted and judged as they come, or a thousand pods would be kept.
        self.judge(&step.expect, report);
        Ok(self.is_there().then(|| without_ids(&created.merged)))
    }
}

fn without_ids(merged: &MergedCreate) -> Value {
    let mut text = as_json(&merged.adjust).to_string();
    text = text.replace(&merged.container.id, "CONTAINER");
    if let Some(pod) = &merged.pod {
        text = text.replace(&pod.id, "POD");
    }
    Value::from(text)
}
