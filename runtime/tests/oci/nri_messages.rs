//! The messages of pods and containers for plugins.

use cairn::oci::{
    IdMap, NriContainerFacts, SeccompKind, apply_adjustment, cri_to_nri, nri_container, nri_pod,
    resources_to_nri,
};
use proto_cri::v1::LinuxContainerResources;
use proto_nri as nri;

use crate::{
    nri_apply::{context, everything},
    support::Fixture,
};

#[test]
fn a_pod_shows_all_that_is_known_of_it() {
    let mut f = Fixture::default();
    f.sandbox.labels = [("app".to_owned(), "web".to_owned())].into();
    f.sandbox.annotations = [("note".to_owned(), "x".to_owned())].into();
    f.sandbox.runtime_handler = "cairn".to_owned();
    f.sandbox.ips = vec!["10.0.0.2".to_owned()];
    f.sandbox.pause_pid = 4242;
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    f.sandbox.namespaces.user = Some("/ns/user".into());
    f.sandbox.overhead = Some(LinuxContainerResources {
        cpu_quota: 5,
        ..Default::default()
    });
    f.sandbox.resources = Some(LinuxContainerResources {
        memory_limit_in_bytes: 7,
        ..Default::default()
    });
    let pause = f.spec().spec;
    let pod = nri_pod(&f.sandbox, Some(&pause), &f.policy);
    assert_eq!((pod.id.as_str(), pod.name.as_str()), ("pod1", "web-0"));
    assert_eq!((pod.uid.as_str(), pod.namespace.as_str()), ("u-1", "shop"));
    assert_eq!(pod.labels["app"], "web");
    assert_eq!(pod.annotations["note"], "x");
    assert_eq!(pod.annotations["io.kubernetes.cri.sandbox-id"], "pod1");
    assert_eq!((pod.runtime_handler.as_str(), pod.pid), ("cairn", 4242));
    assert_eq!(pod.ips, ["10.0.0.2"]);
    let linux = pod.linux.expect("linux");
    assert_eq!(linux.cgroup_parent, "/kubepods/podu-1");
    assert_eq!(linux.cgroups_path, "/kubepods/podu-1/pod1");
    let kinds: Vec<_> = linux.namespaces.iter().map(|n| n.r#type.as_str()).collect();
    assert_eq!(kinds, ["pid", "ipc", "uts", "network", "user"]);
    assert!(linux.namespaces.iter().all(|n| n.path.starts_with("/ns/")));
    let quota = linux.pod_overhead.and_then(|r| r.cpu).and_then(|c| c.quota);
    assert_eq!(quota.map(|q| q.value), Some(5));
    let memory = linux
        .pod_resources
        .and_then(|r| r.memory)
        .and_then(|m| m.limit);
    assert_eq!(memory.map(|m| m.value), Some(7));
    assert!(linux.resources.is_some());
}

#[test]
fn namespaces_of_the_host_are_not_shown_as_the_pods() {
    let mut f = Fixture::default();
    f.sandbox.namespaces.net = None;
    let pod = nri_pod(&f.sandbox, None, &f.policy);
    let linux = pod.linux.expect("linux");
    assert!(linux.namespaces.iter().all(|n| n.r#type != "network"));
    assert_eq!(linux.resources, None);
}

#[test]
fn a_container_shows_everything_that_its_spec_and_the_record_say() {
    let mut f = Fixture::default();
    f.host.resctrl = true;
    let mut spec = f.spec().spec;
    apply_adjustment(&mut spec, &everything(), &context(&f)).expect("valid");
    let labels = [("app".to_owned(), "web".to_owned())].into();
    let annotations = [
        ("note".to_owned(), "x".to_owned()),
        (
            "io.kubernetes.cri.sandbox-id".to_owned(),
            "forged".to_owned(),
        ),
        ("plugin".to_owned(), "was not here".to_owned()),
    ]
    .into();
    let facts = NriContainerFacts {
        id: "c1",
        sandbox_id: "pod1",
        name: "web",
        state: nri::ContainerState::ContainerRunning,
        labels: Some(&labels),
        annotations: Some(&annotations),
        pid: 7,
        created_at: 1,
        started_at: 2,
        finished_at: 3,
        exit_code: 4,
        reason: "Error",
        message: "it broke",
        cdi_devices: &["vendor.com/gpu=0".to_owned()],
        image: Some(&f.image),
        seccomp: Some(&SeccompKind::Localhost("/p.json".to_owned())),
    };
    let container = nri_container(&facts, &spec);
    assert_filled(&container);
    assert_eq!(
        container.state,
        nri::ContainerState::ContainerRunning as i32
    );
    assert_eq!((container.pid, container.exit_code), (7, 4));
    assert_eq!(
        (
            container.created_at,
            container.started_at,
            container.finished_at
        ),
        (1, 2, 3)
    );
    assert_eq!(container.annotations["note"], "x");
    assert_eq!(
        container.annotations["io.kubernetes.cri.sandbox-id"],
        "pod1"
    );
    assert_eq!(
        container.image.as_ref().expect("image").name,
        "example/web:1"
    );
}

/// Checks that no field has its default: a field that is added to the message later must be filled
/// or listed here.
fn assert_filled(container: &nri::Container) {
    let text = format!("{container:#?}");
    let linux = container.linux.as_ref().expect("linux");
    for (name, empty) in [
        ("args", container.args.is_empty()),
        ("env", container.env.is_empty()),
        ("mounts", container.mounts.is_empty()),
        ("hooks", container.hooks.is_none()),
        ("rlimits", container.rlimits.is_empty()),
        ("cdi", container.cdi_devices.is_empty()),
        ("user", container.user.is_none()),
        ("image", container.image.is_none()),
        ("labels", container.labels.is_empty()),
        (
            "reason",
            container.status_reason.is_empty() || container.status_message.is_empty(),
        ),
        ("namespaces", linux.namespaces.is_empty()),
        ("devices", linux.devices.is_empty()),
        ("resources", linux.resources.is_none()),
        ("oom", linux.oom_score_adj.is_none()),
        ("cgroup", linux.cgroups_path.is_empty()),
        ("io", linux.io_priority.is_none()),
        ("profile", linux.seccomp_profile.is_none()),
        ("policy", linux.seccomp_policy.is_none()),
        ("sysctl", linux.sysctl.is_empty()),
        ("net", linux.net_devices.is_empty()),
        ("scheduler", linux.scheduler.is_none()),
        ("rdt", linux.rdt.is_none()),
    ] {
        assert!(!empty, "{name} is empty in {text}");
    }
}

#[test]
fn what_an_adjustment_set_is_what_the_next_message_shows() {
    let mut f = Fixture::default();
    f.host.resctrl = true;
    let mut spec = f.spec().spec;
    let asked = everything();
    apply_adjustment(&mut spec, &asked, &context(&f)).expect("valid");
    let shown = nri_container(&NriContainerFacts::default(), &spec)
        .linux
        .expect("linux");
    let asked = asked.linux.expect("linux");
    assert_eq!(shown.io_priority, asked.io_priority);
    assert_eq!(shown.scheduler, asked.scheduler);
    assert_eq!(shown.seccomp_policy, asked.seccomp_policy);
    assert_eq!(shown.rdt, asked.rdt);
    assert_eq!(shown.oom_score_adj, asked.oom_score_adj);
    assert_eq!(shown.devices, asked.devices);
    assert_eq!(shown.net_devices, asked.net_devices);
    let (shown, asked) = (
        shown.resources.expect("resources"),
        asked.resources.expect("resources"),
    );
    assert_eq!(shown.memory, asked.memory);
    assert_eq!(shown.cpu, asked.cpu);
    assert_eq!(shown.pids, asked.pids);
    assert_eq!(shown.hugepage_limits, asked.hugepage_limits);
    assert_eq!(shown.unified, asked.unified);
}

#[test]
fn zeros_of_cri_are_not_shown_as_wishes() {
    let nri = cri_to_nri(&LinuxContainerResources::default());
    assert_eq!(nri.cpu, Some(nri::LinuxCpu::default()));
    assert_eq!(nri.memory, Some(nri::LinuxMemory::default()));
    assert_eq!(nri.pids, None);
}

#[test]
fn a_container_without_a_limit_of_processes_shows_minus_one_only_where_oci_has_the_section() {
    let mut oci = oci_spec::runtime::LinuxResources::default();
    assert_eq!(resources_to_nri(&oci).pids, None);
    oci.set_pids(Some(oci_spec::runtime::LinuxPids::default()));
    assert_eq!(resources_to_nri(&oci).pids.map(|p| p.limit), Some(-1));
}
