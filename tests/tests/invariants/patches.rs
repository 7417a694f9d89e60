//! The patches that break the product for tests, which `hack/model --mutants` and
//! `hack/contract --violations` build; and the patches of third-party crates in the product.

use std::{fs, path::Path, process::Command};

use cairn_tests::bins::repository;
use sha2::{Digest as _, Sha256};

#[test]
fn each_patch_applies_to_the_sources() {
    for directory in ["nri/tests/sim/mutants", "tests/violations"] {
        let mut patches = 0;
        for entry in fs::read_dir(repository().join(directory)).expect("a directory") {
            let path = entry.expect("an entry").path();
            let git = Command::new("git")
                .args(["apply", "--check"])
                .arg(&path)
                .current_dir(repository())
                .output()
                .expect("git starts");
            let why = String::from_utf8_lossy(&git.stderr);
            assert!(git.status.success(), "{}: {why}", path.display());
            patches += 1;
        }
        assert!(patches >= 20, "{directory} has {patches} patches");
    }
}

/// Returns the number of files of a directory that differ from upstream's, by the list `h2.sha256`;
/// an unlisted file differs.
fn differing(crate_dir: &Path) -> Vec<String> {
    let sums = fs::read_to_string(repository().join("hack/patches/h2.sha256")).expect("a list");
    let listed: Vec<_> = sums
        .lines()
        .filter_map(|line| line.split_once("  "))
        .collect();
    let found = Command::new("find")
        .args([".", "-type", "f", "-printf", "%P\n"])
        .current_dir(crate_dir)
        .output();
    let found = String::from_utf8(found.expect("find starts").stdout).expect("text");
    let sum = |file: &str| {
        let bytes = fs::read(crate_dir.join(file)).unwrap_or_default();
        Sha256::digest(bytes)
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let differs = |file: &&str| !listed.contains(&(sum(file).as_str(), file));
    let missing = listed
        .iter()
        .map(|(_, file)| *file)
        .filter(|file| !found.lines().any(|name| name == *file));
    found
        .lines()
        .chain(missing)
        .filter(differs)
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_copy_of_h2_is_upstreams_with_our_patch_and_nothing_else() {
    let patches = repository().join("hack/patches");
    assert_eq!(differing(&patches.join("h2")), ["src/server.rs"]);
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().canonicalize().expect("it is there");
    let parent = place.parent().expect("its parent");
    let run = |program: &str, args: &[&str]| {
        let done = Command::new(program)
            .args(args)
            .current_dir(&place)
            // In a repository, git ignores paths outside the current directory.
            .env("GIT_CEILING_DIRECTORIES", parent)
            .output()
            .expect("it starts");
        assert!(done.status.success(), "{program} {args:?}: {done:?}");
    };
    run(
        "cp",
        &["-r", &patches.join("h2").display().to_string(), "h2"],
    );
    let patch = patches.join("h2.patch").display().to_string();
    run("git", &["apply", "--reverse", "--directory=h2", &patch]);
    assert_eq!(differing(&dir.path().join("h2")), [""; 0]);
}

/// A newer h2 in a lock file would be built without the patch.
#[test]
fn the_workspaces_are_built_with_the_patched_h2_alone() {
    for file in ["Cargo.lock", "runtime/fuzz/Cargo.lock"] {
        let lock = fs::read_to_string(repository().join(file)).expect("a lock file");
        let packages = lock
            .split("[[package]]")
            .filter(|package| package.contains("\nname = \"h2\"\n"));
        let sources: Vec<_> = packages
            .map(|package| package.contains("source = "))
            .collect();
        assert_eq!(sources, [false], "h2 of the registry in {file}");
    }
}
