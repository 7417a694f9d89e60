//! The rules of a node.

use std::fmt;

/// An invariant of the node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Rule {
    /// Nothing of removed pods is left on the machine, and each pod can be removed.
    Left,
    /// The daemon keeps no task and no memory of a removed pod.
    Leaked,
    /// Namespaces, mounts, networks and monitors are made once, and removed after their users.
    Order,
    /// Each instance of a plugin gets each event once, in order; permanent plugins get every end.
    Plugins,
    /// Objects exist only with the answers of all required plugins.
    Required,
    /// A call ends within its bound (`bounds.rs`).
    Call,
    /// From its start, the daemon serves within a second.
    Recovery,
    /// Nothing but plugins, and ten seconds of writes, holds the NRI turn.
    Turn,
    /// An exit is recorded soon, with the monitor's code.
    Exit,
    /// cgroup, record and the last acknowledged update are equal.
    Values,
    /// A container with an acknowledged eviction is not started, and ends.
    Evicted,
    /// Subscribers get one event of each kind per object, in order.
    Events,
    /// An acknowledged change survives a power cut (CRI-811).
    PowerCut,
    /// An image that is listed has all its layers (CRI-445).
    Image,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format!("{self:?}").to_lowercase())
    }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    pub rule: Rule,
    pub text: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) {}", self.rule, self.text)
    }
}
