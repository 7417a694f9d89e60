//! The daemon's side: reads a container's specs, and its events from the event log.

use std::sync::Arc;

use proto_nri::FieldOwners;
use serde_json::Value;

use super::{
    explanation::{About, Answer, Change, Effect, Explanation, SCHEMA, Updated},
    fields,
};
use crate::{
    pod::{
        error::{Error, Kind, Result},
        pods::Pods,
        record::{ContainerPhase, PodPhase},
        registry::Registry,
        spec::Specs,
        state::{Container, Pod},
    },
    trace::{Action, Event, EventLog, Filter, Subject, What, hide_variables},
};

/// Hooks at which a container takes its form, and those of a pod.
const HOOKS: [&str; 2] = ["CreateContainer", "ValidateContainerAdjustment"];
const POD_HOOKS: [&str; 1] = ["RunPodSandbox"];
/// The latest updates of a container that are explained.
const UPDATES: usize = 500;

/// Explains the container that `wanted` names: an id, the beginning of one, `name`, `pod/name` or
/// `namespace/pod/name`; or the pod with all its containers: its id, the beginning of it, `pod` or
/// `namespace/pod`. Existing objects come first; what was refused or removed is found as long as
/// the event log has it.
///
/// # Errors
/// No container or several containers have this name, or the specs cannot be read.
pub async fn gather(pods: &Pods, wanted: &str) -> Result<Explanation> {
    let log = &pods.notices.log;
    if wanted.is_empty() {
        return Err(Error::invalid(
            "the id or name of a container or pod is needed",
        ));
    }
    if let Some((pod, container)) = find(&pods.registry, wanted)? {
        let about = pod.id.clone();
        let events = recorded(log, move |event| event.subject.pod == about).await;
        return of_container(pods, &pod, &container, &events).await;
    }
    let name = wanted.to_owned();
    let about = move |event: &Event| names_container(event, &name) || names_pod(event, &name);
    let events = recorded(log, about).await;
    let live = pods.registry.pods();
    let live: Vec<_> = live.iter().map(|pod| subject(pod)).collect();
    match find_other(&live, &events, wanted) {
        Some(Other::Pod(id)) => Ok(of_pod(pods, &id, &events).await),
        Some(Other::Container(id)) => Ok(from_log(&events, &id)),
        None => Err(Error::new(
            Kind::NotFound,
            format!(
                "neither a pod nor a container {wanted:?} exists or is in the event log; \
                 `cairn ps -a` and `cairn timeline` list them"
            ),
        )),
    }
}

/// The id of a pod, or of a container that only the log has.
#[derive(Debug, PartialEq)]
enum Other {
    Pod(String),
    Container(String),
}

/// The newest pod of `live`, else what the log has last.
fn find_other(live: &[Subject], events: &[Arc<Event>], wanted: &str) -> Option<Other> {
    if let Some(subject) = live.iter().rfind(|subject| is_pod(subject, wanted)) {
        return Some(Other::Pod(subject.pod.clone()));
    }
    if let Some(event) = last(events, |event| names_container(event, wanted)) {
        return Some(Other::Container(event.subject.container.clone()));
    }
    let event = last(events, |event| names_pod(event, wanted))?;
    Some(Other::Pod(event.subject.pod.clone()))
}

fn subject(pod: &Pod) -> Subject {
    let metadata = pod.cell.get().metadata();
    Subject::pod(&pod.id, &metadata.namespace, &metadata.name)
}

fn last(events: &[Arc<Event>], names: impl Fn(&Event) -> bool) -> Option<&Arc<Event>> {
    events.iter().rev().find(|event| names(event))
}

fn names_container(event: &Event, wanted: &str) -> bool {
    let subject = &event.subject;
    let (namespace, pod) = subject.pod_name.split_once('/').unwrap_or_default();
    !subject.container.is_empty()
        && (subject.container.starts_with(wanted)
            || is_named(wanted, namespace, pod, &subject.container_name))
}

fn names_pod(event: &Event, wanted: &str) -> bool {
    is_pod(&event.subject, wanted)
}

