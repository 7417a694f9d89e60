//! Each misdeed at each event, and before the plugin is active.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use nri::{Adaptation, Outcome, PluginEvent, proto::*};
use prost::Message;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinHandle,
};

use crate::{
    common::{self, Place, Record, container, plugin, pod, until, until_active},
    raw::{DATA, Got, REQUEST, RESPONSE, RUNTIME, Raw, Response, Status},
};

/// The action of a plugin at its first event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    Error,
    Hang,
    Close,
    Garbage,
    DataFrame,
    HalfFrame,
    HugeFrame,
    HugeMessage,
    Flood,
    SecondRegistration,
    UnknownStreamThenAnswer,
    NeverReads,
}

impl Attack {
    async fn commit(self, mut raw: Raw, event: Got) {
        match self {
            Self::Error => {
                let status = Some(Status {
                    code: 2,
                    message: "it will not".into(),
                });
                let payload = Vec::new();
                let response = Response { status, payload }.encode_to_vec();
                raw.message(1, event.stream, RESPONSE, &response).await;
            }
            Self::Hang => while raw.read().await.is_some() {},
            Self::Close => return,
            Self::Garbage => raw.reply(event.stream, vec![0xff; 20]).await,
            // An unknown stream, which is ignored; then the payload of a valid response, sent as
            // data.
            Self::DataFrame => {
                raw.message(1, event.stream + 1000, DATA, b"").await;
                let (status, payload) = (None, Vec::new());
                let response = Response { status, payload }.encode_to_vec();
                raw.message(1, event.stream, DATA, &response).await;
            }
            Self::HalfFrame => {
                let _ = raw
                    .stream
                    .write_all(&[0, 0, 0, 1, 0, 0, 0, 100, 1, 2, 3])
                    .await;
            }
            Self::HugeFrame => {
                let _ = raw
                    .stream
                    .write_all(&[0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff])
                    .await;
            }
            Self::HugeMessage => {
                // A ttrpc header with a length of 2 GiB, in a frame of its own.
                raw.frame(1, &[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 1, RESPONSE, 0])
                    .await;
            }
            Self::Flood => {
                // Requests in an endless loop, without reading the answers.
                let flood = async {
                    loop {
                        raw.request(RUNTIME, "UpdateContainers", vec![0; 2000])
                            .await;
                    }
                };
                let _ = tokio::time::timeout(Duration::from_secs(2), flood).await;
                return;
            }
            Self::SecondRegistration => {
                raw.register("77", "other").await;
                let mut status = raw.status().await;
                // Before the plugin is active, the first status is that of its first registration.
                if status == Some(0) {
                    status = raw.status().await;
                }
                assert_eq!(status, Some(9));
                raw.reply(event.stream, Vec::new()).await;
            }
            Self::UnknownStreamThenAnswer => {
                raw.reply(event.stream + 1000, vec![1, 2, 3]).await;
                raw.frame(9, b"for nobody").await;
                raw.frame(1, b"").await;
                raw.reply(event.stream, Vec::new()).await;
            }
            Self::NeverReads => {}
        }
        // Stay connected until the runtime closes the connection, without further messages.
        let mut end = [0; 1];
        if matches!(self, Self::Hang) {
            return;
        }
        if self == Self::NeverReads {
            tokio::time::sleep(Duration::from_millis(2500) * common::patience()).await;
            return;
        }
        while raw.stream.read(&mut end).await.is_ok_and(|n| n > 0) {}
    }

    /// Short timeouts for misdeeds that end by a timeout, so that the plugin does not end first.
    fn limits(self) -> BTreeMap<nri::PluginId, nri::PluginSettings> {
        match self {
            Self::Hang | Self::HalfFrame | Self::NeverReads | Self::HugeMessage => {
                common::hasty("10-bad", Duration::from_secs(1))
            }
            // The runtime must read everything that the plugin sends until its timeout.
            Self::Flood => common::hasty("10-bad", Duration::from_millis(500)),
            _ => BTreeMap::new(),
        }
    }

    /// Whether the plugin stays connected.
    fn is_survived(self) -> bool {
        matches!(
            self,
            Self::Error | Self::SecondRegistration | Self::UnknownStreamThenAnswer
        )
    }

    fn expects(self, outcome: &Outcome) -> bool {
        match self {
            Self::Error => matches!(outcome, Outcome::Refused(_)),
            Self::Hang | Self::HalfFrame | Self::NeverReads => *outcome == Outcome::TimedOut,
            Self::Close | Self::HugeFrame => matches!(outcome, Outcome::Lost(_)),
            Self::Garbage | Self::DataFrame => matches!(outcome, Outcome::Garbled(_)),
            // Either may be detected first.
            Self::HugeMessage | Self::Flood => {
                matches!(outcome, Outcome::Lost(_) | Outcome::TimedOut)
            }
            Self::SecondRegistration | Self::UnknownStreamThenAnswer => {
                *outcome == Outcome::Answered
            }
        }
    }
}

