//! Messages that are too long, unread, split or unknown.

use std::time::{Duration, Instant};

use nri::{Handlers, Outcome, PluginEvent, mask::EventMask, proto::*};
use prost::Message;

use crate::{
    common::{self, Place, Record, container, plugin, pod, until, until_active},
    raw::{REQUEST, RESPONSE, Raw, Response, Status},
};

#[tokio::test]
async fn a_plugin_that_does_not_read_a_large_message_is_closed_and_blocks_nobody() {
    let place = Place::new();
    let nri = place
        .builder()
        .plugins(common::hasty("10-deaf", Duration::from_secs(1)))
        .start()
        .await
        .unwrap();
    let record = Record::default();
    let mut good = plugin(&place, "20-good", record.handlers());
    let _good = good.start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let deaf = tokio::spawn(async move {
        // It answers until it is active, and then never reads again.
        raw.register("10", "deaf").await;
        for _ in 0..3 {
            let got = raw.read().await.unwrap();
            if got.kind == REQUEST {
                raw.reply(got.stream, Vec::new()).await;
            }
        }
        raw
    });
    until_active(&nri, "10-deaf").await;
    let _raw = deaf.await.unwrap();
    let mut big = container("c", "p");
    big.annotations.insert("pad".into(), "x".repeat(3 << 20));
    let begun = Instant::now();
    nri.start_container(pod("p"), big).await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(5) * common::patience(),
        "{:?}",
        begun.elapsed()
    );
    assert_eq!(record.lines().last().unwrap(), "StartContainer p c");
    until("it is closed", || common::there(&nri).len() == 1).await;
}

#[tokio::test]
async fn a_container_too_big_for_a_message_is_refused_with_its_size() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut stub = plugin(
        &place,
        "10-a",
        Handlers::new().create_container(|_, _| async { Ok((None, Vec::new())) }),
    );
    let _stub = stub.start().await.unwrap();
    until_active(&nri, "10-a").await;
    let mut big = container("c", "p");
    big.env.push("x".repeat(5 << 20));
    let turn = nri.turn(Event::CreateContainer).await;
    let refused = nri
        .create_container(&turn, pod("p"), big)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        refused.contains("10-a") && refused.contains("bytes"),
        "{refused}"
    );
    assert!(refused.len() < 500, "it carries the container");
    // The plugin did not cause the error, so it stays connected.
    assert_eq!(common::there(&nri).len(), 1);
}

/// Sends a message above the limit, in frames of permitted size.
async fn too_long(raw: &mut Raw, conn: u32, stream: u32, kind: u8) {
    let length: u32 = (4 << 20) + 1;
    let mut header = length.to_be_bytes().to_vec();
    header.extend(stream.to_be_bytes());
    header.extend([kind, 0]);
    raw.frame(conn, &header).await;
    raw.frame(conn, &vec![0; 1 << 20]).await;
    raw.frame(conn, &vec![0; length as usize - (1 << 20)]).await;
}

#[tokio::test]
async fn a_request_that_is_too_long_is_refused_as_go_does_and_the_connection_stays() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    too_long(&mut raw, 2, 1, REQUEST).await;
    assert_eq!(raw.status().await, Some(8), "RESOURCE_EXHAUSTED");
    raw.next_id = 3;
    let life = tokio::spawn(async move { raw.first_event("10", "verbose", 0).await });
    until_active(&nri, "10-verbose").await;
    nri.shutdown("over").await;
    life.await.unwrap();
}

#[tokio::test]
async fn an_answer_that_is_too_long_is_an_error_with_its_size_and_the_plugin_stays() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let life = tokio::spawn(async move {
        let event = raw.first_event("10", "verbose", 0).await.unwrap();
        too_long(&mut raw, 1, event.stream, RESPONSE).await;
        let event = raw.read().await.unwrap();
        raw.reply(event.stream, Vec::new()).await;
        raw
    });
    until_active(&nri, "10-verbose").await;
    let refused = nri.start_container(pod("p"), container("c", "p")).await;
    let refused = refused.unwrap_err();
    let Outcome::Refused(status) = &refused.deliveries[0].outcome else {
        panic!("{refused:?}");
    };
    assert!(status.is(nri::Code::ResourceExhausted), "{status:?}");
    assert!(status.message.contains("4194305"), "{status}");
    nri.start_container(pod("p"), container("c", "p"))
        .await
        .expect("it is still there, and answers");
    let _raw = life.await.unwrap();
}

#[tokio::test]
async fn a_list_in_parts_that_the_plugin_does_not_take_closes_it() {
    let place = Place::new();
    let big = |n: usize| PodSandbox {
        annotations: [("pad".to_owned(), "x".repeat(2 << 20))].into(),
        ..pod(&format!("p{n}"))
    };
    place.runtime.all.lock().unwrap().pods = (0..4).map(big).collect();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    // It answers `more: false` to each part.
    raw.first_event("10", "old", 0).await;
    assert!(raw.is_closed_by_peer().await);
    assert!(common::there(&nri).is_empty());
    assert!(place.seen.saw("10-old", |e| matches!(
        e,
        PluginEvent::Rejected { reason } if reason.contains("in parts")
    )));
}

