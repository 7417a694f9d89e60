//! Golden pictures at 80 and 120 columns, and invariants for arbitrary events.

use super::*;
use crate::trace::{Action, Changed, Life, Outcome, SCHEMA, Subject, Values};
use proptest::prelude::*;

const START: i64 = 1_795_229_467_120_000_000;

struct Script {
    events: Vec<Event>,
    now_ms: u64,
    subject: Subject,
}

impl Script {
    fn at(&mut self, ms: u64, what: impl Into<What>) -> &mut Self {
        self.now_ms = ms;
        self.events.push(Event {
            schema: SCHEMA,
            seq: self.events.len() as u64 + 1,
            wall_ns: START + ms as i64 * 1_000_000,
            mono_ns: 5_000_000_000 + ms * 1_000_000,
            subject: self.subject.clone(),
            what: what.into(),
        });
        self
    }

    fn who(&mut self, subject: Subject) -> &mut Self {
        self.subject = subject;
        self
    }

    fn point(&mut self, ms: u64, point: &str, hook: &str) -> &mut Self {
        let (point, hook) = (point.to_owned(), hook.to_owned());
        self.at(ms, What::Point { point, hook })
    }

    fn passed(&mut self, ms: u64, hook: &str, aborted: Option<&str>) -> &mut Self {
        let (hook, aborted) = (hook.to_owned(), aborted.map(str::to_owned));
        self.at(
            ms,
            What::Passed {
                hook,
                took_ns: 1,
                aborted,
            },
        )
    }

    fn plugin(
        &mut self,
        hook: &str,
        plugin: &str,
        outcome: Outcome,
        changed: &[&str],
    ) -> &mut Self {
        let what = What::Plugin {
            hook: hook.to_owned(),
            plugin: plugin.to_owned(),
            outcome,
            took_ns: 420_000,
            adjusted: !changed.is_empty(),
            changed: changed.iter().map(|c| (*c).to_owned()).collect(),
            values: Values::default(),
            updates: u32::from(hook == "CreateContainer" && !changed.is_empty()),
            evictions: 0,
            left_out: Vec::new(),
        };
        self.at(self.now_ms, what)
    }
}

fn call(subject: &Subject, name: &str) -> Subject {
    subject.clone().during(name)
}

/// A pod with two containers and two plugins from its first event to its last.
fn life() -> Vec<Event> {
    let pod = Subject::pod("3f2a9c1d0e4b5a6978", "default", "web");
    let app = pod.clone().container("c1c1c1", "app");
    let mut script = Script {
        events: Vec::new(),
        now_ms: 0,
        subject: Subject::daemon(),
    };
    let version = "0.1.0".to_owned();
    script.at(0, Action::DaemonStarted { version });
    let plugin = "10-logger".to_owned();
    let life = Life::Synchronized {
        pods: 0,
        containers: 0,
        took: std::time::Duration::from_micros(900),
    };
    script.at(4, What::PluginLife { plugin, life });
    script
        .who(call(&pod, "RunPodSandbox"))
        .at(100, What::CallBegun)
        .at(103, Action::Namespaces)
        .at(
            112,
            Action::Network {
                ips: vec!["10.88.0.5".to_owned(), "fd00::5".to_owned()],
            },
        )
        .point(113, "C-01", "RunPodSandbox")
        .plugin("RunPodSandbox", "10-logger", Outcome::Answered, &[])
        .plugin(
            "RunPodSandbox",
            "90-device-injector",
            Outcome::NotSubscribed,
            &[],
        )
        .passed(114, "RunPodSandbox", None)
        .at(114, Action::Ready)
        .at(
            115,
            What::CallEnded {
                took_ns: 15_200_000,
                error: None,
            },
        );
    let changes = [
        "annotation demo",
        "env DEMO",
        "mount /data",
        "device /dev/fuse",
        "rlimit RLIMIT_NOFILE",
    ];
    script
        .who(call(&app, "CreateContainer"))
        .at(200, What::CallBegun)
        .point(201, "C-04", "CreateContainer")
        .plugin("CreateContainer", "10-logger", Outcome::Answered, &[])
        .plugin(
            "CreateContainer",
            "90-device-injector",
            Outcome::Answered,
            &changes,
        )
        .passed(203, "CreateContainer", None)
        .at(204, Action::ContainerMade)
        .at(
            205,
            What::CallEnded {
                took_ns: 5_000_000,
                error: None,
            },
        )
        .who(call(&app, "StartContainer"))
        .at(300, Action::Created { pid: 4242 })
        .point(304, "C-06", "StartContainer")
        .plugin("StartContainer", "10-logger", Outcome::TimedOut, &[])
        .passed(2304, "StartContainer", None)
        .at(2305, Action::Started)
        .point(2306, "C-07", "PostStartContainer")
        .passed(2306, "PostStartContainer", None);
    let why = "no quota left for this tenant: ask the platform team, or wait until the nightly run has freed what finished jobs still hold".to_owned();
    let side = pod.clone().container("c2c2c2", "sidecar");
    let failed = format!("10-quota refused CreateContainer: {why}");
    script
        .who(call(&side, "CreateContainer"))
        .point(2400, "C-04", "CreateContainer")
        .plugin(
            "CreateContainer",
            "10-quota",
            Outcome::Refused(why.into()),
            &[],
        )
        .passed(2401, "CreateContainer", Some("10-quota: no quota"))
        .at(
            2402,
            What::CallEnded {
                took_ns: 2_000_000,
                error: Some(failed),
            },
        )
        .who(app)
        .at(
            61_000,
            Action::Exited {
                code: 137,
                reason: "OOMKilled".to_owned(),
                message: String::new(),
            },
        )
        .who(call(&pod, "StopPodSandbox"))
        .point(61_100, "C-10", "StopPodSandbox")
        .plugin(
            "StopPodSandbox",
            "10-logger",
            Outcome::Lost("connection closed".to_owned()),
            &[],
        )
        .passed(61_101, "StopPodSandbox", None)
        .at(61_110, Action::NetworkGone)
        .at(61_111, Action::Stopped)
        .who(call(&pod, "RemovePodSandbox"))
        .at(61_200, Action::SandboxRemoved);
    script.events
}