fn is_pod(subject: &Subject, wanted: &str) -> bool {
    let Subject { pod, pod_name, .. } = subject;
    let name = pod_name.split_once('/').map_or("", |(_, name)| name);
    !pod.is_empty() && (pod.starts_with(wanted) || pod_name == wanted || name == wanted)
}

/// By id, then by name.
fn find(registry: &Registry, wanted: &str) -> Result<Option<(Arc<Pod>, Arc<Container>)>> {
    let all = registry.containers();
    let by_id = |(_, container): &&(Arc<Pod>, Arc<Container>)| container.id == wanted;
    if let Some(found) = all.iter().find(by_id) {
        return Ok(Some(found.clone()));
    }
    let begins = |(_, container): &&(Arc<Pod>, Arc<Container>)| container.id.starts_with(wanted);
    let named = |(pod, container): &&(Arc<Pod>, Arc<Container>)| {
        let metadata = pod.cell.get().metadata();
        let record = container.cell.get();
        is_named(wanted, &metadata.namespace, &metadata.name, record.name())
    };
    let mut found: Vec<_> = all.iter().filter(begins).collect();
    if found.is_empty() {
        found = all.iter().filter(named).collect();
    }
    match found.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).clone())),
        several => {
            let which = several.iter().map(|(pod, container)| {
                let metadata = pod.cell.get().metadata();
                let (namespace, pod) = (metadata.namespace, metadata.name);
                format!(
                    "{namespace}/{pod}/{} ({:.13})",
                    container.cell.get().name(),
                    container.id
                )
            });
            let which: Vec<_> = which.collect();
            Err(Error::invalid(format!(
                "{wanted}: several containers are called so: {}",
                which.join(", ")
            )))
        }
    }
}

fn is_named(wanted: &str, namespace: &str, pod: &str, container: &str) -> bool {
    wanted == container
        || wanted == format!("{pod}/{container}")
        || wanted == format!("{namespace}/{pod}/{container}")
}

/// Events of these objects, and which ones are missing.
async fn recorded(log: &EventLog, is_about: impl Fn(&Event) -> bool) -> Vec<Arc<Event>> {
    let mut events = log.subscribe(Filter::new(""), false);
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        if is_about(&event) || event.missing() > 0 {
            all.push(event);
        }
    }
    all
}

async fn of_container(
    pods: &Pods,
    pod: &Pod,
    container: &Container,
    events: &[Arc<Event>],
) -> Result<Explanation> {
    let specs = pods.node.specs.read(&container.id).await?;
    let explained = from_log(events, &container.id);
    Ok(made(pod, container, &specs, explained))
}

async fn of_pod(pods: &Pods, id: &str, events: &[Arc<Event>]) -> Explanation {
    let events = of(events, |subject| subject.pod == id);
    let mut own = events.clone();
    own.retain(|event| event.subject.container.is_empty());
    let mut explained = history(&own, &POD_HOOKS);
    let live = pods.registry.pods().into_iter().find(|pod| pod.id == id);
    if let Some(pod) = &live {
        let is_ready = pod.cell.get().phase == PodPhase::Ready;
        explained.container = About {
            pod: pod.id.clone(),
            pod_name: subject(pod).pod_name,
            state: if is_ready { "ready" } else { "notready" }.to_owned(),
            ..About::default()
        };
    }
    let mut ids: Vec<&str> = Vec::new();
    for event in &events {
        let id = event.subject.container.as_str();
        if !id.is_empty() && !ids.contains(&id) {
            ids.push(id);
        }
    }
    let containers = live.iter().flat_map(|pod| pod.containers());
    let containers: Vec<_> = containers.collect();
    ids.extend(
        containers
            .iter()
            .map(|c| c.id.as_str())
            .filter(|id| !ids.contains(id))
            .collect::<Vec<_>>(),
    );
    for id in ids {
        let there = containers.iter().find(|container| container.id == id);
        let made = match (&live, there) {
            (Some(pod), Some(container)) => of_container(pods, pod, container, &events).await.ok(),
            _ => None,
        };
        // A container that is being created has no spec yet.
        let made = made.unwrap_or_else(|| {
            let mut logged = from_log(&events, id);
            if let (Some(pod), Some(container), None) = (&live, there, &logged.refused) {
                logged.container = about(pod, container);
            }
            logged
        });
        explained.containers.push(made);
    }
    explained
}

