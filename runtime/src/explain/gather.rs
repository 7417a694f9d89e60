//! The daemon's side: a container's specs and what the event log has of its creation.

use std::sync::Arc;

use proto_nri::FieldOwners;
use serde_json::Value;

use super::{
    explanation::{About, Change, Deed, Explanation, SCHEMA, Said},
    fields,
};
use crate::{
    pod::{
        error::{Error, Result},
        pods::Pods,
        record::ContainerPhase,
        registry::Registry,
        spec::Specs,
        state::{Container, Pod},
    },
    trace::{Event, EventLog, Filter, What},
};

/// Hooks at which a container takes its form.
const HOOKS: [&str; 2] = ["CreateContainer", "ValidateContainerAdjustment"];

/// Explains the container that `wanted` names: an id, the beginning of one, `name`, `pod/name` or
/// `namespace/pod/name`. One whose creation was refused is found as long as the event log has it.
///
/// # Errors
/// Nothing is called so, or several containers are; or the specs cannot be read.
pub async fn gather(pods: &Pods, wanted: &str) -> Result<Explanation> {
    let log = &pods.notices.log;
    if wanted.is_empty() {
        return Err(Error::invalid("a container's id or name is needed"));
    }
    if let Some((pod, container)) = find(&pods.registry, wanted)? {
        let specs = pods.node.specs.read(&container.id).await?;
        let events = recorded(log, Filter::new(&pod.id)).await;
        let of = |event: &&Arc<Event>| event.subject.container == container.id;
        let events: Vec<_> = events.iter().filter(of).cloned().collect();
        return Ok(made(&pod, &container, &specs, &events));
    }
    let events = recorded(log, Filter::new("")).await;
    refused(&events, wanted).ok_or_else(|| Error::no_container(wanted))
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

async fn recorded(log: &EventLog, filter: Filter) -> Vec<Arc<Event>> {
    let mut events = log.subscribe(filter, false);
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        all.push(event);
    }
    all
}

fn made(pod: &Pod, container: &Container, specs: &Specs, events: &[Arc<Event>]) -> Explanation {
    let record = container.cell.get();
    let metadata = pod.cell.get().metadata();
    let state = match record.phase {
        ContainerPhase::Creating | ContainerPhase::Created => "created",
        ContainerPhase::Running => "running",
        ContainerPhase::Exited => "exited",
        ContainerPhase::Unknown => "unknown",
    };
    let shown = |spec: &oci_spec::runtime::Spec| {
        let mut spec = serde_json::to_value(spec).unwrap_or_default();
        fields::hide_variables(&mut spec);
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
        schema: SCHEMA,
        container: About {
            id: container.id.clone(),
            name: record.name().to_owned(),
            pod: pod.id.clone(),
            pod_name: format!("{}/{}", metadata.namespace, metadata.name),
            state: state.to_owned(),
            image: record.image.name.clone(),
        },
        plugins: with_changes(said(events), specs, &container.id),
        refused: None,
        base,
        spec: Some(spec),
    }
}

/// Of the last try to create a container of this name that failed: a plugin, a validator, or what cannot be made of
/// their answers.
fn refused(events: &[Arc<Event>], wanted: &str) -> Option<Explanation> {
    let names = |event: &Event| {
        let subject = &event.subject;
        let (namespace, pod) = subject.pod_name.split_once('/').unwrap_or_default();
        let by_id = !subject.container.is_empty() && subject.container.starts_with(wanted);
        by_id || is_named(wanted, namespace, pod, &subject.container_name)
    };
    let (last, error) = events.iter().rev().find_map(|event| {
        let why = aborted(event).or_else(|| failed(event))?;
        names(event).then_some((event, why))
    })?;
    let subject = &last.subject;
    let same = |event: &&Arc<Event>| event.subject.container == subject.container;
    let events: Vec<_> = events.iter().filter(same).cloned().collect();
    // What plugins said is shorter than the call's error, which has it in it.
    let why = events
        .iter()
        .find_map(|event| aborted(event))
        .unwrap_or(error);
    Some(Explanation {
        schema: SCHEMA,
        container: About {
            id: subject.container.clone(),
            name: subject.container_name.clone(),
            pod: subject.pod.clone(),
            pod_name: subject.pod_name.clone(),
            state: "refused".to_owned(),
            image: String::new(),
        },
        plugins: said(&events),
        refused: Some(why.to_owned()),
        base: None,
        spec: None,
    })
}

/// Why the hook let no container pass.
fn aborted(event: &Event) -> Option<&str> {
    match &event.what {
        What::Passed { hook, aborted, .. } if hook == HOOKS[0] => aborted.as_deref(),
        _ => None,
    }
}