fn compare(drawn: &str, golden: &str, name: &str) {
    if drawn != golden {
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, drawn).unwrap();
        panic!(
            "the picture differs from testdata/{name}; it is in {}:\n{drawn}",
            path.display()
        );
    }
}

#[test]
fn the_life_of_a_pod_at_80_columns() {
    compare(
        &render(&life(), 80, false),
        include_str!("testdata/timeline-80.txt"),
        "timeline-80.txt",
    );
}

#[test]
fn the_life_of_a_pod_at_120_columns() {
    compare(
        &render(&life(), 120, false),
        include_str!("testdata/timeline-120.txt"),
        "timeline-120.txt",
    );
}

#[test]
fn updates_are_drawn_with_their_plugin_call_values_and_outcome() {
    let changed = |old: Option<i64>, new: i64| Changed {
        field: "linux.resources.memory.limit".to_owned(),
        old: old.map(Into::into),
        new: new.into(),
    };
    let update = |hook: &str, target: &str, values: Values, error: Option<&str>| What::Update {
        plugin: "10-a".to_owned(),
        hook: hook.to_owned(),
        target: target.to_owned(),
        values,
        error: error.map(str::to_owned),
    };
    let one = Values {
        values: vec![changed(Some(1), 2)],
        more: 0,
    };
    let more = Values {
        values: vec![changed(None, 3)],
        more: 7,
    };
    let mut script = Script {
        events: Vec::new(),
        now_ms: 0,
        subject: Subject::pod("p1", "default", "web").container("c1", "app"),
    };
    let requests = 9;
    let plugin = "10-a".to_owned();
    script
        .at(0, update("Synchronize", "", one.clone(), None))
        .at(1, update("UpdateContainers", "", more, Some("busy")))
        .at(
            2,
            update("StopContainer", "f00", Values::default(), Some("not found")),
        )
        .at(3, Action::Updated { values: one })
        .at(4, Action::Unrecorded { plugin, requests });
    let drawn = render(&script.events, 240, false);
    let text = |line: &str| line.split_once("· ").map(|(_, text)| text.to_owned());
    let lines: Vec<_> = drawn.lines().filter_map(text).collect();
    assert_eq!(
        lines,
        [
            "app: updated by 10-a (Synchronize): linux.resources.memory.limit 1 -> 2",
            "app: update by 10-a (UpdateContainers) failed: busy: linux.resources.memory.limit 3, and 7 more",
            "app: update of container f00 by 10-a (StopContainer) failed: not found",
            "app: resources updated: linux.resources.memory.limit 1 -> 2",
            "app: 10-a: 9 events are not recorded: too many",
        ]
    );
}

#[test]
fn plugins_and_pods_are_drawn_on_one_clock() {
    let drawn = render(&life(), 80, false);
    let (plugins, pod) = drawn.split_once("\npod ").unwrap();
    assert!(plugins.contains("   0.004 · plugin 10-logger"), "{drawn}");
    assert!(pod.contains("   0.100 ▶ RunPodSandbox"), "{drawn}");
}