/// Of a container that is not there.
fn from_log(events: &[Arc<Event>], container: &str) -> Explanation {
    history(
        &of(events, |subject| subject.container == container),
        &HOOKS,
    )
}

/// Events of this object, and of missing ones since its first.
fn of(events: &[Arc<Event>], is_it: impl Fn(&Subject) -> bool) -> Vec<Arc<Event>> {
    let is_its = |event: &&Arc<Event>| is_it(&event.subject);
    let events = events.iter().skip_while(|event| !is_its(event));
    events
        .filter(|event| is_its(event) || event.missing() > 0)
        .cloned()
        .collect()
}

/// The log's events of one object that does not exist: refused, or removed.
fn history(events: &[Arc<Event>], hooks: &[&str]) -> Explanation {
    let subject = events
        .iter()
        .map(|event| &event.subject)
        .find(|subject| !subject.pod.is_empty());
    let subject = subject.cloned().unwrap_or_default();
    let aborted = events.iter().find_map(|event| aborted(event, hooks[0]));
    // Plugins' texts are shorter than the call's error, which contains them.
    let refused = aborted.or_else(|| events.iter().find_map(|event| failed(event, hooks[0])));
    let mut updates: Vec<_> = events.iter().filter_map(|event| updated(event)).collect();
    let earlier = updates.len().saturating_sub(UPDATES);
    updates.drain(..earlier);
    let state = if refused.is_some() {
        "refused"
    } else {
        "removed"
    };
    Explanation {
        schema: SCHEMA,
        container: About {
            id: subject.container,
            name: subject.container_name,
            pod: subject.pod,
            pod_name: subject.pod_name,
            state: state.to_owned(),
            image: String::new(),
        },
        plugins: answers(events, hooks),
        refused: refused.map(str::to_owned),
        failed: last_failure(events),
        updates,
        more_updates: earlier as u64 + events.iter().map(|event| event.missing()).sum::<u64>(),
        ..Explanation::default()
    }
}

fn updated(event: &Event) -> Option<Updated> {
    let (plugin, hook, values, error) = match &event.what {
        What::Update {
            target,
            plugin,
            hook,
            values,
            error,
        } if target.is_empty() => (Some(plugin.clone()), hook, values, error.clone()),
        What::Step {
            step: Action::Updated { values },
        } => (None, &event.subject.call, values, None),
        _ => return None,
    };
    Some(Updated {
        plugin,
        hook: hook.clone(),
        wall_ns: event.wall_ns,
        values: values.clone(),
        error,
    })
}

/// The last failure. The exit after a StopContainer call is none.
fn last_failure(events: &[Arc<Event>]) -> Option<String> {
    let is_stop =
        |event: &Arc<Event>| event.what == What::CallBegun && event.subject.call == "StopContainer";
    let stop = events.iter().position(is_stop);
    let mut events = events.iter().enumerate().rev();
    events.find_map(|(at, event)| failure(event, stop.is_some_and(|stop| stop < at)))
}

/// How a container failed after its creation.
fn failure(event: &Event, stopped: bool) -> Option<String> {
    match &event.what {
        What::Step {
            step: Action::StartFailed { reason },
        } => Some(reason.clone()),
        What::Step {
            step:
                Action::Exited {
                    code,
                    reason,
                    message,
                },
        } if *code != 0 && !(stopped && reason == "Error" && message.is_empty()) => {
            let words = [format!("exited {code}"), reason.clone(), message.clone()];
            let words = words.into_iter().filter(|word| !word.is_empty());
            Some(words.collect::<Vec<_>>().join(", "))
        }
        _ => failed(event, "StartContainer").map(str::to_owned),
    }
}