/// Why the call made none.
fn failed(event: &Event) -> Option<&str> {
    match &event.what {
        What::CallEnded { error, .. } if event.subject.call == HOOKS[0] => error.as_deref(),
        _ => None,
    }
}

/// What each plugin answered, as far as the log reaches back.
fn said(events: &[Arc<Event>]) -> Vec<Said> {
    let answers = events.iter().filter_map(|event| match &event.what {
        What::Plugin {
            hook,
            plugin,
            outcome,
            took_ns,
            changed,
            updates,
            evictions,
            ..
        } if HOOKS.contains(&hook.as_str()) => {
            let outcome = serde_json::to_value(outcome).unwrap_or_default();
            let text = |field: &str| {
                outcome
                    .get(field)
                    .and_then(Value::as_str)
                    .map(str::to_owned)
            };
            Some(Said {
                plugin: plugin.clone(),
                hook: hook.clone(),
                outcome: text("outcome").unwrap_or_default(),
                reason: text("reason"),
                took_ns: Some(*took_ns),
                changes: changed.iter().map(|name| fields::named(name)).collect(),
                updates: *updates,
                evictions: *evictions,
            })
        }
        _ => None,
    });
    // One that is not subscribed was not asked.
    answers
        .filter(|said| said.outcome != "not_subscribed")
        .collect()
}

/// With what the table of owners says; plugins that the log no longer has come last. What the log says that one set, and
/// the table no longer, another has overridden.
fn with_changes(mut said: Vec<Said>, specs: &Specs, container: &str) -> Vec<Said> {
    for change in said.iter_mut().flat_map(|said| &mut said.changes) {
        change.deed = Deed::Overridden;
    }
    let none = FieldOwners::default();
    let table = specs.owners.owners.get(container).unwrap_or(&none);
    for plugin in fields::owners(table) {
        let mut changes = fields::changes(table, &specs.adjustment, &plugin);
        for change in &mut changes {
            change.value.iter_mut().for_each(fields::hide_variables);
        }
        let theirs = |said: &&mut Said| said.plugin == plugin && said.hook == HOOKS[0];
        match said.iter_mut().find(theirs) {
            Some(said) => {
                let kept = |old: &Change| changes.iter().all(|new| !is_same(old, new));
                let overridden = said.changes.drain(..).filter(kept).collect::<Vec<_>>();
                changes.extend(overridden);
                said.changes = changes;
            }
            None => said.push(Said {
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
    said
}

fn is_same(one: &Change, other: &Change) -> bool {
    one.field == other.field && one.key == other.key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::{Outcome, Subject};

    fn event(container: &str, what: What) -> Arc<Event> {
        let subject = Subject::pod("p1", "default", "pod").container(container, "web");
        Arc::new(Event {
            schema: 1,
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
    fn of_a_refused_creation_the_last_try_is_explained() {
        let events = [
            event("c1", aborted("an older one")),
            event("c2", answer("10-a", Outcome::Answered)),
            event("c2", answer("15-idle", Outcome::NotSubscribed)),
            event(
                "c2",
                answer("20-b", Outcome::Refused("no".to_owned().into())),
            ),
            event("c2", aborted("plugin 20-b refused CreateContainer: no")),
        ];
        for wanted in ["c2", "web", "pod/web", "default/pod/web"] {
            let found = refused(&events, wanted).expect("it was refused");
            assert_eq!(found.container.id, "c2", "{wanted}");
            assert_eq!(
                found.refused.as_deref(),
                Some("plugin 20-b refused CreateContainer: no")
            );
            let said: Vec<_> = found
                .plugins
                .iter()
                .map(|s| (s.plugin.as_str(), s.outcome.as_str()))
                .collect();
            assert_eq!(said, [("10-a", "answered"), ("20-b", "refused")]);
            assert_eq!(found.plugins[1].reason.as_deref(), Some("no"));
        }
        assert_eq!(refused(&events, "other"), None);
        // What plugins agreed on cannot be made: the call says why.
        let mut failed = (*event(
            "c3",
            What::CallEnded {
                took_ns: 1,
                error: Some("no such option".to_owned()),
            },
        ))
        .clone();
        failed.subject.call = "CreateContainer".to_owned();
        let mut events = events.to_vec();
        let mut set = answer("10-a", Outcome::Answered);
        if let What::Plugin { changed, .. } = &mut set {
            changed.push("mounts[\"/data\"]".to_owned());
        }
        events.extend([event("c3", set), Arc::new(failed)]);
        let found = refused(&events, "web").expect("it failed");
        assert_eq!(
            (found.container.id.as_str(), found.refused.as_deref()),
            ("c3", Some("no such option"))
        );
        let change = &found.plugins[0].changes[0];
        assert_eq!(
            (change.field.as_str(), change.key.as_deref()),
            ("mounts", Some("/data"))
        );
        assert_eq!(refused(&events, "pod"), None);
    }
}