#[test]
fn an_error_is_called_refused_only_where_a_plugin_can_refuse() {
    for (hook, word) in [
        ("StopContainer", "error"),
        ("RemovePodSandbox", "error"),
        ("PostStartContainer", "error"),
        ("CreateContainer", "refused"),
        ("RunPodSandbox", "refused"),
    ] {
        let mut script = Script {
            events: Vec::new(),
            now_ms: 0,
            subject: Subject::pod("p", "n", "web"),
        };
        let refused = Outcome::Refused("why".to_owned().into());
        script
            .point(1, "C-00", hook)
            .plugin(hook, "10-x", refused, &[]);
        let drawn = render(&script.events, 80, false);
        let line = drawn.lines().find(|line| line.contains("10-x")).unwrap();
        assert!(
            line.contains(word) && line.contains("why"),
            "{hook}: {line}"
        );
    }
}

#[test]
fn colour_changes_nothing_but_colour() {
    let colored = render(&life(), 80, true);
    assert!(colored.contains("\x1b["));
    let mut plain = String::new();
    let mut rest = colored.as_str();
    while let Some((before, code)) = rest.split_once("\x1b[") {
        plain += before;
        rest = code.split_once('m').unwrap().1;
    }
    assert_eq!(plain + rest, render(&life(), 80, false));
}

#[test]
fn a_plugins_text_cannot_paint_or_move_the_cursor() {
    let mut script = Script {
        events: Vec::new(),
        now_ms: 0,
        subject: Subject::pod("p", "n", "w\x1b[2J"),
    };
    script.plugin(
        "RunPodSandbox",
        "10-\x1b]0;x\x07",
        Outcome::Refused("\x1b[31m\r\n\u{202e}red".to_owned().into()),
        &[],
    );
    let drawn = render(&script.events, 80, false);
    assert!(
        drawn.chars().all(|c| c == '\n' || !c.is_control()),
        "{drawn:?}"
    );
    assert!(!drawn.contains('\u{202e}'));
}

#[test]
fn two_containers_at_once_keep_their_answers_apart() {
    let pod = Subject::pod("p", "default", "web");
    let (a, b) = (pod.clone().container("1", "a"), pod.container("2", "b"));
    let mut script = Script {
        events: Vec::new(),
        now_ms: 0,
        subject: a.clone(),
    };
    script
        .point(1, "C-04", "CreateContainer")
        .who(b)
        .point(2, "C-04", "CreateContainer");
    script
        .who(a)
        .plugin("CreateContainer", "10-x", Outcome::Answered, &[]);
    let drawn = render(&script.events, 80, false);
    let before = drawn.split("10-x").next().unwrap();
    assert!(before.trim_end().ends_with("CreateContainer a"), "{drawn}");
}

#[test]
fn dates_are_right_at_the_edges() {
    for (ns, text) in [
        (0, "1970-01-01 00:00:00.000 UTC"),
        (951_782_400_000_000_000, "2000-02-29 00:00:00.000 UTC"),
        (4_107_542_399_999_000_000, "2100-02-28 23:59:59.999 UTC"),
        (4_107_542_400_000_000_000, "2100-03-01 00:00:00.000 UTC"),
        (-1_000_000, "1969-12-31 23:59:59.999 UTC"),
    ] {
        assert_eq!(date(ns), text);
    }
}

proptest! {
    #[test]
    fn no_line_is_wider_than_the_terminal(
        width in 66_usize..150, reason in "\\PC{0,300}", name in "\\PC{0,60}", plugin in "[ -~]{0,40}",
    ) {
        let subject = Subject::pod(&name, &name, &name).container(&name, &name).during("StartContainer");
        let mut script = Script { events: Vec::new(), now_ms: 0, subject };
        script
            .at(1, Action::StartFailed { reason: reason.clone() })
            .point(2, "C-06", "StartContainer")
            .plugin("StartContainer", &plugin, Outcome::Refused(reason.clone().into()), &[])
            .passed(3, "StartContainer", Some(&reason))
            .at(4, What::CallEnded { took_ns: 5, error: Some(reason) });
        for line in render(&script.events, width, false).lines() {
            prop_assert!(line.chars().count() <= width, "{} > {}: {}", line.chars().count(), width, line);
        }
    }

    #[test]
    fn folding_loses_nothing_but_spaces(text in "[a-c ]{0,200}", width in 8_usize..40) {
        let letters = |t: &str| t.chars().filter(|c| *c != ' ').collect::<String>();
        prop_assert_eq!(letters(&fold(&text, width, 2).concat()), letters(&text));
    }
}
