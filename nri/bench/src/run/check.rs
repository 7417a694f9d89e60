//! Evaluates a step's deliveries, requests and messages: its results, and broken rules.

use nri::{Code, Delivery, Outcome, PluginEvent, mask::event_name, policy::Class};
use nri_testing::{Place, PluginRequest, PluginRequestKind};
use serde_json::{Value, json};

use super::{Bench, steps::as_json};
use crate::{
    adjustment,
    changes::{Change, bare},
    expect::{Came, Expected},
    line::inline,
    report::{StepReport, short},
    rules::{Finding, Rule},
};

impl Bench {
    /// Collects the results since the last call.
    pub(super) fn collect(&mut self, came: &mut Came, report: &mut StepReport) {
        let deliveries = self.runtime.take_deliveries().into_iter();
        let deliveries: Vec<_> = deliveries.filter(|d| self.is_ours(d)).collect();
        self.report.count(&deliveries);
        let mut findings = Vec::new();
        for delivery in &deliveries {
            let event = event_name(delivery.event);
            match &delivery.outcome {
                Outcome::TimedOut => {
                    let took = short(delivery.took);
                    came.late
                        .push(format!("{event} had no answer after {took}"));
                }
                Outcome::Lost(why) => {
                    came.lost.get_or_insert_with(|| format!("{event}: {why}"));
                }
                outcome => findings.extend(of_outcome(event, Class::of(delivery.event), outcome)),
            }
        }
        for request in self.runtime.take_requests() {
            findings.extend(self.of_request(&request));
            self.requested(request, came);
        }
        for happening in self.runtime.take_happenings() {
            match happening.event {
                PluginEvent::Deprecated { event } => {
                    report.note(format!("it takes {} as StateChange", event_name(event)));
                }
                PluginEvent::Closed { reason } if reason.starts_with("connection-lost") => {
                    came.lost.get_or_insert(reason);
                }
                PluginEvent::Closed { reason } if reason.starts_with("protocol-error") => {
                    let known = report.findings.iter().chain(&findings);
                    if known.into_iter().all(|f| f.rule != Rule::Garbage) {
                        findings.push(Finding::new(Rule::Garbage, reason));
                    }
                }
                _ => {}
            }
        }
        findings.extend(self.tap.take_findings());
        self.file(findings, report);
        for (method, took) in self.tap.take_longest() {
            let longest = came.longest.entry(method).or_default();
            *longest = took.max(*longest);
        }
    }

    /// Compares the results with the expectations.
    pub(super) fn conclude(&self, expect: &[Expected], came: Came, report: &mut StepReport) {
        let mut accepts_refusal = false;
        for expected in expect {
            let wrong = expected.compare(&came);
            if matches!(expected, Expected::Error(_)) {
                accepts_refusal = wrong.is_empty();
            }
            report.failures.extend(wrong);
        }
        let is_expected = |which: fn(&Expected) -> bool| expect.iter().any(which);
        if let Some(reason) = &came.refused {
            if accepts_refusal {
                report.note(format!("refused, as expected: {reason}"));
                // The reason of the rejection is expected.
                let is_reason = |rule| matches!(rule, Rule::Conflict | Rule::BadAnswer);
                report.findings.retain(|finding| !is_reason(finding.rule));
            } else if !is_expected(|e| matches!(e, Expected::Error(_))) {
                report.fail(format!("refused: {reason}"));
            }
        }
        let mut findings = Vec::new();
        for late in came.late {
            if is_expected(|e| matches!(e, Expected::Late)) {
                report.note(format!("late, as expected: {late}"))
            } else {
                findings.push(Finding::new(Rule::LateAnswer, late))
            }
        }
        if let Some(lost) = came.lost {
            let ended = came.ended.map(|ended| format!("; it ended with {ended}"));
            let lost = lost + &ended.unwrap_or_default();
            if is_expected(|e| matches!(e, Expected::Lost | Expected::Exit(_))) {
                report.note(format!("lost, as expected: {lost}"))
            } else {
                findings.push(Finding::new(Rule::LostConnection, lost))
            }
        }
        self.file(findings, report);
        report.changes = came.changes;
    }

