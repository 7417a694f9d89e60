//! Resource limits of a process, by name.

use oci_spec::runtime::{PosixRlimit, PosixRlimitBuilder, PosixRlimitType};

use super::{error::SpecError, facts::Policy};

/// The policy's limits (CRI-235). `most`: the most open files of one process.
pub(super) fn rlimits(policy: &Policy, most: u64) -> Result<Vec<PosixRlimit>, SpecError> {
    let limits = policy.rlimits.iter();
    let limits = limits.map(|(name, soft, hard)| {
        rlimit(name, *soft, *hard, most)
            .map_err(|cause| SpecError::invalid("[container] ulimits", cause))
    });
    limits.collect()
}

/// One limit; `nofile` and `RLIMIT_NOFILE` are the same (NRI-708).
pub(super) fn rlimit(name: &str, soft: u64, hard: u64, most: u64) -> Result<PosixRlimit, String> {
    let upper = name.to_ascii_uppercase();
    let full = if upper.starts_with("RLIMIT_") {
        upper
    } else {
        format!("RLIMIT_{upper}")
    };
    let kind: PosixRlimitType = full
        .parse()
        .map_err(|_| format!("unknown limit {name:?}"))?;
    if soft > hard {
        return Err(format!(
            "{full}: soft limit {soft} is above the hard limit {hard}"
        ));
    }
    if kind == PosixRlimitType::RlimitNofile && hard > most {
        return Err(format!(
            "{full}: hard limit {hard} is above this host's fs.nr_open, {most}"
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