async fn misbehaves(place: &Place, attack: Attack) -> JoinHandle<()> {
    let mut raw = Raw::connect(place).await;
    tokio::spawn(async move {
        if let Some(event) = raw.first_event("10", "bad", 0x1fff).await {
            attack.commit(raw, event).await;
        }
    })
}

/// Sends one event; returns the plugins' results, and whether the request succeeded.
async fn send(nri: &Adaptation, event: Event) -> (Vec<nri::Delivery>, bool) {
    let (p, c) = (pod("p"), container("c", "p"));
    let none = LinuxResources::default;
    let reported = |r: Result<nri::Notified, nri::Refused>| match r {
        Ok(reported) => (reported.deliveries, true),
        Err(refused) => (refused.deliveries, false),
    };
    match event {
        Event::RunPodSandbox => match nri.run_pod_sandbox(p).await {
            Ok(ran) => (ran.deliveries, true),
            Err(refused) => (refused.deliveries, false),
        },
        Event::UpdatePodSandbox => reported(nri.update_pod_sandbox(p, none(), none()).await),
        Event::PostUpdatePodSandbox => reported(Ok(nri.post_update_pod_sandbox(p).await)),
        Event::StopPodSandbox => reported(Ok(nri.stop_pod_sandbox(p).await)),
        Event::RemovePodSandbox => reported(Ok(nri.remove_pod_sandbox(p).await)),
        Event::CreateContainer => {
            let turn = nri.turn(Event::CreateContainer).await;
            match nri.create_container(&turn, p, c).await {
                Ok(created) => (created.deliveries, true),
                Err(refused) => (refused.deliveries, false),
            }
        }
        Event::PostCreateContainer => reported(Ok(nri.post_create_container(p, c).await)),
        Event::StartContainer => reported(nri.start_container(p, c).await),
        Event::PostStartContainer => reported(Ok(nri.post_start_container(p, c).await)),
        Event::UpdateContainer => {
            let turn = nri.turn(Event::UpdateContainer).await;
            match nri.update_container(&turn, p, c, none()).await {
                Ok(updated) => (updated.deliveries, true),
                Err(refused) => (refused.deliveries, false),
            }
        }
        Event::PostUpdateContainer => reported(Ok(nri.post_update_container(p, c).await)),
        Event::StopContainer => {
            let turn = nri.turn(Event::StopContainer).await;
            (nri.stop_container(&turn, p, c).await.deliveries, true)
        }
        Event::RemoveContainer => reported(Ok(nri.remove_container(p, c).await)),
        _ => unreachable!("no test sends it"),
    }
}

fn may_veto(event: Event) -> bool {
    nri::policy::Class::of(event) == nri::policy::Class::Setup
}

/// Tests one misdeed at each of the thirteen events.
async fn at_every_event(attack: Attack) {
    for (event, name) in nri::mask::EVENTS.into_iter().take(13) {
        let place = Place::new();
        let nri = place
            .builder()
            .plugins(attack.limits())
            .start()
            .await
            .unwrap();
        let record = Record::default();
        let good = plugin(&place, "20-good", record.handlers());
        let mut good = good;
        let _good = good.start().await.unwrap();
        let bad = misbehaves(&place, attack).await;
        until_active(&nri, "10-bad").await;
        until_active(&nri, "20-good").await;

        let begun = Instant::now();
        let (deliveries, passed) = send(&nri, event).await;
        let case = format!("{attack:?} at {name}");
        assert!(
            begun.elapsed() < Duration::from_secs(5) * common::patience(),
            "{case} took {:?}",
            begun.elapsed()
        );
        let outcome = &deliveries
            .iter()
            .find(|d| d.plugin.name == "bad")
            .unwrap()
            .outcome;
        assert!(attack.expects(outcome), "{case}: {outcome:?}");
        let vetoed = attack == Attack::Error && may_veto(event);
        assert_eq!(passed, !vetoed, "{case}");
        let reported = record
            .lines()
            .iter()
            .filter(|line| line.starts_with(name))
            .count();
        assert_eq!(reported, usize::from(!vetoed), "{case}: the next plugin");
        if attack.is_survived() {
            assert_eq!(common::there(&nri).len(), 2, "{case}");
        } else {
            until(&format!("{case}: it is closed"), || {
                common::there(&nri).len() == 1
            })
            .await;
            assert!(
                place
                    .seen
                    .saw("10-bad", |e| matches!(e, PluginEvent::Closed { .. }))
            );
        }
        // Another pod is not affected.
        nri.stop_pod_sandbox(pod("other")).await;
        assert_eq!(
            record.lines().last().unwrap(),
            "StopPodSandbox other",
            "{case}"
        );
        nri.shutdown("over").await;
        bad.abort();
        common::held(&case);
    }
}

