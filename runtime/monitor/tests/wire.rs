//! The protocol: messages survive encoding and decoding, invalid bytes are rejected, and version 1
//! remains readable.

use cairn_monitor::codec::VERSION;
use cairn_monitor::filter::Filter;
use cairn_monitor::process::{Capabilities, Label, Limit, Process};
use cairn_monitor::record::{CgroupDir, Exit, Join, Launch, Pid};
use cairn_monitor::report::Report;
use cairn_monitor::wire::{Event, ExecRequest, Phase, Request, Streams, split};
use proptest::prelude::*;

fn exec() -> ExecRequest {
    ExecRequest {
        process: Process {
            argv: vec![b"sh".to_vec(), b"-c".to_vec(), b"true".to_vec()],
            env: vec![b"PATH=/bin".to_vec()],
            cwd: b"/".to_vec(),
            uid: 1000,
            gid: 1001,
            groups: vec![7, 8],
            umask: 0o22,
            capabilities: Capabilities {
                bounding: 1,
                effective: 2,
                permitted: 3,
                inheritable: 4,
                ambient: 1 << 40,
            },
            no_new_privileges: true,
            seccomp: true,
            limits: vec![Limit {
                resource: 7,
                soft: 512,
                hard: u64::MAX,
            }],
            oom_score_adj: -998,
            label: Some(Label::AppArmor(b"profile".to_vec())),
        },
        tty: true,
        stdin: true,
        window: Some((80, 24)),
        timeout_ms: 1500,
    }
}

fn requests() -> Vec<Request> {
    vec![
        Request::Create,
        Request::Start,
        Request::Kill {
            signal: 15,
            all: true,
        },
        Request::Exec(Box::new(exec())),
        Request::ExecKill { session: 3 },
        Request::Resize {
            columns: 80,
            rows: 24,
        },
        Request::Attach {
            stdin: true,
            stdout: true,
            stderr: false,
        },
        Request::Detach { attach_id: 9 },
        Request::ReopenLog,
        Request::Delete,
    ]
}

fn exit() -> Exit {
    Exit {
        code: 137,
        signal: 9,
        finished_at: 1_767_323_045_000_000_006,
        oom_killed: true,
        started: true,
        log_lost: 12,
    }
}

fn events() -> Vec<Event> {
    let streams = Streams {
        stdin: true,
        stdout: true,
        stderr: true,
        master: false,
    };
    vec![
        Event::Hello {
            version: VERSION,
            phase: Phase::Exited,
            pid: 42,
            start_time: 77,
            exit: Some(exit()),
        },
        Event::Hello {
            version: VERSION,
            phase: Phase::Empty,
            pid: 0,
            start_time: 0,
            exit: None,
        },
        Event::Created {
            pid: 42,
            start_time: 77,
        },
        Event::Done,
        Event::Failed {
            text: "exec \"nope\": not found".to_owned(),
        },
        Event::ExecStarted {
            session: 3,
            pid: 43,
            streams,
        },
        Event::ExecExited {
            session: 3,
            code: 137,
            signal: 9,
            timed_out: true,
        },
        Event::Attached {
            attach_id: 9,
            streams,
        },
        Event::Exited(exit()),
    ]
}