fn about(pod: &Pod, container: &Container) -> About {
    let record = container.cell.get();
    let state = match record.phase {
        ContainerPhase::Creating | ContainerPhase::Created => "created",
        ContainerPhase::Running => "running",
        ContainerPhase::Exited => "exited",
        ContainerPhase::Unknown => "unknown",
    };
    About {
        id: container.id.clone(),
        name: record.name().to_owned(),
        pod: pod.id.clone(),
        pod_name: subject(pod).pod_name,
        state: state.to_owned(),
        image: record.image.name.clone(),
    }
}

fn made(pod: &Pod, container: &Container, specs: &Specs, logged: Explanation) -> Explanation {
    let shown = |spec: &oci_spec::runtime::Spec| {
        let mut spec = serde_json::to_value(spec).unwrap_or_default();
        hide_variables(&mut spec);
        fields::order(&mut spec);
        spec
    };
    let spec = shown(&specs.spec);
    let base = specs.base.as_ref().map(|base| {
        let mut base = shown(base);
        fields::order_like(&mut base, &spec);
        base
    });
    Explanation {
        container: about(pod, container),
        plugins: with_changes(logged.plugins, specs, &container.id),
        refused: None,
        base,
        spec: Some(spec),
        ..logged
    }
}

/// Why the hook did not pass.
fn aborted<'a>(event: &'a Event, at: &str) -> Option<&'a str> {
    match &event.what {
        What::Passed { hook, aborted, .. } if hook == at => aborted.as_deref(),
        _ => None,
    }
}

/// Why the call failed.
fn failed<'a>(event: &'a Event, call: &str) -> Option<&'a str> {
    match &event.what {
        What::CallEnded { error, .. } if event.subject.call == call => error.as_deref(),
        _ => None,
    }
}

/// The answers of each plugin, as far as the log reaches back.
fn answers(events: &[Arc<Event>], hooks: &[&str]) -> Vec<Answer> {
    let answers = events.iter().filter_map(|event| match &event.what {
        What::Plugin {
            hook,
            plugin,
            outcome,
            took_ns,
            changed,
            values,
            updates,
            evictions,
            ..
        } if hooks.contains(&hook.as_str()) => {
            let outcome = serde_json::to_value(outcome).unwrap_or_default();
            let text = |field: &str| {
                outcome
                    .get(field)
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            };
            Some(Answer {
                plugin: plugin.clone(),
                hook: hook.clone(),
                outcome: text("outcome").unwrap_or_default(),
                reason: text("reason"),
                took_ns: Some(*took_ns),
                changes: fields::named(changed, values),
                updates: *updates,
                evictions: *evictions,
            })
        }
        _ => None,
    });
    // Plugins without a subscription were not asked.
    answers
        .filter(|answer| answer.outcome != "not_subscribed")
        .collect()
}

/// Adds the changes of the table of owners; plugins that are no longer in the log come last. If the
/// log has a field that the table lacks, another plugin has overridden it.
fn with_changes(mut answers: Vec<Answer>, specs: &Specs, container: &str) -> Vec<Answer> {
    for change in answers.iter_mut().flat_map(|answer| &mut answer.changes) {
        change.effect = Effect::Overridden;
    }
    let none = FieldOwners::default();
    let table = specs.owners.owners.get(container).unwrap_or(&none);
    for plugin in fields::owners(table) {
        let mut changes = fields::changes(table, &specs.adjustment, &plugin);
        let is_theirs = |answer: &&mut Answer| answer.plugin == plugin && answer.hook == HOOKS[0];
        match answers.iter_mut().find(is_theirs) {
            Some(answer) => {
                let kept = |old: &Change| changes.iter().all(|new| !is_same(old, new));
                let overridden = answer.changes.drain(..).filter(kept).collect::<Vec<_>>();
                changes.extend(overridden);
                answer.changes = changes;
            }
            None => answers.push(Answer {
                plugin,
                hook: HOOKS[0].to_owned(),
                outcome: "answered".to_owned(),
                reason: None,
                took_ns: None,
                changes,
                updates: 0,
                evictions: 0,
            }),
        }
    }
    answers
}

