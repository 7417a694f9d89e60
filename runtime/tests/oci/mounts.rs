//! Mounts: order, overrides, propagation, access, images, mappings.

use cairn::oci::{IdMap, check_volumes};
use oci_spec::runtime::Mount as OciMount;
use proto_cri::v1::{
    IdMapping, ImageSpec, Mount, MountPropagation, NamespaceMode, NamespaceOption,
};

use crate::support::Fixture;

fn mount(host: &str, container: &str) -> Mount {
    Mount {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        ..Mount::default()
    }
}

fn with(mount: Mount) -> Fixture {
    let mut f = Fixture::default();
    f.config.mounts = vec![mount];
    f
}

fn all(f: &Fixture) -> Vec<OciMount> {
    f.spec().spec.mounts().clone().expect("mounts")
}

fn at(f: &Fixture, destination: &str) -> OciMount {
    let mut found: Vec<_> = all(f)
        .into_iter()
        .filter(|m| m.destination().to_string_lossy() == destination)
        .collect();
    assert_eq!(found.len(), 1, "{destination}");
    found.remove(0)
}

fn options(f: &Fixture, destination: &str) -> Vec<String> {
    at(f, destination).options().clone().unwrap_or_default()
}

#[test]
fn parents_come_before_children_whatever_the_order_given() {
    let mut f = Fixture::default();
    f.config.mounts = vec![
        mount("/private/deep", "/data/a/b"),
        mount("/private/top", "/data"),
    ];
    let destinations: Vec<String> = all(&f)
        .iter()
        .map(|m| m.destination().to_string_lossy().into_owned())
        .collect();
    let place = |d: &str| destinations.iter().position(|x| x == d).expect("there");
    assert!(place("/data") < place("/data/a/b"));
    assert!(place("/dev") < place("/dev/pts"));
    assert!(place("/sys") < place("/sys/fs/cgroup"));
}

#[test]
fn a_mount_of_the_container_replaces_an_injected_or_default_one() {
    let f = with(mount("/private/hosts", "/etc//hosts/"));
    assert_eq!(
        at(&f, "/etc/hosts").source().as_deref(),
        Some("/private/hosts".as_ref())
    );
    let f = with(mount("/private/shm", "/dev/shm"));
    assert_eq!(
        at(&f, "/dev/shm").source().as_deref(),
        Some("/private/shm".as_ref())
    );
    let f = with(mount("/private/sys", "/sys"));
    assert_eq!(at(&f, "/sys").typ().as_deref(), Some("bind"));
}

#[test]
fn the_pods_files_follow_the_roots_access_and_shm_does_not() {
    let mut f = Fixture::default();
    assert!(options(&f, "/etc/hosts").contains(&"rw".to_owned()));
    f.context().readonly_rootfs = true;
    for path in ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"] {
        assert!(options(&f, path).contains(&"ro".to_owned()), "{path}");
    }
    assert!(options(&f, "/dev/shm").contains(&"rw".to_owned()));
    assert_eq!(
        f.spec().spec.root().as_ref().and_then(|r| r.readonly()),
        Some(true)
    );
}

#[test]
fn symlinks_of_a_source_are_resolved_and_those_of_a_destination_left_to_the_start() {
    let f = with(mount("/link/x", "/var/run/x"));
    assert_eq!(
        at(&f, "/var/run/x").source().as_deref(),
        Some("/private/x".as_ref())
    );
}

#[test]
fn a_mount_inside_or_over_proc_is_refused_but_for_what_lxcfs_stands_in_for() {
    for path in [
        "/proc/meminfo",
        "/proc/sys/kernel/ns_last_pid",
        "/processes",
        "/sys/x",
        "/dev/x",
    ] {
        assert!(with(mount("/private/x", path)).build().is_ok(), "{path}");
    }
    for path in [
        "/proc",
        "/proc/sys",
        "/proc/sys/kernel",
        "/proc/self/attr",
        "/proc/1",
        "//x/..//proc/./net",
    ] {
        let refusal = with(mount("/private/x", path)).refusal();
        assert!(
            refusal.contains(path) && refusal.contains("/proc"),
            "{refusal}"
        );
    }
    let mut f = with(mount("/private/procfs", "/proc"));
    assert!(f.refusal().contains("joined"), "{}", f.refusal());
    f.context().namespace_options = Some(NamespaceOption {
        pid: NamespaceMode::Container.into(),
        ..NamespaceOption::default()
    });
    assert!(f.build().is_ok(), "a procfs may be there");
}

#[test]
fn a_mount_at_dev_is_not_shared() {
    assert!(with(mount("/private/x", "/dev")).build().is_ok());
    let mut f = with(mount("/shared/x", "/dev"));
    f.config.mounts[0].propagation = MountPropagation::PropagationBidirectional as i32;
    assert!(f.refusal().contains("cannot be shared"), "{}", f.refusal());
}

