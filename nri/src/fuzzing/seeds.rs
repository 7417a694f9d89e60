//! The seeds: real answers from the real encoders, and the hostile ones. `nri/tests/seeds.rs` writes
//! them to `nri/fuzz/seeds` and keeps them as they are here; what fuzzing finds lies beside them.

use prost::Message;
use proto_nri::*;

use super::{
    answers::{FIRST_ALONE, FIRST_SECOND, FIRST_TWICE, SECOND_FIRST, TWO},
    connection::{FUZZED, Refusal, Request, Response, message},
    eyes::FAILS,
    samples,
    script::Script,
};
use crate::{
    adjust::{Adjust, SetResources, update},
    wire::mux::{MAX_FRAME, PLUGIN_SERVICE, RUNTIME_SERVICE, header},
};

/// One input that is checked in.
pub struct Seed {
    pub target: &'static str,
    pub name: String,
    pub bytes: Vec<u8>,
}

/// All that are made here; names are distinct within a target.
pub fn seeds() -> Vec<Seed> {
    let mut seeds = Seeds(Vec::new());
    mux(&mut seeds);
    connection(&mut seeds);
    create(&mut seeds);
    updates(&mut seeds);
    small(&mut seeds);
    requests(&mut seeds);
    seeds.0
}

struct Seeds(Vec<Seed>);

impl Seeds {
    fn add(&mut self, target: &'static str, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        let (name, bytes) = (name.into(), bytes.as_ref().to_vec());
        self.0.push(Seed {
            target,
            name,
            bytes,
        });
    }

    /// An answer in every company: alone, before and after another, and twice.
    fn company(&mut self, target: &'static str, name: &str, before: &[u8], answer: &impl Message) {
        let all = [
            ("alone", FIRST_ALONE),
            ("first", FIRST_SECOND),
            ("second", SECOND_FIRST),
            ("twice", FIRST_TWICE),
        ];
        for (order, control) in all {
            let bytes = [before, &[control], &answer.encode_to_vec()].concat();
            self.add(target, format!("{name}-{order}"), bytes);
        }
    }
}

fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    [header(id, payload.len()).as_slice(), payload].concat()
}

fn mux(seeds: &mut Seeds) {
    let two = [frame(1, b"one"), frame(2, b""), frame(2, b"two")].concat();
    let uncut = |wire: &[u8]| [&[0][..], wire].concat();
    seeds.add("mux_read", "frames", uncut(&two));
    seeds.add(
        "mux_read",
        "frames-in-bytes",
        [&[31][..], &[0; 31][..], &two].concat(),
    );
    seeds.add("mux_read", "half-a-header", uncut(&two[..5]));
    seeds.add("mux_read", "half-a-payload", uncut(&two[..10]));
    seeds.add(
        "mux_read",
        "the-longest-frame",
        uncut(&header(1, MAX_FRAME)),
    );
    seeds.add("mux_read", "too-long", uncut(&header(1, MAX_FRAME + 1)));
    seeds.add(
        "mux_read",
        "four-gibibytes",
        uncut(&[[0, 0, 0, 1], [255; 4]].concat()),
    );
    seeds.add(
        "mux_read",
        "unknown-connections",
        uncut(&[frame(0, b"x"), frame(u32::MAX, b"y")].concat()),
    );
    let writes: &[u8] = &[
        0, 10, 0, 7, 1, 0, 16, 8, 2, 1, 16, 9, 0, 0, 0, 0, 1, 15, 39, 1,
    ];
    for (name, control) in [("as-streams", 0), ("as-frames", 1)] {
        seeds.add("mux_write", name, [&[control, 255, 0][..], writes].concat());
    }
    seeds.add(
        "mux_write",
        "a-byte-at-a-time",
        [&[0, 0, 0][..], &writes[..8]].concat(),
    );
}

fn registration(name: &str, index: &str) -> Vec<u8> {
    RegisterPluginRequest {
        plugin_name: name.into(),
        plugin_idx: index.into(),
        nri_version: "v0.12.2".into(),
    }
    .encode_to_vec()
}

const REGISTER: u8 = 0;
const REGISTER_BETA: u8 = 2;
const UPDATE_CONTAINERS: u8 = 4;
const INVENTED: u8 = 8;
const NO_SERVICE: u8 = 3;

fn configured(events: i32) -> ConfigureResponse {
    ConfigureResponse {
        events,
        failure_policy: None,
    }
}

/// Registered, configured for `events`, and synchronised in one part.
fn joined(control: u8, events: i32) -> Script {
    let (index, name) = FUZZED.split_once('-').unwrap_or_default();
    Script::new(control)
        .call(REGISTER, &registration(name, index))
        .answer(&configured(events).encode_to_vec())
        .answer(&SynchronizeResponse::default().encode_to_vec())
}

