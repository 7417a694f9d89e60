//! The invariants of ARCHITECTURE.md that a machine can check, over `cargo metadata` and the
//! sources. A broken one names the file and line, or the dependency.

mod documents;
mod patches;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

use cairn_tests::bins::repository;
use serde_json::Value;

/// Returns the platform for which cargo builds.
fn host() -> String {
    let output = Command::new(env!("CARGO")).arg("-vV").output();
    let printed = String::from_utf8(output.expect("cargo runs").stdout).expect("text");
    let host = printed.lines().find_map(|line| line.strip_prefix("host: "));
    host.expect("cargo names its host").to_owned()
}

/// Returns `cargo metadata` resolved for this platform: the crates of other platforms may not be on
/// this machine.
fn metadata() -> &'static Value {
    static METADATA: OnceLock<Value> = OnceLock::new();
    METADATA.get_or_init(|| {
        let output = Command::new(env!("CARGO"))
            .args(["metadata", "--format-version=1", "--locked", "--offline"])
            .args(["--filter-platform", &host()])
            .current_dir(repository())
            .output()
            .expect("cargo runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo metadata: {printed}");
        serde_json::from_slice(&output.stdout).expect("metadata is JSON")
    })
}

fn text<'v>(value: &'v Value, field: &str) -> &'v str {
    value[field].as_str().unwrap_or_default()
}

fn list<'v>(value: &'v Value, field: &str) -> &'v [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// Returns the packages that a package is linked with: its normal dependencies, by package id.
fn normal_dependencies(node: &Value) -> Vec<&str> {
    let normal = |dep: &&Value| {
        let kinds = list(dep, "dep_kinds");
        kinds.iter().any(|kind| kind["kind"].is_null())
    };
    let deps = list(node, "deps").iter().filter(normal);
    deps.map(|dep| text(dep, "pkg")).collect()
}

/// Package id → name.
fn names() -> BTreeMap<&'static str, &'static str> {
    let packages = list(metadata(), "packages").iter();
    packages.map(|p| (text(p, "id"), text(p, "name"))).collect()
}

fn nodes() -> &'static [Value] {
    list(&metadata()["resolve"], "nodes")
}

/// Returns the names of the packages that one of ours is linked with directly.
fn direct(package: &str) -> BTreeSet<&'static str> {
    let names = names();
    let own = |node: &&Value| names[text(node, "id")] == package;
    let node = nodes().iter().find(own);
    let node = node.unwrap_or_else(|| panic!("no package is called {package}"));
    let deps = normal_dependencies(node).into_iter();
    deps.map(|id| names[id]).collect()
}

/// Returns the names of all packages that are linked into one of ours.
fn tree(package: &str) -> BTreeSet<&'static str> {
    let names = names();
    let by_id: BTreeMap<&str, &Value> = nodes().iter().map(|n| (text(n, "id"), n)).collect();
    let start = nodes().iter().find(|n| names[text(n, "id")] == package);
    let mut todo = vec![text(
        start.unwrap_or_else(|| panic!("no package is called {package}")),
        "id",
    )];
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(normal_dependencies(by_id[id]));
        }
    }
    seen.into_iter().map(|id| names[id]).collect()
}

/// A line of source that is code: not a comment, not in a module of tests.
struct Line {
    place: String,
    code: String,
}

/// Returns the code below a path of the repository, which must exist.
fn code(path: &str) -> Vec<Line> {
    fn files(path: &Path, into: &mut Vec<PathBuf>) {
        if path.is_dir() {
            for entry in fs::read_dir(path).expect("a directory").flatten() {
                files(&entry.path(), into);
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            into.push(path.to_path_buf());
        }
    }
    let root = repository();
    let mut all = Vec::new();
    assert!(
        root.join(path).exists(),
        "{path} is not there: has it moved?"
    );
    files(&root.join(path), &mut all);
    assert!(!all.is_empty(), "{path} holds no source: has it moved?");
    all.sort();
    let mut lines = Vec::new();
    for file in all {
        let name = file.strip_prefix(&root).expect("below the root").display();
        let source = fs::read_to_string(&file).expect("a source file is text");
        for (at, line) in source.lines().enumerate() {
            if line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test") {
                break;
            }
            let line = line.trim();
            if !line.starts_with("//") {
                lines.push(Line {
                    place: format!("{name}:{}", at + 1),
                    code: line.to_owned(),
                });
            }
        }
    }
    lines
}

