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
                .map(|(process, file)| SelinuxLabels {
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
    // A container without its own level has its pod's.
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
fn a_level_that_another_pod_has_asked_for_is_not_chosen_in_whatever_order_it_was_said() {
    let first = free_level("a", &BTreeSet::new());
    let (sensitivity, pair) = first.split_once(':').expect("categories");
    let (low, high) = pair.split_once(',').expect("two");
    let taken = [format!("{sensitivity}:{high},{low}"), "s0".to_owned()];
    assert_ne!(free_level("a", &taken.into()), first);
}

#[test]
fn empty_options_are_no_options() {
    let host = fedora(true);
    let spc = pod_on(&host, Some(&options("spc_t", "")));
    let spc = spc.expect("valid");
    let empty = SeLinuxOption::default();
    assert_eq!(
        container(Some(&empty), spc.as_ref(), &host, &KNOWN),
        Ok(spc)
    );
}

#[test]
fn a_container_of_a_pod_without_labels_gets_none_and_is_refused_where_they_are_enforced() {
    let asked = options("container_t", "");
    assert_eq!(
        container(Some(&asked), None, &fedora(false), &KNOWN),
        Ok(None)
    );
    let refused = container(Some(&asked), None, &fedora(true), &KNOWN).expect_err("refused");
    assert!(refused.to_string().contains("without labels"), "{refused}");
}

#[test]
fn a_label_has_an_end() {
    let long = options(&"t".repeat(LABEL_MAX), "");
    let refused = pod_on(&fedora(false), Some(&long)).expect_err("too long");
    assert!(refused.to_string().contains("255"), "{refused}");
}

#[test]
fn what_is_privileged_or_shares_the_hosts_processes_is_not_confined_unless_it_asks() {
    let pod = |mode: NamespaceMode| SandboxFacts {
        namespace_options: NamespaceOption {
            pid: mode.into(),
            ..NamespaceOption::default()
        },
        privileged: true,
        ..SandboxFacts::default()
    };
    let context = |privileged, mode: NamespaceMode, asked: Option<SeLinuxOption>| {
        LinuxContainerSecurityContext {
            privileged,
            selinux_options: asked,
            namespace_options: Some(NamespaceOption {
                pid: mode.into(),
                ..NamespaceOption::default()
            }),
            ..LinuxContainerSecurityContext::default()
        }
    };
    let asked = || Some(options("container_t", ""));
    use NamespaceMode::{Container, Node};
    for (privileged, of_pod, own, asked, confined) in [
        // Another container of the pod is privileged, and so is its pod.
        (false, Container, Container, None, true),
        (true, Container, Container, None, false),
        (true, Container, Container, asked(), false),
        (false, Node, Node, None, false),
        (false, Node, Node, Some(SeLinuxOption::default()), false),
        (false, Node, Node, asked(), true),
        (false, Node, Container, None, true),
    ] {
        let case = format!("{privileged} {of_pod:?} {own:?} {asked:?}");
        let got = confines(&context(privileged, own, asked), &pod(of_pod));
        assert_eq!(got, Ok(confined), "{case}");
    }
    let pause = |privileged, mode: NamespaceMode, asked| LinuxSandboxSecurityContext {
        privileged,
        selinux_options: asked,
        namespace_options: Some(NamespaceOption {
            ipc: mode.into(),
            ..NamespaceOption::default()
        }),
        ..LinuxSandboxSecurityContext::default()
    };
    assert!(confines_pause(&pause(false, NamespaceMode::Pod, None)));
    assert!(!confines_pause(&pause(true, NamespaceMode::Pod, asked())));
    assert!(!confines_pause(&pause(false, Node, None)));
    assert!(confines_pause(&pause(false, Node, asked())));
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
    for options in [None, Some(&known)] {
        let refused = pod_on(&lacking(true), options).expect_err("refused");
        assert!(
            refused.to_string().contains("install container-selinux"),
            "{refused}"
        );
    }
}
