//! Every scenario of scenarios/ passes by the command in its first line, in a separate shell: for
//! the samples of nri/plugins, and for the Go programs of `hack/peers` (`NRI_WITHOUT_GO=1` skips
//! these).

#[path = "common/programs.rs"]
mod programs;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use programs::{go_program, programs};

/// Scenarios of Go programs; the first is one of our own sample as well.
const GO: [&str; 2] = ["ulimit-adjuster.toml", "nri-logger.toml"];

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// Runs the command of a scenario in the directory of scenarios, with these programs.
fn run(file: &str, dirs: &[&Path]) -> Output {
    let text = fs::read_to_string(scenarios().join(file)).expect("a scenario");
    let first = text.lines().next().unwrap_or_default();
    let command = first.strip_prefix("#   ");
    let command = command.unwrap_or_else(|| panic!("{file} does not begin with its command"));
    let usual = env::var_os("PATH").unwrap_or_default();
    let dirs = dirs.iter().map(|d| d.to_path_buf());
    let path = env::join_paths(dirs.chain(env::split_paths(&usual))).expect("a PATH");
    let shell = Command::new("sh")
        .args(["-ec", command])
        .current_dir(scenarios())
        .env("PATH", path)
        .output();
    shell.expect("a shell")
}

fn assert_held(file: &str, output: &Output) {
    let printed = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{file}: {printed}{errors}");
    assert!(printed.contains("held: "), "{file}: {printed}");
    assert!(
        !printed.contains('\x1b'),
        "no colour outside of a terminal: {printed}"
    );
}

#[test]
fn every_sample_holds_its_scenario() {
    let mut files: Vec<String> = fs::read_dir(scenarios())
        .expect("scenarios")
        .map(|entry| entry.expect("an entry").file_name())
        .filter_map(|name| name.into_string().ok())
        .filter(|name| name.ends_with(".toml") && name != GO[1])
        .collect();
    files.sort();
    assert_eq!(files.len(), 13, "one for each sample: {files:?}");
    for file in files {
        assert_held(&file, &run(&file, &[programs()]));
    }
}

#[test]
fn the_go_programs_hold_theirs() {
    if env::var_os("NRI_WITHOUT_GO").is_some() {
        return;
    }
    for file in GO {
        let program = go_program(file.trim_end_matches(".toml"));
        let bin = program.parent().expect("it lies in a directory");
        assert_held(file, &run(file, &[bin, programs()]));
    }
}
