//! SELinux labels (CRI-221): what a pod's processes and files are to the kernel, and a container's, whose options may differ.
//!
//! The types are those that the host's policy has for containers, the level is the pod's own: two categories that no other pod
//! has, so that what escapes from one container cannot touch another pod's files. All containers of a pod share its level.

use std::collections::BTreeSet;

use proto_cri::v1::{LinuxContainerSecurityContext, NamespaceMode, SeLinuxOption};

use super::{
    error::SpecError,
    facts::{HostFacts, HostView, SandboxFacts, SelinuxContexts, SelinuxLabels},
};

const FIELD: &str = "linux.security_context.selinux_options";
/// Categories that a policy has, `c0` to `c1023`.
const CATEGORIES: u64 = 1024;

/// A pod's, or `None` where no labels are set. `taken`: levels of other pods.
///
/// # Errors
/// For options that are invalid, or that this host cannot serve.
pub fn pod(
    options: Option<&SeLinuxOption>,
    id: &str,
    taken: &BTreeSet<String>,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    let level = || free_level(id, taken);
    labels(options, level, host, view)
}

/// A container's: its pod's, but for what its own options say.
///
/// # Errors
/// As [`pod`].
pub fn container(
    options: Option<&SeLinuxOption>,
    pod: Option<&SelinuxLabels>,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    if options.is_none() {
        return Ok(pod.cloned());
    }
    // None in a pod of a version that set no labels.
    let level = || pod.and_then(|pod| level_of(&pod.file)).unwrap_or_default();
    labels(options, || level().to_owned(), host, view)
}

/// Whether a container's processes get their label. What shares the host's processes or its IPC, or is privileged, is not
/// confined; on its own container's word it is.
#[must_use]
pub fn confines(context: &LinuxContainerSecurityContext, sandbox: &SandboxFacts) -> bool {
    !context.privileged && (context.selinux_options.is_some() || confines_pod(sandbox))
}

/// The same of the pod, for its pause process.
#[must_use]
pub fn confines_pod(sandbox: &SandboxFacts) -> bool {
    let options = &sandbox.namespace_options;
    let of_host = |mode: NamespaceMode| mode == NamespaceMode::Node;
    !sandbox.privileged && !of_host(options.pid()) && !of_host(options.ipc())
}

fn labels(
    options: Option<&SeLinuxOption>,
    level: impl FnOnce() -> String,
    host: &HostFacts,
    view: &dyn HostView,
) -> Result<Option<SelinuxLabels>, SpecError> {
    let none = SeLinuxOption::default();
    let options = options.unwrap_or(&none);
    check(options)?;
    let Some(selinux) = &host.selinux else {
        return Ok(None);
    };
    let contexts = match &selinux.contexts {
        Ok(contexts) => contexts,
        Err(why) if selinux.enforcing && *options != none => {
            let why = format!("SELinux is enforcing, and no label can be set: {why}");
            return Err(SpecError::unsupported(FIELD, why));
        }
        Err(_) => return Ok(None),
    };
    let made = made(contexts, options, level);
    let unknown = [&made.process, &made.file]
        .into_iter()
        .find(|label| !view.knows_selinux_label(label));
    match unknown {
        None => Ok(Some(made)),
        Some(label) if selinux.enforcing => Err(SpecError::invalid(
            FIELD,
            format!("the loaded policy has no label {label:?}"),
        )),
        // It could not be set, and nothing is denied without.
        Some(_) => Ok(None),
    }
}

fn made(
    contexts: &SelinuxContexts,
    options: &SeLinuxOption,
    level: impl FnOnce() -> String,
) -> SelinuxLabels {
    let mut process: Vec<&str> = contexts.process.splitn(4, ':').collect();
    let mut file: Vec<&str> = contexts.file.splitn(4, ':').collect();
    for (at, option) in [&options.user, &options.role, &options.r#type]
        .into_iter()
        .enumerate()
    {
        if let Some(part) = process.get_mut(at).filter(|_| !option.is_empty()) {
            *part = option;
        }
    }
    // Files keep the policy's role and type, but belong to the same user.
    if let Some(user) = file.first_mut().filter(|_| !options.user.is_empty()) {
        *user = &options.user;
    }
    // A policy without levels has three parts.
    let level = match &options.level {
        asked if !asked.is_empty() => asked.clone(),
        _ => level(),
    };
    for label in [&mut process, &mut file] {
        if let Some(part) = label.get_mut(3).filter(|_| !level.is_empty()) {
            *part = &level;
        }
    }
    SelinuxLabels {
        process: process.join(":"),
        file: file.join(":"),
    }
}

/// The fourth part of a context.
#[must_use]
pub fn level_of(context: &str) -> Option<&str> {
    context.splitn(4, ':').nth(3)
}

/// Two categories that no other pod has, from the pod's id: `s0:c12,c345`. Where all half a million are taken, one twice.
fn free_level(id: &str, taken: &BTreeSet<String>) -> String {
    const PAIRS: u64 = CATEGORIES * (CATEGORIES - 1) / 2;
    let first = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    });
    let level = |n: u64| pair(n.wrapping_add(first) % PAIRS);
    let free = (0..PAIRS).map(level).find(|level| !taken.contains(level));
    free.unwrap_or_else(|| level(0))
}

/// The nth of all pairs of categories, the smaller first.
fn pair(mut n: u64) -> String {
    let mut low = 0;
    while n >= CATEGORIES - 1 - low {
        n -= CATEGORIES - 1 - low;
        low += 1;
    }
    format!("s0:c{low},c{}", low + 1 + n)
}