    /// Collects changes; of a path that was changed before, the last value.
    pub(super) fn changed(&self, changes: impl Iterator<Item = Change>, came: &mut Came) {
        for change in changes {
            let is_ours = |by: &String| self.plugins.iter().any(|plugin| plugin.to_string() == *by);
            if (change.by.is_empty() || change.by.iter().any(is_ours))
                && !came.ours.contains(&change.path)
            {
                came.ours.push(change.path.clone());
            }
            match came.changes.iter_mut().find(|c| c.path == change.path) {
                Some(known) => *known = change,
                None => came.changes.push(change),
            }
        }
    }

    /// Collects a request for another container.
    fn requested(&self, request: PluginRequest, came: &mut Came) {
        let name = self.name_of(&request.container);
        let id = ("container_id", Value::from(name.clone()));
        let (list, entry) = match request.kind {
            PluginRequestKind::Update(resources) => {
                let linux = json!({"resources": bare(&as_json(&resources))});
                came.updates.push((name.clone(), *resources));
                ("updates", [id, ("linux", linux)])
            }
            PluginRequestKind::Evict(reason) => {
                came.evictions.push((name.clone(), reason.clone()));
                ("evictions", [id, ("reason", reason.into())])
            }
        };
        let entry: Value = entry.into_iter().collect();
        let by = match (request.by, self.plugins.as_slice()) {
            (Some(by), _) => vec![by.to_string()],
            (None, [only]) => vec![only.to_string()],
            (None, _) => Vec::new(),
        };
        let change = Change {
            path: format!("{list}[{name:?}]"),
            expect: Some(format!("{list} = {}", inline("", &json!([entry])))),
            before: None,
            after: Some(entry),
            by,
        };
        self.changed(std::iter::once(change), came);
    }

    /// The name of a present or removed container of this id.
    fn name_of(&self, id: &str) -> String {
        self.runtime.name_of(id).unwrap_or_else(|| id.to_owned())
    }

    fn of_request(&self, request: &PluginRequest) -> Vec<Finding> {
        let mut findings = Vec::new();
        let name = self.name_of(&request.container);
        let deed = match &request.kind {
            PluginRequestKind::Update(resources) => {
                let wrong = adjustment::resources_wrong(resources, &self.host);
                findings.extend(Finding::bad_adjustment(wrong));
                "an update"
            }
            PluginRequestKind::Evict(_) => "an eviction",
        };
        match request.place {
            Place::There => {}
            Place::Stopped => findings.push(Finding::new(
                Rule::KeptAfterRemove,
                format!("{deed} of container {name}, which has stopped"),
            )),
            Place::Removed => findings.push(Finding::new(
                Rule::KeptAfterRemove,
                format!("{deed} of container {name}, which was removed"),
            )),
            Place::Never => findings.push(Finding::new(
                Rule::UnknownContainer,
                format!("{deed} of container {name:?}, which never was"),
            )),
        }
        findings
    }

    /// Whether it concerns the plugin under test instead of another one beside it.
    fn is_ours(&self, delivery: &Delivery) -> bool {
        let beside = self.scenario.others.iter().any(|o| o.id == delivery.plugin);
        let conflict = matches!(delivery.outcome, Outcome::Conflict(_));
        conflict || (!beside && self.plugins.contains(&delivery.plugin))
    }
}

fn of_outcome(event: &str, class: Class, outcome: &Outcome) -> Option<Finding> {
    let (rule, what) = match outcome {
        Outcome::Garbled(why) => (Rule::Garbage, format!("{event}: {why}")),
        Outcome::Conflict(why) => (Rule::Conflict, why.clone()),
        Outcome::Invalid(why) => (Rule::BadAnswer, why.clone()),
        Outcome::Refused(status) if status.is(Code::Unimplemented) => {
            let what = format!("{event} is answered with UNIMPLEMENTED");
            (Rule::UnhandledEvent, what)
        }
        Outcome::Refused(status) if matches!(class, Class::Teardown | Class::Notification) => {
            (Rule::TeardownRefused, format!("{event}: {status}"))
        }
        _ => return None,
    };
    Some(Finding::new(rule, what))
}
