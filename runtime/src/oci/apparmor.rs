//! The AppArmor profile of a process: `apparmor` of the security context, or else the old string
//! `apparmor_profile`.

use proto_cri::v1::{SecurityProfile, security_profile::ProfileType};

use super::{
    error::SpecError,
    facts::{HostFacts, HostView},
    seccomp::profile_type,
};

const FIELD: &str = "linux.security_context.apparmor";

enum Choice<'a> {
    Absent,
    Default,
    Unconfined,
    Named(&'a str),
}

/// The profile's name for the spec. The field wins over the old string.
pub fn profile(
    field: Option<&SecurityProfile>,
    old: &str,
    privileged: bool,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<String>, SpecError> {
    let choice = match field {
        Some(profile) => from_field(profile)?,
        None => from_old(old)?,
    };
    let Some(ours) = &host.apparmor else {
        return match choice {
            Choice::Named(name) => Err(SpecError::unsupported(
                FIELD,
                format!(
                    "profile {name:?} was requested, but AppArmor is not available on this host"
                ),
            )),
            _ => Ok(None),
        };
    };
    if privileged {
        return Ok(None);
    }
    let name = match (choice, ours) {
        (Choice::Unconfined, _) | (Choice::Absent, Err(_)) => return Ok(None),
        (Choice::Absent | Choice::Default, Ok(ours)) => ours,
        (Choice::Default, Err(problem)) => {
            return Err(SpecError::unsupported(
                FIELD,
                format!("the runtime's default profile: {problem}"),
            ));
        }
        (Choice::Named(name), _) => name,
    };
    // Checked now: profiles are loaded and removed while the daemon runs.
    if view.has_apparmor_profile(name) {
        return Ok(Some(name.to_owned()));
    }
    let advice = if ours.as_deref() == Ok(name) {
        "cairn loads it when it starts"
    } else {
        "apparmor_parser -r loads it"
    };
    Err(SpecError::not_found(
        FIELD,
        format!("profile {name:?} is not loaded in the kernel ({advice})"),
    ))
}

fn from_field(profile: &SecurityProfile) -> Result<Choice<'_>, SpecError> {
    let reference = profile.localhost_ref.as_str();
    match profile_type(profile, FIELD)? {
        ProfileType::Localhost if reference.is_empty() => Err(SpecError::invalid(
            FIELD,
            "type Localhost without localhost_ref",
        )),
        ProfileType::Localhost => Ok(Choice::Named(
            reference.strip_prefix("localhost/").unwrap_or(reference),
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
                format!("unknown profile {other:?}"),
            )),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oci::facts::{BindSource, HostDevice};

    /// A kernel with our own profile and one more.
    struct Loaded;

    impl HostView for Loaded {
        fn bind_source(&self, _: &str) -> Option<BindSource> {
            None
        }

        fn devices(&self, _: &str) -> Vec<HostDevice> {
            Vec::new()
        }

        fn has_apparmor_profile(&self, name: &str) -> bool {
            ["cairn-default", "mine"].contains(&name)
        }
    }

    fn ask(
        field: Option<&SecurityProfile>,
        old: &str,
        privileged: bool,
        host: &HostFacts,
    ) -> Result<Option<String>, SpecError> {
        profile(field, old, privileged, host, &Loaded)
    }

    fn host() -> HostFacts {
        HostFacts {
            apparmor: Some(Ok("cairn-default".to_owned())),
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
            ask(Some(&unconfined), "localhost/mine", false, &host()),
            Ok(None)
        );
        assert_eq!(
            ask(None, "localhost/mine", false, &host()),
            Ok(Some("mine".to_owned()))
        );
    }

    #[test]
    fn a_profile_must_be_loaded() {
        let named = |name| {
            ask(
                Some(&field(ProfileType::Localhost, name)),
                "",
                false,
                &host(),
            )
        };
        assert_eq!(named("mine"), Ok(Some("mine".to_owned())));
        assert!(
            named("other")
                .expect_err("refused")
                .to_string()
                .contains("\"other\"")
        );
        assert!(named("").is_err());
    }

    #[test]
    fn without_apparmor_only_a_named_profile_is_an_error() {
        let host = HostFacts::default();
        assert!(ask(None, "localhost/mine", false, &host).is_err());
        assert_eq!(ask(None, "runtime/default", false, &host), Ok(None));
        assert_eq!(ask(None, "", false, &host), Ok(None));
    }

    #[test]
    fn absent_means_our_own_profile_and_privileged_means_none() {
        assert_eq!(
            ask(None, "", false, &host()),
            Ok(Some("cairn-default".to_owned()))
        );
        assert_eq!(ask(None, "", true, &host()), Ok(None));
    }

    #[test]
    fn contradictions_are_refused() {
        let both = field(ProfileType::RuntimeDefault, "x");
        assert!(ask(Some(&both), "", false, &host()).is_err());
        assert!(ask(None, "nonsense", false, &host()).is_err());
    }

    #[test]
    fn our_own_profile_that_could_not_be_loaded_is_refused_to_those_who_ask_for_it() {
        let mut host = host();
        host.apparmor = Some(Err("apparmor_parser: not found".to_owned()));
        let refused = ask(None, "runtime/default", false, &host).expect_err("refused");
        assert!(refused.to_string().contains("apparmor_parser: not found"));
        assert_eq!(ask(None, "", false, &host), Ok(None));
        assert_eq!(
            ask(None, "localhost/mine", false, &host),
            Ok(Some("mine".to_owned()))
        );
    }

    #[test]
    fn our_own_profile_that_was_taken_away_is_refused_at_create() {
        struct Nothing;
        impl HostView for Nothing {
            fn bind_source(&self, _: &str) -> Option<BindSource> {
                None
            }
            fn devices(&self, _: &str) -> Vec<HostDevice> {
                Vec::new()
            }
        }
        let refused = profile(None, "", false, &host(), &Nothing).expect_err("refused");
        assert!(
            refused
                .to_string()
                .contains("\"cairn-default\" is not loaded")
        );
    }
}
