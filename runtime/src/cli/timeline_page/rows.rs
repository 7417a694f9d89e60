//! Placement: the order of groups, their lanes, and a row for each of several concurrent items.

use std::collections::{BTreeSet, HashMap};

use super::model::{Built, Chart, Failure, Group, Item, Lane};

/// Limit of rows in a lane; further concurrent items share the row that is free first.
const ROWS: usize = 4;

/// Pods with failures, then the others, each by their first event, and the daemon last. With more
/// than `many` pods each starts folded.
pub(super) fn arrange(built: Built, failures: Vec<Failure>, many: usize) -> Chart {
    let Built {
        groups,
        mut items,
        begun,
    } = built;
    let used: BTreeSet<usize> = items.iter().map(|item| item.group).collect();
    let failed: BTreeSet<usize> = failures.iter().map(|f| items[f.cause].group).collect();
    let is_many = used.len() > many;
    let mut order: Vec<usize> = used.into_iter().collect();
    order.sort_by_key(|g| (groups[*g].id.is_empty(), !failed.contains(g)));
    let place: HashMap<usize, usize> = order.iter().enumerate().map(|(to, g)| (*g, to)).collect();
    for item in &mut items {
        item.group = place[&item.group];
    }
    let (lanes, places) = places(&items, order.len());
    Chart {
        begun,
        groups: order.iter().map(|g| Group::clone(&groups[*g])).collect(),
        lanes,
        places,
        items,
        failures,
        many: is_many,
        left_out: 0,
    }
}

/// The used lanes of each group, and the place of each item. `items` are sorted by begin.
fn places(items: &[Item], groups: usize) -> (Vec<Vec<Lane>>, Vec<(usize, usize)>) {
    let mut sets: Vec<BTreeSet<&Lane>> = vec![BTreeSet::new(); groups];
    for item in items {
        sets[item.group].insert(&item.lane);
    }
    let lanes: Vec<Vec<Lane>> = sets
        .into_iter()
        .map(|set| set.into_iter().cloned().collect())
        .collect();
    // The time at which each row of a lane is free again.
    let mut rows: HashMap<(usize, usize), Vec<u64>> = HashMap::new();
    let mut places = Vec::with_capacity(items.len());
    for item in items {
        let lane = lanes[item.group].binary_search(&item.lane).unwrap_or(0);
        let free = rows.entry((item.group, lane)).or_default();
        let row = match free.iter().position(|until| *until <= item.at) {
            Some(row) => row,
            None if free.len() < ROWS => {
                free.push(0);
                free.len() - 1
            }
            None => (0..free.len()).min_by_key(|row| free[*row]).unwrap_or(0),
        };
        free[row] = free[row].max(item.end());
        places.push((lane, row));
    }
    (lanes, places)
}
