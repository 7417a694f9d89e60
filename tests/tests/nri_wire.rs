//! Compares `proto/nri/nri.proto` with the `api.proto` of the Go module: each message, field,
//! enumeration and call of the release that crate `nri` declares. It fails by name for the next
//! release.

use std::collections::{BTreeMap, BTreeSet};

use cairn_tests::bins;
use nri::{NRI_VERSION, mask::EVENTS};
use prost_types::{DescriptorProto, EnumDescriptorProto, FileDescriptorProto};

/// The calls of WASM plugins: functions of a module (nri/wasm), not a service of the protocol.
const WASM: [&str; 1] = ["HostFunctions"];
/// Proposed for Go's repository and not in it: pod addresses from plugins (pull request 295).
const PROPOSED: [&str; 3] = [
    "PodSandboxAdjustment",
    "PodSandboxNetwork",
    "RunPodSandboxResponse.adjust",
];
/// Calls that are not events.
const CONTROLS: [&str; 4] = ["Configure", "Synchronize", "Shutdown", "StateChange"];
const OF_THE_RUNTIME: [&str; 2] = ["RegisterPlugin", "UpdateContainers"];

/// The properties of each message, field and value, by its path.
type Facts = BTreeMap<String, String>;

fn message(path: &str, message: &DescriptorProto, into: &mut Facts) {
    let path = format!("{path}{}", message.name());
    into.insert(path.clone(), "message".to_owned());
    for field in &message.field {
        // Only properties of the encoding, and the name: not the position among oneofs or the JSON
        // name.
        let fact = format!(
            "{} {:?} {:?} {} optional={}",
            field.number(),
            field.label(),
            field.r#type(),
            field.type_name(),
            field.proto3_optional()
        );
        into.insert(format!("{path}.{}", field.name()), fact);
    }
    for nested in &message.nested_type {
        self::message(&format!("{path}."), nested, into);
    }
    for nested in &message.enum_type {
        enumeration(&format!("{path}."), nested, into);
    }
}

fn enumeration(path: &str, enumeration: &EnumDescriptorProto, into: &mut Facts) {
    let path = format!("{path}{}", enumeration.name());
    into.insert(path.clone(), "enum".to_owned());
    for value in &enumeration.value {
        into.insert(
            format!("{path}.{}", value.name()),
            value.number().to_string(),
        );
    }
}

fn facts(file: &FileDescriptorProto) -> Facts {
    let mut facts = Facts::new();
    for one in &file.message_type {
        message("", one, &mut facts);
    }
    for one in &file.enum_type {
        enumeration("", one, &mut facts);
    }
    facts
}

/// Describes the missing and the additional properties.
fn differences(ours: &Facts, theirs: &Facts) -> Vec<String> {
    let root = |path: &str| path.split('.').next().unwrap_or_default().to_owned();
    let mut found = Vec::new();
    for (path, fact) in theirs {
        match ours.get(path) {
            _ if WASM.contains(&root(path).as_str()) => {}
            Some(ours) if ours == fact => {}
            Some(ours) => found.push(format!("{path}: {ours} here, {fact} in Go")),
            None => found.push(format!("{path}: not here; {fact} in Go")),
        }
    }
    let here_only = ours.keys().filter(|path| !theirs.contains_key(*path));
    let known = |path: &str| PROPOSED.contains(&&*root(path)) || PROPOSED.contains(&path);
    let here_only = here_only.filter(|path| !known(path));
    found.extend(here_only.map(|path| format!("{path}: not in Go")));
    found
}

fn ours() -> FileDescriptorProto {
    let set = proto_gen::descriptors("nri/nri.proto").expect("it compiles");
    set.file.into_iter().next().expect("one file")
}

fn of_go() -> FileDescriptorProto {
    let proto = bins::shared("nri/api.proto");
    let dir = proto.parent().expect("it is in a directory");
    let set = protox::compile([&proto], [dir]).expect("Go's api.proto compiles");
    set.file.into_iter().next().expect("one file")
}

#[test]
fn the_wire_is_that_of_the_go_module_field_by_field() {
    let (ours, theirs) = (ours(), of_go());
    assert_eq!(ours.package(), theirs.package());
    let (ours, theirs) = (facts(&ours), facts(&theirs));
    assert!(
        theirs.len() > 400,
        "{} facts: is it the file?",
        theirs.len()
    );
    let found = differences(&ours, &theirs);
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    // Checks that the comparison fails for each path, so that it cannot pass without comparing.
    for path in theirs.keys().filter(|path| ours.contains_key(*path)) {
        let mut less = ours.clone();
        less.remove(path);
        assert_eq!(differences(&less, &theirs).len(), 1, "without {path}");
    }
}

#[test]
fn the_calls_are_those_of_the_go_module() {
    let events = EVENTS.iter().map(|(_, name)| *name);
    let plugin: BTreeSet<&str> = events.chain(CONTROLS).collect();
    let mut known = BTreeMap::from([
        ("Plugin", plugin),
        ("Runtime", BTreeSet::from(OF_THE_RUNTIME)),
    ]);
    let go = of_go();
    for service in &go.service {
        if WASM.contains(&service.name()) {
            continue;
        }
        let theirs: BTreeSet<&str> = service.method.iter().map(|m| m.name()).collect();
        assert_eq!(
            known.remove(service.name()),
            Some(theirs),
            "{}",
            service.name()
        );
    }
    assert!(known.is_empty(), "{known:?}");
}

/// The compared module, which the interop tests also use, has the version that we declare.
#[test]
fn the_version_that_plugins_are_told_is_that_of_the_module() {
    let module = bins::repository().join("nri/tests/go/go.mod");
    let module = std::fs::read_to_string(module).expect("the interop tests' go.mod");
    let pinned = module.lines().find_map(|line| {
        let line = line.trim().trim_start_matches("require ");
        line.strip_prefix("github.com/containerd/nri ")
    });
    assert_eq!(pinned, Some(NRI_VERSION));
    let compared = std::fs::read_to_string(bins::shared("nri/version")).expect("text");
    assert_eq!(compared.trim(), NRI_VERSION, "run hack/peers nri-proto");
}