fn connection(seeds: &mut Seeds) {
    let mut add = |name: &str, script: Script| seeds.add("connection", name, script.into_bytes());
    let create = samples::create_answer().encode_to_vec();
    let update_answer = samples::update_answer().encode_to_vec();
    let stop = StopContainerResponse {
        update: samples::updates(),
    };
    let stop = stop.encode_to_vec();
    let answers = |script: Script| {
        // Run, Create, validation, PostCreate, Start, PostStart, Update, PostUpdate, two of the pod,
        // Stop, Remove, and both of the pod.
        let script = script.answer(&[]).answer(&create);
        let script = (0..4).fold(script, |script, _| script.answer(&[]));
        let script = script
            .answer(&update_answer)
            .answer(&[])
            .answer(&[])
            .answer(&[]);
        script
            .answer(&stop)
            .answer(&[])
            .answer(&[])
            .answer(&[])
            .stay()
    };
    add("a-whole-life", answers(joined(0, 0)));
    add("a-whole-life-required", answers(joined(16 | 32, 0)));
    add("a-whole-life-permitted-little", answers(joined(4, 0)));
    add(
        "only-create-and-denied",
        joined(15, 8).answer(&create).stay(),
    );
    add("silent", Script::new(0).stay());
    add("gone", Script::new(0));
    add(
        "registers-and-goes",
        Script::new(0).call(REGISTER, &registration("a", "10")),
    );
    add(
        "registers-badly",
        Script::new(0)
            .call(REGISTER, &registration("a b", "1"))
            .stay(),
    );
    add(
        "registers-twice",
        joined(0, 0).call(REGISTER, &registration("b", "11")).stay(),
    );
    add(
        "registers-as-beta",
        Script::new(0)
            .call(REGISTER_BETA, &registration("fuzzed", "20"))
            .answer(&[])
            .answer(&[])
            .stay(),
    );
    add(
        "configures-badly",
        Script::new(0)
            .call(REGISTER, &registration("a", "10"))
            .answer(&configured(i32::MIN).encode_to_vec())
            .stay(),
    );
    add(
        "unknown-calls",
        Script::new(0)
            .call(INVENTED, b"x")
            .call(NO_SERVICE, b"y")
            .call(12, b"")
            .stay(),
    );
    let unsolicited = UpdateContainersRequest {
        update: samples::updates(),
        evict: samples::evictions(),
    };
    let unsolicited = unsolicited.encode_to_vec();
    add(
        "updates-before-it-registers",
        Script::new(0).call(UPDATE_CONTAINERS, &unsolicited).stay(),
    );
    add(
        "updates-of-its-own",
        joined(0, 0)
            .step(3, &[])
            .call(UPDATE_CONTAINERS, &unsolicited)
            .step(4, &[])
            .stay(),
    );
    add("answers-nothing", joined(0, 0).stay());
    add(
        "answers-late",
        joined(64, 0)
            .step(3, &[])
            .pause(3000)
            .step(4, &[])
            .step(3, &[])
            .pause(9000)
            .step(4, &create)
            .stay(),
    );
    add(
        "vetoes",
        joined(0, 0).error(2, b"no pod today").answer(&[]).stay(),
    );
    add(
        "knows-only-state-changes",
        joined(0, 1).error(12, b"unknown").answer(&[]).stay(),
    );
    add(
        "is-late-by-its-own-word",
        joined(0, 1).error(4, b"deadline").stay(),
    );
    add("answers-garbage", joined(0, 0).answer(&[255; 9]).stay());
    add(
        "a-broken-envelope",
        joined(0, 0).envelope(&[0x0a, 0x7f, 1]).stay(),
    );
    add(
        "bad-utf8",
        joined(0, 0)
            .envelope(&[0x0a, 4, 0x12, 2, 0xc3, 0x28])
            .stay(),
    );
    hostile_messages(&mut add);
}

