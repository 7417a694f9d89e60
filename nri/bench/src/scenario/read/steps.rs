//! One step of a scenario: what it does, out of the keys that belong to it, and what is expected.

use std::time::Duration;

use nri::{PluginId, proto::LinuxResources};
use serde_json::Value;

use super::{
    Bad, ExpectTable, Reader, Result, StepTable,
    values::{bounded, duration, not_a_duration},
};
use crate::scenario::{Act, Expect, Step};

impl Reader<'_> {
    pub(super) fn step(&self, at: usize, line: usize, mut step: StepTable) -> Result<Step> {
        let bad = |why: String| Bad { line, why };
        let expect = step.expect.take().unwrap_or_default();
        let expect = self.expect(at, expect)?;
        let act = self.act(at, line, &mut step)?;
        let left = [
            ("pods", step.pods.is_some()),
            ("containers", step.containers.is_some()),
            ("plugins", step.plugins.is_some()),
            ("pod", step.pod.is_some()),
            ("container", step.container.is_some()),
            ("resources", step.resources.is_some()),
            ("overhead", step.overhead.is_some()),
            ("by", step.by.is_some()),
            ("times", step.times.is_some()),
        ];
        if let Some((key, _)) = left.iter().find(|(_, there)| *there) {
            return Err(bad(format!(
                "`{key}` means nothing at a step that does {:?}",
                step.r#do
            )));
        }
        if matches!(act, Act::Join { .. }) && at > 0 {
            return Err(bad(
                "join must be the first step: later ones are crash, restart and rollout".into(),
            ));
        }
        let what = step.r#do;
        Ok(Step {
            line,
            what,
            act,
            expect,
        })
    }

    /// What the step does, out of the keys that belong to it.
    fn act(&self, at: usize, line: usize, step: &mut StepTable) -> Result<Act> {
        let bad = |why: String| Bad { line, why };
        let needs = |what: Option<String>, key: &str| {
            what.ok_or_else(|| bad(format!("a step that does {:?} needs `{key}`", step.r#do)))
        };
        let pod_or = |pod: Option<String>| pod.unwrap_or_else(|| "pod".to_owned());
        let at = at.to_string();
        Ok(match step.r#do.as_str() {
            "join" => {
                let plugins = step.plugins.take().unwrap_or_default().into_iter();
                let plugins: Result<Vec<PluginId>> = plugins
                    .map(|id| id.parse().map_err(|e| bad(format!("plugins: {e}"))))
                    .collect();
                Act::Join {
                    pods: bounded(step.pods.take(), 0).map_err(bad)?,
                    containers: bounded(step.containers.take(), 1).map_err(bad)?,
                    plugins: plugins?,
                }
            }
            "run-pod" => Act::RunPod(pod_or(step.pod.take())),
            "stop-pod" => Act::StopPod(pod_or(step.pod.take())),
            "remove-pod" => Act::RemovePod(pod_or(step.pod.take())),
            "update-pod" => {
                let given = (step.overhead.take(), step.resources.take());
                Act::UpdatePod {
                    pod: pod_or(step.pod.take()),
                    overhead: Box::new(self.resources(&at, "overhead", given.0)?),
                    resources: Box::new(self.resources(&at, "resources", given.1)?),
                }
            }
            "create" => Act::Create {
                pod: pod_or(step.pod.take()),
                container: needs(step.container.take(), "container")?,
            },
            "start" => Act::Start(needs(step.container.take(), "container")?),
            "stop" => Act::Stop(needs(step.container.take(), "container")?),
            "remove" => Act::Remove(needs(step.container.take(), "container")?),
            "update" => {
                let given = step.resources.take();
                Act::Update {
                    container: needs(step.container.take(), "container")?,
                    resources: Box::new(self.resources(&at, "resources", given)?),
                }
            }
            "crash" => Act::Crash,
            "restart" => Act::Restart,
            "rollout" => Act::Rollout,
            "slow" => {
                let by = needs(step.by.take(), "by")?;
                Act::Slow(duration(&by).ok_or_else(|| bad(not_a_duration(&by)))?)
            }
            "churn" => Act::Churn {
                pod: step.pod.take().unwrap_or_else(|| "churn".to_owned()),
                container: step.container.take().unwrap_or_else(|| "churn".to_owned()),
                times: bounded(step.times.take(), 1000).map_err(bad)?,
            },
            other => {
                return Err(bad(format!(
                    "`do = {other:?}` is not known: join, run-pod, update-pod, create, start, update, stop, remove, \
                     stop-pod, remove-pod, crash, restart, rollout, slow or churn"
                )));
            }
        })
    }

    fn resources(&self, at: &str, key: &str, given: Option<Value>) -> Result<LinuxResources> {
        match given {
            Some(given) => Ok(self.message(&["step", at, key], &given)?.0),
            None => Ok(LinuxResources::default()),
        }
    }

    fn expect(&self, at: usize, table: ExpectTable) -> Result<Expect> {
        let at = at.to_string();
        let below = |key: &'static str| ["step", at.as_str(), "expect", key];
        let mut expect = Expect {
            error: table.error,
            exact: table.exact,
            unchanged: table.unchanged,
            prints: table.prints,
            ..Expect::default()
        };
        if let Some(given) = &table.adjust {
            let read = self.message::<nri::proto::ContainerAdjustment>(&below("adjust"), given)?;
            expect.adjust = Some(read.1);
        }
        if let Some(given) = &table.resources {
            expect.resources = Some(
                self.message::<LinuxResources>(&below("resources"), given)?
                    .1,
            );
        }
        for (n, given) in table.updates.iter().enumerate() {
            let n = n.to_string();
            let path = ["step", &at, "expect", "updates", &n];
            expect.updates.push(self.message(&path, given)?.0);
        }
        for (n, given) in table.evictions.iter().enumerate() {
            let n = n.to_string();
            let path = ["step", &at, "expect", "evictions", &n];
            expect.evictions.push(self.message(&path, given)?.0);
        }
        if let Some(events) = &table.events {
            expect.events = Some(self.parsed(events)?);
        }
        if let Some(protocol) = &table.protocol {
            if !["v1alpha1", "v1beta1"].contains(&protocol.get_ref().as_str()) {
                return Err(self.bad(&protocol.span(), "protocol is \"v1alpha1\" or \"v1beta1\""));
            }
            expect.protocol = Some(protocol.get_ref().clone());
        }
        if let Some(within) = table.within {
            expect.within = Some(self.duration(Some(within), Duration::ZERO)?);
        }
        Ok(expect)
    }
}
