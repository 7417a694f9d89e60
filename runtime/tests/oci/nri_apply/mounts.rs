//! Mounts.

use oci_spec::runtime::Spec;
use proto_nri as nri;

use super::{applied, host, linux, refused, variable};

fn mount(destination: &str, source: &str, options: &[&str]) -> nri::Mount {
    nri::Mount {
        destination: destination.to_owned(),
        r#type: "bind".to_owned(),
        source: source.to_owned(),
        options: options.iter().map(|o| (*o).to_owned()).collect(),
    }
}

fn mounts(list: Vec<nri::Mount>) -> nri::ContainerAdjustment {
    nri::ContainerAdjustment {
        mounts: list,
        ..Default::default()
    }
}

fn destinations(spec: &Spec) -> Vec<String> {
    spec.mounts()
        .iter()
        .flatten()
        .map(|m| m.destination().display().to_string())
        .collect()
}

#[test]
fn mounts_are_removed_replaced_and_sorted_so_that_parents_come_first() {
    let spec = applied(&mounts(vec![
        mount("/z/deep//", "/private/any", &["bind"]),
        mount("-/dev/mqueue/", "", &[]),
        mount("/etc/hosts", "/private/any", &["bind"]),
        mount("/a", "/private/any", &["bind"]),
    ]));
    let list = destinations(&spec);
    assert!(!list.contains(&"/dev/mqueue".to_owned()));
    assert_eq!(list.iter().filter(|d| *d == "/etc/hosts").count(), 1);
    let mut sorted = list.clone();
    sorted.sort_by_key(|d| (d.matches('/').count(), d.clone()));
    assert_eq!(list, sorted);
    assert!(list.contains(&"/z/deep".to_owned()));
    for bad in ["relative", "/", "/a/..", "-relative", ""] {
        assert!(
            refused(&mounts(vec![mount(bad, "/x", &[])])).contains("adjust.mounts"),
            "{bad}"
        );
    }
}

#[test]
fn mount_options_that_the_create_helper_does_not_know_are_refused() {
    for option in ["tmpcopyup", "idmap", "ridmap"] {
        let text = refused(&mounts(vec![mount("/x", "/private/x", &["bind", option])]));
        assert!(text.contains(option), "{text}");
    }
}

#[test]
fn a_bind_mount_with_an_option_that_binds_do_not_have_is_refused_by_its_name() {
    for (r#type, options) in [
        ("bind", vec!["frobnicate"]),
        ("", vec!["rbind", "r0"]),
        ("tmpfs", vec!["rbind", "size=1m"]),
    ] {
        let text = refused(&mounts(vec![nri::Mount {
            r#type: r#type.to_owned(),
            ..mount("/x", "/private/x", &options)
        }]));
        let option = options.last().expect("there is one");
        assert!(
            text.contains("adjust.mounts") && text.contains(option),
            "{text}"
        );
    }
    for option in ["ro", "rro", "rnosuid", "nosymfollow"] {
        let adjust = mounts(vec![mount("/x", "/private/x", &["rbind", option])]);
        // The kernel supports it only for complete file systems, and libcontainer does not support
        // it for binds.
        if option == "nosymfollow" {
            assert!(refused(&adjust).contains(option));
        } else {
            applied(&adjust);
        }
    }
    // The kernel checks the options of a new file system.
    let own = nri::Mount {
        r#type: "tmpfs".to_owned(),
        ..mount("/x", "tmpfs", &["size=1m", "nosuid"])
    };
    applied(&mounts(vec![own]));
}

#[test]
fn without_mounts_in_the_adjustment_their_order_stays() {
    let f = host();
    let adjust = nri::ContainerAdjustment {
        env: vec![variable("A", "1")],
        ..Default::default()
    };
    assert_eq!(
        destinations(&applied(&adjust)),
        destinations(&f.spec().spec)
    );
}

#[test]
fn each_mounts_propagation_is_judged_by_its_own_source() {
    let root = |list: Vec<nri::Mount>| linux(&applied(&mounts(list))).rootfs_propagation().clone();
    assert_eq!(
        root(vec![mount("/x", "/shared/x", &["rshared"])]).as_deref(),
        Some("shared")
    );
    assert_eq!(
        root(vec![mount("/x", "/slave/x", &["rslave"])]).as_deref(),
        Some("slave")
    );
    assert_eq!(root(vec![mount("/x", "/private/x", &["rprivate"])]), None);
    let shared_first = vec![
        mount("/x", "/shared/x", &["rshared"]),
        mount("/y", "/private/y", &["rbind"]),
        mount("/z", "/slave/z", &["rslave"]),
    ];
    assert_eq!(root(shared_first).as_deref(), Some("shared"));
    for (source, option) in [
        ("/private/x", "rshared"),
        ("/private/x", "rslave"),
        ("/slave/x", "rshared"),
    ] {
        assert!(refused(&mounts(vec![mount("/x", source, &[option])])).contains(source));
    }
}

#[test]
fn a_mount_that_cannot_be_made_is_refused_while_the_container_is_created() {
    for (bad, cause) in [
        (mount("/x", "/missing/x", &[]), "does not exist"),
        (mount("/x", "/missing/x", &["rslave"]), "does not exist"),
        (mount("/x", "", &["rbind"]), "must be absolute"),
        (mount("/x", "shared/x", &["rbind"]), "must be absolute"),
        (
            nri::Mount {
                r#type: String::new(),
                ..mount("/x", "/private/x", &["ro"])
            },
            "neither a type nor",
        ),
    ] {
        let text = refused(&mounts(vec![bad]));
        assert!(
            text.starts_with("adjust.mounts[\"/x\"]: ") && text.contains(cause),
            "{text}"
        );
    }
    // The source does not exist on this host, and is not needed.
    let tmpfs = nri::Mount {
        r#type: "tmpfs".to_owned(),
        ..mount("/x", "tmpfs", &["size=1m"])
    };
    applied(&mounts(vec![tmpfs]));
}