/// Whether a line contains a word on its own, not as part of a longer one.
fn has_word(line: &str, word: &str) -> bool {
    let inner = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(inner) && !after.is_some_and(inner)
    })
}

/// Fails if code below `paths`, except in `except`, contains one of the words.
fn absent(paths: &[&str], words: &[&str], except: &[&str]) {
    let mut found = Vec::new();
    for line in paths.iter().flat_map(|path| code(path)) {
        let allowed = except.iter().any(|e| line.place.starts_with(e));
        if !allowed && words.iter().any(|word| has_word(&line.code, word)) {
            found.push(format!("{}: {}", line.place, line.code));
        }
    }
    assert!(
        found.is_empty(),
        "only {except:?} may say {words:?}:\n{}",
        found.join("\n")
    );
}

#[test]
fn the_wire_crates_have_no_logic() {
    for package in ["proto/cri", "proto/nri", "proto/cairn"] {
        let path = format!("{package}/src");
        let functions: Vec<_> = code(&path)
            .into_iter()
            .filter(|l| has_word(&l.code, "fn") || has_word(&l.code, "impl"))
            .map(|l| l.place)
            .collect();
        assert!(functions.is_empty(), "logic in {package}: {functions:?}");
    }
}

/// Returns ARCHITECTURE.md's table of packages: each with its permitted dependencies; `None` if any
/// are permitted.
fn packages() -> BTreeMap<String, Option<Vec<String>>> {
    let text = fs::read_to_string(repository().join("ARCHITECTURE.md")).expect("it is there");
    let (_, rows) = text
        .split_once("| package | directory | may use of ours |\n|---|---|---|\n")
        .expect("ARCHITECTURE.md has its table of packages");
    let mut packages = BTreeMap::new();
    for row in rows.lines().take_while(|line| line.starts_with('|')) {
        let [_, names, _, below, _] = row.split('|').collect::<Vec<_>>()[..] else {
            panic!("a row of three cells: {row}");
        };
        // Text in parentheses is for readers.
        let names = names.split('(').next().unwrap_or_default();
        let words = |cell: &str| cell.split(',').map(|name| name.trim().to_owned()).collect();
        let below = match below.trim() {
            "nothing" => Some(Vec::new()),
            anything if anything.starts_with("anything") => None,
            some => Some(words(some)),
        };
        for name in words(names) {
            packages.insert(name, below.clone());
        }
    }
    packages
}

#[test]
fn imports_point_down_only() {
    let packages = packages();
    let members = list(metadata(), "workspace_members").iter();
    let names = names();
    let members: BTreeSet<&str> = members
        .filter_map(|id| names.get(id.as_str()?).copied())
        .collect();
    let listed: BTreeSet<&str> = packages.keys().map(String::as_str).collect();
    assert_eq!(
        members, listed,
        "the workspace, and ARCHITECTURE.md's table of it"
    );
    for (package, below) in &packages {
        let Some(below) = below else { continue };
        for dependency in direct(package).intersection(&listed) {
            assert!(
                below.iter().any(|name| name == dependency),
                "{package} must not depend on {dependency}"
            );
        }
    }
}

#[test]
fn the_monitor_is_free_of_tokio_tonic_and_libcontainer() {
    let tree = tree("cairn-monitor");
    for heavy in ["tokio", "tonic", "libcontainer", "ttrpc", "prost"] {
        assert!(
            !tree.contains(heavy),
            "cairn-monitor is linked with {heavy}"
        );
    }
}

