//! A fake systemd at the other end of a real D-Bus connection.

use super::*;
use crate::cgroup::bus::{MANAGER, OBJECT};
use crate::cgroup::unit;
use futures_util::StreamExt as _;
use std::collections::BTreeMap;
use std::sync::Mutex as StdMutex;
use tokio::net::UnixListener;
use zbus::{Connection, Message, connection};

/// Behaviour of the fake at the next start of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Behaviour {
    Succeeds,
    /// The job fails.
    Fails,
    /// The connection breaks instead of an answer.
    Breaks,
    /// Another bus user reports a failure of the job, to all and to us alone, before it succeeds.
    Forged,
    /// As many other jobs end after this one as make its end drop out of the queue.
    Overrun {
        fails: bool,
    },
    /// Another connection gets systemd's name before the job ends, which takes two more looks.
    Moved,
    /// Subscribing is refused.
    RefusesSubscribe,
}

/// Unique names on the bus: systemd, and a user of the host.
const SYSTEMD: &str = ":1.2";
const STRANGER: &str = ":1.66";

#[derive(Debug)]
struct State {
    behaviour: Behaviour,
    connections: usize,
    /// Open connections.
    open: usize,
    /// Description by name.
    units: BTreeMap<String, String>,
    holds: Vec<u32>,
    set: Vec<(String, String, u64)>,
    /// Looks at the units until the running job ends.
    looks: u32,
}

type Shared = Arc<StdMutex<State>>;

struct Fake {
    dir: tempfile::TempDir,
    state: Shared,
}

impl Fake {
    fn new() -> Self {
        let state = State {
            behaviour: Behaviour::Succeeds,
            connections: 0,
            open: 0,
            units: BTreeMap::new(),
            holds: Vec::new(),
            set: Vec::new(),
            looks: 0,
        };
        let fake = Self {
            dir: tempfile::tempdir().expect("a directory"),
            state: Arc::new(StdMutex::new(state)),
        };
        fake.listen();
        fake
    }

    fn listen(&self) {
        let listener = UnixListener::bind(self.socket()).expect("bound");
        let state = Arc::clone(&self.state);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                {
                    let mut state = state.lock().expect("sane");
                    state.connections += 1;
                    state.open += 1;
                }
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    let stream = stream.into_std().expect("a socket");
                    answer(stream, Arc::clone(&state)).await;
                    state.lock().expect("sane").open -= 1;
                });
            }
        });
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("bus")
    }

    fn systemd(&self, owner: &str) -> Systemd {
        // Ignores its option and keeps running, as the real one does.
        let hold = self.dir.path().join("hold");
        if !hold.exists() {
            // By a shell: programs that we start meanwhile would inherit the open file.
            let write = r#"printf '#!/bin/sh\nexec sleep 600\n' >"$0" && chmod 755 "$0""#;
            let mut shell = std::process::Command::new("sh");
            let written = shell.args(["-c", write]).arg(&hold).status();
            assert!(written.expect("a shell").success());
        }
        Systemd::new(Path::new(owner), hold, self.socket())
    }

    fn behaviour(&self, behaviour: Behaviour) {
        self.state.lock().expect("sane").behaviour = behaviour;
    }

    fn holds(&self) -> Vec<u32> {
        self.state.lock().expect("sane").holds.clone()
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        for pid in self.holds() {
            let pid =
                rustix::process::Pid::from_raw(pid.try_into().expect("a pid")).expect("a pid");
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        }
    }
}

