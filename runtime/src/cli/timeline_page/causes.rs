//! Failures and their causes: a failed call is caused by an earlier plugin's answer or step.

use super::model::{Failure, Item, Lane};
use crate::cli::words::Tint;

/// Each failed call with its cause, and other failures, by time. `items` are sorted by begin.
pub(super) fn failures(items: &[Item]) -> Vec<Failure> {
    let mut reported = vec![false; items.len()];
    let mut failures = Vec::new();
    for (index, call) in items.iter().enumerate() {
        if !call.is_call || !call.failed() {
            continue;
        }
        reported[index] = true;
        let mut cause = index;
        let mut best = 0;
        for (other, item) in items.iter().enumerate().skip(first_at(items, call.at)) {
            if item.at > call.end() {
                break;
            }
            if other == index || !is_within(item, call) {
                continue;
            }
            reported[other] |= item.failed();
            let weight = weight(item);
            if weight > best {
                (cause, best) = (other, weight);
            }
        }
        failures.push(Failure {
            what: format!("{} failed", call.label),
            why: short_ids(&call.answer),
            at: call.end(),
            cause,
        });
    }
    for (index, item) in items.iter().enumerate() {
        if item.failed() && !reported[index] {
            failures.push(alone(index, item));
        }
    }
    failures.sort_by_key(|failure| failure.at);
    failures
}

/// Shortens ids of containers as in the text timeline, so that the top line stays readable.
fn short_ids(text: &str) -> String {
    let mut out = String::new();
    let mut id = String::new();
    for c in text.chars().map(Some).chain([None]) {
        match c {
            Some(c) if c.is_ascii_hexdigit() => id.push(c),
            _ => {
                if id.len() == 64 {
                    id.truncate(13);
                }
                out += &id;
                id.clear();
                out.extend(c);
            }
        }
    }
    out
}

fn first_at(items: &[Item], at: u64) -> usize {
    items.partition_point(|item| item.at < at)
}

fn is_within(item: &Item, call: &Item) -> bool {
    let container = call.container.0.is_empty()
        || item.container.0.is_empty()
        || item.container == call.container;
    item.group == call.group && item.call == call.call && !item.is_call && container
}

/// Ranks an event as the cause of a failed call: a plugin that fails it, then a step, then a plugin
/// in trouble, which may be a required one, then the point that a plugin aborted.
fn weight(item: &Item) -> u8 {
    match (&item.lane, item.tint) {
        (Lane::Plugin(_), Tint::Bad) => 5,
        (Lane::Monitor | Lane::Network, Tint::Bad) => 4,
        (Lane::Plugin(_), Tint::Warn) => 3,
        (_, Tint::Bad) => 2,
        _ => 0,
    }
}

fn alone(index: usize, item: &Item) -> Failure {
    let what = match &item.lane {
        Lane::Plugin(name) if !item.label.contains(name.as_str()) => {
            format!("{name}: {}", item.label)
        }
        _ => item.label.clone(),
    };
    Failure {
        what: short_ids(&what),
        why: short_ids(&item.answer),
        at: item.end(),
        cause: index,
    }
}

#[cfg(test)]
mod tests {
    use super::short_ids;

    #[test]
    fn ids_of_containers_are_cut_and_nothing_else_is() {
        let id = "e58960b05cc5c2e90ebc8f69c4062bce5e55b27b4e3e09284989e5176f71dd36";
        let text = format!("container {id}: start: deadbeef fails {id}0 é {id}");
        let cut = &id[..13];
        assert_eq!(
            short_ids(&text),
            format!("container {cut}: start: deadbeef fails {id}0 é {cut}")
        );
    }
}
