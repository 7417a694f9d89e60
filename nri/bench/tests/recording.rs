//! The proxy between a runtime and its plugins: the passed bytes, and the recording.

mod common;
#[path = "common/proxy.rs"]
mod proxy;

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    process::Command,
};

use common::Bench;
use nri_record::{Side, What};
use proxy::{Recorder, recorded, until};

#[test]
fn a_life_through_the_proxy_is_on_file_with_every_answer_and_without_a_value_of_a_variable() {
    for (flags, kept) in [(&[][..], false), (&["--with-env"][..], true)] {
        let bench = Bench::new();
        let file = recorded(&bench, "none", flags);
        assert!(
            !bench.path("proxy.sock").exists(),
            "the socket goes with it"
        );
        let text = fs::read_to_string(&file).expect("text");
        assert_eq!(text.contains("s3cret"), kept, "{text}");
        assert!(text.contains(if kept {
            "PASSWORD=s3cret"
        } else {
            "PASSWORD=<redacted>"
        }));
        let recording = nri_record::read(text.as_bytes()).expect("a recording");
        assert_eq!(recording.notes, Vec::<String>::new());
        let mut calls = Vec::new();
        for line in &recording.lines {
            match &line.what {
                What::Request {
                    from,
                    method,
                    unread,
                    message,
                    ..
                } => {
                    assert!(message.is_some() && unread.is_none(), "{line:?}");
                    calls.push((*from, method.clone()));
                }
                What::Answer { error, unread, .. } => {
                    assert!(error.is_none() && unread.is_none(), "{line:?}");
                }
                _ => {}
            }
        }
        let asked = recording
            .lines
            .iter()
            .filter(|l| matches!(l.what, What::Answer { .. }));
        assert_eq!(asked.count(), calls.len(), "every call has its answer");
        assert_eq!(calls[0], (Side::Plugin, "RegisterPlugin".into()));
        let of_runtime = calls[1..].iter().map(|(_, method)| method.as_str());
        let of_runtime: Vec<_> = of_runtime.collect();
        assert_eq!(
            of_runtime,
            [
                "Configure",
                "Synchronize",
                "RunPodSandbox",
                "CreateContainer",
                "StartContainer",
                "StopContainer",
                "StopPodSandbox",
                "RemoveContainer",
                "RemovePodSandbox",
                "Shutdown",
            ]
        );
        let named = recording
            .lines
            .iter()
            .filter(|l| l.plugin.as_deref() == Some("10-broken"));
        assert!(named.count() > 10);
        assert!(matches!(
            recording.lines.last().map(|l| &l.what),
            Some(What::Ended { .. })
        ));
    }
}

#[test]
fn bytes_pass_untouched_also_those_that_are_no_message_and_an_end_is_passed_on_as_an_end() {
    let bench = Bench::new();
    let socket = bench.path("runtime.sock");
    let runtime = UnixListener::bind(&socket).expect("a socket");
    let mut recorder = Recorder::start(&bench, &socket, &["--with-env"]);
    let mut plugin = UnixStream::connect(&recorder.listen).expect("it takes us in");
    let (mut ours, _) = runtime.accept().expect("it connects");
    // Half a frame's header, an unknown connection, an impossible length, and everything after it.
    let noise: Vec<u8> = (0..200_000_u32).map(|n| (n * 7 + n / 256) as u8).collect();
    let (sent, there) = (noise.clone(), noise.clone());
    let writer = std::thread::spawn(move || {
        plugin.write_all(&sent).expect("it is read");
        plugin.shutdown(std::net::Shutdown::Write).expect("open");
        let mut back = Vec::new();
        plugin.read_to_end(&mut back).expect("to its end");
        back
    });
    let mut came = Vec::new();
    ours.read_to_end(&mut came).expect("to its end");
    assert_eq!(came, there);
    // Only one half is closed.
    ours.write_all(b"still here").expect("open");
    drop(ours);
    assert_eq!(writer.join().expect("no panic"), b"still here");
    until("both ends are on file", || {
        let lines = recorder.read().lines;
        lines
            .iter()
            .filter(|l| matches!(l.what, What::Closed { .. }))
            .count()
            == 2
    });
    assert!(recorder.interrupt().success());
    let unread = recorder
        .read()
        .lines
        .into_iter()
        .filter_map(|line| match line.what {
            What::Unread {
                from: Side::Plugin,
                unread,
            } => unread.base64.map(|b| (unread.bytes, b)),
            _ => None,
        });
    let kept: usize = unread.map(|(bytes, _)| bytes).sum();
    assert_eq!(kept, noise.len(), "every byte is on file");
}

#[test]
fn a_runtime_that_is_not_there_or_dies_is_so_for_the_plugin() {
    let bench = Bench::new();
    let socket = bench.path("runtime.sock");
    let mut recorder = Recorder::start(&bench, &socket, &[]);
    let mut plugin = UnixStream::connect(&recorder.listen).expect("it takes us in");
    assert_eq!(plugin.read(&mut [0; 8]).expect("closed"), 0);
    let runtime = UnixListener::bind(&socket).expect("a socket");
    let mut plugin = UnixStream::connect(&recorder.listen).expect("it takes us in");
    drop(runtime.accept().expect("it connects"));
    assert_eq!(plugin.read(&mut [0; 8]).expect("closed"), 0);
    until("the other half closes", || plugin.write_all(b"x").is_err());
    assert!(recorder.interrupt().success());
    let text = fs::read_to_string(&recorder.file).expect("text");
    assert!(text.contains("the runtime does not answer"), "{text}");
}

#[test]
fn what_cannot_be_recorded_into_is_said_in_one_line_before_anything_is_served() {
    let bench = Bench::new();
    let link = bench.path("link");
    std::os::unix::fs::symlink(bench.path("target"), &link).expect("a link");
    for file in [link, bench.path("no/such/dir"), PathBuf::from("/dev/null")] {
        let output = Command::new(env!("CARGO_BIN_EXE_nri-bench"))
            .args(["record", "--listen"])
            .arg(bench.path("s.sock"))
            .arg(&file)
            .output()
            .expect("it runs");
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{printed}");
        assert_eq!(printed.lines().count(), 1, "{printed}");
        assert!(printed.contains(&*file.to_string_lossy()), "{printed}");
        assert!(!bench.path("s.sock").exists());
    }
}
