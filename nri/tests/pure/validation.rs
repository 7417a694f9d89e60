//! Section 6: the content of validation requests, the combination of verdicts, the default
//! validator.

use nri::{
    adjust::{Adjust, HookKind},
    validate::{DefaultValidator, Part, Rejected, request, verdict},
};
use proto_nri::{
    CreateContainerResponse, LinuxSeccomp, Mount, PluginInstance, SecurityProfile,
    ValidateContainerAdjustmentRequest, ValidateContainerAdjustmentResponse,
    security_profile::ProfileType,
};

use crate::support::*;

fn asked(answers: Vec<CreateContainerResponse>) -> ValidateContainerAdjustmentRequest {
    let parts = ["10-a", "20-b"].map(|id| part(id, true, true));
    request(&merge(answers).expect("no conflict").answer, &parts)
}

fn part(id: &str, subscribed: bool, answered: bool) -> Part {
    Part {
        plugin: plugin(id),
        subscribed,
        answered,
    }
}

fn annotate(request: &mut ValidateContainerAdjustmentRequest, key: &str, value: &str) {
    let pod = request.pod.get_or_insert_default();
    pod.annotations.insert(key.into(), value.into());
}

#[test]
fn validators_see_the_container_as_it_was_and_all_that_was_asked_of_it() {
    let asked = asked(vec![
        adjust(|a| a.add_env("NEW", "1")),
        updates(vec![nri::adjust::update("other", false)]),
    ]);
    assert_eq!(asked.container.expect("set").env, ["OLD=original", "ODD"]);
    assert_eq!(asked.adjust.expect("set").env.len(), 1);
    assert_eq!(asked.update.len(), 1);
    let owners = asked.owners.expect("set").owners;
    assert_eq!(owners["ctr"].compound[&6].owners["NEW"], "10-a");
}

#[test]
fn a_plugin_that_failed_in_this_very_request_is_not_present() {
    let parts = [
        part("00-answered", true, true),
        part("10-timed-out", true, false),
        part("20-elsewhere", false, false),
    ];
    let asked = request(&merge(vec![]).expect("no plugin").answer, &parts);
    let names: Vec<_> = asked.plugins.iter().map(|p| p.name.as_str()).collect();
    assert_eq!(names, ["answered", "elsewhere"], "NRI-603");
    let validator = DefaultValidator {
        required_plugins: vec!["timed-out".into()],
        ..Default::default()
    };
    let reason = validator
        .check(&asked)
        .expect_err("it is missing in effect");
    assert!(reason.contains("timed-out"), "{reason}");
}

#[test]
fn all_rejections_are_reported_in_order_of_the_validators() {
    let answer = |reject, reason: &str| {
        Ok(ValidateContainerAdjustmentResponse {
            reject,
            reason: reason.into(),
        })
    };
    assert_eq!(
        verdict([(plugin("10-a"), answer(false, "ignored"))]),
        Ok(())
    );
    assert_eq!(verdict([]), Ok(()));
    let rejected = verdict([
        (plugin("90-z"), answer(true, "")),
        (plugin("10-a"), answer(false, "")),
        (plugin("20-b"), Err("it did not answer in time".into())),
        (plugin("00-c"), answer(true, "no hooks here")),
    ]);
    let rejected: Rejected = rejected.expect_err("three of four");
    assert_eq!(
        rejected.to_string(),
        "validator 00-c rejected it: no hooks here; \
         validator 20-b rejected it: no verdict: it did not answer in time; \
         validator 90-z rejected it: it gave no reason"
    );
}

#[test]
fn the_default_validator_accepts_everything_unless_told() {
    let all = asked(vec![adjust(|a| {
        a.add_hook(HookKind::Prestart, hook("/h"));
        a.seccomp_policy(LinuxSeccomp::default());
        a.remove_namespace("pid").add_sysctl("k", "v")
    })]);
    assert_eq!(DefaultValidator::default().check(&all), Ok(()));
}

#[test]
fn hooks_namespaces_and_sysctls_are_rejected_by_their_switches() {
    let hooks = DefaultValidator {
        reject_oci_hook_adjustment: true,
        ..Default::default()
    };
    let namespaces = DefaultValidator {
        reject_namespace_adjustment: true,
        ..Default::default()
    };
    let sysctls = DefaultValidator {
        reject_sysctl_adjustment: true,
        ..Default::default()
    };
    let with_hook = || adjust(|a| a.add_hook(HookKind::Poststop, hook("/h")));
    let reason = hooks.check(&asked(vec![with_hook(), with_hook()]));
    let reason = reason.expect_err("two plugins add hooks");
    assert_eq!(reason, "plugin(s) 10-a, 20-b may not adjust OCI hooks");
    let without = asked(vec![adjust(|a| a.add_env("A", "1"))]);
    for validator in [&hooks, &namespaces, &sysctls] {
        assert_eq!(validator.check(&without), Ok(()));
    }
    let removed = asked(vec![adjust(|a| a.remove_namespace("pid"))]);
    assert!(namespaces.check(&removed).is_err());
    let removed = asked(vec![adjust(|a| a.remove_sysctl("old"))]);
    assert!(sysctls.check(&removed).is_err(), "NRI-632: removal counts");
}

