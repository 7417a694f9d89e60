//! The patches that break the product for tests: `hack/model --mutants` and `hack/contract --violations` build them.

use std::{fs, process::Command};

use cairn_tests::bins::repository;

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
