//! Expectations of a step, and their comparison with its result. Pure.
//!
//! [`TABLE`] alone defines the steps that each expectation fits: a scenario with any other is
//! rejected.

use std::{collections::BTreeMap, time::Duration};

use nri::{
    EventMask,
    proto::{ContainerAdjustment, ContainerUpdate, LinuxContainerUpdate, LinuxResources},
};
use nri_testing::{differences, includes};
use serde_json::Value;

use crate::changes::Change;

/// Each `do`, in the order of the columns of [`TABLE`].
pub(crate) const STEPS: [&str; 15] = [
    "join",
    "run-pod",
    "update-pod",
    "create",
    "start",
    "update",
    "stop",
    "remove",
    "stop-pod",
    "remove-pod",
    "crash",
    "restart",
    "rollout",
    "slow",
    "churn",
];

/// Each key of `expect`, with an `x` for each step that it is compared at: the runtime gets such a
/// value from the plugin there.
const TABLE: [(&str, &str); 13] = [
    // join, run and update a pod; create, start, update, stop, remove; stop and remove a pod;
    // crash, restart, rollout; slow, churn
    ("error", ".xx xxx.. .. ... .."),
    ("adjust", "... x.... .. ... .."),
    ("exact", "... x.... .. ... .."),
    ("unchanged", "xxx xxxxx xx xxx .x"),
    ("resources", "... ..x.. .. ... .."),
    ("updates", "xxx xxxxx xx xxx .."),
    ("evictions", "xxx xxxxx xx xxx .."),
    ("events", "x.. ..... .. xxx .."),
    ("prints", "xxx xxxxx xx xxx .x"),
    ("within", "xxx xxxxx xx xxx .x"),
    ("late", ".xx xxxxx xx ... .."),
    ("lost", ".xx xxxxx xx ... .."),
    ("exit", ".xx xxxxx xx ... .."),
];

/// Why this key of `expect` does not fit a step; `None` if it does.
pub(crate) fn misfit(key: &str, step: &str) -> Option<String> {
    let (_, marks) = TABLE.iter().find(|(name, _)| *name == key)?;
    let marks = marks.chars().filter(|mark| *mark != ' ');
    let fits = STEPS.iter().zip(marks).filter(|(_, mark)| *mark == 'x');
    let fits: Vec<_> = fits.map(|(step, _)| *step).collect();
    let why = format!(
        "`expect.{key}` means nothing at a step that does {step:?}: it is for {}",
        fits.join(", ")
    );
    (!fits.contains(&step)).then_some(why)
}

/// Whether a part of a message expects a value: an empty table or list is in every message.
pub(crate) fn asks(wanted: &Value) -> bool {
    match wanted {
        Value::Object(fields) => fields.values().any(asks),
        Value::Array(list) => list.iter().any(asks),
        Value::Null => false,
        _ => true,
    }
}

/// One expected result of a step. A step without an [`Expected::Error`] must not be rejected.
#[derive(Debug, Clone)]
pub enum Expected {
    /// It is rejected, with this in the reason.
    Error(String),
    /// The adjustment has these fields, as JSON of ContainerAdjustment.
    Adjust(Value),
    /// The adjustment has no other fields.
    Exact(Box<ContainerAdjustment>),
    /// The plugin changes, updates and evicts nothing.
    Unchanged,
    /// The resources of the container after `update`, as JSON of LinuxResources.
    Resources(Value),
    /// Another container of this name is updated, as JSON of ContainerUpdate.
    Update(String, Value),
    /// Another container of this name is evicted, with this in the reason.
    Eviction(String, String),
    /// The plugin subscribes to exactly these.
    Events(EventMask),
    /// The plugin prints this, anywhere in its output from the beginning of the step on.
    Prints(String),
    /// No answer of the step takes longer.
    Within(Duration),
    /// An event has no answer within the request timeout.
    Late,
    /// The plugin ends, or closes its connection.
    Lost,
    /// The plugin ends with this: `exit status: 3`, or `(SIGKILL)`.
    Exit(String),
}

/// The results of a step.
#[derive(Debug, Default)]
pub(crate) struct Came {
    pub refused: Option<String>,
    pub adjust: Option<ContainerAdjustment>,
    pub resources: Option<LinuxResources>,
    /// All changes of any plugin, for the report as well.
    pub changes: Vec<Change>,
    /// The paths of changes, updates and evictions by the plugin under test.
    pub ours: Vec<String>,
    /// Other containers by name, with their updates.
    pub updates: Vec<(String, LinuxResources)>,
    /// Other containers by name, with the reason.
    pub evictions: Vec<(String, String)>,
    /// Subscriptions of the plugins that joined.
    pub joined: Vec<EventMask>,
    pub printed: String,
    /// The longest answer to each method.
    pub longest: BTreeMap<String, Duration>,
    /// Events without an answer in time.
    pub late: Vec<String>,
    /// Why the connection was lost.
    pub lost: Option<String>,
    /// Exit status or signal of the plugin's process.
    pub ended: Option<String>,
}