#[test]
fn command_devices_sources_and_owners_can_be_limited() {
    let bound = Mount {
        r#type: "bind".into(),
        options: vec!["rbind".into()],
        ..mount("/data", "/srv/plugin/../other/x")
    };
    let scratch = Mount {
        r#type: "tmpfs".into(),
        ..mount("/run", "tmpfs")
    };
    let request = asked(vec![adjust(|a| {
        a.args = vec!["true".into()];
        a.mounts = vec![bound.clone(), scratch.clone()];
        a.linux.get_or_insert_default().devices = vec![device("/dev/x", 1)];
        a
    })]);
    let limited = |limit: &dyn Fn(&mut DefaultValidator)| {
        let mut validator = DefaultValidator::default();
        limit(&mut validator);
        assert_eq!(validator.verify(), Ok(()));
        validator.check(&request)
    };
    let refused = |limit: &dyn Fn(&mut DefaultValidator), names: &str| {
        let why = limited(limit).unwrap_err();
        assert!(why.contains("10-a") && why.contains(names), "{why}");
    };
    refused(&|v| v.reject_args_adjustment = true, "the command");
    refused(&|v| v.reject_device_adjustment = true, "devices");
    let cdi = asked(vec![adjust(|a| {
        a.cdi_devices = vec![proto_nri::CdiDevice {
            name: "vendor.com/gpu=all".into(),
        }];
        a
    })]);
    let no_devices = DefaultValidator {
        reject_device_adjustment: true,
        ..Default::default()
    };
    assert!(no_devices.check(&cdi).unwrap_err().contains("devices"));
    let from = |dir: &str| vec![dir.to_owned()];
    refused(
        &|v| v.allowed_mount_sources = from("/srv/plugin"),
        "/srv/other/x",
    );
    refused(
        &|v| v.allowed_mount_sources = from("/srv/oth"),
        "/srv/other/x",
    );
    assert_eq!(
        limited(&|v| v.allowed_mount_sources = from("/srv/other/")),
        Ok(())
    );
    let owners = |fields: &str, plugin: &str| [(fields.to_owned(), from(plugin))].into();
    refused(
        &|v| v.allowed_owners = owners("Env, Devices", "q"),
        "Devices",
    );
    refused(&|v| v.allowed_owners = owners("Args", "20-a"), "Args");
    for plugin in ["a", "10-a"] {
        assert_eq!(
            limited(&|v| v.allowed_owners = owners("Args,Devices,Mounts", plugin)),
            Ok(())
        );
    }
    assert_eq!(limited(&|v| v.allowed_owners = owners("Env", "q")), Ok(()));
    let wrong = |limit: &dyn Fn(&mut DefaultValidator)| {
        let mut validator = DefaultValidator::default();
        limit(&mut validator);
        validator.verify().unwrap_err()
    };
    assert!(wrong(&|v| v.allowed_owners = owners("Nap", "q")).contains("Nap"));
    assert!(wrong(&|v| v.allowed_mount_sources = from("srv")).contains("absolute"));
}

/// A removal of each field that has keys to remove, of entries that the container has.
fn removals() -> Vec<(&'static str, CreateContainerResponse)> {
    vec![
        ("Annotations", adjust(|a| a.remove_annotation("old"))),
        ("Mounts", adjust(|a| a.remove_mount("/old"))),
        ("Env", adjust(|a| a.remove_env("OLD"))),
        ("Devices", adjust(|a| a.remove_device("/dev/old"))),
        ("Namespace", adjust(|a| a.remove_namespace("pid"))),
        ("Sysctl", adjust(|a| a.remove_sysctl("old"))),
        ("LinuxNetDevices", adjust(|a| a.remove_net_device("old"))),
        ("RdtClosId", adjust(|a| a.remove_rdt())),
    ]
}

