//! What a step's deliveries, wishes and messages say of the plugin: the rules, and what was expected of all answers.

use nri::{Code, Delivery, Outcome, PluginEvent, mask::event_name, policy::Class};
use nri_testing::{Happening, Place, Wish, WishKind};

use super::Bench;
use crate::{
    adjustment,
    report::{StepReport, human::short},
    rules::{Finding, Rule},
    scenario::Expect,
};

impl Bench {
    /// Judges what has come in since the last step.
    pub(super) fn judge(&mut self, expect: &Expect, report: &mut StepReport) {
        let deliveries = self.runtime.take_deliveries().into_iter();
        let deliveries: Vec<_> = deliveries.filter(|d| self.is_ours(d)).collect();
        self.report.count(&deliveries);
        let expected_error = expect.error.is_some() && report.failures.is_empty();
        let mut findings: Vec<_> = deliveries.iter().filter_map(of_delivery).collect();
        if expected_error {
            // What the scenario asked for is no news.
            findings.retain(|finding| finding.rule != Rule::Conflict);
        }
        findings.extend(self.runtime.take_wishes().iter().flat_map(of_wish));
        let happenings = self.runtime.take_happenings();
        for happening in &happenings {
            if let PluginEvent::Deprecated { event } = happening.event {
                let note = format!("it takes {} as StateChange", event_name(event));
                report.note(note);
            }
        }
        findings.extend(happenings.iter().filter_map(of_happening));
        findings.extend(self.tap.take_findings());
        self.file(findings, report);
        let longest = self.tap.take_longest();
        if let Some(limit) = expect.within {
            for (method, took) in longest {
                if took > limit {
                    let (took, limit) = (short(took), short(limit));
                    let failure =
                        format!("{method} was answered after {took}: expected within {limit}");
                    report.fail(failure);
                }
            }
        }
    }

    /// Whether it is about the plugin under test, and not one that stands beside it.
    fn is_ours(&self, delivery: &Delivery) -> bool {
        let beside = self.scenario.others.iter().any(|o| o.id == delivery.plugin);
        let conflict = matches!(delivery.outcome, Outcome::Conflict(_));
        conflict || (!beside && self.plugins.contains(&delivery.plugin))
    }
}

fn of_delivery(delivery: &Delivery) -> Option<Finding> {
    let event = event_name(delivery.event);
    let class = Class::of(delivery.event);
    let (rule, what) = match &delivery.outcome {
        Outcome::TimedOut => {
            let took = short(delivery.took);
            (
                Rule::LateAnswer,
                format!("{event} had no answer after {took}"),
            )
        }
        Outcome::Lost(why) => (Rule::LostConnection, format!("{event}: {why}")),
        Outcome::Garbled(why) => (Rule::Garbage, format!("{event}: {why}")),
        Outcome::Conflict(why) => (Rule::Conflict, why.clone()),
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

fn of_wish(wish: &Wish) -> Vec<Finding> {
    let deed = match &wish.kind {
        WishKind::Update(_) => "an update",
        WishKind::Evict(_) => "an eviction",
    };
    let mut findings = Vec::new();
    let id = &wish.container;
    match wish.place {
        Place::There => {}
        Place::Removed => findings.push(Finding::new(
            Rule::KeptAfterRemove,
            format!("{deed} of container {id}, which was removed"),
        )),
        Place::Never => findings.push(Finding::new(
            Rule::UnknownContainer,
            format!("{deed} of container {id:?}, which never was"),
        )),
    }
    if let WishKind::Update(resources) = &wish.kind {
        let wrong = adjustment::resources_wrong(resources);
        findings.extend(Finding::bad_adjustment(wrong));
    }
    findings
}

fn of_happening(happening: &Happening) -> Option<Finding> {
    match &happening.event {
        PluginEvent::Closed { reason } if reason.starts_with("connection-lost") => {
            Some(Finding::new(Rule::LostConnection, reason.clone()))
        }
        PluginEvent::Closed { reason } if reason.starts_with("protocol-error") => {
            Some(Finding::new(Rule::Garbage, reason.clone()))
        }
        _ => None,
    }
}