async fn answer(stream: std::os::unix::net::UnixStream, state: Shared) {
    let builder = connection::Builder::unix_stream(stream)
        .server(zbus::Guid::generate())
        .p2p();
    let Ok(mut messages) = builder.build_message_stream().await else {
        return;
    };
    let connection = Connection::from(&messages);
    connection.set_unique_name(SYSTEMD).expect("a name");
    let mut jobs = 0_u32;
    while let Some(Ok(message)) = messages.next().await {
        let header = message.header();
        let body = message.body();
        let refuse = |name: &'static str| {
            let connection = connection.clone();
            let message = message.clone();
            async move {
                let error = format!("org.freedesktop.systemd1.{name}");
                let _ = connection
                    .reply_error(&message.header(), error.as_str(), &"no")
                    .await;
            }
        };
        let behaviour = state.lock().expect("sane").behaviour;
        let job = match header.member().map(|member| member.to_string()).as_deref() {
            Some("StartTransientUnit") => {
                type Body<'a> = (
                    String,
                    String,
                    Vec<(String, Variant<'a>)>,
                    Vec<(String, Vec<(String, Variant<'a>)>)>,
                );
                let (name, _, properties, _): Body<'_> = body.deserialize().expect("its body");
                if behaviour == Behaviour::Breaks {
                    return;
                }
                if state.lock().expect("sane").units.contains_key(&name) {
                    refuse("UnitExists").await;
                    continue;
                }
                let mut state = state.lock().expect("sane");
                for (key, value) in properties {
                    match (key.as_str(), value) {
                        ("Description", Variant::Str(text)) => {
                            state.units.insert(name.clone(), text.to_string());
                        }
                        ("PIDs", Variant::Array(pids)) => {
                            state.holds.extend(pids.iter().filter_map(|pid| match pid {
                                Variant::U32(pid) => Some(*pid),
                                _ => None,
                            }));
                        }
                        _ => {}
                    }
                }
                if matches!(
                    behaviour,
                    Behaviour::Fails | Behaviour::Overrun { fails: true }
                ) {
                    state.units.remove(&name);
                }
                true
            }
            Some("StopUnit") => {
                let (name, _): (String, String) = body.deserialize().expect("its body");
                if state.lock().expect("sane").units.remove(&name).is_none() {
                    refuse("NoSuchUnit").await;
                    continue;
                }
                true
            }
            Some("KillUnit") => {
                let (name, _, _): (String, String, i32) = body.deserialize().expect("its body");
                if !state.lock().expect("sane").units.contains_key(&name) {
                    refuse("NoSuchUnit").await;
                    continue;
                }
                false
            }
            Some("SetUnitProperties") => {
                type Body<'a> = (String, bool, Vec<(String, Variant<'a>)>);
                let (name, runtime, values): Body<'_> = body.deserialize().expect("its body");
                assert!(runtime, "a transient unit has nothing on disk");
                let mut state = state.lock().expect("sane");
                for (key, value) in values {
                    if let Variant::U64(value) = value {
                        state.set.push((name.clone(), key, value));
                    }
                }
                false
            }
            Some("Hello") => {
                let _ = connection.reply(&header, &":1.1").await;
                continue;
            }
            Some("Subscribe") if behaviour == Behaviour::RefusesSubscribe => {
                refuse("AccessDenied").await;
                continue;
            }
            Some("GetNameOwner") => {
                let _ = connection.reply(&header, &SYSTEMD).await;
                continue;
            }
            Some("ListUnitsByPatterns") => {
                let (_, patterns): (Vec<String>, Vec<String>) =
                    body.deserialize().expect("its body");
                let root = OwnedObjectPath::try_from("/").expect("a path");
                let text = String::new;
                let (mut units, under_way) = {
                    let mut state = state.lock().expect("sane");
                    let under_way = state.looks > 0;
                    state.looks = state.looks.saturating_sub(1);
                    (state.units.clone(), under_way)
                };
                units.retain(|name, _| {
                    let matches = |pattern: &String| match pattern.strip_prefix('*') {
                        Some(ending) => name.ends_with(ending),
                        None => name == pattern,
                    };
                    patterns.iter().any(matches)
                });
                let rows: Vec<_> = units
                    .into_iter()
                    .map(|(name, description)| {
                        let from = root.clone();
                        let job = if under_way { job_path(1) } else { root.clone() };
                        (
                            name,
                            description,
                            text(),
                            if under_way { "activating" } else { "active" }.to_owned(),
                            text(),
                            text(),
                            from,
                            0_u32,
                            text(),
                            job,
                        )
                    })
                    .collect();
                let _ = connection.reply(&header, &rows).await;
                continue;
            }
            _ => false,
        };
        if !job {
            let _ = connection.reply(&header, &()).await;
            continue;
        }
        jobs += 1;
        let path = job_path(jobs);
        let result = if behaviour == Behaviour::Fails {
            "failed"
        } else {
            "done"
        };
        let signal = |sender: &'static str, job: u32, result: &str| {
            let ended = (job, job_path(job), "x", result);
            let signal = Message::signal(OBJECT, MANAGER, "JobRemoved").sender(sender);
            signal.build(&ended).expect("a message")
        };
        let mut signals = match behaviour {
            Behaviour::Forged => vec![
                signal(STRANGER, jobs, "failed"),
                owner_changed(STRANGER),
                signal(STRANGER, jobs, "failed"),
            ],
            Behaviour::Moved => {
                state.lock().expect("sane").looks = 2;
                vec![owner_changed("org.freedesktop.DBus")]
            }
            _ => Vec::new(),
        };
        // The signal precedes the answer: the caller must have subscribed before.
        if behaviour != Behaviour::Moved {
            signals.push(signal(SYSTEMD, jobs, result));
        }
        if matches!(behaviour, Behaviour::Overrun { .. }) {
            signals.extend((0..5000).map(|n| signal(SYSTEMD, 1000 + n, "done")));
        }
        let _ = connection.send_all(&signals).await;
        let _ = connection.reply(&header, &path).await;
    }
}