/// Messages and frames that no peer should send.
fn hostile_messages(add: &mut impl FnMut(&str, Script)) {
    let refusal = Response {
        status: Some(Refusal {
            code: -1,
            message: "x".repeat(1500),
        }),
        payload: Vec::new(),
    };
    add(
        "a-long-refusal",
        joined(0, 0).envelope(&refusal.encode_to_vec()).stay(),
    );
    let reply = Response::default().encode_to_vec();
    let stray = |kind| message(99, kind, &reply);
    add(
        "a-stray-answer",
        joined(0, 0).client_frame(&stray(2)).stay(),
    );
    add(
        "data-without-a-stream",
        joined(0, 0)
            .client_frame(&stray(3))
            .server_frame(&stray(3))
            .stay(),
    );
    add(
        "an-unknown-type",
        joined(0, 0)
            .client_frame(&stray(77))
            .server_frame(&stray(77))
            .stay(),
    );
    add(
        "an-answer-to-the-server",
        joined(0, 0).server_frame(&stray(2)).stay(),
    );
    add(
        "a-request-to-the-client",
        joined(0, 0).client_frame(&stray(1)).stay(),
    );
    let even = Request {
        service: "nri.pkg.api.v1alpha1.Runtime".into(),
        method: "UpdateContainers".into(),
        payload: Vec::new(),
        timeout_nano: -1,
    };
    add(
        "even-ids",
        joined(0, 0)
            .server_frame(&message(2, 1, &even.encode_to_vec()))
            .server_frame(&message(0, 1, &[]))
            .stay(),
    );
    add(
        "half-a-message",
        joined(0, 0).server_frame(&message(9, 1, b"xyz")[..12]),
    );
    add(
        "a-message-too-long",
        joined(0, 0)
            .server_frame(&[[0, 64, 0, 1], [0, 0, 0, 9]].concat())
            .stay(),
    );
    add(
        "an-answer-too-long",
        joined(0, 0)
            .step(3, &[])
            .client_frame(&[&[255, 255, 255, 255, 0, 0, 0, 5, 2, 0][..], &[7; 100]].concat())
            .stay(),
    );
    add(
        "a-frame-too-long",
        joined(0, 0)
            .trunk(&header(PLUGIN_SERVICE, MAX_FRAME + 1))
            .stay(),
    );
    add(
        "half-a-frame",
        joined(0, 0).trunk(&frame(RUNTIME_SERVICE, b"abc")[..9]),
    );
    add(
        "unknown-connections",
        joined(0, 0)
            .trunk(&frame(3, b"abc"))
            .trunk(&frame(0, b""))
            .stay(),
    );
    add(
        "a-flood",
        joined(0, 0)
            .flood(&message(1, 1, &even.encode_to_vec()))
            .stay(),
    );
    add("garbage", Script::new(0).trunk(&[0xa5; 64]));
}

/// Writes an adjustment.
type Write = fn(&mut ContainerAdjustment);

fn adjusted(write: impl FnOnce(&mut ContainerAdjustment)) -> CreateContainerResponse {
    let mut adjust = ContainerAdjustment::default();
    write(&mut adjust);
    CreateContainerResponse {
        adjust: Some(adjust),
        ..Default::default()
    }
}

fn create(seeds: &mut Seeds) {
    let all = samples::create_answer();
    seeds.company("create", "everything", &[], &all);
    seeds.company(
        "create",
        "nothing",
        &[],
        &CreateContainerResponse::default(),
    );
    for control in 1..16 {
        let bytes = [&[control][..], &all.encode_to_vec()].concat();
        seeds.add("create", format!("everything-permitted-{control}"), bytes);
    }
    let hostile: [(&str, Write); 8] = [
        ("bare-markers", |a| {
            a.add_annotation("-", "")
                .add_env("-", "")
                .add_sysctl("-", "");
        }),
        ("double-markers", |a| {
            a.add_annotation("--old", "")
                .add_env("--OLD", "")
                .add_sysctl("--old", "");
            a.add_mount(samples::mount("--/old"))
                .add_net_device("--old", "");
        }),
        ("twice", |a| {
            a.add_env("A", "1").add_env("A", "2");
        }),
        ("one-path-spelt-twice", |a| {
            a.add_mount(samples::mount("/a"))
                .add_mount(samples::mount("//a/."));
        }),
        ("a-path-that-turns-into-a-marker", |a| {
            a.add_mount(samples::mount("./-/old"));
        }),
        ("a-device-that-turns-into-a-marker", |a| {
            a.add_device(samples::device("x/../-dev/old"));
        }),
        ("one-limit-spelt-twice", |a| {
            a.add_rlimit("nofile", 1, 1)
                .add_rlimit("RLIMIT_NOFILE", 2, 2);
        }),
        ("rdt-removed", |a| {
            a.remove_rdt();
        }),
    ];
    for (name, write) in hostile {
        seeds.company("create", name, &[], &adjusted(write));
    }
    let mut own = all.clone();
    own.update = vec![update(samples::CONTAINER, true)];
    seeds.company("create", "updates-what-is-created", &[], &own);
    let one = adjusted(|a| {
        a.remove_annotation("x").memory_limit(1).oom_score_adj(1);
    })
    .encode_to_vec();
    let two = adjusted(|a| {
        a.add_annotation("--x", "").cpu_shares(2);
    })
    .encode_to_vec();
    let len = u16::try_from(one.len()).unwrap_or_default().to_le_bytes();
    let both = |control: u8| [&[control | TWO][..], &len, &one, &two].concat();
    seeds.add("create", "two-removals", both(FIRST_SECOND));
    seeds.add("create", "two-removals-turned", both(SECOND_FIRST));
    seeds.add(
        "create",
        "cut-off",
        [&[0][..], &all.encode_to_vec()[..200]].concat(),
    );
}

