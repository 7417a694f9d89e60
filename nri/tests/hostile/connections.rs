//! Accepted connections, and the size and content of the plugins' own names and requests.

use std::time::{Duration, Instant};

use nri::{Outcome, PluginEvent, proto::*};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    common::{self, Place, Record, plugin, pod, until, until_active},
    raw::{DATA, REQUEST, RUNTIME, Raw, configured},
};

#[tokio::test]
async fn a_bad_identity_is_refused_with_a_reason_and_the_connection_closes() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let bad = [
        ("1", "a"),
        ("1a", "a"),
        ("100", "a"),
        ("", "a"),
        ("10", "foo,bar"),
        ("10", ""),
    ];
    for (index, name) in bad {
        let mut raw = Raw::connect(&place).await;
        raw.register(index, name).await;
        assert_eq!(raw.status().await, Some(3), "{index}-{name}");
        assert!(raw.is_closed_by_peer().await, "{index}-{name}");
    }
    let mut good = plugin(
        &place,
        "10-abcd-0123+EFGH_4567.ijkl",
        Record::default().handlers(),
    );
    let _stub = good.start().await.unwrap();
    until_active(&nri, "10-abcd-0123+EFGH_4567.ijkl").await;
}

#[tokio::test]
async fn what_a_plugin_says_of_itself_is_told_in_one_short_line() {
    let place = Place::new();
    let _nri = place.builder().start().await.unwrap();
    let long = "\u{1}\n".repeat(500_000);
    let mut bad = Raw::connect(&place).await;
    bad.register("10", &long).await;
    assert_eq!(bad.status().await, Some(3));
    let mut good = Raw::connect(&place).await;
    let request = RegisterPluginRequest {
        plugin_name: "good".into(),
        plugin_idx: "10".into(),
        nri_version: long,
    };
    good.request(RUNTIME, "RegisterPlugin", request.encode_to_vec())
        .await;
    let short = |text: &str| text.len() < 10_000 && !text.contains(char::is_control);
    until("both are reported", || {
        let refused = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if short(reason));
        let known = |e: &PluginEvent| matches!(e, PluginEvent::Registered { nri_version, .. } if short(nri_version));
        place.seen.saw("??", refused) && place.seen.saw("10-good", known)
    })
    .await;
}

#[tokio::test]
async fn our_stub_learns_why_it_was_refused() {
    let place = Place::new();
    let _nri = place
        .builder()
        .in_process("10-mine".parse().unwrap(), Record::default().handlers())
        .start()
        .await
        .unwrap();
    let mut thief = plugin(&place, "10-mine", Record::default().handlers());
    let refused = thief.start().await.unwrap_err().to_string();
    assert!(
        refused.contains("10-mine is an in-process plugin of the runtime"),
        "{refused}"
    );
}

#[tokio::test]
async fn updates_before_the_plugin_is_active_are_refused() {
    let place = Place::new();
    let _nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    raw.request(RUNTIME, "UpdateContainers", Vec::new()).await;
    assert_eq!(raw.status().await, Some(9));
    raw.request(RUNTIME, "Invented", Vec::new()).await;
    assert_eq!(raw.status().await, Some(12));
}

/// v1beta1 is not served (NRI-1000).
#[tokio::test]
async fn a_service_of_another_version_is_unimplemented_and_the_connection_stays_usable() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    for method in ["RegisterPlugin", "UpdateContainers"] {
        let other = "nri.pkg.api.v1beta1.Runtime";
        raw.request(other, method, Vec::new()).await;
        assert_eq!(raw.status().await, Some(12), "{method}");
    }
    let event = tokio::spawn(async move {
        let event = raw.first_event("10", "two-faced", 0).await;
        (raw, event)
    });
    until_active(&nri, "10-two-faced").await;
    let reported = tokio::spawn(async move { nri.stop_pod_sandbox(pod("p")).await });
    let (mut raw, event) = event.await.unwrap();
    raw.request(RUNTIME, "UpdateContainers", Vec::new()).await;
    assert_eq!(raw.status().await, Some(0));
    raw.reply(event.unwrap().stream, Vec::new()).await;
    assert_eq!(
        reported.await.unwrap().deliveries[0].outcome,
        Outcome::Answered
    );
}

#[tokio::test]
async fn events_that_do_not_exist_are_refused() {
    for events in [1 << 14, 1 << 30, i32::MIN, -1] {
        let place = Place::new();
        let nri = place.builder().start().await.unwrap();
        let mut raw = Raw::connect(&place).await;
        // It gets Shutdown as an event, then the end of the connection.
        raw.first_event("10", "odd", events).await;
        assert!(raw.is_closed_by_peer().await, "{events:#x}");
        assert!(common::there(&nri).is_empty());
    }
}

