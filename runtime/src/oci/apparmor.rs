//! Which AppArmor profile a process gets (CRI-220).

use proto_cri::v1::{SecurityProfile, security_profile::ProfileType};

use super::{error::SpecError, facts::HostFacts};

const FIELD: &str = "linux.security_context.apparmor";

enum Choice<'a> {
    Absent,
    Default,
    Unconfined,
    Named(&'a str),
}

/// The profile's name for the spec, or `None` for none. The field wins over the old string.
pub fn profile(
    field: Option<&SecurityProfile>,
    old: &str,
    privileged: bool,
    host: &HostFacts,
) -> Result<Option<String>, SpecError> {
    let choice = match field {
        Some(profile) => from_field(profile)?,
        None => from_old(old)?,
    };
    let Some(facts) = &host.apparmor else {
        return match choice {
            Choice::Named(name) => Err(SpecError::unsupported(
                FIELD,
                format!("profile {name:?} was asked for, but this host has no AppArmor"),
            )),
            _ => Ok(None),
        };
    };
    if privileged {
        return Ok(None);
    }
    match choice {
        Choice::Unconfined => Ok(None),
        Choice::Absent => Ok(facts.default_profile.clone()),
        Choice::Default => facts.default_profile.clone().map(Some).ok_or_else(|| {
            SpecError::unsupported(FIELD, "the runtime's own profile could not be loaded")
        }),
        Choice::Named(name) if facts.loaded.contains(name) => Ok(Some(name.to_owned())),
        Choice::Named(name) => Err(SpecError::not_found(
            FIELD,
            format!("profile {name:?} is not loaded"),
        )),
    }
}

fn from_field(profile: &SecurityProfile) -> Result<Choice<'_>, SpecError> {
    let reference = profile.localhost_ref.as_str();
    let kind = ProfileType::try_from(profile.profile_type).map_err(|_| {
        SpecError::invalid(FIELD, format!("type {} is unknown", profile.profile_type))
    })?;
    match kind {
        ProfileType::Localhost if reference.is_empty() => Err(SpecError::invalid(
            FIELD,
            "type Localhost without localhost_ref",
        )),
        ProfileType::Localhost => Ok(Choice::Named(
            reference.strip_prefix("localhost/").unwrap_or(reference),
        )),
        _ if !reference.is_empty() => Err(SpecError::invalid(
            FIELD,
            "localhost_ref with a type other than Localhost",
        )),
        ProfileType::Unconfined => Ok(Choice::Unconfined),
        ProfileType::RuntimeDefault => Ok(Choice::Default),
    }
}

fn from_old(text: &str) -> Result<Choice<'_>, SpecError> {
    match text {
        "" => Ok(Choice::Absent),
        "runtime/default" => Ok(Choice::Default),
        "unconfined" => Ok(Choice::Unconfined),
        other => match other.strip_prefix("localhost/") {
            Some(name) if !name.is_empty() => Ok(Choice::Named(name)),
            _ => Err(SpecError::invalid(
                "linux.security_context.apparmor_profile",
                format!("{other:?} is no profile"),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::facts::AppArmorFacts;

    fn host() -> HostFacts {
        HostFacts {
            apparmor: Some(AppArmorFacts {
                default_profile: Some("cairn-default".to_owned()),
                loaded: ["mine".to_owned()].into(),
            }),
            ..HostFacts::default()
        }
    }

    fn field(kind: ProfileType, reference: &str) -> SecurityProfile {
        SecurityProfile {
            profile_type: kind as i32,
            localhost_ref: reference.to_owned(),
        }
    }

    #[test]
    fn the_field_wins_over_the_old_string() {
        let unconfined = field(ProfileType::Unconfined, "");
        assert_eq!(
            profile(Some(&unconfined), "localhost/mine", false, &host()),
            Ok(None)
        );
        assert_eq!(
            profile(None, "localhost/mine", false, &host()),
            Ok(Some("mine".to_owned()))
        );
    }

    #[test]
    fn a_profile_must_be_loaded() {
        let ask = |name| {
            profile(
                Some(&field(ProfileType::Localhost, name)),
                "",
                false,
                &host(),
            )
        };
        assert_eq!(ask("mine"), Ok(Some("mine".to_owned())));
        assert!(
            ask("other")
                .expect_err("refused")
                .to_string()
                .contains("\"other\"")
        );
        assert!(ask("").is_err());
    }

    #[test]
    fn without_apparmor_only_a_named_profile_is_an_error() {
        let host = HostFacts::default();
        assert!(profile(None, "localhost/mine", false, &host).is_err());
        assert_eq!(profile(None, "runtime/default", false, &host), Ok(None));
        assert_eq!(profile(None, "", false, &host), Ok(None));
    }

    #[test]
    fn absent_means_our_own_profile_and_privileged_means_none() {
        assert_eq!(
            profile(None, "", false, &host()),
            Ok(Some("cairn-default".to_owned()))
        );
        assert_eq!(profile(None, "", true, &host()), Ok(None));
    }

    #[test]
    fn contradictions_are_refused() {
        let both = field(ProfileType::RuntimeDefault, "x");
        assert!(profile(Some(&both), "", false, &host()).is_err());
        assert!(profile(None, "nonsense", false, &host()).is_err());
    }
}
