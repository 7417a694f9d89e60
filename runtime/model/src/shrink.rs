//! Shrinks a failing plan: takes away kills, plugins, hazards, clients and pods as long as the same
//! rule is broken.

use crate::{plan::Plan, rule::Rule, world::run};

/// The smallest plan found.
pub fn shrink(mut plan: Plan, rule: Rule) -> Plan {
    let breaks = |plan: &Plan| run(plan).faults.iter().any(|fault| fault.rule == rule);
    while let Some(smaller) = smaller(&plan).into_iter().find(breaks) {
        plan = smaller;
    }
    plan
}

/// Plans with one thing less.
fn smaller(plan: &Plan) -> Vec<Plan> {
    let mut all = Vec::new();
    let mut with = |change: &dyn Fn(&mut Plan)| {
        let mut smaller = plan.clone();
        change(&mut smaller);
        all.push(smaller);
    };
    for at in 0..plan.kills.len() {
        with(&|plan| {
            plan.kills.remove(at);
        });
    }
    for at in 0..plan.plugins.len() {
        with(&|plan| {
            plan.plugins.remove(at);
        });
    }
    for hazard in plan.hazards.keys() {
        with(&|plan| {
            plan.hazards.remove(hazard);
        });
    }
    for (at, plugin) in plan.plugins.iter().enumerate() {
        let chances = plugin.clone().chances().map(|chance| *chance);
        for (which, _) in chances
            .iter()
            .enumerate()
            .filter(|(_, chance)| **chance > 0)
        {
            with(&|plan| *plan.plugins[at].chances()[which] = 0);
        }
    }
    if plan.clients > 2 {
        with(&|plan| plan.clients -= 1);
    }
    if plan.pods > 1 {
        with(&|plan| plan.pods -= 1);
    }
    for (at, kill) in plan.kills.iter().enumerate() {
        for earlier in [kill / 2, kill * 7 / 8] {
            if earlier < *kill {
                with(&|plan| plan.kills[at] = earlier);
            }
        }
    }
    all
}
