//! Faults of the product that are reported and not mended yet. A run with one of them is not judged
//! further. Delete a line with its mending.

use crate::{
    plan::{Hazard, Plan, Plugin},
    rule::{Fault, Rule},
    world::Outcome,
};

type Known = (&'static str, fn(&Plan, &Fault) -> bool);

const KNOWN: [Known; 2] = [
    (
        "a stop waits for a monitor that does not run",
        |plan, fault| fault.rule == Rule::Call && plan.has(Hazard::Stuck),
    ),
    (
        "a kept event is sent beside one that the plugin is late with",
        |plan, fault| {
            let late = |plugin: &Plugin| plugin.late > 0 && plugin.must_run;
            fault.text.ends_with("two at a time") && plan.plugins.iter().any(late)
        },
    ),
];

/// The known fault of a run.
pub fn known(plan: &Plan, outcome: &Outcome) -> Option<&'static str> {
    let is_it = |(_, is): &&Known| outcome.faults.iter().any(|fault| is(plan, fault));
    KNOWN.iter().find(is_it).map(|(name, _)| *name)
}