#[test]
fn a_removal_is_an_adjustment_of_the_plugin_that_removes() {
    for (field, removal) in removals() {
        let request = asked(vec![adjust(|a| a), removal]);
        let only = |plugin: &str| DefaultValidator {
            allowed_owners: [(field.to_owned(), vec![plugin.to_owned()])].into(),
            ..Default::default()
        };
        let why = only("10-a").check(&request).unwrap_err();
        assert!(
            why.starts_with("plugin(s) 20-b may not adjust"),
            "{field}: {why}"
        );
        assert_eq!(only("20-b").check(&request), Ok(()), "{field}");
    }
    let request = asked(vec![adjust(|a| a.remove_device("/dev/old"))]);
    let no_devices = DefaultValidator {
        reject_device_adjustment: true,
        ..Default::default()
    };
    let why = no_devices.check(&request).unwrap_err();
    assert_eq!(why, "plugin(s) 10-a may not adjust devices");
}

/// Go's adaptation records no owner for the removal of an original entry.
#[test]
fn a_removal_without_an_owner_is_nobodys_right() {
    for (field, removal) in removals() {
        let mut request = asked(vec![removal]);
        request.owners = None;
        let only = DefaultValidator {
            allowed_owners: [(field.to_owned(), vec!["10-a".to_owned()])].into(),
            ..Default::default()
        };
        // Of RDT also Go records the owner.
        let refused = field != "RdtClosId";
        assert_eq!(only.check(&request).is_err(), refused, "{field}");
        assert_eq!(DefaultValidator::default().check(&request), Ok(()));
    }
    let mut request = asked(vec![adjust(|a| a.remove_sysctl("old"))]);
    request.owners = None;
    let no_sysctls = DefaultValidator {
        reject_sysctl_adjustment: true,
        ..Default::default()
    };
    let why = no_sysctls.check(&request).unwrap_err();
    assert_eq!(why, "plugin(s) (unknown) may not adjust sysctls");
}

#[test]
fn whatever_shows_a_part_of_the_host_needs_an_allowed_source() {
    let validator = DefaultValidator {
        allowed_mount_sources: vec!["/srv/plugin".to_owned()],
        ..Default::default()
    };
    let checked = |source: &str, kind: &str, options: &[&str]| {
        let mount = Mount {
            destination: "/x".into(),
            r#type: kind.into(),
            source: source.into(),
            options: options.iter().map(|o| (*o).to_owned()).collect(),
        };
        validator.check(&asked(vec![adjust(|a| a.add_mount(mount))]))
    };
    for (source, kind, options) in [
        ("/srv/other", "", &[][..]),
        ("srv/other", "bind", &[]),
        ("srv/other", "", &["ro", "bind"]),
        ("srv/other", "none", &["rbind"]),
        ("/srv/plugin/../other", "bind", &[]),
        ("/srv/other", "tmpfs", &[]),
        ("overlay", "overlay", &["lowerdir=/"]),
        ("/srv/plugin", "overlay", &["lowerdir=/"]),
        ("/srv/plugin/disk", "ext4", &[]),
        ("proc", "proc", &[]),
    ] {
        let why = checked(source, kind, options).unwrap_err();
        assert!(why.contains("may not mount"), "{source} {kind}: {why}");
    }
    assert_eq!(checked("/srv/plugin/x", "bind", &["rbind"]), Ok(()));
    assert_eq!(checked("tmpfs", "tmpfs", &["nosuid"]), Ok(()));
}

#[test]
fn the_seccomp_switch_is_that_of_the_profile_the_container_had() {
    let validator = |profile: Option<ProfileType>| DefaultValidator {
        reject_runtime_default_seccomp_adjustment: profile == Some(ProfileType::RuntimeDefault),
        reject_unconfined_seccomp_adjustment: profile == Some(ProfileType::Unconfined),
        reject_custom_seccomp_adjustment: profile == Some(ProfileType::Localhost),
        ..Default::default()
    };
    let kinds = [
        ProfileType::RuntimeDefault,
        ProfileType::Unconfined,
        ProfileType::Localhost,
    ];
    for had in kinds {
        let mut asked = asked(vec![adjust(|a| a.seccomp_policy(LinuxSeccomp::default()))]);
        let linux = asked.container.as_mut().and_then(|c| c.linux.as_mut());
        linux.expect("always present").seccomp_profile = Some(SecurityProfile {
            profile_type: had.into(),
            ..Default::default()
        });
        for switch in kinds {
            let rejects = validator(Some(switch)).check(&asked).is_err();
            assert_eq!(rejects, switch == had, "had {had:?}, switch {switch:?}");
        }
    }
    let none = asked(vec![adjust(|a| a.seccomp_policy(LinuxSeccomp::default()))]);
    assert!(
        validator(Some(ProfileType::Unconfined))
            .check(&none)
            .is_err()
    );
    assert!(validator(None).check(&none).is_ok());
    let untouched = asked(vec![]);
    assert!(
        validator(Some(ProfileType::Unconfined))
            .check(&untouched)
            .is_ok()
    );
}

