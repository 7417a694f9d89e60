//! SELinux options: checked everywhere, and refused on a host that enforces them, because we set no labels. A
//! permissive host denies nothing, so there a pod runs without them.

use proto_cri::v1::SeLinuxOption;

use super::{
    error::SpecError,
    facts::{HostFacts, Selinux},
};

const FIELD: &str = "linux.security_context.selinux_options";

/// Checks a container's options, or the sandbox's where it has none of its own.
pub fn check(options: Option<&SeLinuxOption>, host: &HostFacts) -> Result<(), SpecError> {
    let Some(options) = options else {
        return Ok(());
    };
    for (name, value) in [
        ("user", &options.user),
        ("role", &options.role),
        ("type", &options.r#type),
    ] {
        let word = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if !value.chars().all(word) {
            return Err(SpecError::invalid(
                format!("{FIELD}.{name}"),
                format!("invalid identifier {value:?}"),
            ));
        }
    }
    if !options.level.is_empty() && !is_level(&options.level) {
        return Err(SpecError::invalid(
            format!("{FIELD}.level"),
            format!("invalid level {:?} (example: s0:c1,c2)", options.level),
        ));
    }
    if host.selinux == Selinux::Enforcing && *options != SeLinuxOption::default() {
        return Err(SpecError::unsupported(
            FIELD,
            "SELinux is enforcing on this host, and cairn sets no labels",
        ));
    }
    Ok(())
}

/// `s0`, `s0-s1`, each with optional categories: `s0:c1,c2`, `s0:c0.c1023`.
fn is_level(text: &str) -> bool {
    let mut sides = text.splitn(2, '-');
    sides.all(|side| {
        let parts = side.split_once(':');
        let (sensitivity, categories) = parts.map_or((side, None), |(s, c)| (s, Some(c)));
        numbered(sensitivity, 's')
            && categories.is_none_or(|list| {
                list.split(',').all(|item| {
                    item.split('.').count() <= 2 && item.split('.').all(|c| numbered(c, 'c'))
                })
            })
    })
}

fn numbered(text: &str, letter: char) -> bool {
    text.strip_prefix(letter)
        .is_some_and(|n| !n.is_empty() && n.len() <= 4 && n.chars().all(|c| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_have_a_sensitivity_and_perhaps_categories() {
        for level in [
            "s0",
            "s0-s15",
            "s0:c1",
            "s0:c1,c2",
            "s0:c0.c1023",
            "s0-s0:c0.c1023",
            "s0:c4,c5-s1:c6",
        ] {
            assert!(is_level(level), "{level}");
        }
        for level in [
            "",
            "0",
            "s",
            "s0:",
            "s0:1",
            "s0:c1.c2.c3",
            "c1",
            "s0 ",
            "s0-",
        ] {
            assert!(!is_level(level), "{level}");
        }
    }

    #[test]
    fn invalid_options_are_an_error_on_every_host_and_valid_ones_only_where_they_are_enforced() {
        let mut host = HostFacts::default();
        let invalid = SeLinuxOption {
            level: "nonsense".to_owned(),
            ..SeLinuxOption::default()
        };
        assert!(check(Some(&invalid), &host).is_err());
        let valid = SeLinuxOption {
            level: "s0:c1,c2".to_owned(),
            r#type: "container_t".to_owned(),
            ..SeLinuxOption::default()
        };
        assert_eq!(check(Some(&valid), &host), Ok(()));
        host.selinux = Selinux::Permissive;
        assert_eq!(check(Some(&valid), &host), Ok(()));
        assert!(check(Some(&invalid), &host).is_err());
        host.selinux = Selinux::Enforcing;
        let refused = check(Some(&valid), &host).expect_err("refused");
        assert!(refused.to_string().contains("enforcing"));
        assert_eq!(check(None, &host), Ok(()));
        assert_eq!(check(Some(&SeLinuxOption::default()), &host), Ok(()));
    }
}
