//! Directories of the programs under test and of their peers.
//!
//! `hack/test` builds once and sets `CAIRN_BIN_DIR`. Without it, after a bare `cargo test`, the
//! programs are built here, once per test binary.

use std::{
    env, fs, iter,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// These programs belong together; `cairn` expects the other two beside itself.
const PROGRAMS: [&str; 3] = ["cairn", "cairn-monitor", "cairn-create"];

/// The repository's root.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("tests/ is in the repository")
        .to_path_buf()
}

/// The directory with `cairn`, `cairn-monitor` and `cairn-create`.
///
/// # Panics
/// If they are missing and cannot be built.
pub fn dir() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = match env::var_os("CAIRN_BIN_DIR") {
            Some(dir) => PathBuf::from(dir),
            None => build(),
        };
        for program in PROGRAMS {
            assert!(
                dir.join(program).is_file(),
                "{program} is not in {}: run hack/test, or unset CAIRN_BIN_DIR",
                dir.display()
            );
        }
        dir
    })
}

/// `cairn` itself.
pub fn cairn() -> PathBuf {
    dir().join("cairn")
}

/// Builds the programs with the profile of this test binary; returns the target directory.
fn build() -> PathBuf {
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--workspace", "--all-targets"])
        // The choice of hack/test: another one would rebuild shared packages.
        .args(["--features", "cairn/fault"]);
    // The helpers are static programs, which cargo alone does not make.
    let mut helpers = Command::new("hack/build");
    if cfg!(debug_assertions) {
        helpers.arg("--dev");
    } else {
        cargo.arg("--release");
    }
    helpers.arg("helpers");
    for mut step in [cargo, helpers] {
        let status = step.current_dir(repository()).status();
        let done = status.is_ok_and(|status| status.success());
        assert!(done, "building the programs under test failed: {step:?}");
    }
    target_dir()
}

/// `target/<profile>`, the directory of this test binary.
fn target_dir() -> PathBuf {
    let own = env::current_exe().expect("this test has a path");
    own.ancestors()
        .find(|dir| dir.join("deps").is_dir())
        .expect("test binaries lie in target/<profile>/deps")
        .to_path_buf()
}

/// A program of one of the workspace's packages, such as the yard or a sample plugin.
///
/// # Panics
/// If it was not built.
pub fn built(program: &str) -> PathBuf {
    let given = env::var_os("CAIRN_BIN_DIR").map(PathBuf::from);
    given
        .into_iter()
        .chain(iter::once_with(target_dir))
        .map(|dir| dir.join(program))
        .find(|path| path.is_file())
        .unwrap_or_else(|| panic!("{program} is not built: run hack/test, or cargo build"))
}

/// A peer that `hack/peers` installed.
///
/// # Panics
/// If it is missing, with the command that installs it.
pub fn peer(program: &str) -> PathBuf {
    of_peers("bin", program)
}

/// A file of a peer that `hack/peers` fetched.
///
/// # Panics
/// As [`peer`].
pub fn shared(file: &str) -> PathBuf {
    of_peers("share", file)
}

/// The directory in which `hack/peers` installs its programs.
pub fn peers() -> PathBuf {
    env::var_os("CAIRN_PEERS").map_or_else(|| repository().join("target/peers"), PathBuf::from)
}

fn of_peers(kind: &str, name: &str) -> PathBuf {
    let peers = peers();
    let path = peers.join(kind).join(name);
    assert!(
        path.is_file(),
        "{name} is not in {}: run hack/peers",
        peers.display()
    );
    path
}

/// A program of the system, found like in a shell.
pub fn system(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|dir| dir.join(program))
        .find(|candidate| fs::metadata(candidate).is_ok_and(|m| m.is_file()))
}
