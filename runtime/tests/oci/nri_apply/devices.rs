//! Devices, CDI devices and network devices.

use cairn::oci::devices::default_rules;
use cairn::oci::{CdiFile, CdiRegistry, HostDevice, apply_adjustment};
use proto_nri as nri;

use super::{applied, apply, context, device, host, linux, of_linux, refused};

const CDI: &str = r#"{"cdiVersion": "0.6.0", "kind": "v/c", "devices": [
    {"name": "1", "containerEdits": {"env": ["ONE=1"]}}, {"name": "2", "containerEdits": {"env": ["TWO=2"]}}],
    "containerEdits": {"hooks": [{"hookName": "poststop", "path": "/shared/hook"}]}}"#;

#[test]
fn cdi_devices_are_looked_up_all_at_once_and_refused_where_there_are_none() {
    let adjust = nri::ContainerAdjustment {
        cdi_devices: ["v/c=1", "v/c=2"]
            .map(|name| nri::CdiDevice {
                name: name.to_owned(),
            })
            .to_vec(),
        ..Default::default()
    };
    let text = refused(&adjust);
    assert!(text.contains("v/c=1, v/c=2"), "{text}");
    let mut f = host();
    let file = CdiFile {
        priority: 0,
        path: "v.json".to_owned(),
        text: CDI.to_owned(),
    };
    f.view.cdi = CdiRegistry::load(&[file]).0;
    let spec = apply(&f, &adjust).expect("applied");
    let env = spec.process().as_ref().and_then(|p| p.env().clone());
    let env = env.expect("variables");
    for variable in ["ONE=1", "TWO=2"] {
        assert!(env.iter().any(|entry| entry == variable), "{variable}");
    }
    let hooks = spec.hooks().as_ref().and_then(|h| h.poststop().clone());
    assert_eq!(hooks.map(|list| list.len()), Some(1), "what both share");
}

#[test]
fn a_device_comes_with_its_rule_and_goes_with_it() {
    let mut f = host();
    f.view.devices = vec![HostDevice {
        path: "/dev/fuse".into(),
        kind: 'c',
        major: 10,
        minor: 229,
        mode: 0o666,
        uid: 0,
        gid: 0,
    }];
    f.config.devices = vec![proto_cri::v1::Device {
        container_path: "/dev/fuse".to_owned(),
        host_path: "/dev/fuse".to_owned(),
        permissions: "rw".to_owned(),
    }];
    let devices = |list: Vec<nri::LinuxDevice>| {
        let adjust = of_linux(nri::LinuxContainerAdjustment {
            devices: list,
            ..Default::default()
        });
        let spec = apply(&f, &adjust).expect("applied");
        let linux = linux(&spec).clone();
        let rules = linux
            .resources()
            .as_ref()
            .and_then(|r| r.devices().clone())
            .unwrap_or_default();
        let rules: Vec<String> = rules
            .iter()
            .skip(default_rules().len())
            .map(ToString::to_string)
            .collect();
        let nodes: Vec<String> = linux
            .devices()
            .iter()
            .flatten()
            .map(|d| d.path().display().to_string())
            .collect();
        (nodes, rules)
    };
    let strings = |list: &[&str]| list.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        devices(vec![]),
        (strings(&["/dev/fuse"]), strings(&["c 10:229 rwm"]))
    );
    assert_eq!(
        devices(vec![
            device("/dev/x", "b", 8, 1),
            device("/dev/p", "p", 0, 0)
        ]),
        (
            strings(&["/dev/fuse", "/dev/x", "/dev/p"]),
            strings(&["c 10:229 rwm", "b 8:1 rwm"])
        )
    );
    assert_eq!(
        devices(vec![device("-/dev//fuse", "", 0, 0)]),
        (vec![], vec![])
    );
    assert_eq!(
        devices(vec![device("/dev/fuse", "c", 1, 2)]),
        (strings(&["/dev/fuse"]), strings(&["c 1:2 rwm"]))
    );
    for bad in [
        device("dev/x", "c", 1, 1),
        device("/dev/x", "z", 1, 1),
        device("/dev/x", "", 1, 1),
        device("/dev/x", "c", -1, 1),
    ] {
        let text = refused(&of_linux(nri::LinuxContainerAdjustment {
            devices: vec![bad],
            ..Default::default()
        }));
        assert!(text.contains("adjust.linux.devices"), "{text}");
    }
    let text = refused(&of_linux(nri::LinuxContainerAdjustment {
        devices: vec![device("/proc/x", "c", 1, 1)],
        ..Default::default()
    }));
    assert!(text.contains("adjust.linux.devices[\"/proc/x\"]"), "{text}");
}

#[test]
fn in_a_user_namespace_a_default_node_has_the_mode_and_owner_that_are_asked_for() {
    let mut f = host();
    f.sandbox.user_mapping = Some(cairn::oci::IdMap {
        host_id: 100_000,
        container_id: 0,
        length: 65_536,
    });
    f.sandbox.namespaces.user = Some("/ns/user".into());
    let mut asked = device("/dev/null", "c", 1, 3);
    asked.file_mode = Some(nri::OptionalFileMode { value: 0o600 });
    asked.uid = Some(nri::OptionalUInt32 { value: 1 });
    let adjustment = of_linux(nri::LinuxContainerAdjustment {
        devices: vec![asked],
        ..Default::default()
    });
    let spec = apply(&f, &adjustment).expect("its nodes are its own");
    let linux = spec.linux().as_ref().expect("a section");
    let node = linux.devices().iter().flatten().next().expect("a node");
    assert_eq!((node.file_mode(), node.uid()), (Some(0o600), Some(1)));
}

#[test]
fn net_devices_need_a_network_of_their_own_and_a_sane_name() {
    let net = |list: &[(&str, &str)]| {
        of_linux(nri::LinuxContainerAdjustment {
            net_devices: list
                .iter()
                .map(|(k, v)| {
                    (
                        (*k).to_owned(),
                        nri::LinuxNetDevice {
                            name: (*v).to_owned(),
                        },
                    )
                })
                .collect(),
            ..Default::default()
        })
    };
    let f = host();
    let mut spec = applied(&net(&[("eth5", ""), ("eth6", "x")]));
    apply_adjustment(&mut spec, &net(&[("-eth5", "")]), &context(&f)).expect("applied");
    let found = linux(&spec).net_devices().clone().expect("devices");
    assert_eq!(found.len(), 1);
    assert_eq!(found["eth6"].name().as_deref(), Some("x"));
    for bad in [
        ("a/b", "x"),
        ("eth0", "a name"),
        ("0123456789abcdef", "x"),
        ("eth0", ".."),
    ] {
        assert!(
            refused(&net(&[bad])).contains("adjust.linux.net_devices"),
            "{bad:?}"
        );
    }
    let mut host_network = host();
    host_network.sandbox.namespaces.net = None;
    assert!(apply(&host_network, &net(&[("eth5", "")])).is_err());
}