#[test]
fn a_volume_of_an_image_at_or_below_the_kernels_own_places_is_refused() {
    let volumes = |paths: &[&str]| paths.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>();
    check_volumes(&volumes(&["/data", "/devices", "/srv/proc"])).expect("the image's own");
    for path in [
        "/proc",
        "/proc/sys/kernel",
        "/sys",
        "/sys/fs/cgroup",
        "/dev",
        "/dev/shm",
    ] {
        let error = check_volumes(&volumes(&["/data", path])).expect_err(path);
        let text = error.to_string();
        assert!(text.contains(&format!("image VOLUME {path:?}")), "{text}");
    }
}

#[test]
fn a_source_that_is_not_there_is_an_error_that_names_it() {
    assert!(
        with(mount("/missing/x", "/x"))
            .refusal()
            .contains("\"/missing/x\"")
    );
    assert!(with(mount("", "/x")).refusal().contains("host_path"));
    assert!(
        with(mount("/private/x", "x"))
            .refusal()
            .contains("absolute")
    );
    assert!(
        with(mount("/private/x", "/a/.."))
            .refusal()
            .contains("root")
    );
}

#[test]
fn propagation_needs_a_source_that_propagates() {
    use MountPropagation::{
        PropagationBidirectional, PropagationHostToContainer, PropagationPrivate,
    };
    let ask = |source: &str, propagation: MountPropagation| {
        with(Mount {
            propagation: propagation as i32,
            ..mount(source, "/x")
        })
    };
    for (source, propagation, option, root) in [
        ("/private/x", PropagationPrivate, "rprivate", None),
        ("/shared/x", PropagationPrivate, "rprivate", None),
        (
            "/shared/x",
            PropagationHostToContainer,
            "rslave",
            Some("slave"),
        ),
        (
            "/slave/x",
            PropagationHostToContainer,
            "rslave",
            Some("slave"),
        ),
        (
            "/shared/x",
            PropagationBidirectional,
            "rshared",
            Some("shared"),
        ),
    ] {
        let f = ask(source, propagation);
        assert!(options(&f, "/x").contains(&option.to_owned()), "{source}");
        let linux = f.spec().spec.linux().clone().expect("linux");
        assert_eq!(linux.rootfs_propagation().as_deref(), root, "{source}");
    }
    for (source, propagation) in [
        ("/private/x", PropagationHostToContainer),
        ("/private/x", PropagationBidirectional),
        ("/slave/x", PropagationBidirectional),
    ] {
        assert!(ask(source, propagation).refusal().contains(source));
    }
    let mut f = ask("/shared/x", PropagationPrivate);
    f.config.mounts[0].propagation = 7;
    assert!(f.refusal().contains("propagation 7"));
}

#[test]
fn the_strongest_propagation_of_all_mounts_is_the_roots() {
    let mut f = with(Mount {
        propagation: MountPropagation::PropagationBidirectional as i32,
        ..mount("/shared/x", "/x")
    });
    f.config.mounts.push(Mount {
        propagation: MountPropagation::PropagationHostToContainer as i32,
        ..mount("/slave/y", "/y")
    });
    let linux = f.spec().spec.linux().clone().expect("linux");
    assert_eq!(linux.rootfs_propagation().as_deref(), Some("shared"));
}

#[test]
fn read_only_is_recursive_only_on_request_and_only_where_it_can_be() {
    let ro = Mount {
        readonly: true,
        ..mount("/private/x", "/x")
    };
    let rro = Mount {
        recursive_read_only: true,
        ..ro.clone()
    };
    assert!(options(&with(ro), "/x").contains(&"ro".to_owned()));
    assert!(options(&with(rro.clone()), "/x").contains(&"rro".to_owned()));
    let writable = Mount {
        readonly: false,
        ..rro.clone()
    };
    assert!(with(writable).refusal().contains("needs readonly"));
    let shared = Mount {
        propagation: MountPropagation::PropagationHostToContainer as i32,
        host_path: "/shared/x".to_owned(),
        ..rro.clone()
    };
    assert!(with(shared).refusal().contains("private propagation"));
    let mut f = with(rro);
    f.host.recursive_readonly = false;
    assert!(f.refusal().starts_with("RROUnsupported"));
}

#[test]
fn mount_options_are_the_three_known_ones() {
    let mut f = with(mount("/private/x", "/x"));
    f.config.mounts[0].mount_options = vec!["nosuid".to_owned(), "noexec".to_owned()];
    assert!(options(&f, "/x").ends_with(&["nosuid".to_owned(), "noexec".to_owned()]));
    f.config.mounts[0].mount_options = vec!["suid".to_owned()];
    assert!(f.refusal().contains("\"suid\""));
}

#[test]
fn an_image_has_the_mappings_of_its_pod_and_takes_no_others() {
    let pods = IdMap {
        container_id: 0,
        host_id: 65_536,
        length: 65_536,
    };
    let mut f = with(Mount {
        readonly: true,
        image: Some(ImageSpec::default()),
        uid_mappings: vec![pods],
        gid_mappings: vec![pods],
        ..mount("", "/models")
    });
    f.image_mounts
        .insert("/models".to_owned(), "/state/img/1".into());
    assert!(f.refusal().contains("a pod with a user namespace"));
    f.sandbox.user_mapping = Some(pods);
    let mount = at(&f, "/models");
    assert_eq!((mount.uid_mappings(), mount.gid_mappings()), (&None, &None));
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 131_072,
        ..pods
    });
    let refusal = f.refusal();
    assert!(
        refusal.contains("mount /models") && refusal.contains("mappings of the pod"),
        "{refusal}"
    );
}

