//! The rules for plugins, and findings against them.

use std::fmt;

use serde::{Serialize, Serializer};

/// A rule, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    UpdateInCallback,
    UnknownContainer,
    KeptAfterRemove,
    Conflict,
    BadAnswer,
    BadAdjustment,
    Growth,
    LateAnswer,
    LostConnection,
    Garbage,
    AnswerAfterShutdown,
    UnhandledEvent,
    SubscribesToAll,
    TeardownRefused,
    OutlivesRuntime,
}

/// Description of a rule.
#[derive(Debug, Clone, Copy)]
pub struct About {
    pub rule: Rule,
    pub name: &'static str,
    pub what: &'static str,
    /// Source of the rule.
    pub source: &'static str,
    pub remedy: &'static str,
}

/// Every rule.
pub const ALL: [About; 15] = [
    About {
        rule: Rule::UpdateInCallback,
        name: "update-in-callback",
        what: "a handler waits for the answer to its own UpdateContainers",
        source: "containerd and CRI-O answer it after the handler (docs/plugin-authors.md, rule 6)",
        remedy: "return updates in the answer, or send them from a task that the handler does not wait for",
    },
    About {
        rule: Rule::UnknownContainer,
        name: "unknown-container",
        what: "an update or eviction names a container that never was",
        source: "CONTRACT.md, updates of other containers",
        remedy: "name containers by the id of Synchronize or CreateContainer, not by name",
    },
    About {
        rule: Rule::KeptAfterRemove,
        name: "kept-after-remove",
        what: "an answer depends on a container that has stopped or was removed",
        source: "docs/plugin-authors.md, rule 2",
        remedy: "forget a container at StopContainer or RemoveContainer, and what Synchronize does not list",
    },
    About {
        rule: Rule::Conflict,
        name: "conflict",
        what: "the answer sets what another plugin, or itself, has set already",
        source: "NRI: one owner for each field and key (docs/plugin-authors.md, rule 7)",
        remedy: "look at what the container already has; to replace it, remove it first in the same answer",
    },
    About {
        rule: Rule::BadAnswer,
        name: "bad-answer",
        what: "the answer has an entry without a key, or an update of the container that is being created",
        source: "NRI-540, NRI-570; nri.proto",
        remedy: "give each mount, device and variable its key; change a container that is being created by `adjust`",
    },
    About {
        rule: Rule::BadAdjustment,
        name: "bad-adjustment",
        what: "the adjustment is one that no runtime can carry out",
        source: "OCI runtime specification, config-linux.md and config.md",
        remedy: "use absolute paths, known options and types, values in their range, and what the host has",
    },
    About {
        rule: Rule::Growth,
        name: "growth",
        what: "the plugin's memory has grown over many lives of pods",
        source: "docs/plugin-authors.md, rule 2",
        remedy: "drop what belongs to a pod at RemovePodSandbox; raise `growth` if that is what it needs",
    },
    About {
        rule: Rule::LateAnswer,
        name: "late-answer",
        what: "an answer came later than the request timeout, or never",
        source: "docs/plugin-authors.md, rule 4",
        remedy: "answer first and work later; mind request_timeout in Configure",
    },
    About {
        rule: Rule::LostConnection,
        name: "lost-connection",
        what: "the plugin ended or closed its connection while the runtime was there",
        source: "NRI-411",
        remedy: "look at what it printed last",
    },
    About {
        rule: Rule::Garbage,
        name: "garbage",
        what: "the plugin sent an invalid message",
        source: "nri.proto",
        remedy: "use a stub, or compare with one",
    },
    About {
        rule: Rule::AnswerAfterShutdown,
        name: "answer-after-shutdown",
        what: "the plugin asked for something after it had answered Shutdown",
        source: "NRI-1051",
        remedy: "stop tasks that ask for updates when Shutdown comes",
    },
    About {
        rule: Rule::UnhandledEvent,
        name: "unhandled-event",
        what: "an event that it subscribed to is answered with UNIMPLEMENTED",
        source: "docs/plugin-authors.md, from StateChange to dedicated calls",
        remedy: "subscribe to what you handle; serve StateChange or the dedicated call",
    },
    About {
        rule: Rule::SubscribesToAll,
        name: "subscribes-to-all",
        what: "events = 0 in the answer to Configure: all fourteen, validation among them",
        source: "NRI-310",
        remedy: "answer with the events that you handle",
    },
    About {
        rule: Rule::TeardownRefused,
        name: "teardown-refused",
        what: "an error at an event that cannot be refused: Stop, Remove or Post",
        source: "docs/plugin-authors.md, rules 1 and 5",
        remedy: "Stop and Remove may come for what you never saw: answer them without an error",
    },
    About {
        rule: Rule::OutlivesRuntime,
        name: "outlives-runtime",
        what: "a launched plugin goes on after its connection was closed",
        source: "NRI-122",
        remedy: "end when the connection ends: its socket does not come back",
    },
];

impl Rule {
    pub fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|r| r.name == name).map(|r| r.rule)
    }

    pub fn about(self) -> &'static About {
        // One entry for each, which the test below checks.
        ALL.iter().find(|r| r.rule == self).unwrap_or(&ALL[0])
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.about().name)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.about().name)
    }
}

/// A rule that the plugin broke, with details.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub rule: Rule,
    pub what: String,
}

impl Finding {
    pub fn new(rule: Rule, what: impl Into<String>) -> Self {
        Self {
            rule,
            what: what.into(),
        }
    }

    /// One finding for each error of an adjustment or of resources.
    pub fn bad_adjustment(wrong: Vec<String>) -> impl Iterator<Item = Self> {
        let wrong = wrong.into_iter();
        wrong.map(|what| Self::new(Rule::BadAdjustment, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rule_is_found_by_its_name_and_by_itself() {
        for about in ALL {
            assert_eq!(Rule::named(about.name), Some(about.rule));
            assert_eq!(about.rule.about().name, about.name);
        }
    }
}
