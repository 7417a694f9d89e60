//! Limits of a process, by their names.

use oci_spec::runtime::{PosixRlimit, PosixRlimitBuilder, PosixRlimitType};

use super::{error::SpecError, facts::Policy};

/// The policy's limits (CRI-235).
pub(super) fn rlimits(policy: &Policy) -> Result<Vec<PosixRlimit>, SpecError> {
    policy
        .rlimits
        .iter()
        .map(|(name, soft, hard)| rlimit(name, *soft, *hard))
        .collect()
}

/// One limit; `nofile` and `RLIMIT_NOFILE` are the same (NRI-708).
pub(super) fn rlimit(name: &str, soft: u64, hard: u64) -> Result<PosixRlimit, SpecError> {
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("RLIMIT_") {
        upper
    } else {
        format!("RLIMIT_{upper}")
    };
    let kind: PosixRlimitType = full
        .parse()
        .map_err(|_| SpecError::invalid("rlimits", format!("unknown limit {name:?}")))?;
    if soft > hard {
        return Err(SpecError::invalid(
            "rlimits",
            format!("{full}: soft limit {soft} is above the hard limit {hard}"),
        ));
    }
    let limit = PosixRlimitBuilder::default()
        .typ(kind)
        .soft(soft)
        .hard(hard)
        .build()
        .expect("every field has a default");
    Ok(limit)
}
