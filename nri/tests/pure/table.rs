//! Each field of an adjustment (NRI-500…520): set, remove, remove and set, two plugins, three
//! plugins; the view of later plugins, the runtime's result, the owners.

use nri::{adjust::Adjust, merge::MergeError};
use proto_nri::{ContainerAdjustment, Field, KeyValue, Mount};

use crate::support::*;

fn env(key: &str, value: &str) -> KeyValue {
    KeyValue {
        key: key.into(),
        value: value.into(),
    }
}

/// The same five checks for every row with removable keys. The container has the key `have` and
/// lacks `new`; the closures return key and value pairs.
struct Row {
    field: Field,
    have: &'static str,
    new: &'static str,
    add: for<'a> fn(&'a mut ContainerAdjustment, &str, &str) -> &'a mut ContainerAdjustment,
    remove: for<'a> fn(&'a mut ContainerAdjustment, &str) -> &'a mut ContainerAdjustment,
    seen: fn(&Merged) -> Vec<(String, String)>,
    reply: fn(&Merged) -> Vec<(String, String)>,
    /// Maps keep the marker beside the value, and record an owner for the removal of an original
    /// entry.
    map: bool,
}

fn pairs<'a>(
    of: impl IntoIterator<Item = (impl Into<&'a str>, impl Into<&'a str>)>,
) -> Vec<(String, String)> {
    of.into_iter()
        .map(|(k, v)| (k.into().to_owned(), v.into().to_owned()))
        .collect()
}

