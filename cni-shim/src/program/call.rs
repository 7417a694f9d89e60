//! What a call asks for, and in which version it is answered if it does not say.

use crate::cni::VERSIONS;

/// One of the verbs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verb {
    Add,
    Del,
    Check,
    Status,
    Gc,
    Version,
}

pub(super) fn newest() -> &'static str {
    VERSIONS[VERSIONS.len() - 1]
}
