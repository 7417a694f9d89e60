//! `[container]`: the operator's settings for every container.

use oci_spec::runtime::PosixRlimitType;
use serde::Deserialize;

use super::error::Error;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Container {
    /// The profile of containers that request none.
    pub unset_seccomp_profile: SeccompDefault,
    /// `nofile=1024:4096`: soft and hard limit, for every container.
    pub ulimits: Vec<String>,
    /// Devices belong to the container's user instead of their owner on the host.
    pub device_ownership_from_security_context: bool,
    /// A privileged container gets no device of the host.
    pub privileged_without_host_devices: bool,
    /// The meaning of an empty list of masked or read-only paths.
    pub masks: Masks,
    /// Annotations of pods and containers with these prefixes go into the OCI spec.
    pub annotation_prefixes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SeccompDefault {
    Unconfined,
    RuntimeDefault,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Masks {
    /// None, as in CRI.
    Requested,
    /// containerd's defaults.
    Default,
}

impl Default for Container {
    fn default() -> Self {
        Self {
            unset_seccomp_profile: SeccompDefault::Unconfined,
            ulimits: Vec::new(),
            device_ownership_from_security_context: false,
            privileged_without_host_devices: false,
            masks: Masks::Requested,
            annotation_prefixes: Vec::new(),
        }
    }
}

impl Container {
    pub(super) fn check(&self) -> Result<(), Error> {
        self.rlimits().map(drop)
    }

    /// Name, soft and hard limit of each of [`Self::ulimits`].
    ///
    /// # Errors
    /// The first invalid entry.
    pub fn rlimits(&self) -> Result<Vec<(String, u64, u64)>, Error> {
        let parsed = self.ulimits.iter().map(|text| {
            ulimit(text)
                .map_err(|why| Error::value("container.ulimits", format!("\"{text}\": {why}")))
        });
        parsed.collect()
    }
}

fn ulimit(text: &str) -> Result<(String, u64, u64), &'static str> {
    let (name, values) = text.split_once('=').ok_or("must be NAME=SOFT:HARD")?;
    let full = format!("RLIMIT_{}", name.to_ascii_uppercase());
    full.parse::<PosixRlimitType>()
        .map_err(|_| "unknown limit (see getrlimit(2))")?;
    let (soft, hard) = values.split_once(':').unwrap_or((values, values));
    let number = |text: &str| match text {
        "unlimited" => Ok(u64::MAX),
        _ => text
            .parse()
            .map_err(|_| "a limit must be a number or \"unlimited\""),
    };
    let (soft, hard) = (number(soft)?, number(hard)?);
    if soft > hard {
        return Err("the soft limit must not exceed the hard limit");
    }
    Ok((name.to_owned(), soft, hard))
}

#[cfg(test)]
mod tests {
    use super::ulimit;

    #[test]
    fn a_ulimit_has_a_name_of_the_kernels_and_a_soft_limit_that_is_not_above_the_hard_one() {
        assert_eq!(ulimit("nofile=1:2"), Ok(("nofile".to_owned(), 1, 2)));
        assert_eq!(ulimit("core=0"), Ok(("core".to_owned(), 0, 0)));
        let unlimited = Ok(("memlock".to_owned(), 64, u64::MAX));
        assert_eq!(ulimit("memlock=64:unlimited"), unlimited);
        for bad in ["nofile", "files=1", "nofile=2:1", "nofile=x", "nofile=-1:1"] {
            assert!(ulimit(bad).is_err(), "{bad}");
        }
    }
}