#[test]
fn an_image_is_mounted_read_only_from_its_prepared_tree() {
    let image = Mount {
        readonly: true,
        image: Some(ImageSpec::default()),
        ..mount("", "/models")
    };
    let mut f = with(image.clone());
    assert!(f.refusal().starts_with("ImageVolumeMountFailed"));
    f.image_mounts
        .insert("/models".to_owned(), "/state/img/1/sub".into());
    assert_eq!(
        at(&f, "/models").source().as_deref(),
        Some("/state/img/1/sub".as_ref())
    );
    assert!(options(&f, "/models").contains(&"ro".to_owned()));
    for bad in [
        Mount {
            readonly: false,
            ..image.clone()
        },
        Mount {
            host_path: "/private/x".to_owned(),
            ..image.clone()
        },
        Mount {
            propagation: 1,
            ..image.clone()
        },
    ] {
        f.config.mounts = vec![bad];
        assert!(f.refusal().starts_with("ImageVolumeMountFailed"));
    }
    f.config.mounts = vec![Mount {
        image_sub_path: "a".to_owned(),
        ..mount("/private/x", "/x")
    }];
    assert!(f.refusal().contains("image_sub_path"));
}

#[test]
fn a_mapping_on_a_mount_needs_a_user_namespace_and_a_kernel() {
    let map = || {
        vec![IdMapping {
            host_id: 65536,
            container_id: 0,
            length: 65536,
        }]
    };
    let mut f = with(Mount {
        uid_mappings: map(),
        gid_mappings: map(),
        ..mount("/private/x", "/x")
    });
    assert!(f.refusal().contains("user namespace"));
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    let mapped = at(&f, "/x");
    assert_eq!(
        mapped.uid_mappings().as_ref().map(|m| m[0].host_id()),
        Some(65536)
    );
    assert_eq!(mapped.uid_mappings(), mapped.gid_mappings());
    f.host.no_user_namespaces = Some("the kernel is too old".to_owned());
    assert!(f.refusal().contains("too old"));
    f.host.no_user_namespaces = None;
    f.config.mounts[0].gid_mappings.clear();
    assert!(f.refusal().contains("exactly one mapping"));
}

#[test]
fn volumes_of_the_image_yield_to_mounts_and_are_mapped_in_a_user_namespace() {
    let mut f = Fixture::default();
    let without = all(&f).len();
    f.volumes.insert("/".to_owned(), "/state/v1".into());
    assert_eq!(all(&f).len(), without, "the root is no volume");
    f.volumes.insert("/data".to_owned(), "/state/v0".into());
    assert_eq!(at(&f, "/data").uid_mappings(), &None);
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 65536,
    });
    assert!(at(&f, "/data").uid_mappings().is_some());
    f.config.mounts = vec![mount("/private/x", "/data")];
    assert_eq!(
        at(&f, "/data").source().as_deref(),
        Some("/private/x".as_ref())
    );
}

#[test]
fn the_hosts_network_in_a_user_namespace_gets_a_read_only_bind_of_sys() {
    let mut f = Fixture::default();
    f.sandbox.host_network = true;
    f.sandbox.user_mapping = Some(IdMap {
        host_id: 65536,
        container_id: 0,
        length: 4,
    });
    assert_eq!(at(&f, "/sys").typ().as_deref(), Some("bind"));
    assert!(options(&f, "/sys").contains(&"rro".to_owned()));
}

#[test]
fn terminals_are_of_the_group_5_where_that_has_an_id() {
    let mut f = Fixture::default();
    for (length, has) in [(4, false), (5, false), (6, true)] {
        f.sandbox.user_mapping = Some(IdMap {
            host_id: 65536,
            container_id: 0,
            length,
        });
        let pts = options(&f, "/dev/pts");
        assert_eq!(pts.contains(&"gid=5".to_owned()), has, "{length}");
    }
}

#[test]
fn a_label_that_cannot_be_set_is_refused_only_where_it_is_enforced() {
    let mut f = with(Mount {
        selinux_relabel: true,
        ..mount("/private/x", "/x")
    });
    assert_eq!(all(&f).len(), all(&Fixture::default()).len() + 1);
    let mut selinux = |enforcing| {
        f.host.selinux = Some(cairn::oci::SelinuxFacts {
            enforcing,
            contexts: Err("there is no policy for containers".to_owned()),
        });
        f.build()
    };
    assert!(selinux(false).is_ok());
    let refused = selinux(true).expect_err("refused").to_string();
    assert!(
        refused.contains("selinux_relabel") && refused.contains("no policy"),
        "{refused}"
    );
}