fn updates(seeds: &mut Seeds) {
    seeds.company("update", "everything", &[], &samples::update_answer());
    let mut own = samples::update_answer();
    own.update.rotate_left(1);
    own.evict.extend(samples::evictions());
    seeds.company("update", "others-first", &[], &own);
    let mut twice = update(samples::OTHER, true);
    twice
        .add_hugepage_limit("2MB", 1)
        .add_hugepage_limit("2MB", 2);
    let twice = vec![update("", false), twice.clone(), twice];
    let answer = UpdateContainerResponse {
        update: twice.clone(),
        evict: vec![ContainerEviction::default(); 3],
    };
    seeds.company("update", "twice", &[], &answer);
    for (name, adjust) in [
        ("nothing", PodSandboxAdjustment::default()),
        ("addresses", samples::addresses()),
    ] {
        let answer = RunPodSandboxResponse {
            adjust: Some(adjust),
        };
        seeds.company("run", name, &[], &answer);
    }
    for (name, update) in [("everything", samples::updates()), ("twice", twice)] {
        let stop = StopContainerResponse {
            update: update.clone(),
        };
        seeds.company("stop", name, &[], &stop);
        for (parts, room) in [("whole", 255), ("in-parts", 20)] {
            for more in [false, true] {
                let update = update.clone();
                let answer = SynchronizeResponse { update, more };
                seeds.company(
                    "synchronize",
                    &format!("{name}-{parts}-{more}"),
                    &[room],
                    &answer,
                );
            }
        }
    }
    let echo = SynchronizeResponse {
        update: Vec::new(),
        more: true,
    };
    seeds.company("synchronize", "an-echo", &[20], &echo);
}

/// Targets whose answers are small.
fn small(seeds: &mut Seeds) {
    for events in [0, 1, 0x3fff, 0x4000, i32::MIN, -1] {
        let bytes = configured(events).encode_to_vec();
        seeds.add("configure", format!("{events:#x}"), bytes);
    }
    for (reject, reason) in [(false, ""), (true, ""), (true, "a reason\nin two lines")] {
        let reason = reason.to_owned();
        let answer = ValidateContainerAdjustmentResponse { reject, reason }.encode_to_vec();
        for control in [0, 7] {
            let name = format!("{reject}-{}-{control}", answer.len());
            seeds.add("validate", name, [&[control][..], &answer].concat());
        }
    }
    let bad = [0, 0x12, 2, 0xc3, 0x28];
    seeds.add("validate", "bad-utf8", bad);
    seeds.add("plain", "empty", []);
    seeds.add("plain", "an-unknown-field", &bad[1..]);
    seeds.add("plain", "half-a-field", &bad[1..4]);
    seeds.add("plain", "a-group", [0x0b, 0x0b, 0x0c, 0x0c]);
}

fn requests(seeds: &mut Seeds) {
    let mut register = |name: &str, control: u8, request: &[u8]| {
        seeds.add("register", name, [&[control][..], request].concat());
    };
    register("sound", 0, &registration("logger", "10"));
    register("sound-beta", 1, &registration("logger", "10"));
    register("launched", 2, &registration("another", "99"));
    register("inside", 0, &registration("inside", "00"));
    register("empty", 0, &[]);
    register("a-bad-index", 0, &registration("logger", "1a"));
    register("a-bad-name", 0, &registration("log\nger", "10"));
    register(
        "a-long-bad-name",
        0,
        &registration(&"\u{1}".repeat(300), "10"),
    );
    register("bad-utf8", 0, &[0x0a, 2, 0xc3, 0x28]);
    let mut update = vec![update(FAILS, true), update(samples::CONTAINER, false)];
    update.extend(samples::updates());
    let request = UpdateContainersRequest {
        update,
        evict: samples::evictions(),
    };
    let request = request.encode_to_vec();
    for control in 0..32 {
        let bytes = [&[control][..], request.as_slice()].concat();
        seeds.add("unsolicited", format!("everything-{control}"), bytes);
    }
    seeds.add(
        "unsolicited",
        "cut-off",
        [&[0][..], &request[..30]].concat(),
    );
    let reason = "one\nline, and long: ".repeat(80);
    let evict = vec![ContainerEviction {
        container_id: samples::OTHER.into(),
        reason,
    }];
    let request = UpdateContainersRequest {
        update: Vec::new(),
        evict,
    };
    let bytes = [&[0][..], request.encode_to_vec().as_slice()].concat();
    seeds.add("unsolicited", "a-long-reason", bytes);
}
