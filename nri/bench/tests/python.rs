//! The sample in Python: it holds its scenario, and its first bytes are those of docs/wire.md.

mod common;

use std::{
    fs,
    io::Read as _,
    os::unix::net::UnixListener,
    path::{Path, PathBuf},
    process::Command,
};

use common::Bench;

/// The plugin, unless this machine has no Python.
fn labels() -> Option<PathBuf> {
    if Command::new("python3").arg("--version").output().is_err() {
        eprintln!("left out: python3 is not on the PATH");
        return None;
    }
    Some(repository().join("nri/plugins/python/labels.py"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn a_plugin_in_python_without_a_library_holds_its_scenario_launched_and_connected() {
    let Some(labels) = labels() else { return };
    let scenario = fs::read_to_string(labels.with_extension("toml")).expect("its scenario");
    for (flags, words) in [
        (&[][..], vec![labels.clone().into()]),
        (&["--connect"], vec![labels.into(), "{socket}".into()]),
    ] {
        let run = Bench::new().run(&scenario, flags, &words);
        assert_eq!(run.code, 0, "{flags:?}: {}{}", run.text, run.errors);
    }
}

#[test]
fn the_first_bytes_of_the_plugin_in_python_are_those_of_the_page_about_the_wire() {
    let Some(labels) = labels() else { return };
    let page = fs::read_to_string(repository().join("docs/wire.md")).expect("the page");
    // Lines of bytes, each with its meaning behind two spaces.
    let block = page.split("```hex\n").nth(1).expect("a block of bytes");
    let block = block.split("```").next().expect("its end");
    let columns = block.lines().filter_map(|line| line.split("  ").next());
    let bytes: Vec<u8> = columns
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("a byte"))
        .collect();

    let dir = tempfile::tempdir().expect("a directory");
    let socket = dir.path().join("nri.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let mut plugin = Command::new(labels).arg(&socket).spawn().expect("it runs");
    let mut sent = vec![0; bytes.len()];
    let (mut trunk, _) = listener.accept().expect("a connection");
    trunk.read_exact(&mut sent).expect("its first bytes");
    drop(trunk);
    assert_eq!(plugin.wait().expect("it ends").code(), Some(1));
    assert_eq!(sent, bytes);
}
