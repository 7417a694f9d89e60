//! Each field of an adjustment (NRI-500…520): set, remove, remove and set, two plugins, three
//! plugins; the view of later plugins, the runtime's result, the owners.

use nri::{adjust::Adjust, merge::MergeError};
use proto_nri::{ContainerAdjustment, Field, KeyValue, LinuxDevice, LinuxNetDevice, Mount};

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
    /// Maps keep the marker beside the value, and reserve an original entry for its remover.
    map: bool,
}

fn pairs<K: AsRef<str>, V: AsRef<str>>(
    of: impl IntoIterator<Item = (K, V)>,
) -> Vec<(String, String)> {
    let pair = |(k, v): (K, V)| (k.as_ref().to_owned(), v.as_ref().to_owned());
    of.into_iter().map(pair).collect()
}

fn names<'a>(
    of: impl IntoIterator<Item = (&'a String, &'a LinuxNetDevice)>,
) -> Vec<(String, String)> {
    pairs(of.into_iter().map(|(k, v)| (k, &v.name)))
}

fn sources(of: &[Mount]) -> Vec<(String, String)> {
    pairs(of.iter().map(|m| (&m.destination, &m.source)))
}

fn types(of: &[LinuxDevice]) -> Vec<(String, String)> {
    pairs(of.iter().map(|d| (&d.path, &d.r#type)))
}

fn rows() -> Vec<Row> {
    vec![
        Row {
            field: Field::Annotations,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_annotation(k, v),
            remove: |a, k| a.remove_annotation(k),
            seen: |m| pairs(&m.seen.annotations),
            reply: |m| pairs(&m.reply().annotations),
            map: true,
        },
        Row {
            field: Field::Sysctl,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_sysctl(k, v),
            remove: |a, k| a.remove_sysctl(k),
            seen: |m| pairs(&m.seen_linux().sysctl),
            reply: |m| pairs(&m.linux().sysctl),
            map: true,
        },
        Row {
            field: Field::LinuxNetDevices,
            have: "old",
            new: "new",
            add: |a, k, v| a.add_net_device(k, v),
            remove: |a, k| a.remove_net_device(k),
            seen: |m| names(&m.seen_linux().net_devices),
            reply: |m| names(&m.linux().net_devices),
            map: true,
        },
        Row {
            field: Field::Mounts,
            have: "/old",
            new: "/new",
            add: |a, k, v| a.add_mount(mount(k, v)),
            remove: |a, k| a.remove_mount(k),
            seen: |m| sources(&m.seen.mounts),
            reply: |m| sources(&m.reply().mounts),
            map: false,
        },
        Row {
            field: Field::Env,
            have: "OLD",
            new: "NEW",
            add: |a, k, v| a.add_env(k, v),
            remove: |a, k| a.remove_env(k),
            seen: |m| pairs(m.seen.env.iter().filter_map(|e| e.split_once('='))),
            reply: |m| pairs(m.reply().env.iter().map(|e| (&e.key, &e.value))),
            map: false,
        },
        Row {
            field: Field::Devices,
            have: "/dev/old",
            new: "/dev/new",
            add: |a, k, v| {
                let device = LinuxDevice {
                    r#type: v.into(),
                    ..device(k, 7)
                };
                a.add_device(device)
            },
            remove: |a, k| a.remove_device(k),
            seen: |m| types(&m.seen_linux().devices),
            reply: |m| types(&m.linux().devices),
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

    fn shows(&self, merged: &Merged, key: &str, value: Option<&str>) {
        let mut seen = (self.seen)(merged);
        seen.retain(|(k, _)| k == key);
        assert_eq!(seen, pairs(value.map(|v| (key, v))), "{:?}", self.field);
    }

    fn replies(&self, merged: &Merged, expected: &[(&str, &str)]) {
        let expected = pairs(expected.iter().copied());
        assert_eq!((self.reply)(merged), expected, "{:?}", self.field);
    }

    fn replies_the_removal_of(&self, merged: &Merged, key: &str) {
        let reply = (self.reply)(merged);
        let keys: Vec<_> = reply.iter().map(|(k, _)| k.as_str()).collect();
        assert_eq!(keys, [format!("-{key}")], "{:?}", self.field);
    }

    fn replies_a_replacement(&self, merged: &Merged, key: &str, value: &str) {
        let marker = format!("-{key}");
        let both = [(marker.as_str(), ""), (key, value)];
        self.replies(merged, &both[usize::from(!self.map)..]);
    }

    fn owned(&self, merged: &Merged, key: &str, owner: Option<&str>) {
        let found = merged.owner_of(self.field, key);
        assert_eq!(found.as_deref(), owner, "{:?}", self.field);
    }
}

#[test]
fn an_added_key_is_seen_replied_and_owned() {
    for row in rows() {
        let merged = merge(vec![row.add(row.new, "x")]).expect("one plugin");
        row.shows(&merged, row.new, Some("x"));
        row.replies(&merged, &[(row.new, "x")]);
        row.owned(&merged, row.new, Some("10-a"));
        let merged = merge(vec![row.add(row.have, "x")]).expect("an original is no plugin's");
        row.shows(&merged, row.have, Some("x"));
    }
}

#[test]
fn the_removal_of_an_original_reaches_later_plugins_and_the_runtime() {
    for row in rows() {
        let merged = merge(vec![row.remove(row.have)]).expect("one plugin");
        row.shows(&merged, row.have, None);
        row.replies_the_removal_of(&merged, row.have);
        row.owned(&merged, row.have, Some("-10-a"));
    }
}

#[test]
fn removing_and_setting_in_one_answer_replaces() {
    for row in rows() {
        let merged = merge(vec![row.set(row.have, "x")]).expect("one plugin");
        row.shows(&merged, row.have, Some("x"));
        row.replies_a_replacement(&merged, row.have, "x");
        row.owned(&merged, row.have, Some("10-a"));
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
        row.shows(&merged, row.new, Some("y"));
        row.replies_a_replacement(&merged, row.new, "y");
        row.owned(&merged, row.new, Some("20-b"));
    }
}

#[test]
fn a_removal_of_what_an_earlier_plugin_set_is_owned_and_a_third_conflicts_with_the_remover() {
    for row in rows() {
        let merged = merge(vec![row.add(row.new, "x"), row.remove(row.new)]).expect("removes");
        row.shows(&merged, row.new, None);
        row.replies_the_removal_of(&merged, row.new);
        row.owned(&merged, row.new, Some("-20-b"));

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
        row.shows(&merged, row.new, Some("z"));
        row.owned(&merged, row.new, Some("30-c"));
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
        row.replies(&merged, &[(row.have, "x")]);
        row.shows(&merged, row.have, Some("x"));
        row.owned(&merged, row.have, Some("20-b"));

        let twice = || vec![row.remove(row.have), row.remove(row.have)];
        row.owned(&merge(twice()).expect("same"), row.have, Some("-20-b"));
        let third = [twice(), vec![row.add(row.have, "x")]].concat();
        let merged = merge(third).expect("NRI-513");
        row.owned(&merged, row.have, Some("30-c"));

        let removed = vec![
            row.remove(row.have),
            row.add(row.have, "x"),
            row.remove(row.have),
        ];
        let merged = merge(removed).expect("removes what 20-b set");
        row.owned(&merged, row.have, Some("-30-c"));
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
        row.owned(&merged, row.have, Some("-10-a"));
    }
}