#[test]
fn only_the_create_helper_depends_on_libcontainer() {
    let names = names();
    let users: Vec<_> = nodes()
        .iter()
        .filter(|node| {
            let deps = normal_dependencies(node);
            deps.iter().any(|id| names[id] == "libcontainer")
        })
        .map(|node| names[text(node, "id")])
        .collect();
    assert_eq!(users, ["cairn-create"]);
    absent(
        &["runtime", "nri/src", "cni-shim/src"],
        &["libcontainer"],
        &["runtime/create/"],
    );
}

#[test]
fn only_the_hooks_file_calls_nri_dispatch() {
    let dispatch = [
        "run_pod_sandbox",
        "update_pod_sandbox",
        "post_update_pod_sandbox",
        "stop_pod_sandbox",
        "remove_pod_sandbox",
        "create_container",
        "post_create_container",
        "start_container",
        "post_start_container",
        "update_container",
        "post_update_container",
        "stop_container",
        "remove_container",
    ];
    // In the daemon these names belong to the hooks file, to the RPCs, and to the pod's own steps.
    // A call is a dispatch if its file also names the nri crate's adaptation.
    let mut found = Vec::new();
    let mut by_file: BTreeMap<String, Vec<Line>> = BTreeMap::new();
    for line in code("runtime/src") {
        let file = line.place.split(':').next().unwrap_or_default().to_owned();
        by_file.entry(file).or_default().push(line);
    }
    for (file, lines) in &by_file {
        let knows = lines.iter().any(|l| has_word(&l.code, "Adaptation"));
        if knows && file != "runtime/src/pod/hooks.rs" {
            let calls = lines.iter().filter(|l| {
                let called = |name: &str| l.code.contains(&format!(".{name}("));
                dispatch.into_iter().any(called)
            });
            found.extend(calls.map(|l| format!("{}: {}", l.place, l.code)));
        }
    }
    assert!(
        by_file.contains_key("runtime/src/pod/hooks.rs"),
        "pod/hooks.rs has moved"
    );
    assert!(
        found.is_empty(),
        "dispatch outside of pod/hooks.rs:\n{}",
        found.join("\n")
    );
}

#[test]
fn only_one_file_chooses_grpc_codes() {
    absent(
        &["runtime/src"],
        &[
            "tonic::Code",
            "Code::NotFound",
            "Code::InvalidArgument",
            "Code::Unknown",
            "Code::Internal",
        ],
        &["runtime/src/cri/status.rs"],
    );
}

#[test]
fn only_one_room_names_ttrpc() {
    absent(
        &["nri/src", "runtime/src"],
        &["ttrpc"],
        &["nri/src/wire/rpc/"],
    );
}

#[test]
fn the_pure_modules_do_no_io_and_take_no_clock() {
    absent(
        &[
            "runtime/src/oci",
            "runtime/src/pod/admit.rs",
            "nri/src/policy.rs",
            "nri/src/merge",
            "nri/src/owners.rs",
            "nri/src/adjust.rs",
            "nri/src/read.rs",
        ],
        &[
            "std::fs",
            "fs::read",
            "fs::write",
            "std::net",
            "std::process",
            "env::var",
            "env::args",
            "env::current_dir",
            "tokio",
            "rustix",
            "libc",
            "Instant",
            "SystemTime",
            "println",
            "File",
            // Also the name of a mount option.
            "async fn",
            "async move",
            "async {",
        ],
        &[],
    );
}

