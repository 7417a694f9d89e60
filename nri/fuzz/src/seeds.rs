//! The seeds: real answers from the real encoders, and hostile ones. `nri/fuzz/tests/seeds.rs`
//! writes them to `nri/fuzz/seeds` and checks that they stay equal. Inputs found by fuzzing are in
//! the same directory.

use nri::{
    adjust::{Adjust, SetResources, update},
    proto::*,
    wire::frame::{MAX_FRAME, header},
};
use prost::Message;

use super::{
    answered::{FIRST_SECOND, SECOND_FIRST, TWO},
    connection_seeds::{configured, connection, registration},
    samples,
    seed::{Seed, Seeds, frame},
    watcher::FAILS,
};

/// Returns all generated seeds; names are distinct within a target.
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

fn mux(seeds: &mut Seeds) {
    let two = [frame(1, b"one"), frame(2, b""), frame(2, b"two")].concat();
    let in_bytes = [&[31][..], &[0; 31][..], &two].concat();
    seeds.add("mux_read", "frames-in-bytes", in_bytes);
    let mut uncut = |name, wire: &[u8]| seeds.add("mux_read", name, [&[0], wire].concat());
    uncut("frames", &two);
    uncut("half-a-header", &two[..5]);
    uncut("half-a-payload", &two[..10]);
    uncut("the-longest-frame", &header(1, MAX_FRAME));
    uncut("too-long", &header(1, MAX_FRAME + 1));
    uncut("four-gibibytes", &[[0, 0, 0, 1], [255; 4]].concat());
    let unknown = [frame(0, b"x"), frame(u32::MAX, b"y")].concat();
    uncut("unknown-connections", &unknown);
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

/// Adds seeds of targets with small answers.
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