macro_rules! attacks {
    ($($name:ident $attack:ident)*) => {
        $(#[tokio::test]
        async fn $name() {
            at_every_event(Attack::$attack).await;
        })*
    };
}

attacks! {
    a_plugin_that_fails_at_each_event Error
    a_plugin_that_hangs_at_each_event Hang
    a_plugin_that_closes_at_each_event Close
    a_plugin_that_answers_garbage_at_each_event Garbage
    a_plugin_that_answers_in_a_data_frame_at_each_event DataFrame
    a_plugin_that_sends_half_a_frame_at_each_event HalfFrame
    a_plugin_that_promises_a_huge_frame_at_each_event HugeFrame
    a_plugin_that_promises_a_huge_message_at_each_event HugeMessage
    a_plugin_that_floods_at_each_event Flood
    a_plugin_that_registers_again_at_each_event SecondRegistration
    a_plugin_that_answers_calls_nobody_made_at_each_event UnknownStreamThenAnswer
    a_plugin_that_never_reads_at_each_event NeverReads
}

const MISDEEDS: [Attack; 12] = [
    Attack::Error,
    Attack::Hang,
    Attack::Close,
    Attack::Garbage,
    Attack::DataFrame,
    Attack::HalfFrame,
    Attack::HugeFrame,
    Attack::HugeMessage,
    Attack::Flood,
    Attack::SecondRegistration,
    Attack::UnknownStreamThenAnswer,
    Attack::NeverReads,
];

/// None of these plugins becomes active, and none delays others for longer than its timeouts.
async fn before_it_is_active(method: &'static str) {
    // Missing in each case, because the plugin never becomes active.
    let mut settings = common::hasty("10-bad", Duration::from_secs(1));
    for bad in settings.values_mut() {
        bad.policy.sync_timeout = bad.policy.request_timeout;
    }
    for attack in MISDEEDS {
        let place = Place::new();
        let nri = place
            .builder()
            .plugins(settings.clone())
            .start()
            .await
            .unwrap();
        let record = Record::default();
        let mut good = plugin(&place, "20-good", record.handlers());
        let _good = good.start().await.unwrap();
        until_active(&nri, "20-good").await;
        let mut raw = Raw::connect(&place).await;
        let (begin, begun) = tokio::sync::oneshot::channel();
        let bad = tokio::spawn(async move {
            raw.register("10", "bad").await;
            while let Some(got) = raw.read().await {
                if got.kind != REQUEST {
                    continue;
                }
                let request = got.request().unwrap();
                if request.method == method {
                    begin.send(()).unwrap();
                    return attack.commit(raw, got).await;
                }
                raw.reply(got.stream, Vec::new()).await;
            }
        });
        let case = format!("{attack:?} at {method}");
        begun
            .await
            .unwrap_or_else(|_| panic!("{case}: it is never asked"));
        let begun = Instant::now();
        nri.run_pod_sandbox(pod("p")).await.unwrap();
        assert!(
            begun.elapsed() < Duration::from_secs(5) * common::patience(),
            "{case} took {:?}",
            begun.elapsed()
        );
        assert_eq!(record.lines().last().unwrap(), "RunPodSandbox p", "{case}");
        // Two of the misdeeds include a valid answer.
        let answers = attack.is_survived() && attack != Attack::Error;
        until(&format!("{case}: it is rejected"), || {
            let seen = place.seen.plugins.lock().unwrap();
            let end = |e: &PluginEvent| {
                matches!(e, PluginEvent::Rejected { .. } | PluginEvent::Closed { .. })
            };
            seen.iter().any(|(_, e)| end(e)) || answers
        })
        .await;
        if !answers {
            assert_eq!(common::there(&nri).len(), 1, "{case}");
        }
        nri.shutdown("over").await;
        bad.abort();
        common::held(&case);
    }
}

#[tokio::test]
async fn a_plugin_that_misbehaves_at_configure_is_left_out() {
    before_it_is_active("Configure").await;
}

#[tokio::test]
async fn a_plugin_that_misbehaves_at_synchronize_is_left_out() {
    before_it_is_active("Synchronize").await;
}
