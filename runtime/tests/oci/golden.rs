//! Complete specs of typical containers, to be reviewed when they change.

use cairn::oci::{IdMap, PauseInputs, pause_spec};
use proto_cri::v1::{
    Capability, HugepageLimit, Int64Value, KeyValue, Mount, NamespaceMode, NamespaceOption,
    SecurityProfile, security_profile::ProfileType,
};

use crate::support::{Fixture, assert_golden};

#[test]
fn the_smallest_container() {
    assert_golden("smallest", &Fixture::default().spec().spec);
}

#[test]
fn a_container_as_the_kubelet_sends_it() {
    let mut f = Fixture::default();
    f.config.envs = vec![KeyValue {
        key: "PORT".to_owned(),
        value: b"8080".to_vec(),
    }];
    f.config.mounts = vec![
        mount("/private/hosts", "/etc/hosts", false),
        mount("/private/token", "/var/run/secrets/token", true),
        mount("/private/log", "/dev/termination-log", false),
    ];
    *f.resources() = proto_cri::v1::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 64 << 20,
        oom_score_adj: 994,
        hugepage_limits: vec![HugepageLimit {
            page_size: "2MB".to_owned(),
            limit: 0,
        }],
        unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
        ..Default::default()
    };
    let context = f.context();
    context.run_as_user = Some(Int64Value { value: 1000 });
    context.supplemental_groups = vec![1234];
    context.no_new_privs = true;
    context.readonly_rootfs = true;
    context.namespace_options = Some(pid(NamespaceMode::Container));
    context.masked_paths = vec!["/proc/kcore".to_owned()];
    context.readonly_paths = vec!["/proc/sys".to_owned()];
    context.capabilities = Some(Capability {
        drop_capabilities: vec!["ALL".to_owned()],
        add_capabilities: vec!["NET_BIND_SERVICE".to_owned()],
        ..Capability::default()
    });
    context.seccomp = Some(SecurityProfile {
        profile_type: ProfileType::Localhost as i32,
        localhost_ref: "/profiles/p.json".to_owned(),
    });
    f.seccomp_profile = Some(r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#.to_owned());
    assert_golden("kubelet", &f.spec().spec);
}

#[test]
fn a_privileged_container_on_the_hosts_network() {
    let mut f = Fixture::default();
    f.sandbox.privileged = true;
    f.sandbox.host_network = true;
    f.sandbox.namespaces.net = None;
    f.sandbox.namespaces.uts = None;
    f.context().privileged = true;
    assert_golden("privileged", &f.spec().spec);
}

#[test]
fn a_container_of_a_pod_with_a_user_namespace() {
    let mut f = Fixture::default();
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    f.sandbox.namespaces.user = Some("/ns/user".into());
    f.volumes
        .insert("/data".to_owned(), "/state/c1/volume0".into());
    assert_golden("userns", &f.spec().spec);
}

#[test]
fn the_default_seccomp_profile_of_a_container_without_privilege() {
    let mut f = Fixture::default();
    f.context().seccomp = Some(SecurityProfile::default());
    let spec = f.spec().spec;
    let profile = spec.linux().as_ref().and_then(|l| l.seccomp().as_ref());
    if cfg!(target_arch = "x86_64") {
        assert_golden("seccomp_default", profile.expect("a profile"));
    }
}

#[test]
fn the_pause_process() {
    let f = Fixture::default();
    let spec = pause_spec(&PauseInputs {
        sandbox: &f.sandbox,
        context: None,
        host: &f.host,
        view: &f.view,
        policy: &f.policy,
        rootfs: "/state/pause".as_ref(),
        args: &["/pause".to_owned()],
    });
    assert_golden("pause", &spec.expect("valid"));
}

fn mount(host: &str, container: &str, readonly: bool) -> Mount {
    Mount {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        readonly,
        ..Mount::default()
    }
}

fn pid(mode: NamespaceMode) -> NamespaceOption {
    NamespaceOption {
        pid: mode as i32,
        ..NamespaceOption::default()
    }
}
