//! Each step that happens to pods and containers, and what was expected of it.

use nri::{
    Created, Updated,
    proto::{Container, ContainerEviction, ContainerUpdate, PodSandbox},
};
use nri_record::json::is_default;
use nri_testing::{Failed, container, differences, includes, pod};
use serde_json::{Value, json};

use super::{Bench, Misuse, Over};
use crate::{
    adjustment,
    changes::changes,
    report::StepReport,
    rules::Finding,
    scenario::{Act, Expect, Step},
};

/// What came of a step that plugins may refuse.
type Came<T> = Result<T, Failed>;

impl Bench {
    pub(super) async fn act(&mut self, step: &Step, report: &mut StepReport) -> Result<(), Over> {
        let expect = &step.expect;
        let name = &step.what;
        report.title.clone_from(name);
        match &step.act {
            Act::Join { plugins, .. } => self.join(plugins, expect, report).await?,
            Act::Crash => self.crash(report).await?,
            Act::Restart => self.restart(report).await?,
            Act::Rollout => self.rollout(report).await?,
            Act::Slow(by) => {
                report.title = format!("slow {by:?}");
                self.tap.slow_down(*by);
            }
            Act::Churn {
                pod,
                container,
                times,
            } => {
                report.title = format!("churn {pod}/{container} x {times}");
                self.churn(step, pod, container, *times, report).await?;
            }
            Act::Create { pod, container } => {
                report.title = format!("{name} {pod}/{container}");
                self.create(step, pod, container, report).await?;
            }
            Act::Update {
                container,
                resources,
            } => {
                report.title = format!("{name} {container}");
                let came = self
                    .runtime
                    .update_container(container, (**resources).clone());
                let came = came.await;
                if let Some(updated) = settle(step, came, report)? {
                    self.updated(container, &updated, expect, report)?;
                }
            }
            Act::Stop(container) => {
                report.title = format!("{name} {container}");
                let came = self.runtime.stop_container(container).await;
                if let Some(stopped) = settle(step, came, report)? {
                    self.others(&stopped.merged.update, &[], expect, report);
                }
            }
            _ => self.plain(step, report).await?,
        }
        Ok(())
    }

    /// Steps without anything in the answer.
    async fn plain(&self, step: &Step, report: &mut StepReport) -> Result<(), Misuse> {
        let runtime = &self.runtime;
        let (about, came) = match &step.act {
            Act::RunPod(name) => (name, runtime.run_pod(self.pod(name)).await.map(drop)),
            Act::UpdatePod {
                pod,
                overhead,
                resources,
            } => {
                let (overhead, resources) = ((**overhead).clone(), (**resources).clone());
                (
                    pod,
                    runtime.update_pod(pod, overhead, resources).await.map(drop),
                )
            }
            Act::Start(name) => (name, runtime.start_container(name).await.map(drop)),
            Act::Remove(name) => (name, runtime.remove_container(name).await.map(drop)),
            Act::StopPod(name) => (name, runtime.stop_pod(name).await.map(drop)),
            Act::RemovePod(name) => (name, runtime.remove_pod(name).await.map(drop)),
            _ => unreachable!("{} is no plain step", step.what),
        };
        report.title = format!("{} {about}", step.what);
        settle(step, came, report)?;
        Ok(())
    }

    pub(super) fn pod(&self, name: &str) -> PodSandbox {
        let given = self.scenario.pods.get(name).cloned();
        given.unwrap_or_else(|| pod(name).into())
    }

    pub(super) fn container(&self, name: &str) -> Container {
        let given = self.scenario.containers.get(name).cloned();
        given.unwrap_or_else(|| container(name).into())
    }

    async fn create(
        &self,
        step: &Step,
        pod: &str,
        name: &str,
        report: &mut StepReport,
    ) -> Result<(), Misuse> {
        if self.runtime.pod(pod).is_err() {
            // Made on the way; a refusal of it is the step's.
            if let Err(failed) = self.runtime.run_pod(self.pod(pod)).await {
                settle::<()>(step, Err(failed), report)?;
                return Ok(());
            }
        }
        let came = self.runtime.create(pod, self.container(name)).await;
        if let Some(created) = settle(step, came, report)? {
            self.created(&created, &step.expect, report);
        }
        Ok(())
    }