fn job_path(job: u32) -> OwnedObjectPath {
    OwnedObjectPath::try_from(format!("{OBJECT}/job/{job}")).expect("a path")
}

/// A change of the owner of systemd's name, real or forged by a user of the host.
fn owner_changed(sender: &'static str) -> Message {
    let bus = "org.freedesktop.DBus";
    let signal = Message::signal("/org/freedesktop/DBus", bus, "NameOwnerChanged").sender(sender);
    let body = ("org.freedesktop.systemd1", SYSTEMD, ":1.3");
    signal.build(&body).expect("a message")
}

fn scope(id: &str) -> Scope {
    let path = crate::cgroup::CgroupPath::parse(&unit::leaf("/a.slice", id)).expect("a path");
    unit::scope_of(&path).expect("a scope")
}

fn runs(pid: u32) -> bool {
    Path::new("/proc")
        .join(pid.to_string())
        .join("exe")
        .exists()
}

#[tokio::test]
async fn a_scope_is_started_with_a_process_that_keeps_it() {
    let fake = Fake::new();
    let systemd = fake.systemd("/root");
    let pid = systemd
        .start_scope(&scope("c1"), "c1")
        .await
        .expect("started");
    assert_eq!(fake.holds(), [pid]);
    assert!(runs(pid));
    let units = systemd.units().await.expect("listed");
    let ours = Unit {
        name: "cairn-c1.scope".to_owned(),
        id: "c1".to_owned(),
    };
    assert_eq!(units, [ours]);
}

#[tokio::test]
async fn a_start_whose_job_fails_names_unit_and_end_and_leaves_no_process() {
    let fake = Fake::new();
    fake.behaviour(Behaviour::Fails);
    let error = fake.systemd("/root").start_scope(&scope("c1"), "c1").await;
    let text = error.expect_err("failed").to_string();
    assert_eq!(
        text,
        "systemd unit cairn-c1.scope: start: its job ended as failed"
    );
    assert_eq!(fake.holds().len(), 1);
    assert!(!fake.holds().into_iter().any(runs));
}

#[tokio::test]
async fn a_job_ends_when_systemd_says_so_and_nobody_else() {
    let fake = Fake::new();
    fake.behaviour(Behaviour::Forged);
    let systemd = fake.systemd("/root");
    for id in ["c1", "c2"] {
        systemd.start_scope(&scope(id), id).await.expect("started");
    }
    let connections = fake.state.lock().expect("sane").connections;
    assert_eq!(connections, 1, "nor does systemd's name move");
}

#[tokio::test]
async fn an_end_that_was_missed_shows_in_the_unit() {
    for behaviour in [Behaviour::Overrun { fails: false }, Behaviour::Moved] {
        let fake = Fake::new();
        fake.behaviour(behaviour);
        let systemd = fake.systemd("/root");
        let started = systemd.start_scope(&scope("c1"), "c1").await;
        started.unwrap_or_else(|e| panic!("{behaviour:?}: {e}"));
        let stopped = systemd.stop("cairn-c1.scope").await;
        stopped.unwrap_or_else(|e| panic!("{behaviour:?}: {e}"));
        assert_eq!(systemd.units().await.expect("listed"), [], "{behaviour:?}");
    }
    let fake = Fake::new();
    fake.behaviour(Behaviour::Overrun { fails: true });
    let systemd = fake.systemd("/root");
    let failed = systemd.start_scope(&scope("c1"), "c1").await;
    assert_eq!(
        failed.expect_err("no such unit").to_string(),
        "systemd unit cairn-c1.scope: start: its job ended and left it inactive"
    );
}