/// The frames of every message, one after the other: requests, then events.
fn conversation() -> Vec<u8> {
    let requests = requests().into_iter().zip(1..).map(|(r, id)| r.encode(id));
    let events = events().into_iter().zip(1..).map(|(e, id)| e.encode(id));
    requests.chain(events).flatten().collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes
        .chunks(32)
        .map(|c| c.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n")
        .collect()
}

#[test]
fn version_1_is_as_it_was_recorded() {
    // A monitor lives as long as its container. A change to these bytes must raise VERSION and keep
    // decoding version 1. Record a new file only for a new version (its text is the output of
    // `hex(&conversation())`).
    assert_eq!(
        hex(&conversation()),
        include_str!("fixtures/v1.conversation")
    );
}

#[test]
fn every_message_comes_back_as_it_was_sent() {
    let bytes = conversation();
    let mut rest = &bytes[..];
    for (request, id) in requests().into_iter().zip(1..) {
        let f = split(rest).expect("frame").expect("whole");
        assert_eq!(
            (f.id, Request::decode(f.kind, f.payload)),
            (id, Ok(request))
        );
        rest = &rest[f.size..];
    }
    for (event, id) in events().into_iter().zip(1..) {
        let f = split(rest).expect("frame").expect("whole");
        assert_eq!((f.id, Event::decode(f.kind, f.payload)), (id, Ok(event)));
        rest = &rest[f.size..];
    }
    assert!(rest.is_empty());
}

#[test]
fn a_greeting_of_another_version_is_recognised_by_its_version_alone() {
    let Ok(Event::Hello { version: 2, .. }) = Event::decode(1, &[2, 0, 99, 98, 97]) else {
        panic!("not recognised");
    };
}

#[test]
fn a_frame_that_is_not_whole_waits_and_one_out_of_bounds_is_refused() {
    let frame = Request::Exec(Box::new(exec())).encode(7);
    for n in 0..frame.len() {
        assert_eq!(split(&frame[..n]), Ok(None), "{n} bytes");
    }
    assert!(split(&[0, 0, 0, 0, 1, 1, 1, 1, 1]).is_err());
    assert!(split(&[0xff; 9]).is_err());
}

#[test]
fn the_files_on_disk_come_back_as_they_were_written() {
    assert_eq!(Exit::from_text(&exit().to_text()), Ok(exit()));
    let pid = Pid {
        pid: 42,
        start_time: 77,
        boot_id: "b-o-o-t".to_owned(),
        monitor: 41,
    };
    assert_eq!(
        pid.to_text(),
        "version=1\npid=42\nstart_time=77\nboot_id=b-o-o-t\nmonitor=41\n"
    );
    assert_eq!(Pid::from_text(&pid.to_text()), Ok(pid));
    let join = "version=1\npid=42\nstart_time=77\nprocfs=/run/cairn/pods/a/proc\n";
    assert_eq!(
        Join::from_text(join).map(|join| join.to_text()),
        Ok(join.to_owned())
    );
    let keys: Vec<_> = exit()
        .to_text()
        .lines()
        .filter_map(|line| line.split('=').next().map(str::to_owned))
        .collect();
    assert_eq!(
        keys,
        [
            "version",
            "code",
            "signal",
            "finished_at",
            "oom_killed",
            "started",
            "log_lost"
        ]
    );
    assert!(Exit::from_text("version=2\ncode=0\n").is_err());
    assert!(Exit::from_text("").is_err());
    let launch = Launch {
        id: "a".to_owned(),
        create: "/run/bin/cairn-create".to_owned(),
        cgroups: vec![CgroupDir {
            controller: "cpu".to_owned(),
            path: "/sys/fs/cgroup/cpu/a".to_owned(),
        }],
        tty: false,
        stdin: true,
        stdin_once: false,
        log_path: Some("/var/log/a".to_owned()),
        max_log_line: 16384,
        seccomp_cache: "/run/seccomp".to_owned(),
    };
    assert_eq!(Launch::decode(&launch.encode()), Ok(launch));
    let filter = Filter {
        flags: 2,
        profile: b"{}".to_vec(),
        program: vec![6, 0, 0, 0, 0, 0, 255, 127],
    };
    assert_eq!(Filter::decode(&filter.encode()), Ok(filter.clone()));
    assert_eq!(filter.instructions().len(), 1);
    assert!(
        Filter::decode(
            &Filter {
                program: vec![1; 7],
                ..filter
            }
            .encode()
        )
        .is_err()
    );
}

#[test]
fn arguments_and_environment_stay_out_of_what_is_printed() {
    let printed = format!("{:?}", exec());
    assert!(
        !printed.contains("PATH") && !printed.contains("true]"),
        "{printed}"
    );
}

#[test]
fn a_long_report_is_cut_between_characters() {
    let Some(Report::Error(text)) = Report::decode(&Report::Error("é".repeat(4000)).encode())
    else {
        panic!("not an error");
    };
    assert!(text.len() > 4000 && text.chars().all(|c| c == 'é'));
}

proptest! {
    #[test]
    fn hostile_bytes_never_panic(kind in 0u8..16, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _any = Request::decode(kind, &bytes);
        let _any = Event::decode(kind, &bytes);
        let _any = Launch::decode(&bytes);
        let _any = Filter::decode(&bytes);
        let _any = Report::decode(&bytes);
        let _any = split(&bytes);
        let _any = Exit::from_text(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn a_damaged_exec_is_refused_or_another_exec(at in 0usize..150, value in any::<u8>()) {
        let mut frame = Request::Exec(Box::new(exec())).encode(1);
        let at = 9 + at % (frame.len() - 9);
        frame[at] = value;
        if let Ok(request) = Request::decode(4, &frame[9..]) {
            prop_assert_eq!(&request.encode(1), &frame);
        }
    }
}
