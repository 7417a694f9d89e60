//! The sample in Python: it passes its scenario, and its first bytes are those of docs/wire.md.

mod common;

use std::{
    fs,
    io::Read as _,
    os::unix::net::{UnixListener, UnixStream},
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::{Duration, Instant},
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

/// The time limit of the plugin for one step.
const PATIENCE: Duration = Duration::from_secs(20);

/// Kills the plugin at the end of the test, also when it fails.
struct Started(Child);

impl Started {
    /// Accepts its connection; fails if it ends before it connects, or is late.
    fn connects(&mut self, listener: &UnixListener) -> UnixStream {
        let deadline = Instant::now() + PATIENCE;
        listener.set_nonblocking(true).expect("a socket");
        loop {
            if let Ok((trunk, _)) = listener.accept() {
                trunk.set_nonblocking(false).expect("a connection");
                trunk.set_read_timeout(Some(PATIENCE)).expect("a timeout");
                return trunk;
            }
            let ended = self.0.try_wait().expect("its state");
            assert_eq!(ended, None, "it ended before it connected");
            assert!(Instant::now() < deadline, "it does not connect");
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// The code that it exits with.
    fn ends(&mut self) -> Option<i32> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().expect("its state") {
                return status.code();
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn the_first_bytes_of_the_plugin_in_python_are_those_of_the_page_about_the_wire() {
    let Some(labels) = labels() else { return };
    let page = fs::read_to_string(repository().join("docs/wire.md")).expect("the page");
    // Lines of bytes, each with its meaning after two spaces.
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
    let plugin = Command::new(labels).arg(&socket).spawn();
    let mut plugin = Started(plugin.expect("it runs"));
    let mut sent = vec![0; bytes.len()];
    let mut trunk = plugin.connects(&listener);
    trunk.read_exact(&mut sent).expect("its first bytes");
    drop(trunk);
    assert_eq!(plugin.ends(), Some(1));
    assert_eq!(sent, bytes);
}
