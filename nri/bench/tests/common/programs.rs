//! The plugins for replays: our samples, and Go's.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the directory of nri-bench and the samples, which are built if missing.
pub(crate) fn programs() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let bench = Path::new(env!("CARGO_BIN_EXE_nri-bench"));
        let dir = bench.parent().expect("it lies in a directory").to_owned();
        if !dir.join("template").is_file() {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "nri-plugins"]);
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.status().expect("cargo runs").success());
        }
        dir
    })
}

/// A program that `hack/peers` has built.
pub(crate) fn go_program(name: &str) -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let peers = env::var_os("CAIRN_PEERS");
    let peers = peers.map_or_else(|| repository.join("target/peers"), PathBuf::from);
    let program = peers.join("bin").join(name);
    assert!(
        program.is_file(),
        "{} is not there: hack/peers nri-logger nri-samples builds it; NRI_WITHOUT_GO=1 leaves this out",
        program.display()
    );
    program
}