/// Clippy keeps calls with paths out of the other files of init; these reach a root by a descriptor.
#[test]
fn only_one_file_looks_up_paths_in_a_root() {
    absent(
        &["runtime/create/src", "runtime/src"],
        &["attach_on", "rooted::make", "open_direct", "pivot_root"],
        &["runtime/create/src/root.rs", "runtime/src/detached.rs"],
    );
    // An inner attribute in main.rs would be one of the complete program.
    let of_file = |line: &Line| line.code.starts_with("#![") || line.code.starts_with("clippy::");
    let exempt: BTreeSet<String> = code("runtime/create/src")
        .into_iter()
        .filter(|line| line.code.contains("disallowed_methods") && of_file(line))
        .map(|line| {
            let place = line.place.rsplit('/').next().unwrap_or_default();
            place.split(':').next().unwrap_or_default().to_owned()
        })
        .collect();
    let allowed = [
        "hooks.rs",
        "host_proc.rs",
        "idmap.rs",
        "join.rs",
        "place.rs",
        "profile.rs",
        "reports.rs",
        "root.rs",
    ];
    let allowed: BTreeSet<String> = allowed.map(str::to_owned).into();
    assert_eq!(exempt, allowed, "files of cairn-create that use paths");
}

/// The kernel, the record and the spec have the same resources, and an exit is reported until it is
/// known, because one file does it.
#[test]
fn only_its_owner_changes_the_resources_and_the_exit_of_a_container() {
    let pod = |file: &str| format!("runtime/src/pod/{file}.rs");
    for (words, owners) in [
        (
            &[".resources.take(", ".change(resources"][..],
            &["resources"][..],
        ),
        (&[".set_up("], &["resources", "pause", "start_container"]),
        (&["specs.write("], &["resources", "create_container"]),
        (&["Op::Exited(ending)"], &["container_exit", "driver"]),
        (
            &["phase = ContainerPhase::Exited"],
            &["container_exit", "start_container"],
        ),
    ] {
        let owners: Vec<String> = owners.iter().map(|file| pod(file)).collect();
        let owners: Vec<&str> = owners.iter().map(String::as_str).collect();
        absent(&["runtime/src"], words, &owners);
    }
}

/// Modules that may block are exempt from clippy's bans, all of which apply together.
#[test]
fn rooms_that_may_block_keep_the_other_bans() {
    let words = [
        "SystemTime",
        "unbounded_channel",
        "block_in_place",
        "set_var",
        "remove_var",
        "pre_exec",
    ];
    absent(&["runtime/src"], &words, &["runtime/src/clock.rs"]);
}

#[test]
fn unsafe_code_is_only_where_it_is_declared() {
    let allowed = [
        "runtime/monitor/src/create.rs",
        "runtime/monitor/src/mount_tree.rs",
        "runtime/monitor/src/joiner.rs",
        "runtime/monitor/src/pause.rs",
        "runtime/monitor/src/sys/raw.rs",
        "runtime/monitor/src/tail.rs",
        "runtime/create/",
        "cni-shim/src/namespaces/make.rs",
        "runtime/src/cgroup/bpf.rs",
        "runtime/src/detached.rs",
        "runtime/src/memory.rs",
    ];
    let trees = [
        "runtime",
        "nri/src",
        "nri/plugins",
        "cni-shim/src",
        "tests/src",
        "proto",
    ];
    let (mut found, mut used) = (Vec::new(), BTreeSet::new());
    for line in trees.iter().flat_map(|tree| code(tree)) {
        let starts = ["unsafe {", "unsafe fn", "unsafe impl", "unsafe extern"];
        if !starts.iter().any(|start| line.code.contains(start)) {
            continue;
        }
        match allowed.iter().find(|place| line.place.starts_with(*place)) {
            Some(place) => drop(used.insert(*place)),
            None => found.push(format!("{}: {}", line.place, line.code)),
        }
    }
    let unused: Vec<_> = allowed.iter().filter(|a| !used.contains(*a)).collect();
    assert!(unused.is_empty(), "no unsafe code is left in {unused:?}");
    assert!(
        found.is_empty(),
        "unsafe code elsewhere than {allowed:?}:\n{}",
        found.join("\n")
    );
}
