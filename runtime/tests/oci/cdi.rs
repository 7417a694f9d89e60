//! CDI: the precedence of files, and the edits of a device.

use cairn::oci::{CdiFile, CdiRegistry, HostDevice};
use proto_cri::v1::CdiDevice;

use crate::support::{Fixture, assert_golden};

const GPU: &str = r#"
cdiVersion: "0.6.0"
kind: vendor.com/gpu
containerEdits:
  env: ["DRIVER=1"]
  mounts:
  - {hostPath: /lib/driver.so, containerPath: /usr/lib/driver.so, options: [ro, bind]}
devices:
- name: gpu0
  annotations: {note: x}
  containerEdits:
    deviceNodes:
    - path: /dev/gpu0
      fileMode: 0666
    - {path: /dev/ctl, hostPath: /dev/gpu-ctl, type: c, permissions: rw, uid: 5, gid: 6}
    env: ["GPU=0", "PATH=/gpu"]
    hooks:
    - {hookName: createContainer, path: /usr/bin/hook, args: [hook, ldcache], timeout: 3}
    additionalGids: [44, 0, 44]
    netDevices:
    - {hostInterfaceName: ib0, name: fast0}
    intelRdt: {closID: gpu, enableMonitoring: true}
- name: gpu1
  containerEdits:
    env: ["GPU=1"]
"#;

fn file(priority: usize, path: &str, text: &str) -> CdiFile {
    CdiFile {
        priority,
        path: path.to_owned(),
        text: text.to_owned(),
    }
}

fn device(path: &str, minor: i64) -> HostDevice {
    HostDevice {
        path: path.into(),
        kind: 'c',
        major: 195,
        minor,
        mode: 0o600,
        uid: 0,
        gid: 0,
    }
}

/// A container that requests these devices, on a host with these files.
fn asking(files: &[CdiFile], names: &[&str]) -> Fixture {
    let mut f = Fixture::default();
    f.config.cdi_devices = names
        .iter()
        .map(|name| CdiDevice {
            name: (*name).to_owned(),
        })
        .collect();
    f.view.cdi = CdiRegistry::load(files).0;
    f.view.devices = vec![device("/dev/gpu0", 0), device("/dev/gpu-ctl", 255)];
    f.host.resctrl = true;
    f
}

fn env(f: &Fixture) -> Vec<String> {
    f.spec()
        .spec
        .process()
        .as_ref()
        .and_then(|p| p.env().clone())
        .expect("env")
}

fn warnings(files: &[CdiFile]) -> Vec<String> {
    CdiRegistry::load(files).1
}

#[test]
fn a_device_adds_everything_that_its_file_says() {
    let f = asking(
        &[file(0, "/etc/cdi/gpu.yaml", GPU)],
        &["vendor.com/gpu=gpu0"],
    );
    assert_golden("cdi", &f.spec().spec);
}

#[test]
fn what_all_devices_of_a_file_share_comes_once_and_before_their_own() {
    let files = [file(0, "/etc/cdi/gpu.yaml", GPU)];
    let f = asking(
        &files,
        &[
            "vendor.com/gpu=gpu1",
            "vendor.com/gpu=gpu0",
            "vendor.com/gpu=gpu1",
        ],
    );
    let spec = f.spec().spec;
    let mounts = spec.mounts().iter().flatten();
    let driver = mounts
        .filter(|m| m.destination().ends_with("driver.so"))
        .count();
    assert_eq!(driver, 1);
    let env = env(&f);
    assert_eq!(
        env.iter()
            .filter(|e| e.starts_with("GPU="))
            .collect::<Vec<_>>(),
        ["GPU=0"]
    );
    assert_eq!(env.iter().filter(|e| e.starts_with("DRIVER=")).count(), 1);
}

#[test]
fn a_device_can_be_asked_for_by_annotation() {
    let mut f = asking(&[file(0, "/etc/cdi/gpu.yaml", GPU)], &[]);
    f.config.annotations = [(
        "cdi.k8s.io/plugin_x".to_owned(),
        "vendor.com/gpu=gpu1, vendor.com/gpu=gpu1".to_owned(),
    )]
    .into();
    assert!(env(&f).contains(&"GPU=1".to_owned()));
    f.config.annotations = [("cdi.k8s.io/x".to_owned(), "gpu1".to_owned())].into();
    assert!(f.refusal().contains("vendor/class=name"));
}