impl Expected {
    /// Whether it may arrive shortly after the answer that ends the step.
    pub(crate) fn may_come_later(&self) -> bool {
        matches!(
            self,
            Self::Update(..) | Self::Eviction(..) | Self::Prints(_) | Self::Lost | Self::Exit(_)
        )
    }

    /// Unmet expectations, one per line.
    pub(crate) fn compare(&self, came: &Came) -> Vec<String> {
        let none = |what: &str| vec![format!("no {what}: expected one")];
        let lines = |all: Vec<nri_testing::Difference>, prefix: &str| {
            let lines = all.iter().map(|difference| format!("{prefix}{difference}"));
            lines.collect()
        };
        let fails = |wrong: bool, why: String| Vec::from_iter(wrong.then_some(why));
        match self {
            Self::Error(part) => match &came.refused {
                Some(reason) => fails(
                    !reason.contains(part),
                    format!("refused: {reason}: expected an error with {part:?}"),
                ),
                None => vec![format!("no error: expected one with {part:?}")],
            },
            Self::Adjust(wanted) => match &came.adjust {
                Some(adjust) => lines(includes(wanted, &as_json(adjust)), "adjust."),
                None => none("adjustment"),
            },
            Self::Exact(wanted) => {
                let adjust = came.adjust.clone().unwrap_or_default();
                let more = differences(&adjust, wanted).into_iter();
                more.map(|d| format!("adjust.{}: {} was not expected", d.path, d.expected))
                    .collect()
            }
            Self::Unchanged => {
                let changed = came.ours.iter();
                changed
                    .map(|path| format!("{path} was changed: expected nothing"))
                    .collect()
            }
            Self::Resources(wanted) => match &came.resources {
                Some(resources) => lines(includes(wanted, &as_json(resources)), "resources."),
                None => none("resources"),
            },
            Self::Update(name, wanted) => {
                let all = came.updates.iter().filter(|(of, _)| of == name);
                let all = all.map(|(_, resources)| {
                    let update = ContainerUpdate {
                        container_id: name.clone(),
                        linux: Some(LinuxContainerUpdate {
                            resources: Some(resources.clone()),
                        }),
                        ignore_failure: false,
                    };
                    lines(
                        includes(wanted, &as_json(&update)),
                        &format!("updates[{name:?}]."),
                    )
                });
                // One match is enough.
                let nearest = all.min_by_key(Vec::len);
                nearest.unwrap_or_else(|| none(&format!("update of container {name}")))
            }
            Self::Eviction(name, reason) => {
                let mut all = came.evictions.iter();
                if all.any(|(of, why)| of == name && why.contains(reason)) {
                    Vec::new()
                } else {
                    none(&format!("eviction of container {name} with {reason:?}"))
                }
            }
            Self::Events(wanted) => {
                let others = came.joined.iter().filter(|events| *events != wanted);
                if came.joined.is_empty() {
                    none("subscription")
                } else {
                    others
                        .map(|events| format!("events = \"{events}\": expected \"{wanted}\""))
                        .collect()
                }
            }
            Self::Prints(wanted) => fails(
                !came.printed.contains(wanted),
                format!("{wanted:?} was not printed"),
            ),
            Self::Within(limit) => {
                let late = came.late.iter().cloned();
                let slow = came.longest.iter().filter(|(_, took)| *took > limit);
                late.chain(slow.map(|(method, took)| {
                    format!("{method} was answered after {took:?}: expected within {limit:?}")
                }))
                .collect()
            }
            Self::Late => fails(
                came.late.is_empty(),
                "every answer came in time: expected a late one".to_owned(),
            ),
            Self::Lost => fails(
                came.lost.is_none(),
                "the connection was not lost: expected that it is".to_owned(),
            ),
            Self::Exit(wanted) => match &came.ended {
                Some(ended) => fails(
                    ended != wanted && !(wanted.starts_with('(') && ended.contains(wanted)),
                    format!("the plugin ended with {ended}: expected {wanted}"),
                ),
                None => vec![format!("the plugin did not end: expected {wanted}")],
            },
        }
    }
}

fn as_json<T: serde::Serialize>(message: &T) -> Value {
    serde_json::to_value(message).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_row_of_the_table_has_a_mark_for_each_step() {
        for (key, marks) in TABLE {
            let marks: String = marks.split(' ').collect();
            assert_eq!(marks.len(), STEPS.len(), "{key}");
            assert!(marks.chars().all(|mark| "x.".contains(mark)), "{key}");
            assert!(marks.contains('x'), "{key}");
        }
        assert_eq!(misfit("updates", "crash"), None);
        assert_eq!(
            misfit("resources", "slow").as_deref(),
            Some("`expect.resources` means nothing at a step that does \"slow\": it is for update")
        );
    }
}
