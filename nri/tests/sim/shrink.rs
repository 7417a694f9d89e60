//! Shrinks a failing plan: removes actions as long as the same rule is broken.

use crate::{plan::Plan, world};

pub(crate) fn shrink(mut plan: Plan, rule: char) -> Plan {
    let mut size = plan.actions.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        let mut smaller = false;
        while at < plan.actions.len() {
            let mut without = plan.clone();
            let end = (at + size).min(plan.actions.len());
            without.actions.drain(at..end);
            if world::run(&without)
                .0
                .iter()
                .any(|fault| fault.rule == rule)
            {
                plan = without;
                smaller = true;
            } else {
                at = end;
            }
        }
        if size == 1 && !smaller {
            break;
        }
        size = if size == 1 { 1 } else { size.div_ceil(2) };
    }
    plan
}
