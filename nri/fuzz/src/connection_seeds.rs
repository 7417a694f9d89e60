//! Seeds of complete connections: valid and hostile messages of plugins, while they join and
//! afterwards.

use nri::{
    proto::*,
    wire::frame::{MAX_FRAME, Request, Response, Status, TO_PLUGIN, TO_RUNTIME, header},
};
use prost::Message;

use super::{
    connection::FUZZED,
    peer::message,
    samples,
    script::Script,
    seed::{Seeds, frame},
};

pub(super) fn registration(name: &str, index: &str) -> Vec<u8> {
    RegisterPluginRequest {
        plugin_name: name.into(),
        plugin_idx: index.into(),
        nri_version: "v0.12.2".into(),
    }
    .encode_to_vec()
}

const REGISTER: u8 = 0;
const UPDATE_CONTAINERS: u8 = 4;
const INVENTED: u8 = 8;
const NO_SERVICE: u8 = 3;

pub(super) fn configured(events: i32) -> ConfigureResponse {
    ConfigureResponse {
        events,
        failure_policy: None,
    }
}

/// A script that registers, is configured for `events`, and synchronised in one part.
fn joined(control: u8, events: i32) -> Script {
    let (index, name) = FUZZED.split_once('-').unwrap_or_default();
    Script::new(control)
        .call(REGISTER, &registration(name, index))
        .answer(&configured(events).encode_to_vec())
        .answer(&SynchronizeResponse::default().encode_to_vec())
}

pub(super) fn connection(seeds: &mut Seeds) {
    let mut add = |name: &str, script: Script| seeds.add("connection", name, script.into_bytes());
    let create = samples::create_answer().encode_to_vec();
    let update_answer = samples::update_answer().encode_to_vec();
    let stop = StopContainerResponse {
        update: samples::updates(),
    };
    let stop = stop.encode_to_vec();
    let answers = |script: Script| {
        // Run, Create, validation, PostCreate, Start, PostStart, Update, PostUpdate, two of the
        // pod, Stop, Remove, and both of the pod.
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
    add("gone", Script::new(0));
    add(
        "registers-and-goes",
        Script::new(0).call(REGISTER, &registration("a", "10")),
    );
    add(
        "half-a-message",
        joined(0, 0).server_frame(&message(9, 1, b"xyz")[..12]),
    );
    add(
        "half-a-frame",
        joined(0, 0).trunk(&frame(TO_RUNTIME, b"abc")[..9]),
    );
    add("garbage", Script::new(0).trunk(&[0xa5; 64]));
    let mut stays = |name: &str, script: Script| add(name, script.stay());
    stays("only-create-and-denied", joined(15, 8).answer(&create));
    stays("silent", Script::new(0));
    stays(
        "registers-badly",
        Script::new(0).call(REGISTER, &registration("a b", "1")),
    );
    stays(
        "registers-twice",
        joined(0, 0).call(REGISTER, &registration("b", "11")),
    );
    stays(
        "configures-badly",
        Script::new(0)
            .call(REGISTER, &registration("a", "10"))
            .answer(&configured(i32::MIN).encode_to_vec()),
    );
    stays(
        "unknown-calls",
        Script::new(0)
            .call(INVENTED, b"x")
            .call(NO_SERVICE, b"y")
            .call(12, b""),
    );
    let unsolicited = UpdateContainersRequest {
        update: samples::updates(),
        evict: samples::evictions(),
    };
    let unsolicited = unsolicited.encode_to_vec();
    stays(
        "updates-before-it-registers",
        Script::new(0).call(UPDATE_CONTAINERS, &unsolicited),
    );
    stays(
        "updates-of-its-own",
        joined(0, 0)
            .step(3, &[])
            .call(UPDATE_CONTAINERS, &unsolicited)
            .step(4, &[]),
    );
    stays("answers-nothing", joined(0, 0));
    stays(
        "answers-late",
        joined(64, 0)
            .step(3, &[])
            .pause(3000)
            .step(4, &[])
            .step(3, &[])
            .pause(9000)
            .step(4, &create),
    );
    stays("vetoes", joined(0, 0).error(2, b"no pod today").answer(&[]));
    stays(
        "knows-only-state-changes",
        joined(0, 1).error(12, b"unknown").answer(&[]),
    );
    stays(
        "is-late-by-its-own-word",
        joined(0, 1).error(4, b"deadline"),
    );
    stays("answers-garbage", joined(0, 0).answer(&[255; 9]));
    stays("a-broken-envelope", joined(0, 0).envelope(&[0x0a, 0x7f, 1]));
    stays(
        "bad-utf8",
        joined(0, 0).envelope(&[0x0a, 4, 0x12, 2, 0xc3, 0x28]),
    );
    hostile_messages(&mut stays);
}

/// Messages and frames that a correct peer never sends.
fn hostile_messages(stays: &mut impl FnMut(&str, Script)) {
    let refusal = Response {
        status: Some(Status {
            code: -1,
            message: "x".repeat(1500),
        }),
        payload: Vec::new(),
    };
    stays(
        "a-long-refusal",
        joined(0, 0).envelope(&refusal.encode_to_vec()),
    );
    let reply = Response::default().encode_to_vec();
    let stray = |kind| message(99, kind, &reply);
    stays("a-stray-answer", joined(0, 0).client_frame(&stray(2)));
    stays(
        "data-without-a-stream",
        joined(0, 0).client_frame(&stray(3)).server_frame(&stray(3)),
    );
    stays(
        "an-unknown-type",
        joined(0, 0)
            .client_frame(&stray(77))
            .server_frame(&stray(77)),
    );
    stays(
        "an-answer-to-the-server",
        joined(0, 0).server_frame(&stray(2)),
    );
    stays(
        "a-request-to-the-client",
        joined(0, 0).client_frame(&stray(1)),
    );
    let even = Request {
        service: "nri.pkg.api.v1alpha1.Runtime".into(),
        method: "UpdateContainers".into(),
        timeout_nano: -1,
        ..Request::default()
    };
    stays(
        "even-ids",
        joined(0, 0)
            .server_frame(&message(2, 1, &even.encode_to_vec()))
            .server_frame(&message(0, 1, &[])),
    );
    stays(
        "a-message-too-long",
        joined(0, 0).server_frame(&[[0, 64, 0, 1], [0, 0, 0, 9]].concat()),
    );
    stays(
        "an-answer-too-long",
        joined(0, 0)
            .step(3, &[])
            .client_frame(&[&[255, 255, 255, 255, 0, 0, 0, 5, 2, 0][..], &[7; 100]].concat()),
    );
    stays(
        "a-frame-too-long",
        joined(0, 0).trunk(&header(TO_PLUGIN, MAX_FRAME + 1)),
    );
    stays(
        "unknown-connections",
        joined(0, 0).trunk(&frame(3, b"abc")).trunk(&frame(0, b"")),
    );
    stays(
        "a-flood",
        joined(0, 0).flood(&message(1, 1, &even.encode_to_vec())),
    );
}
