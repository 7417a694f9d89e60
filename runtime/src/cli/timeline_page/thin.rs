//! Reduces the events to the limit of a page: the most relevant stay.

use super::model::{Item, taken};
use crate::cli::words::Tint;

/// Keeps at most `most` items, and returns the number of removed ones: failures before calls, these
/// before steps and answers, these before the rest; among equals the earlier.
pub(super) fn thin(items: &mut Vec<Item>, most: usize) -> usize {
    if items.len() <= most {
        return 0;
    }
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| rank(&items[*i]));
    order.truncate(most);
    order.sort_unstable();
    let left_out = items.len() - order.len();
    *items = taken(items, &order);
    left_out
}

fn rank(item: &Item) -> u8 {
    match item.tint {
        Tint::Bad => 0,
        Tint::Warn => 1,
        _ if item.is_call => 2,
        Tint::Faint => 4,
        _ => 3,
    }
}
