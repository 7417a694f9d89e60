//! Steps of pods and containers, and their results.

use nri::proto::LinuxResources;
use nri_testing::Failed;
use serde_json::{Value, json};

use super::{Bench, Over};
use crate::{
    adjustment,
    changes::changes,
    expect::Came,
    report::StepReport,
    rules::Finding,
    scenario::{Act, Step},
};

impl Bench {
    pub(super) async fn act(
        &mut self,
        step: &Step,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        let runtime = &self.runtime;
        let name = &step.what;
        report.title.clone_from(name);
        let about = match &step.act {
            Act::RunPod(pod)
            | Act::UpdatePod { pod, .. }
            | Act::StopPod(pod)
            | Act::RemovePod(pod) => pod.clone(),
            Act::Create { pod, container } => format!("{pod}/{container}"),
            Act::Start(container)
            | Act::Update { container, .. }
            | Act::Stop(container)
            | Act::Remove(container) => container.clone(),
            Act::Slow(by) => format!("{by:?}"),
            Act::Churn {
                pod,
                container,
                times,
            } => format!("{pod}/{container} x {times}"),
            Act::Join { .. } | Act::Crash | Act::Restart | Act::Rollout(_) => String::new(),
        };
        report.title = format!("{name} {about}").trim_end().to_owned();
        match &step.act {
            Act::Join { plugins, .. } => self.join(plugins, report).await?,
            Act::Crash => self.crash(came, report).await?,
            Act::Restart => self.restart(came, report).await?,
            Act::Rollout(with) => self.rollout(with.as_deref(), report).await?,
            Act::Slow(by) => self.tap.slow_down(*by),
            Act::Churn {
                pod,
                container,
                times,
            } => self.churn(pod, container, *times, came, report).await?,
            Act::RunPod(name) => {
                settle(runtime.run_pod(self.scenario.pod(name)).await, came)?;
            }
            Act::UpdatePod {
                pod,
                overhead,
                resources,
            } => {
                let (overhead, resources) = ((**overhead).clone(), (**resources).clone());
                settle(runtime.update_pod(pod, overhead, resources).await, came)?;
            }
            Act::Create { pod, container } => self.create(pod, container, came, report).await?,
            Act::Start(name) => {
                settle(runtime.start_container(name).await, came)?;
            }
            Act::Update {
                container,
                resources,
            } => {
                let resources = (**resources).clone();
                self.update(container, resources, came, report).await?;
            }
            Act::Stop(name) => {
                settle(runtime.stop_container(name).await, came)?;
            }
            Act::Remove(name) => {
                settle(runtime.remove_container(name).await, came)?;
            }
            Act::StopPod(name) => {
                settle(runtime.stop_pod(name).await, came)?;
            }
            Act::RemovePod(name) => {
                settle(runtime.remove_pod(name).await, came)?;
            }
        }
        if matches!(
            step.act,
            Act::Join { .. } | Act::Crash | Act::Restart | Act::Rollout(_)
        ) {
            let ours = self.active().into_iter();
            let ours = ours.filter(|info| self.plugins.contains(&info.id));
            came.joined = ours.map(|info| info.events).collect();
        }
        Ok(())
    }

    pub(super) async fn create(
        &mut self,
        pod: &str,
        name: &str,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        if self.runtime.pod(pod).is_err() {
            // Created implicitly; its rejection is the step's.
            let made = self.runtime.run_pod(self.scenario.pod(pod)).await;
            if settle(made, came)?.is_none() {
                return Ok(());
            }
        }
        let made = self
            .runtime
            .create(pod, self.scenario.container(name))
            .await;
        let Some(created) = settle(made, came)? else {
            return Ok(());
        };
        let merged = created.merged;
        let id = &merged.container.id;
        if let Some(owners) = merged.owners.container(id) {
            let (before, now) = (as_json(&merged.container), as_json(&merged.adjust));
            let changed = changes(owners, &before, &now).into_iter();
            self.changed(changed.map(|c| c.below("adjust", "")), came);
        }
        let paths = adjustment::namespaces_of(merged.pod.as_ref(), &merged.container);
        let wrong = adjustment::wrong(&merged.adjust, &self.host, &paths);
        self.file(Finding::bad_adjustment(wrong).collect(), report);
        came.adjust = Some(merged.adjust);
        Ok(())
    }

    async fn update(
        &mut self,
        name: &str,
        resources: LinuxResources,
        came: &mut Came,
        report: &mut StepReport,
    ) -> Result<(), Over> {
        let updated = self.runtime.update_container(name, resources).await;
        let Some(updated) = settle(updated, came)? else {
            return Ok(());
        };
        let (_, container) = self.runtime.container(name).map_err(not_made)?;
        let now = container.linux.and_then(|linux| linux.resources);
        let now = now.unwrap_or_default();
        if let Some(owners) = updated.merged.owners.container(&container.id) {
            let wrong = adjustment::resources_wrong(&now, &self.host);
            self.file(Finding::bad_adjustment(wrong).collect(), report);
            let now = json!({"linux": {"resources": as_json(&now)}});
            let changed = changes(owners, &Value::Null, &now).into_iter();
            self.changed(
                changed.map(|c| c.below("resources", "linux.resources.")),
                came,
            );
        }
        came.resources = Some(now);
        Ok(())
    }
}

/// The result of a rejectable step; `None`: plugins rejected it.
pub(super) fn settle<T>(result: Result<T, Failed>, came: &mut Came) -> Result<Option<T>, Over> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(Failed::Refused(refused)) => {
            came.refused = Some(refused.reason);
            Ok(None)
        }
        Err(other) => Err(not_made(other)),
    }
}

fn not_made(failed: Failed) -> Over {
    Over::NotMade(failed.to_string())
}

pub(super) fn as_json<T: serde::Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}
