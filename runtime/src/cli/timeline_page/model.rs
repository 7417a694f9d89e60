//! The contents of a chart. Times are microseconds since the first event.

use crate::cli::words::Tint;

/// The actor of an event, in the order of the lanes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lane {
    Cri,
    Runtime,
    Network,
    Monitor,
    Plugin(String),
}

impl Lane {
    pub fn name(&self) -> &str {
        match self {
            Self::Cri => "CRI calls",
            Self::Runtime => "runtime",
            Self::Network => "network",
            Self::Monitor => "processes",
            Self::Plugin(name) => name,
        }
    }
}

/// One event with its duration; without one it is an instant.
#[derive(Debug, Clone)]
pub struct Item {
    pub group: usize,
    pub lane: Lane,
    pub at: u64,
    pub took: u64,
    /// Its end is not known.
    pub open: bool,
    pub tint: Tint,
    pub label: String,
    /// The request; empty for events without one.
    pub asked: String,
    pub answer: String,
    /// Id and name of its container, and the CRI call that it belongs to; empty if absent.
    pub container: (String, String),
    pub call: String,
    /// It is a CRI call.
    pub is_call: bool,
    /// Index of the contract point that a plugin answered.
    pub point: Option<usize>,
}

impl Item {
    pub fn end(&self) -> u64 {
        self.at + self.took
    }

    pub fn failed(&self) -> bool {
        self.tint == Tint::Bad
    }
}

/// A pod, or the daemon and its plugins.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// `namespace/name`; empty for the daemon.
    pub name: String,
    pub id: String,
}

/// A failure: operation, object, cause, and the event that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub what: String,
    pub why: String,
    pub at: u64,
    pub cause: usize,
}

/// Items by time, before they are placed.
#[derive(Debug, Default)]
pub(super) struct Built {
    pub groups: Vec<Group>,
    pub items: Vec<Item>,
    /// Time of day of the first event, ns since the epoch.
    pub begun: i64,
}

/// The contents of a page.
#[derive(Debug, Default)]
pub struct Chart {
    pub begun: i64,
    pub groups: Vec<Group>,
    /// The lanes of each group, in order.
    pub lanes: Vec<Vec<Lane>>,
    pub items: Vec<Item>,
    /// For each item, the lane in its group and the row in the lane.
    pub places: Vec<(usize, usize)>,
    /// Sorted by time.
    pub failures: Vec<Failure>,
    /// Whether there are so many groups that each starts folded.
    pub many: bool,
    pub left_out: usize,
}

impl Chart {
    pub fn end(&self) -> u64 {
        self.items.iter().map(Item::end).max().unwrap_or(0)
    }

    /// The number of pods.
    pub fn pods(&self) -> usize {
        self.groups.iter().filter(|g| !g.id.is_empty()).count()
    }
}

/// The items at these indices, in this order. References to other points are removed.
pub(super) fn taken(items: &[Item], order: &[usize]) -> Vec<Item> {
    let mut new = vec![None; items.len()];
    for (now, before) in order.iter().enumerate() {
        new[*before] = Some(now);
    }
    let moved = |i: &usize| {
        let mut item = items[*i].clone();
        item.point = item.point.and_then(|point| new[point]);
        item
    };
    order.iter().map(moved).collect()
}
