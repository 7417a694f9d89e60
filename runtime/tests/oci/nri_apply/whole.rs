//! Complete adjustments, and annotations.

use cairn::oci::apply_adjustment;
use oci_spec::runtime::Spec;
use proto_nri as nri;

use super::{applied, apply, context, everything, host, linux, of_linux, process};
use crate::support::assert_golden;

#[test]
fn no_adjustment_leaves_the_spec_untouched() {
    let f = host();
    assert_eq!(applied(&nri::ContainerAdjustment::default()), f.spec().spec);
    assert_eq!(
        applied(&of_linux(nri::LinuxContainerAdjustment::default())),
        f.spec().spec
    );
}

#[test]
fn one_value_of_every_kind() {
    assert_golden("nri_everything", &applied(&everything()));
}

#[test]
fn a_spec_is_the_same_after_it_was_on_disk() {
    let mut adjust = everything();
    let scheduler = adjust
        .linux
        .as_mut()
        .and_then(|l| l.scheduler.as_mut())
        .expect("set");
    // This policy has the most parameters; clamps are rejected.
    *scheduler = nri::LinuxScheduler {
        policy: nri::LinuxSchedulerPolicy::SchedDeadline as i32,
        flags: (0..=4).collect(),
        runtime: 2000,
        deadline: 3000,
        period: 4000,
        ..nri::LinuxScheduler::default()
    };
    let spec = applied(&adjust);
    let text = serde_json::to_vec(&spec).expect("serialisable");
    assert_eq!(
        serde_json::from_slice::<Spec>(&text).expect("readable"),
        spec
    );
}

#[test]
fn annotations_are_removed_first_and_set_then() {
    let mut f = host();
    f.policy.annotation_prefixes = vec!["a/".to_owned()];
    f.config.annotations = [("a/x", "1"), ("a/y", "2")]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
    let adjust = nri::ContainerAdjustment {
        annotations: [("-a/x", ""), ("a/x", "new"), ("-a/y", ""), ("z", "3")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into(),
        ..Default::default()
    };
    let spec = apply(&f, &adjust).expect("applied");
    let found = spec.annotations().as_ref().expect("annotations");
    assert_eq!(found.get("a/x").map(String::as_str), Some("new"));
    assert!(!found.contains_key("a/y"));
    assert_eq!(found["z"], "3");
}

#[test]
fn a_spec_without_sections_gets_them() {
    let f = host();
    let mut spec = Spec::default();
    spec.set_linux(None);
    spec.set_process(None);
    spec.set_mounts(None);
    let mut adjust = everything();
    let linux_part = adjust.linux.as_mut().expect("linux");
    // These two need a namespace, which a spec without sections lacks.
    linux_part.sysctl.clear();
    linux_part.net_devices.clear();
    apply_adjustment(&mut spec, &adjust, &context(&f)).expect("applied");
    assert!(linux(&spec).seccomp().is_some());
    assert_eq!(process(&spec).args().clone().expect("args"), ["/bin/other"]);
}