/// Data messages belong to none of our calls, and ttrpc answers each with an error. The answers
/// must not accumulate for a peer that reads just enough to count as alive.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plugin_that_floods_with_data_and_hardly_reads_is_cut_off() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    raw.register("10", "flood").await;
    for answer in [configured(1).encode_to_vec(), Vec::new()] {
        let mut got = raw.read().await.unwrap();
        while got.kind != REQUEST {
            got = raw.read().await.unwrap();
        }
        raw.reply(got.stream, answer).await;
    }
    until_active(&nri, "10-flood").await;
    const PAYLOAD: u32 = 400;
    let mut message = [2, PAYLOAD + 10, PAYLOAD, 99]
        .map(u32::to_be_bytes)
        .concat();
    message.extend([DATA, 0]);
    message.resize(message.len() + PAYLOAD as usize, 0);
    // Limited to the amount that is read at a time: only the answers are slow.
    let messages = message.repeat(1000);
    let (mut from, mut to) = raw.stream.into_split();
    let sipping = tokio::spawn(async move {
        let mut sip = [0; 16384];
        while from.read(&mut sip).await.is_ok_and(|n| n > 0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let flood = async {
        while to.write_all(&messages).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let cut_off = tokio::time::timeout(Duration::from_secs(60), flood).await;
    assert!(cut_off.is_ok(), "it may go on for ever");
    let overflow = |e: &PluginEvent| matches!(e, PluginEvent::Closed { reason } if reason.contains("unread bytes"));
    until("its end is reported with the reason", || {
        place.seen.saw("10-flood", overflow)
    })
    .await;
    sipping.abort();
}

#[tokio::test]
async fn a_silent_client_holds_nobody_up() {
    let place = Place::new();
    let limit = Duration::from_secs(60);
    let builder = place.builder().registration_timeout(limit);
    let nri = builder.start().await.unwrap();
    let _silent = Raw::connect(&place).await;
    let begun = Instant::now();
    let mut good = plugin(&place, "10-good", Record::default().handlers());
    let _stub = good.start().await.unwrap();
    until_active(&nri, "10-good").await;
    assert!(begun.elapsed() < limit / 2);
}

#[tokio::test]
async fn a_flood_of_connections_is_bounded_and_over_with_the_registration_timeout() {
    let place = Place::new();
    let limit = Duration::from_millis(500);
    let nri = place
        .builder()
        .registration_timeout(limit)
        .start()
        .await
        .unwrap();
    let mut flood = Vec::new();
    for _ in 0..100 {
        flood.push(Raw::connect(&place).await);
    }
    until("those beyond the bound are turned away", || {
        let seen = place.seen.plugins.lock().unwrap();
        let away = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if reason.contains("have not registered"));
        seen.iter().filter(|(_, e)| away(e)).count() == 36
    })
    .await;
    let good = plugin(&place, "10-good", Record::default().handlers()).reconnect(true);
    let running = tokio::spawn(good.run());
    until_active(&nri, "10-good").await;
    running.abort();
    let seen = place.seen.plugins.lock().unwrap();
    let late = |e: &PluginEvent| matches!(e, PluginEvent::Rejected { reason } if reason.contains("within 500ms"));
    assert!(seen.iter().any(|(_, e)| late(e)), "{seen:?}");
}

#[tokio::test]
async fn a_user_who_may_not_connect_is_turned_away() {
    let place = Place::new();
    let settings = nri::Settings {
        socket: Some(place.socket()),
        plugin_dir: None,
        allowed_uids: vec![4_000_000_000],
        ..Default::default()
    };
    let nri = place.builder().settings(settings).start().await.unwrap();
    let mut raw = Raw::connect(&place).await;
    assert!(raw.is_closed_by_peer().await);
    assert!(common::there(&nri).is_empty());
}

#[tokio::test]
async fn another_runtimes_socket_is_left_alone() {
    let place = Place::new();
    let nri = place.builder().start().await.unwrap();
    let second = place
        .builder()
        .start()
        .await
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(second.contains("in use by another runtime"), "{second}");
    nri.shutdown("over").await;
    until("the socket is removed", || !place.socket().exists()).await;
    // A regular file in its place is not removed, a socket without a listener is.
    std::fs::write(place.socket(), "precious").unwrap();
    place.builder().start().await.map(|_| ()).unwrap_err();
    assert_eq!(std::fs::read(place.socket()).unwrap(), b"precious");
    std::fs::remove_file(place.socket()).unwrap();
    drop(std::os::unix::net::UnixListener::bind(place.socket()).unwrap());
    place.builder().start().await.unwrap();
}
