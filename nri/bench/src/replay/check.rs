//! The rules, as far as a recording can prove them. Pure.

use std::{collections::BTreeSet, time::Duration};

use nri::{
    Code, EventMask,
    mask::event_named,
    merge::{CreateMerge, MergeError},
    policy::Class,
    proto::{CreateContainerRequest, CreateContainerResponse, LinuxResources},
};
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value;

use super::{runtime::Came, script::Call};
use crate::{
    adjustment::{self, Host},
    report::short,
    rules::{Finding, Rule},
    scenario::unnamed,
};

/// Containers that the plugin has been notified of.
#[derive(Debug, Default)]
pub(super) struct Known {
    there: BTreeSet<String>,
    removed: BTreeSet<String>,
    host: Host,
}

impl Known {
    pub(super) fn new(host: Host) -> Self {
        Self {
            host,
            ..Self::default()
        }
    }

    /// Records the objects in this call.
    pub(super) fn sees(&mut self, call: &Call) {
        let id = |container: &Value| container.get("id")?.as_str().map(str::to_owned);
        let listed = call.message.get("containers").and_then(Value::as_array);
        self.there
            .extend(listed.into_iter().flatten().filter_map(id));
        let Some(id) = call.message.get("container").and_then(id) else {
            return;
        };
        match call.method.as_str() {
            "RemoveContainer" => {
                self.there.remove(&id);
                self.removed.insert(id);
            }
            _ => {
                self.removed.remove(&id);
                self.there.insert(id);
            }
        }
    }

    /// Errors in the updates and evictions of a message.
    pub(super) fn of_updates(&self, message: &Value) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (list, deed) in [("update", "an update"), ("evict", "an eviction")] {
            let all = message
                .get(list)
                .and_then(Value::as_array)
                .into_iter()
                .flatten();
            for one in all {
                let id = one
                    .get("container_id")
                    .and_then(Value::as_str)
                    .unwrap_or_default();
                if self.removed.contains(id) {
                    let what = format!("{deed} of container {id}, which was removed");
                    findings.push(Finding::new(Rule::KeptAfterRemove, what));
                } else if !self.there.contains(id) {
                    let what =
                        format!("{deed} of container {id:?}, which the recording does not have");
                    findings.push(Finding::new(Rule::UnknownContainer, what));
                }
                if let Some(resources) = one.pointer("/linux/resources") {
                    let resources = LinuxResources::deserialize(resources).unwrap_or_default();
                    let wrong = adjustment::resources_wrong(&resources, &self.host);
                    findings.extend(Finding::bad_adjustment(wrong));
                }
            }
        }
        findings
    }
}

/// The subscription in an answer to Configure.
pub(crate) fn subscribed(answer: &Value) -> Option<EventMask> {
    let events = answer.get("events").and_then(Value::as_i64).unwrap_or(0);
    EventMask::from_wire(i32::try_from(events).ok()?).ok()
}

/// Errors in an answer, independent of the recorded one.
pub(super) fn of_answer(call: &Call, came: &Came, limit: Duration, known: &Known) -> Vec<Finding> {
    let method = &call.method;
    let (rule, what) = match came {
        Came::Answer { message, payload } => {
            let mut findings = known.of_updates(message);
            if method == "CreateContainer" {
                findings.extend(of_adjustment(call, payload, &known.host));
            }
            return findings;
        }
        Came::TimedOut => {
            let limit = short(limit);
            (
                Rule::LateAnswer,
                format!("{method} had no answer after {limit}"),
            )
        }
        Came::Lost(why) => (Rule::LostConnection, format!("{method}: {why}")),
        Came::Garbage(why) => (Rule::Garbage, format!("{method}: {why}")),
        // Also by StateChange.
        Came::Error(failure) if failure.code == Code::Unimplemented as i32 => {
            let what = format!("{method} is answered with UNIMPLEMENTED");
            (Rule::UnhandledEvent, what)
        }
        Came::Error(failure) => match event_named(method).map(Class::of) {
            Some(Class::Teardown | Class::Notification) => (
                Rule::TeardownRefused,
                format!("{method}: {}", failure.message),
            ),
            _ => return Vec::new(),
        },
    };
    vec![Finding::new(rule, what)]
}

fn of_adjustment(call: &Call, payload: &[u8], host: &Host) -> Vec<Finding> {
    let Ok(answer) = CreateContainerResponse::decode(payload) else {
        return Vec::new();
    };
    let request = CreateContainerRequest::deserialize(&call.message).unwrap_or_default();
    let container = request.container.clone().unwrap_or_default();
    let paths = adjustment::namespaces_of(request.pod.as_ref(), &container);
    let adjust = answer.adjust.as_ref();
    let wrong = adjust.map(|adjust| adjustment::wrong(adjust, host, &paths));
    let mut findings: Vec<_> = Finding::bad_adjustment(wrong.unwrap_or_default()).collect();
    if let Err(error) = CreateMerge::new(request).apply(&unnamed(), answer) {
        let rule = match &error {
            MergeError::Conflict(_) => Rule::Conflict,
            _ => Rule::BadAnswer,
        };
        findings.push(Finding::new(rule, error.to_string()));
    }
    findings
}
