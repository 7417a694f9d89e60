//! One step of a scenario: its action, from its keys, and its expectations.

use std::time::Duration;

use nri::{
    PluginId,
    proto::{ContainerEviction, ContainerUpdate, LinuxResources},
};
use serde_json::Value;

use super::{
    Bad, Exit, ExpectTable, Pods, Reader, Result, StepTable,
    values::{bounded, duration, not_a_duration},
};
use crate::{
    expect::{self, Expected, STEPS},
    scenario::model::{Act, Step},
};

impl Reader<'_> {
    pub(super) fn step(&self, at: usize, line: usize, mut step: StepTable) -> Result<Step> {
        let bad = |why: String| Bad { line, why };
        let act = self.act(at, line, &mut step)?;
        let expect = step.expect.take().unwrap_or_default();
        let expect = self.expect(&at.to_string(), &step.r#do, expect)?;
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
            ("with", step.with.is_some()),
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

    /// The action of the step, from its keys.
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
                    pods: self.existing(step).map_err(bad)?,
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
            "rollout" => {
                let with = step.with.take();
                if with.as_ref().is_some_and(Vec::is_empty) {
                    return Err(bad("`with`: must name a program".to_owned()));
                }
                Act::Rollout(with)
            }
            "slow" => {
                let by = needs(step.by.take().map(|by| by.0), "by")?;
                Act::Slow(duration(&by).ok_or_else(|| bad(not_a_duration(&by)))?)
            }
            "churn" => Act::Churn {
                pod: step.pod.take().unwrap_or_else(|| "churn".to_owned()),
                container: step.container.take().unwrap_or_else(|| "churn".to_owned()),
                times: bounded(step.times.take(), 1000).map_err(bad)?,
            },
            other => {
                let known = STEPS.join(", ");
                return Err(bad(format!("`do = {other:?}` is not known: {known}")));
            }
        })
    }

    /// The pods that exist before the plugin, with their containers.
    fn existing(&self, step: &mut StepTable) -> Result<Vec<(String, Vec<String>)>, String> {
        let containers = step.containers.take();
        match step.pods.take().unwrap_or(Pods::Plain(0)) {
            Pods::Plain(pods) => {
                let (pods, containers) = (bounded(Some(pods), 0)?, bounded(containers, 1)?);
                let plain = (0..pods).map(|p| {
                    let pod = format!("existing-{p}");
                    let containers = (0..containers).map(|c| format!("{pod}-{c}"));
                    let containers = containers.collect();
                    (pod, containers)
                });
                Ok(plain.collect())
            }
            Pods::Named(_) if containers.is_some() => {
                Err("`containers` is for a number of pods; a [pod.NAME] lists its own".to_owned())
            }
            Pods::Named(names) => {
                let of = |pod: String| {
                    let containers = self.existing.get(&pod).cloned().unwrap_or_default();
                    (pod, containers)
                };
                Ok(names.into_iter().map(of).collect())
            }
        }
    }

    fn resources(&self, at: &str, key: &str, given: Option<Value>) -> Result<LinuxResources> {
        match given {
            Some(given) => Ok(self.message(&["step", at, key], &given)?.0),
            None => Ok(LinuxResources::default()),
        }
    }

    fn expect(&self, at: &str, step: &str, table: ExpectTable) -> Result<Vec<Expected>> {
        let ExpectTable {
            error,
            adjust,
            exact,
            unchanged,
            updates,
            evictions,
            resources,
            events,
            prints,
            within,
            late,
            lost,
            exit,
        } = table;
        let mut all = Vec::new();
        let bad = |key: &str, why: String| Bad {
            line: self.line(&["step", at, "expect", key].map(str::to_owned)),
            why,
        };
        let flags = [
            ("exact", exact),
            ("unchanged", unchanged),
            ("late", late),
            ("lost", lost),
        ];
        if let Some((key, _)) = flags.iter().find(|(_, flag)| *flag == Some(false)) {
            return Err(bad(key, format!("`expect.{key}` is true, or left out")));
        }
        let mut add = |key: &str, expected: Vec<Expected>| match expect::misfit(key, step) {
            Some(why) => Err(bad(key, why)),
            // Without expectations every result would pass.
            None if expected.is_empty() => Err(bad(
                key,
                format!("`expect.{key}` asks for nothing; for no change it is `unchanged = true`"),
            )),
            None => {
                all.extend(expected);
                Ok(())
            }
        };
        if let Some(part) = error {
            add("error", vec![Expected::Error(part)])?;
        }
        if let Some(given) = &adjust {
            let (message, wanted) = self.message(&["step", at, "expect", "adjust"], given)?;
            let mut expected = Vec::new();
            if expect::asks(&wanted) {
                expected.push(Expected::Adjust(wanted));
            }
            if exact.is_some() {
                expected.push(Expected::Exact(Box::new(message)));
            }
            add("adjust", expected)?;
        } else if exact.is_some() {
            let why = "`expect.exact` needs `expect.adjust` beside it".to_owned();
            return Err(bad("exact", expect::misfit("exact", step).unwrap_or(why)));
        }
        if unchanged.is_some() {
            add("unchanged", vec![Expected::Unchanged])?;
        }
        if let Some(given) = &resources {
            let path = ["step", at, "expect", "resources"];
            let (_, wanted) = self.message::<LinuxResources>(&path, given)?;
            let expected = expect::asks(&wanted).then_some(Expected::Resources(wanted));
            add("resources", expected.into_iter().collect())?;
        }
        if let Some(updates) = &updates {
            let mut expected = Vec::new();
            for (n, given) in updates.iter().enumerate() {
                let path = ["step", at, "expect", "updates", &n.to_string()];
                let (update, wanted) = self.message::<ContainerUpdate>(&path, given)?;
                if update.ignore_failure {
                    let why = "`ignore_failure` of an update is not seen".to_owned();
                    return Err(bad("updates", why));
                }
                expected.push(Expected::Update(update.container_id, wanted));
            }
            add("updates", expected)?;
        }
        if let Some(evictions) = &evictions {
            let mut expected = Vec::new();
            for (n, given) in evictions.iter().enumerate() {
                let path = ["step", at, "expect", "evictions", &n.to_string()];
                let (eviction, _) = self.message::<ContainerEviction>(&path, given)?;
                let (name, reason) = (eviction.container_id, eviction.reason);
                expected.push(Expected::Eviction(name, reason));
            }
            add("evictions", expected)?;
        }
        if let Some(events) = &events {
            add("events", vec![Expected::Events(self.parsed(events)?)])?;
        }
        if let Some(prints) = prints {
            let asks = prints.iter().all(|text| !text.is_empty());
            let expected = prints.into_iter().filter(|_| asks);
            add("prints", expected.map(Expected::Prints).collect())?;
        }
        if let Some(within) = within {
            let within = self.duration(Some(within), Duration::ZERO)?;
            add("within", vec![Expected::Within(within)])?;
        }
        if late.is_some() {
            add("late", vec![Expected::Late])?;
        }
        if lost.is_some() {
            add("lost", vec![Expected::Lost])?;
        }
        match exit {
            Some(Exit::Status(status)) => {
                let status = format!("exit status: {status}");
                add("exit", vec![Expected::Exit(status)])?;
            }
            Some(Exit::Signal(name)) if name.starts_with("SIG") => {
                add("exit", vec![Expected::Exit(format!("({name})"))])?;
            }
            Some(Exit::Signal(name)) => {
                let why = format!("exit {name:?}: must be a number, or a signal such as SIGKILL");
                return Err(bad("exit", why));
            }
            None => {}
        }
        Ok(all)
    }
}