#[tokio::test]
async fn an_old_plugin_that_wants_everything_is_not_asked_for_what_it_does_not_know() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    let old = tokio::spawn(async move {
        let mut methods = Vec::new();
        let mut next = raw.first_event("10", "old", 0).await;
        while let Some(got) = next {
            let request = got.request().unwrap();
            let known = ["StateChange", "CreateContainer"].contains(&request.method.as_str());
            let status = (!known).then(|| Status {
                code: 12,
                message: "no such method".into(),
            });
            methods.push(request.method);
            let payload = Vec::new();
            let response = Response { status, payload }.encode_to_vec();
            raw.message(1, got.stream, RESPONSE, &response).await;
            next = raw.read().await;
        }
        methods
    });
    until_active(&nri, "10-old").await;
    let none = LinuxResources::default;
    for _ in 0..2 {
        nri.update_pod_sandbox(pod("p"), none(), none())
            .await
            .unwrap();
        nri.run_pod_sandbox(pod("p")).await.unwrap();
        let turn = nri.turn(Event::CreateContainer).await;
        nri.create_container(&turn, pod("p"), container("c", "p"))
            .await
            .unwrap();
    }
    assert!(nri.plugins()[0].old_style);
    nri.shutdown("over").await;
    let methods = old.await.unwrap();
    let expected = [
        "UpdatePodSandbox",
        "RunPodSandbox",
        "StateChange",
        "CreateContainer",
        "ValidateContainerAdjustment",
        "StateChange",
        "CreateContainer",
        "Shutdown",
    ];
    assert_eq!(methods, expected);
    let deprecated = |e: &PluginEvent| matches!(e, PluginEvent::Deprecated { .. });
    let seen = place.seen.plugins.lock().unwrap();
    assert_eq!(seen.iter().filter(|(_, e)| deprecated(e)).count(), 1);
}

/// A teardown event is always sent, and cut if it is too long; a setup event that is too long is a
/// veto. This includes a container's names.
#[tokio::test]
async fn whatever_is_long_teardown_reaches_the_plugin_and_its_rest_says_who_it_was() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let reported = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let into = reported.clone();
    let handlers = Handlers::new().stop_container(move |pod: PodSandbox, c: Container| {
        let line = (pod.id, c.id, c.name, c.env.len(), nri::left_out().to_vec());
        into.lock().unwrap().push(line);
        async { Ok(Vec::new()) }
    });
    let mut stub = plugin(&place, "10-a", handlers);
    let _stub = stub.start().await.unwrap();
    until_active(&nri, "10-a").await;
    let mut long = container("c", "p");
    long.name = "n".repeat(5 << 20);
    let longer = PodSandbox {
        labels: [("l".to_owned(), "x".repeat(6 << 20))].into(),
        ..pod("p")
    };
    let turn = nri.turn(Event::StopContainer).await;
    let stopped = nri.stop_container(&turn, longer, long).await;
    assert_eq!(stopped.deliveries[0].outcome, Outcome::Answered);
    let reported = reported.lock().unwrap();
    let [(pod, id, name, env, left_out)] = &reported[..] else {
        panic!("{} calls", reported.len());
    };
    assert_eq!(
        (pod.as_str(), id.as_str(), name.as_str(), *env),
        ("p", "c", "", 0)
    );
    let printed: Vec<_> = stopped.deliveries[0]
        .left_out
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(*left_out, printed);
    assert!(
        printed[0].starts_with("pod p: labels") && printed[1].ends_with("name"),
        "{printed:?}"
    );
}

#[tokio::test]
async fn a_plugin_has_one_event_in_work_also_when_the_operations_time_is_over() {
    let place = Place::new();
    let limit = Duration::from_millis(300) * common::patience();
    let nri = place.builder().operation_timeout(limit).start().await;
    let nri = nri.unwrap();
    let plugin = {
        let mut raw = Raw::connect(&place).await;
        tokio::spawn(async move {
            let both = EventMask::of(Event::RunPodSandbox).with(Event::StopPodSandbox);
            let first = raw.first_event("10", "slow", both.to_wire()).await.unwrap();
            let meanwhile = tokio::time::timeout(limit * 3, next_method(&mut raw)).await;
            assert!(
                meanwhile.is_err(),
                "in work beside the first: {meanwhile:?}"
            );
            raw.reply(first.stream, Vec::new()).await;
            assert_eq!(next_method(&mut raw).await, "StopPodSandbox");
        })
    };
    until_active(&nri, "10-slow").await;
    let begun = Instant::now();
    nri.run_pod_sandbox(pod("p")).await.unwrap_err();
    assert!(begun.elapsed() < limit * 2, "{:?}", begun.elapsed());
    let stop = tokio::spawn(async move { nri.stop_pod_sandbox(pod("p")).await });
    plugin.await.unwrap();
    stop.abort();
}

async fn next_method(raw: &mut Raw) -> String {
    loop {
        let got = raw.read().await.expect("the connection stays");
        if got.kind == REQUEST {
            let request = got.request().unwrap();
            return request.method;
        }
    }
}