    fn created(&self, created: &Created, expect: &Expect, report: &mut StepReport) {
        let merged = &created.merged;
        let (before, adjust) = (as_json(&merged.container), as_json(&merged.adjust));
        if let Some(owners) = merged.owners.container(&merged.container.id) {
            report.changes = changes(owners, &before, &adjust);
        }
        let wrong = Finding::bad_adjustment(adjustment::wrong(&merged.adjust));
        self.file(wrong.collect(), report);
        if let Some(expected) = &expect.adjust {
            let missing = includes(expected, &adjust).into_iter();
            missing.for_each(|d| report.fail(d.to_string()));
            if expect.exact {
                let more = includes(&set(&adjust), expected);
                let more = more
                    .iter()
                    .map(|d| format!("{}: {} was not expected", d.path, d.expected));
                report.failures.extend(more);
            }
        }
        if expect.unchanged {
            let ours = |by: &String| self.plugins.iter().any(|p| by.ends_with(&p.to_string()));
            for change in report.changes.iter().filter(|c| c.by.iter().any(ours)) {
                report
                    .failures
                    .push(format!("{} was changed: expected nothing", change.what));
            }
        }
        self.others(&merged.update, &merged.evict, expect, report);
    }

    fn updated(
        &self,
        name: &str,
        updated: &Updated,
        expect: &Expect,
        report: &mut StepReport,
    ) -> Result<(), Misuse> {
        let merged = &updated.merged;
        let (_, container) = self.runtime.container(name).map_err(|e| Misuse::Step {
            line: report.line,
            why: e.to_string(),
        })?;
        let now = container.linux.and_then(|linux| linux.resources);
        let now = as_json(&now.unwrap_or_default());
        if let Some(owners) = merged.owners.container(&container.id) {
            let now = json!({"linux": {"resources": now}});
            report.changes = changes(owners, &Value::Null, &now);
        }
        if let Some(expected) = &expect.resources {
            let missing = includes(expected, &now).into_iter();
            missing.for_each(|d| report.fail(d.to_string()));
        }
        self.others(&merged.others, &merged.evict, expect, report);
        Ok(())
    }

    /// Updates and evictions of other containers.
    fn others(
        &self,
        updates: &[ContainerUpdate],
        evictions: &[ContainerEviction],
        expect: &Expect,
        report: &mut StepReport,
    ) {
        for update in updates {
            report.note(format!("updates container {}", update.container_id));
        }
        for eviction in evictions {
            let (id, reason) = (&eviction.container_id, &eviction.reason);
            report.note(format!("evicts container {id}: {reason}"));
        }
        for wanted in &expect.updates {
            let mut wanted = wanted.clone();
            wanted.container_id = self.id_of(&wanted.container_id);
            let there = updates
                .iter()
                .find(|u| u.container_id == wanted.container_id);
            match there {
                Some(there) => {
                    let missing = differences(&wanted, there).into_iter();
                    missing.for_each(|d| report.fail(d.to_string()));
                }
                None => report.fail(format!(
                    "no update of container {}: expected one",
                    wanted.container_id
                )),
            }
        }
        for wanted in &expect.evictions {
            let id = self.id_of(&wanted.container_id);
            let there = evictions
                .iter()
                .any(|e| e.container_id == id && e.reason.contains(&wanted.reason));
            if !there {
                report.fail(format!("no eviction of container {id}: expected one"));
            }
        }
        if expect.unchanged && !(updates.is_empty() && evictions.is_empty()) {
            let failure = "updates or evictions of other containers: expected none";
            report.fail(failure);
        }
    }

    /// A scenario knows containers by name, a message by id.
    fn id_of(&self, name: &str) -> String {
        let there = self.runtime.container(name);
        there.map_or_else(|_| name.to_owned(), |(_, container)| container.id)
    }
}

/// The result where it was to succeed and did; else what it came to is in the report.
pub(super) fn settle<T>(
    step: &Step,
    came: Came<T>,
    report: &mut StepReport,
) -> Result<Option<T>, Misuse> {
    let expected = step.expect.error.as_deref();
    match (came, expected) {
        (Ok(came), None) => Ok(Some(came)),
        (Ok(came), Some(expected)) => {
            report.fail(format!("no error: expected one with {expected:?}"));
            Ok(Some(came))
        }
        (Err(failed), expected) => {
            let reason = Bench::refusal(step, failed, report)?;
            match expected {
                Some(expected) if reason.contains(expected) => {
                    report.note(format!("refused, as expected: {reason}"));
                }
                Some(expected) => report.fail(format!(
                    "refused: {reason}: expected an error with {expected:?}"
                )),
                None => report.fail(format!("refused: {reason}")),
            }
            Ok(None)
        }
    }
}

pub(super) fn as_json<T: serde::Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

/// A message without what is not set, at any depth.
fn set(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let set = fields.iter().map(|(key, value)| (key.clone(), set(value)));
            set.filter(|(_, value)| !is_default(value)).collect()
        }
        Value::Array(list) => list.iter().map(set).collect(),
        other => other.clone(),
    }
}
