//! Faults of the product that are reported and not mended yet. A run with one of them is not judged
//! further. Delete a line with its mending.

use crate::{
    plan::{Hazard, Plan},
    rule::Rule,
    world::Outcome,
};

type Known = (&'static str, Rule, fn(&Plan) -> bool);

const KNOWN: [Known; 11] = [
    ("R-1", Rule::Values, |plan| {
        plan.plugins
            .iter()
            .any(|plugin| plugin.asks + plugin.unsolicited > 0)
    }),
    // Killed between the cgroup and the record, which recovery does not compare.
    ("an update cut short", Rule::Values, |plan| {
        !plan.kills.is_empty()
    }),
    ("R-2", Rule::Exit, |plan| plan.has(Hazard::Waiting)),
    ("R-3", Rule::Leaked, |plan| {
        plan.plugins.iter().any(|plugin| plugin.fail_request)
    }),
    ("R-4", Rule::Image, |plan| plan.has(Hazard::Outlives)),
    ("R-6", Rule::Recovery, |_| true),
    ("R-7, R-8", Rule::Call, |plan| plan.has(Hazard::Hooks)),
    ("R-7, of a monitor", Rule::Call, |plan| {
        plan.has(Hazard::Stuck)
    }),
    ("R-9", Rule::Evicted, |_| true),
    ("R-10", Rule::Turn, |plan| plan.has(Hazard::Writes)),
    ("R-12", Rule::Recovery, |plan| plan.has(Hazard::Dels)),
];

/// The known fault of a run.
pub fn known(plan: &Plan, outcome: &Outcome) -> Option<&'static str> {
    let is_it = |(_, rule, may): &&Known| {
        may(plan) && outcome.faults.iter().any(|fault| fault.rule == *rule)
    };
    KNOWN.iter().find(is_it).map(|(name, ..)| *name)
}