#[test]
fn required_plugins_come_from_configuration_and_annotation_and_match_by_name_or_id() {
    let validator = DefaultValidator {
        required_plugins: vec!["a".into(), "20-b".into()],
        ..Default::default()
    };
    assert_eq!(validator.check(&asked(vec![])), Ok(()));
    let validator = DefaultValidator {
        required_plugins: vec!["foo".into(), "10-b".into(), "a".into(), "foo".into()],
        ..Default::default()
    };
    let reason = validator
        .check(&asked(vec![]))
        .expect_err("two are missing");
    assert_eq!(reason, "required plugin(s) missing: 10-b, foo");

    let key = "required-plugins.noderesource.dev";
    let with = |suffix: &str, value: &str| {
        let mut asked = asked(vec![]);
        annotate(&mut asked, &format!("{key}{suffix}"), value);
        DefaultValidator::default().check(&asked)
    };
    for list in [
        "[ \"xyzzy\" ]",
        "[a, 'xyzzy',]",
        "- a\n- xyzzy\n",
        "---\n# why\n- \"xyzzy\"\n",
    ] {
        let reason = with("/container.main", list).expect_err(list);
        assert_eq!(reason, "required plugin(s) missing: xyzzy");
    }
    assert_eq!(
        with("/container.other", "[xyzzy]"),
        Ok(()),
        "another container's"
    );
    assert_eq!(with("", "[a, b]"), Ok(()));
    assert_eq!(with("/pod", "[]"), Ok(()));
    for bad in [
        "", "xyzzy", "[", "[[a]]", "{a: b}", "- a\n-b", "[\"a]", "- - a", "[a,,b]", "[~]",
    ] {
        let reason = with("", bad).expect_err(bad);
        assert!(
            reason.contains("must be a list of names"),
            "{bad:?}: {reason}"
        );
    }
}

#[test]
fn the_nearest_annotation_wins_also_when_it_is_empty() {
    let key = "required-plugins.noderesource.dev";
    let mut asked = asked(vec![]);
    annotate(&mut asked, key, "[xyzzy]");
    annotate(&mut asked, &format!("{key}/pod"), "[a]");
    assert_eq!(DefaultValidator::default().check(&asked), Ok(()));
    annotate(&mut asked, &format!("{key}/container.main"), "");
    assert!(DefaultValidator::default().check(&asked).is_err());
}

#[test]
fn a_toleration_lets_the_container_through_and_must_be_a_boolean() {
    let validator = DefaultValidator {
        required_plugins: vec!["foo".into()],
        tolerate_missing_plugins_annotation: "tolerate.example".into(),
        ..Default::default()
    };
    let with = |value: &str| {
        let mut asked = asked(vec![]);
        annotate(&mut asked, "tolerate.example/container.main", value);
        annotate(&mut asked, "required-plugins.noderesource.dev", "junk");
        validator.check(&asked)
    };
    for yes in ["1", "t", "T", "TRUE", "true", "True"] {
        assert_eq!(with(yes), Ok(()), "also what the annotation requires");
    }
    for no in ["0", "f", "F", "FALSE", "false", "False"] {
        assert!(with(no).is_err());
    }
    let reason = with("yes").expect_err("Go has no such boolean");
    assert!(reason.contains("not a boolean"), "{reason}");
    let mut foo = asked(vec![]);
    foo.plugins.push(PluginInstance {
        name: "foo".into(),
        index: "00".into(),
    });
    assert_eq!(validator.check(&foo), Ok(()));
}

#[test]
fn the_configuration_reads_both_spellings_and_refuses_others() {
    let parse = |text: &str| serde_json::from_str::<DefaultValidator>(text);
    let toml_names =
        parse(r#"{"enable": true, "reject_oci_hook_adjustment": true, "required_plugins": ["a"]}"#);
    let yaml_names =
        parse(r#"{"enable": true, "rejectOCIHookAdjustment": true, "requiredPlugins": ["a"]}"#);
    let toml_names = toml_names.expect("containerd's names");
    assert_eq!(toml_names, yaml_names.expect("the plugin's names"));
    assert!(toml_names.enable && toml_names.reject_oci_hook_adjustment);
    assert!(
        parse(r#"{"rejectOciHooks": true}"#).is_err(),
        "a typo must not switch a rule off"
    );
}