#[test]
fn the_later_directory_wins_and_a_tie_belongs_to_nobody() {
    let one = |priority, path: &str, value: &str| {
        let text = format!(
            r#"{{"cdiVersion":"1.0.0","kind":"v.com/c","devices":[{{"name":"d","containerEdits":{{"env":["FROM={value}"]}}}}]}}"#
        );
        file(priority, path, &text)
    };
    let files = [
        one(1, "/var/run/cdi/a.json", "run"),
        one(0, "/etc/cdi/a.json", "etc"),
    ];
    assert!(env(&asking(&files, &["v.com/c=d"])).contains(&"FROM=run".to_owned()));
    let files = [
        one(0, "/etc/cdi/a.json", "a"),
        one(0, "/etc/cdi/b.json", "b"),
    ];
    assert!(
        asking(&files, &["v.com/c=d"])
            .refusal()
            .contains("v.com/c=d")
    );
    assert!(warnings(&files)[0].contains("/etc/cdi/b.json"));
    assert_eq!(CdiRegistry::load(&files).0.names().count(), 0);
    let mut files = files.to_vec();
    files.push(one(1, "/var/run/cdi/c.json", "c"));
    assert!(env(&asking(&files, &["v.com/c=d"])).contains(&"FROM=c".to_owned()));
}

#[test]
fn every_device_that_there_is_not_is_named() {
    let f = asking(
        &[file(0, "/etc/cdi/gpu.yaml", GPU)],
        &["vendor.com/gpu=gpu1", "v.com/x=1", "v.com/x=2"],
    );
    let text = f.refusal();
    assert!(
        text.contains("v.com/x=1, v.com/x=2") && !text.contains("gpu1"),
        "{text}"
    );
    let mut f = Fixture::default();
    f.config.cdi_devices = vec![CdiDevice {
        name: "v.com/x=1".to_owned(),
    }];
    assert!(f.refusal().contains("v.com/x=1"));
}

#[test]
fn a_bad_file_is_left_out_with_a_warning_and_the_others_count() {
    let good = file(0, "/etc/cdi/gpu.yaml", GPU);
    for bad in [
        "",
        "][",
        "{}",
        r#"{"cdiVersion":"2.0.0","kind":"v.com/c"}"#,
        r#"{"cdiVersion":"0.6.0","kind":"v.com"}"#,
        r#"{"cdiVersion":"0.6.0","kind":"v.com/c","devices":[{"name":"a b"}]}"#,
        r#"{"cdiVersion":"0.6.0","kind":"v.com/c","containerEdits":{"later":1}}"#,
    ] {
        for name in ["/etc/cdi/bad.json", "/etc/cdi/bad.yaml"] {
            let files = [file(0, name, bad), good.clone()];
            let warnings = warnings(&files);
            assert_eq!(warnings.len(), 1, "{bad}");
            assert!(warnings[0].contains(name), "{}", warnings[0]);
            assert!(env(&asking(&files, &["vendor.com/gpu=gpu1"])).contains(&"GPU=1".to_owned()));
        }
    }
    let long = file(0, "/etc/cdi/long.json", &" ".repeat((1 << 20) + 1));
    assert!(warnings(&[long])[0].contains("longer"));
}

#[test]
fn a_yaml_file_of_nested_aliases_does_not_eat_the_memory() {
    let mut text =
        String::from("cdiVersion: \"0.6.0\"\nkind: v.com/c\nannotations:\n  a0: &a0 x\n");
    for level in 1..30 {
        let before = level - 1;
        text.push_str(&format!(
            "  a{level}: &a{level} [*a{before}, *a{before}, *a{before}, *a{before}]\n"
        ));
    }
    assert_eq!(warnings(&[file(0, "/etc/cdi/bomb.yaml", &text)]).len(), 1);
}

#[test]
fn edits_that_make_no_sense_are_refused_by_name() {
    for (edits, word) in [
        (r#""deviceNodes":[{"path":"/dev/none"}]"#, "/dev/none"),
        (r#""deviceNodes":[{"path":"gpu0"}]"#, "gpu0"),
        (r#""deviceNodes":[{"path":"/dev/gpu0","type":"b"}]"#, "type"),
        (
            r#""deviceNodes":[{"path":"/dev/gpu0","type":"cc"}]"#,
            "type",
        ),
        (
            r#""deviceNodes":[{"path":"/dev/gpu0","permissions":"x"}]"#,
            "permissions",
        ),
        (r#""env":["=secret"]"#, "variable"),
        (r#""env":["secret"]"#, "variable"),
        (
            r#""mounts":[{"hostPath":"/x","containerPath":"y"}]"#,
            "mount",
        ),
        (
            r#""mounts":[{"hostPath":"","containerPath":"/y"}]"#,
            "mount",
        ),
        (r#""hooks":[{"hookName":"midway","path":"/x"}]"#, "midway"),
        (
            r#""hooks":[{"hookName":"poststop","path":"x"}]"#,
            "absolute",
        ),
        (r#""netDevices":[{"hostInterfaceName":"a/b"}]"#, "interface"),
        (r#""intelRdt":{"closID":".."}"#, "class"),
    ] {
        let text = format!(
            r#"{{"cdiVersion":"1.0.0","kind":"v.com/c","devices":[{{"name":"d","containerEdits":{{{edits}}}}}]}}"#
        );
        let refusal = asking(&[file(0, "/etc/cdi/a.json", &text)], &["v.com/c=d"]).refusal();
        assert!(refusal.contains(word), "{edits}: {refusal}");
        assert!(!refusal.contains("secret"), "{refusal}");
    }
}