/// That options are what they must be on any host.
pub(super) fn check(options: &SeLinuxOption) -> Result<(), SpecError> {
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
    use crate::oci::facts::{BindSource, HostDevice, SelinuxFacts};

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

    struct Policy(&'static [&'static str]);

    impl HostView for Policy {
        fn bind_source(&self, _: &str) -> Option<BindSource> {
            None
        }
        fn devices(&self, _: &str) -> Vec<HostDevice> {
            Vec::new()
        }
        fn knows_selinux_label(&self, label: &str) -> bool {
            let kind = label.split(':').nth(2).unwrap_or_default();
            self.0.contains(&kind)
        }
    }

    const KNOWN: Policy = Policy(&["container_t", "container_file_t", "spc_t"]);

    fn host(enforcing: bool, contexts: Result<(&str, &str), &str>) -> HostFacts {
        HostFacts {
            selinux: Some(SelinuxFacts {
                enforcing,
                contexts: contexts
                    .map(|(process, file)| SelinuxContexts {
                        process: process.to_owned(),
                        file: file.to_owned(),
                    })
                    .map_err(str::to_owned),
            }),
            ..HostFacts::default()
        }
    }

    fn fedora(enforcing: bool) -> HostFacts {
        let process = "system_u:system_r:container_t:s0";
        host(
            enforcing,
            Ok((process, "system_u:object_r:container_file_t:s0")),
        )
    }

    fn options(r#type: &str, level: &str) -> SeLinuxOption {
        SeLinuxOption {
            r#type: r#type.to_owned(),
            level: level.to_owned(),
            ..SeLinuxOption::default()
        }
    }

    fn pod_on(
        host: &HostFacts,
        options: Option<&SeLinuxOption>,
    ) -> Result<Option<SelinuxLabels>, SpecError> {
        pod(options, "a", &BTreeSet::new(), host, &KNOWN)
    }

    #[test]
    fn each_pod_has_categories_of_its_own_and_its_containers_have_them_too() {
        let host = fedora(true);
        let mut taken = BTreeSet::new();
        for id in 0..2000 {
            let labels = pod(None, &id.to_string(), &taken, &host, &KNOWN);
            let labels = labels.expect("valid").expect("labels");
            let level = level_of(&labels.process).expect("a level").to_owned();
            assert!(is_level(&level) && level.contains(','), "{level}");
            assert_eq!(level_of(&labels.file), Some(&*level));
            assert_eq!(
                container(None, Some(&labels), &host, &KNOWN).unwrap(),
                Some(labels)
            );
            assert!(taken.insert(level));
        }
        assert_eq!(pair(0), "s0:c0,c1");
        assert_eq!(pair(1022), "s0:c0,c1023");
        assert_eq!(pair(1023), "s0:c1,c2");
        assert_eq!(
            pair(CATEGORIES * (CATEGORIES - 1) / 2 - 1),
            "s0:c1022,c1023"
        );
    }

    #[test]
    fn options_replace_parts_of_the_processes_label_and_the_level_of_both() {
        let host = fedora(true);
        let asked = options("spc_t", "s0:c1,c2");
        let labels = pod_on(&host, Some(&asked)).expect("valid").expect("labels");
        assert_eq!(labels.process, "system_u:system_r:spc_t:s0:c1,c2");
        assert_eq!(labels.file, "system_u:object_r:container_file_t:s0:c1,c2");
        // Without a level of its own a container has its pod's.
        let own = container(
            Some(&options("container_t", "")),
            Some(&labels),
            &host,
            &KNOWN,
        );
        let own = own.expect("valid").expect("labels");
        assert_eq!(own.process, "system_u:system_r:container_t:s0:c1,c2");
        assert_eq!(own.file, labels.file);
    }

    #[test]
    fn a_policy_without_levels_gets_none() {
        let host = host(true, Ok(("u:r:container_t", "u:r:container_file_t")));
        let labels = pod_on(&host, None).expect("valid").expect("labels");
        assert_eq!(labels.process, "u:r:container_t");
    }

    #[test]
    fn invalid_options_are_an_error_on_every_host() {
        let hosts = [
            HostFacts::default(),
            fedora(false),
            fedora(true),
            host(true, Err("none")),
        ];
        for host in &hosts {
            assert!(pod_on(host, Some(&options("", "nonsense"))).is_err());
            assert!(pod_on(host, Some(&options("a b", ""))).is_err());
            assert!(container(Some(&options("a:b", "")), None, host, &KNOWN).is_err());
        }
    }

    #[test]
    fn what_cannot_be_set_is_refused_only_where_it_is_enforced() {
        let (unknown, known) = (options("httpd_t", ""), options("container_t", ""));
        assert_eq!(pod_on(&HostFacts::default(), Some(&unknown)), Ok(None));
        assert_eq!(pod_on(&fedora(false), Some(&unknown)), Ok(None));
        let refused = pod_on(&fedora(true), Some(&unknown)).expect_err("refused");
        assert!(refused.to_string().contains("httpd_t"), "{refused}");
        let lacking = |enforcing| host(enforcing, Err("install container-selinux"));
        assert_eq!(pod_on(&lacking(false), Some(&known)), Ok(None));
        assert_eq!(pod_on(&lacking(true), None), Ok(None));
        let refused = pod_on(&lacking(true), Some(&known)).expect_err("refused");
        assert!(
            refused.to_string().contains("install container-selinux"),
            "{refused}"
        );
    }
}