fn is_same(one: &Change, other: &Change) -> bool {
    one.field == other.field && one.key == other.key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Changed, Outcome, Values};

    fn event(container: &str, what: What) -> Arc<Event> {
        let subject = Subject::pod("p1", "default", "pod").container(container, "web");
        Arc::new(Event {
            schema: SCHEMA,
            seq: 1,
            wall_ns: 0,
            mono_ns: 0,
            subject,
            what,
        })
    }

    fn answer(plugin: &str, outcome: Outcome) -> What {
        What::Plugin {
            hook: HOOKS[0].to_owned(),
            plugin: plugin.to_owned(),
            outcome,
            took_ns: 7,
            adjusted: false,
            changed: Vec::new(),
            values: Values::default(),
            updates: 0,
            evictions: 0,
            left_out: Vec::new(),
        }
    }

    fn aborted(why: &str) -> What {
        What::Passed {
            hook: HOOKS[0].to_owned(),
            took_ns: 9,
            aborted: Some(why.to_owned()),
        }
    }

    #[test]
    fn an_existing_pod_comes_before_a_removed_container_of_its_name() {
        let step = |step: Action| What::Step { step };
        let events = [event("c1", step(Action::Removed))];
        let live = [
            Subject::pod("b1", "default", "web"),
            Subject::pod("b2", "kube", "web"),
        ];
        let pod = |id: &str| Some(Other::Pod(id.to_owned()));
        for (wanted, expected) in [
            ("b1", pod("b1")),
            ("web", pod("b2")),
            ("default/web", pod("b1")),
            ("pod/web", Some(Other::Container("c1".to_owned()))),
            ("pod", pod("p1")),
            ("other", None),
        ] {
            assert_eq!(find_other(&live, &events, wanted), expected, "{wanted}");
        }
    }

    /// The content of the log for [`gather`].
    fn found(events: &[Arc<Event>], wanted: &str) -> Option<Explanation> {
        let container = last(events, |event| names_container(event, wanted))?;
        Some(from_log(events, &container.subject.container))
    }

    #[test]
    fn of_a_refused_creation_the_last_try_is_explained_with_values() {
        let field = || "linux.resources.cpu.cpus".to_owned();
        let mut set = answer("10-a", Outcome::Answered);
        if let What::Plugin {
            changed, values, ..
        } = &mut set
        {
            *changed = vec!["mounts[\"/data\"]".to_owned(), field()];
            let (old, new) = (None, Value::from("1"));
            values.values = vec![Changed {
                field: field(),
                old,
                new,
            }];
        }
        let events = [
            event("c1", aborted("an older one")),
            event("c2", set),
            event("c2", answer("15-idle", Outcome::NotSubscribed)),
            event(
                "c2",
                answer("20-b", Outcome::Refused("no".to_owned().into())),
            ),
            event("c2", aborted("plugin 20-b refused CreateContainer: no")),
        ];
        for wanted in ["c2", "web", "pod/web", "default/pod/web"] {
            let found = found(&events, wanted).expect("it was refused");
            assert_eq!(found.container.id, "c2", "{wanted}");
            assert_eq!(found.container.state, "refused");
            let why = "plugin 20-b refused CreateContainer: no";
            assert_eq!(found.refused.as_deref(), Some(why));
            let answers = found
                .plugins
                .iter()
                .map(|s| (s.plugin.as_str(), s.outcome.as_str()));
            assert_eq!(
                answers.collect::<Vec<_>>(),
                [("10-a", "answered"), ("20-b", "refused")]
            );
            assert_eq!(found.plugins[1].reason.as_deref(), Some("no"));
            let [mount, cpus] = &found.plugins[0].changes[..] else {
                panic!("{:?}", found.plugins[0]);
            };
            assert_eq!(
                (mount.field.as_str(), mount.key.as_deref()),
                ("mounts", Some("/data"))
            );
            assert_eq!(cpus.value, Some(Value::from("1")));
        }
        assert_eq!(found(&events, "other"), None);
        assert_eq!(found(&events, "pod"), None, "its pod");
        assert!(
            events
                .iter()
                .all(|event| names_pod(event, "pod") && names_pod(event, "p1"))
        );
        // The plugins' merged result cannot be applied: the call has the reason.
        let error = Some("no such option".to_owned());
        let mut ended = (*event("c3", What::CallEnded { took_ns: 1, error })).clone();
        ended.subject.call = "CreateContainer".to_owned();
        let found = found(&[Arc::new(ended)], "web").expect("it failed");
        assert_eq!(found.refused.as_deref(), Some("no such option"));
    }

    #[test]
    fn the_exit_after_a_stop_is_no_failure() {
        let exited = |reason: &str, message: &str| {
            let step = Action::Exited {
                code: 137,
                reason: reason.to_owned(),
                message: message.to_owned(),
            };
            event("c1", What::Step { step })
        };
        let mut stop = (*event("c1", What::CallBegun)).clone();
        stop.subject.call = "StopContainer".to_owned();
        let stop = Arc::new(stop);
        let failed = |events: &[Arc<Event>]| found(events, "c1").expect("it was there").failed;
        assert_eq!(failed(&[stop.clone(), exited("Error", "")]), None);
        for (events, expected) in [
            ([exited("Error", ""), stop.clone()], "exited 137, Error"),
            (
                [stop.clone(), exited("OOMKilled", "")],
                "exited 137, OOMKilled",
            ),
            (
                [stop, exited("Error", "evicted by 10-a")],
                "exited 137, Error, evicted by 10-a",
            ),
        ] {
            assert_eq!(failed(&events).as_deref(), Some(expected));
        }
    }

    #[test]
    fn a_removed_container_is_explained_with_its_updates_and_its_failure() {
        let update = |error: Option<&str>| What::Update {
            plugin: "10-a".to_owned(),
            hook: "Synchronize".to_owned(),
            target: String::new(),
            values: Values::default(),
            error: error.map(str::to_owned),
        };
        let not_its = match update(Some("not found")) {
            What::Update {
                plugin,
                hook,
                values,
                error,
                ..
            } => What::Update {
                plugin,
                hook,
                values,
                error,
                target: "f00".to_owned(),
            },
            other => other,
        };
        let step = |step: Action| What::Step { step };
        let unrecorded = || {
            let unrecorded = Action::Unrecorded {
                plugin: "10-a".to_owned(),
                requests: 7,
            };
            Arc::new(Event {
                subject: Subject::daemon(),
                ..(*event("", step(unrecorded))).clone()
            })
        };
        let values = Values::default();
        let mut by_cri = (*event("c1", step(Action::Updated { values }))).clone();
        by_cri.subject.call = "UpdateContainerResources".to_owned();
        let exited = Action::Exited {
            code: 137,
            reason: "OOMKilled".to_owned(),
            message: String::new(),
        };
        let events = [
            unrecorded(),
            event("c1", update(None)),
            event("c1", update(Some("busy"))),
            event("c2", update(None)),
            event("c1", not_its),
            unrecorded(),
            Arc::new(by_cri),
            event("c1", step(exited)),
            event("c1", step(Action::Removed)),
        ];
        let found = found(&events, "c1").expect("it was there");
        assert_eq!(found.container.state, "removed");
        assert_eq!(found.failed.as_deref(), Some("exited 137, OOMKilled"));
        let updates = found
            .updates
            .iter()
            .map(|u| (u.plugin.as_deref(), u.hook.as_str(), u.error.as_deref()));
        assert_eq!(
            updates.collect::<Vec<_>>(),
            [
                (Some("10-a"), "Synchronize", None),
                (Some("10-a"), "Synchronize", Some("busy")),
                (None, "UpdateContainerResources", None),
            ]
        );
        assert_eq!(found.more_updates, 7, "those since it was there");
    }
}