fn rows() -> Vec<Row> {
    vec![
        Row {
            field: Field::Annotations,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_annotation(k, v),
            remove: |a, k| a.remove_annotation(k),
            seen: |m| {
                pairs(
                    m.seen
                        .annotations
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.as_str())),
                )
            },
            reply: |m| {
                pairs(
                    m.reply()
                        .annotations
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.as_str())),
                )
            },
            map: true,
        },
        Row {
            field: Field::Sysctl,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_sysctl(k, v),
            remove: |a, k| a.remove_sysctl(k),
            seen: |m| {
                pairs(
                    m.seen_linux()
                        .sysctl
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.as_str())),
                )
            },
            reply: |m| {
                pairs(
                    m.linux()
                        .sysctl
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.as_str())),
                )
            },
            map: true,
        },
        Row {
            field: Field::LinuxNetDevices,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_net_device(k, v),
            remove: |a, k| a.remove_net_device(k),
            seen: |m| {
                pairs(
                    m.seen_linux()
                        .net_devices
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.name.as_str())),
                )
            },
            reply: |m| {
                pairs(
                    m.linux()
                        .net_devices
                        .iter()
                        .map(|(k, v)| (k.as_str(), v.name.as_str())),
                )
            },
            map: true,
        },
        Row {
            field: Field::Mounts,
            have: "/old",
            new: "/new",
            add: |a, k, v| a.add_mount(mount(k, v)),
            remove: |a, k| a.remove_mount(k),
            seen: |m| {
                pairs(
                    m.seen
                        .mounts
                        .iter()
                        .map(|m| (m.destination.as_str(), m.source.as_str())),
                )
            },
            reply: |m| {
                pairs(
                    m.reply()
                        .mounts
                        .iter()
                        .map(|m| (m.destination.as_str(), m.source.as_str())),
                )
            },
            map: false,
        },
        Row {
            field: Field::Env,
            have: "OLD",
            new: "NEW",
            add: |a, k, v| a.add_env(k, v),
            remove: |a, k| a.remove_env(k),
            seen: |m| pairs(m.seen.env.iter().filter_map(|e| e.split_once('='))),
            reply: |m| {
                pairs(
                    m.reply()
                        .env
                        .iter()
                        .map(|e| (e.key.as_str(), e.value.as_str())),
                )
            },
            map: false,
        },
        Row {
            field: Field::Devices,
            have: "/dev/old",
            new: "/dev/new",
            add: |a, k, v| {
                let device = proto_nri::LinuxDevice {
                    r#type: v.into(),
                    ..device(k, 7)
                };
                a.add_device(device)
            },
            remove: |a, k| a.remove_device(k),
            seen: |m| {
                pairs(
                    m.seen_linux()
                        .devices
                        .iter()
                        .map(|d| (d.path.as_str(), d.r#type.as_str())),
                )
            },
            reply: |m| {
                pairs(
                    m.linux()
                        .devices
                        .iter()
                        .map(|d| (d.path.as_str(), d.r#type.as_str())),
                )
            },
            map: false,
        },
    ]
}

impl Row {
    fn add(&self, key: &str, value: &str) -> proto_nri::CreateContainerResponse {
        adjust(|a| (self.add)(a, key, value))
    }

    fn remove(&self, key: &str) -> proto_nri::CreateContainerResponse {
        adjust(|a| (self.remove)(a, key))
    }

    fn set(&self, key: &str, value: &str) -> proto_nri::CreateContainerResponse {
        adjust(|a| {
            (self.remove)(a, key);
            (self.add)(a, key, value)
        })
    }

    fn sees(&self, merged: &Merged, key: &str) -> Option<String> {
        let all = (self.seen)(merged).into_iter();
        let found: Vec<_> = all.filter(|(k, _)| k == key).collect();
        assert!(found.len() < 2, "{:?} {key}: {found:?}", self.field);
        found.into_iter().next().map(|(_, value)| value)
    }
}

#[test]
fn an_added_key_is_seen_replied_and_owned() {
    for row in rows() {
        let merged = merge(vec![row.add(row.new, "x")]).expect("one plugin");
        assert_eq!(
            row.sees(&merged, row.new).as_deref(),
            Some("x"),
            "{:?}",
            row.field
        );
        assert_eq!(
            (row.reply)(&merged),
            pairs([(row.new, "x")]),
            "{:?}",
            row.field
        );
        assert_eq!(merged.owner_of(row.field, row.new).as_deref(), Some("10-a"));
        let merged = merge(vec![row.add(row.have, "x")]).expect("an original is no plugin's");
        assert_eq!(
            row.sees(&merged, row.have).as_deref(),
            Some("x"),
            "{:?}",
            row.field
        );
    }
}

#[test]
fn the_removal_of_an_original_reaches_later_plugins_and_the_runtime() {
    for row in rows() {
        let merged = merge(vec![row.remove(row.have)]).expect("one plugin");
        assert_eq!(row.sees(&merged, row.have), None, "{:?}", row.field);
        let reply = (row.reply)(&merged);
        let keys: Vec<_> = reply.iter().map(|(k, _)| k.as_str()).collect();
        assert_eq!(keys, [format!("-{}", row.have)], "{:?}", row.field);
        let owner = merged.owner_of(row.field, row.have);
        let expected = row.map.then_some("-10-a");
        assert_eq!(owner.as_deref(), expected, "{:?}", row.field);
    }
}

#[test]
fn removing_and_setting_in_one_answer_replaces() {
    for row in rows() {
        let merged = merge(vec![row.set(row.have, "x")]).expect("one plugin");
        assert_eq!(
            row.sees(&merged, row.have).as_deref(),
            Some("x"),
            "{:?}",
            row.field
        );
        let marker = format!("-{}", row.have);
        let expected = if row.map {
            pairs([(marker.as_str(), ""), (row.have, "x")])
        } else {
            pairs([(row.have, "x")])
        };
        assert_eq!((row.reply)(&merged), expected, "{:?}", row.field);
        assert_eq!(
            merged.owner_of(row.field, row.have).as_deref(),
            Some("10-a")
        );
    }
}

#[test]
fn two_plugins_that_set_one_key_conflict() {
    for row in rows() {
        let result = merge(vec![row.add(row.new, "x"), row.add(row.new, "y")]);
        assert_conflict(result, "20-b", "10-a", row.field, Some(row.new));
        let result = merge(vec![row.add("1", "x"), row.add("2", "y")]);
        result.expect("different keys do not conflict");
    }
}

#[test]
fn a_second_plugin_that_also_removes_overrides_the_first() {
    for row in rows() {
        let merged = merge(vec![row.add(row.new, "x"), row.set(row.new, "y")]).expect("overrides");
        assert_eq!(
            row.sees(&merged, row.new).as_deref(),
            Some("y"),
            "{:?}",
            row.field
        );
        let marker = format!("-{}", row.new);
        let expected = if row.map {
            pairs([(marker.as_str(), ""), (row.new, "y")])
        } else {
            pairs([(row.new, "y")])
        };
        assert_eq!((row.reply)(&merged), expected, "{:?}", row.field);
        assert_eq!(merged.owner_of(row.field, row.new).as_deref(), Some("20-b"));
    }
}

#[test]
fn a_removal_of_what_an_earlier_plugin_set_is_owned_and_a_third_conflicts_with_the_remover() {
    for row in rows() {
        let merged = merge(vec![row.add(row.new, "x"), row.remove(row.new)]).expect("removes");
        assert_eq!(row.sees(&merged, row.new), None, "{:?}", row.field);
        let reply = (row.reply)(&merged);
        let keys: Vec<_> = reply.iter().map(|(k, _)| k.as_str()).collect();
        assert_eq!(keys, [format!("-{}", row.new)], "{:?}", row.field);
        assert_eq!(
            merged.owner_of(row.field, row.new).as_deref(),
            Some("-20-b")
        );

        let third = vec![
            row.add(row.new, "x"),
            row.remove(row.new),
            row.add(row.new, "z"),
        ];
        let refused = merge(third);
        let reported = refused.as_ref().expect_err("30-c must remove it too");
        let deed = "already removed by plugin 20-b";
        assert!(reported.to_string().contains(deed), "{reported}");
        assert_conflict(refused, "30-c", "20-b", row.field, Some(row.new));
        let third = vec![
            row.add(row.new, "x"),
            row.remove(row.new),
            row.set(row.new, "z"),
        ];
        let merged = merge(third).expect("it removes too");
        assert_eq!(
            row.sees(&merged, row.new).as_deref(),
            Some("z"),
            "{:?}",
            row.field
        );
        assert_eq!(merged.owner_of(row.field, row.new).as_deref(), Some("30-c"));
    }
}

#[test]
fn an_original_that_one_plugin_removed_may_be_added_anew_in_lists_but_not_in_maps() {
    for row in rows() {
        let result = merge(vec![row.remove(row.have), row.add(row.have, "x")]);
        if row.map {
            assert_conflict(result, "20-b", "10-a", row.field, Some(row.have));
            continue;
        }
        let merged = result.expect("NRI-513");
        assert_eq!(
            (row.reply)(&merged),
            pairs([(row.have, "x")]),
            "{:?}",
            row.field
        );
        assert_eq!(
            row.sees(&merged, row.have).as_deref(),
            Some("x"),
            "{:?}",
            row.field
        );
    }
}

#[test]
fn a_list_that_sets_one_key_twice_conflicts_with_itself() {
    for row in rows().into_iter().filter(|row| !row.map) {
        let twice = adjust(|a| {
            (row.add)(a, row.new, "x");
            (row.add)(a, row.new, "y")
        });
        assert_conflict(merge(vec![twice]), "10-a", "10-a", row.field, Some(row.new));
    }
}

#[test]
fn markers_keep_their_order_and_are_not_repeated() {
    let merged = merge(vec![
        adjust(|a| {
            a.remove_env("Z")
                .add_env("M", "1")
                .remove_env("B")
                .remove_env("Z")
        }),
        adjust(|a| a.remove_env("B").remove_env("A")),
    ]);
    let merged = merged.expect("no key is set twice");
    let expected = [env("-Z", ""), env("M", "1"), env("-B", ""), env("-A", "")];
    assert_eq!(merged.reply().env, expected);
}

#[test]
fn paths_that_mean_the_same_are_one_key() {
    let result = merge(vec![
        adjust(|a| a.add_mount(mount("/a/", "x"))),
        adjust(|a| a.add_mount(mount("//a/b/..", "y"))),
    ]);
    assert_conflict(result, "20-b", "10-a", Field::Mounts, Some("/a"));
    let result = merge(vec![
        adjust(|a| a.add_device(device("/dev//x", 1))),
        adjust(|a| a.add_device(device("/dev/./x", 2))),
    ]);
    assert_conflict(result, "20-b", "10-a", Field::Devices, Some("/dev/x"));
    let merged = merge(vec![adjust(|a| a.remove_mount("/old/"))]);
    let merged = merged.expect("one plugin");
    assert_eq!(merged.seen.mounts, Vec::<Mount>::new());
    assert_eq!(merged.reply().mounts, [mount("-/old", "")]);
}

#[test]
fn a_path_is_cleaned_by_its_names_alone() {
    for (given, clean) in [
        ("/a//b/./c/", "/a/b/c"),
        ("/a/b/../c", "/a/c"),
        ("/a/../../b", "/b"),
        ("/..", "/"),
        ("a/../../b", "../b"),
        ("../../a", "../../a"),
        ("a/..", "."),
    ] {
        let merged = merge(vec![adjust(|a| {
            a.add_mount(mount(given, "x")).add_device(device(given, 1))
        })]);
        let merged = merged.expect("one plugin");
        assert_eq!(merged.reply().mounts, [mount(clean, "x")], "{given}");
        assert_eq!(merged.linux().devices, [device(clean, 1)], "{given}");
    }
}

#[test]
fn a_variable_without_equals_sign_survives_and_its_name_can_be_removed() {
    let merged = merge(vec![adjust(|a| a.add_env("NEW", "1"))]);
    let seen = merged.expect("one plugin").seen.env;
    assert_eq!(seen, ["OLD=original", "ODD", "NEW=1"]);
    let merged = merge(vec![adjust(|a| a.remove_env("ODD"))]);
    assert_eq!(merged.expect("one plugin").seen.env, ["OLD=original"]);
}

#[test]
fn keys_that_no_runtime_could_apply_are_refused_by_name() {
    let bad = [
        adjust(|a| a.add_env("A=B", "x")),
        adjust(|a| a.add_mount(mount("", "x"))),
        adjust(|a| a.remove_device("")),
    ];
    for answer in bad {
        let error = merge(vec![answer]).expect_err("an invalid key");
        assert!(matches!(error, MergeError::BadKey { .. }), "{error}");
        assert!(error.to_string().contains("10-a"), "{error}");
    }
    let merged = merge(vec![adjust(|a| a.add_env("", "x").remove_env(""))]);
    let merged = merged.expect("a variable without a name is ignored");
    assert_eq!(merged.reply().env, []);
}

#[test]
fn a_path_that_turns_into_a_removal_when_it_is_cleaned_is_refused() {
    for answer in [
        adjust(|a| a.add_mount(mount("./-/old", "x"))),
        adjust(|a| a.add_mount(mount("a/../-/old", "x"))),
        adjust(|a| a.add_device(device(".//-/dev/old", 1))),
    ] {
        let error = merge(vec![answer]).expect_err("it would remove what it does not name");
        assert!(matches!(error, MergeError::BadKey { .. }), "{error}");
    }
}

#[test]
fn a_removal_of_a_marked_key_leaves_an_earlier_plugins_removal_alone() {
    for row in rows().into_iter().filter(|row| row.map) {
        let merged = merge(vec![
            adjust(|a| (row.remove)(a, row.have)),
            adjust(|a| (row.remove)(a, &format!("-{}", row.have))),
        ]);
        let merged = merged.expect("two keys");
        let marker = format!("-{}", row.have);
        let reported = (row.reply)(&merged);
        assert!(
            reported.iter().any(|(key, _)| *key == marker),
            "{reported:?}"
        );
        let owner = merged.owner_of(row.field, row.have);
        assert_eq!(owner.as_deref(), Some("-10-a"));
    }
}