#[tokio::test]
async fn a_connection_that_breaks_fails_what_is_under_way_and_the_next_call_has_a_new_one() {
    let fake = Fake::new();
    let systemd = fake.systemd("/root");
    systemd.check().await.expect("answers");
    fake.behaviour(Behaviour::Breaks);
    assert!(systemd.start_scope(&scope("c1"), "c1").await.is_err());
    fake.behaviour(Behaviour::Succeeds);
    systemd
        .start_scope(&scope("c2"), "c2")
        .await
        .expect("started");
    assert_eq!(fake.state.lock().expect("sane").connections, 2);
}

#[tokio::test]
async fn a_systemd_that_comes_back_is_waited_for_and_a_missing_one_is_reported_in_one_line() {
    let fake = Fake::new();
    let away = fake.dir.path().join("away");
    std::fs::rename(fake.socket(), &away).expect("moved");
    let systemd = fake.systemd("/root");
    let check = tokio::spawn({
        let systemd = systemd.clone();
        async move { systemd.check().await }
    });
    tokio::task::yield_now().await;
    std::fs::rename(&away, fake.socket()).expect("moved");
    check.await.expect("no panic").expect("it came back");
    let nowhere = fake.dir.path().join("nowhere");
    let none = Systemd::new(Path::new("/r"), "/bin/false".into(), nowhere);
    let text = none.check().await.expect_err("nobody").to_string();
    assert!(
        text.starts_with("systemd does not answer (") && !text.contains('\n'),
        "{text}"
    );
    assert!(text.contains("/nowhere: "), "{text}");
}

#[tokio::test]
async fn a_link_that_cannot_be_opened_or_is_not_used_any_more_leaves_no_connection() {
    let fake = Fake::new();
    let closed = || async {
        let all = async {
            while fake.state.lock().expect("sane").open > 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let closed = tokio::time::timeout(Duration::from_secs(10), all).await;
        closed.expect("closed");
    };
    fake.behaviour(Behaviour::RefusesSubscribe);
    Link::open(&fake.socket()).await.expect_err("refused");
    closed().await;
    fake.behaviour(Behaviour::Succeeds);
    let link = Link::open(&fake.socket()).await.expect("open");
    let other = link.clone();
    drop(link);
    assert!(!other.is_closed());
    drop(other);
    closed().await;
    assert_eq!(fake.state.lock().expect("sane").connections, 2);
}

#[tokio::test]
async fn another_daemons_units_are_not_ours() {
    let fake = Fake::new();
    fake.systemd("/other")
        .start_scope(&scope("c1"), "c1")
        .await
        .expect("started");
    let systemd = fake.systemd("/root");
    assert_eq!(systemd.units().await.expect("listed"), []);
    assert!(systemd.start_slice("a.slice", "p1").await.expect("started"));
    let names: Vec<_> = systemd.units().await.expect("listed");
    assert_eq!(names.len(), 1);
    assert_eq!(
        (names[0].name.as_str(), names[0].id.as_str()),
        ("a.slice", "p1")
    );
}

#[tokio::test]
async fn a_slice_that_is_there_is_not_ours_and_one_in_use_is_not_stopped() {
    let fake = Fake::new();
    let systemd = fake.systemd("/root");
    assert!(systemd.start_slice("a.slice", "").await.expect("started"));
    assert!(!systemd.start_slice("a.slice", "").await.expect("there"));
    assert!(
        !systemd
            .stop_slice_if("a.slice", || false)
            .await
            .expect("looked")
    );
    assert_eq!(systemd.units().await.expect("listed").len(), 1);
    assert!(
        systemd
            .stop_slice_if("a.slice", || true)
            .await
            .expect("stopped")
    );
    assert_eq!(systemd.units().await.expect("listed"), []);
    // And again: an unknown slice counts as stopped.
    assert!(
        systemd
            .stop_slice_if("a.slice", || true)
            .await
            .expect("stopped")
    );
    systemd
        .kill("cairn-unknown.scope")
        .await
        .expect("an unknown unit has ended");
}

#[tokio::test]
async fn shares_are_set_on_the_scope() {
    let fake = Fake::new();
    let systemd = fake.systemd("/root");
    let shares = [("CPUWeight", 20), ("MemoryLow", u64::MAX)];
    systemd.set("cairn-c1.scope", &shares).await.expect("set");
    let set = fake.state.lock().expect("sane").set.clone();
    let expected = shares.map(|(key, value)| ("cairn-c1.scope".to_owned(), key.to_owned(), value));
    assert_eq!(set, expected);
}
