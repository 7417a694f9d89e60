//! Table 4.3, cell by cell.

use nri::{
    Code, Status,
    mask::EVENTS,
    policy::{
        Case, Class, CloseReason, Flow, Late, OnTimeout, Outcome, PluginPolicy, Verdict, decide,
        late,
    },
};
use proto_nri::Event;

use crate::support::plugin;

fn outcomes() -> Vec<Outcome> {
    let why = || "why".to_owned();
    vec![
        Outcome::Answered,
        Outcome::Refused(Status::new(Code::Unknown, why())),
        Outcome::Unsent(why()),
        Outcome::TimedOut,
        Outcome::Lost(why()),
        Outcome::Garbled(why()),
        Outcome::Conflict(why()),
        Outcome::Invalid(why()),
        Outcome::Denied(why()),
        Outcome::Skipped,
        Outcome::NotSubscribed,
        Outcome::Joining,
        Outcome::Absent,
        Outcome::Cancelled,
    ]
}

fn reported(event: Event, policy: &PluginPolicy, misses: u32, outcome: &Outcome) -> Verdict {
    let plugin = plugin("10-a");
    let case = Case {
        plugin: &plugin,
        event,
        policy,
        misses,
        exempt: false,
    };
    decide(case, outcome)
}

fn aborts(event: Event, policy: &PluginPolicy, outcome: &Outcome) -> bool {
    reported(event, policy, 0, outcome).flow != Flow::Proceed
}

fn events() -> impl Iterator<Item = Event> {
    EVENTS.iter().map(|(event, _)| *event)
}

#[test]
fn every_event_has_the_class_of_table_4_1() {
    let of = |class| -> Vec<u32> {
        let events = events().filter(|e| Class::of(*e) == class);
        events.map(|e| e as u32).collect()
    };
    assert_eq!(of(Class::Setup), [1, 4, 6, 8, 12]);
    assert_eq!(of(Class::Teardown), [2, 3, 10, 11]);
    assert_eq!(of(Class::Notification), [5, 7, 9, 13]);
    assert_eq!(of(Class::Validation), [14]);
}

#[test]
fn nothing_a_plugin_does_stops_a_teardown_or_a_notification() {
    let strict = PluginPolicy {
        required: true,
        must_run: true,
        ..Default::default()
    };
    for policy in [PluginPolicy::default(), strict] {
        for outcome in outcomes() {
            for event in events() {
                if matches!(Class::of(event), Class::Teardown | Class::Notification) {
                    assert!(!aborts(event, &policy, &outcome), "{event:?} {outcome:?}");
                }
            }
        }
    }
}

#[test]
fn a_refusal_vetoes_every_setup_event_and_names_plugin_event_and_cause() {
    let policy = PluginPolicy::default();
    for event in events().filter(|e| Class::of(*e) == Class::Setup) {
        for outcome in outcomes() {
            let vetoes = matches!(
                outcome,
                Outcome::Refused(_)
                    | Outcome::Unsent(_)
                    | Outcome::Conflict(_)
                    | Outcome::Invalid(_)
                    | Outcome::Denied(_)
                    | Outcome::Cancelled
            );
            assert_eq!(
                aborts(event, &policy, &outcome),
                vetoes,
                "{event:?} {outcome:?}"
            );
        }
    }
    let refused = Outcome::Refused(Status::new(Code::Unknown, "no room"));
    let verdict = reported(Event::RunPodSandbox, &policy, 0, &refused);
    let text = "plugin 10-a refused RunPodSandbox: no room".to_owned();
    assert_eq!(verdict.flow, Flow::Abort(text.clone()));
    assert_eq!(verdict.log, Some(text));
    assert_eq!(verdict.close, None);
}

#[test]
fn a_validator_that_gives_no_verdict_rejects() {
    let policy = PluginPolicy::default();
    for outcome in outcomes() {
        let accepts = matches!(
            outcome,
            Outcome::Answered | Outcome::NotSubscribed | Outcome::Joining | Outcome::Absent
        );
        let event = Event::ValidateContainerAdjustment;
        assert_eq!(aborts(event, &policy, &outcome), !accepts, "{outcome:?}");
    }
    let required = PluginPolicy {
        required: true,
        ..policy
    };
    let event = Event::ValidateContainerAdjustment;
    assert!(aborts(event, &required, &Outcome::Absent), "NRI-606");
}

#[test]
fn pods_and_containers_are_not_created_without_a_required_plugin() {
    let required = PluginPolicy {
        required: true,
        ..Default::default()
    };
    let missing = [
        Outcome::TimedOut,
        Outcome::Lost("gone".into()),
        Outcome::Garbled("junk".into()),
        Outcome::Skipped,
        Outcome::Joining,
        Outcome::Absent,
    ];
    for outcome in &missing {
        for event in [Event::RunPodSandbox, Event::CreateContainer] {
            assert!(aborts(event, &required, outcome), "{event:?} {outcome:?}");
            let plugin = plugin("10-a");
            let exempt = Case {
                plugin: &plugin,
                event,
                policy: &required,
                misses: 0,
                exempt: true,
            };
            assert_eq!(
                decide(exempt, outcome).flow,
                Flow::Proceed,
                "bootstrap pods"
            );
        }
        for event in [
            Event::StartContainer,
            Event::UpdateContainer,
            Event::StopContainer,
        ] {
            assert!(!aborts(event, &required, outcome), "{event:?} {outcome:?}");
        }
    }
    for event in [Event::RunPodSandbox, Event::CreateContainer] {
        assert!(!aborts(event, &required, &Outcome::Answered));
        assert!(
            !aborts(event, &required, &Outcome::NotSubscribed),
            "it is there"
        );
    }
}

#[test]
fn a_failure_fails_what_it_can_of_a_plugin_that_wants_it_so() {
    let failures = |outcome: &Outcome| {
        matches!(
            outcome,
            Outcome::TimedOut | Outcome::Lost(_) | Outcome::Garbled(_) | Outcome::Skipped
        )
    };
    for fail_request in [None, Some(false), Some(true)] {
        let policy = PluginPolicy {
            fail_request,
            ..PluginPolicy::default()
        };
        let wanted = fail_request == Some(true);
        for outcome in outcomes() {
            for event in events().filter(|e| Class::of(*e) == Class::Setup) {
                if failures(&outcome) {
                    let seen = aborts(event, &policy, &outcome);
                    assert_eq!(seen, wanted, "{event:?} {outcome:?}");
                }
            }
            // The pod's teardown proceeds, and its call returns the error.
            let verdict = reported(Event::StopPodSandbox, &policy, 0, &outcome);
            assert_eq!(verdict.flow, Flow::Proceed, "{outcome:?}");
            let fails = wanted && failures(&outcome);
            assert_eq!(verdict.failed.is_some(), fails, "{outcome:?}");
            assert!(verdict.failed.is_none() || verdict.failed == verdict.log);
        }
    }
}

#[test]
fn a_timeout_closes_at_once_by_default() {
    let verdict = reported(
        Event::StopContainer,
        &PluginPolicy::default(),
        0,
        &Outcome::TimedOut,
    );
    assert_eq!(verdict.close, Some(CloseReason::RequestTimeout));
    assert_eq!(verdict.flow, Flow::Proceed);
}

#[test]
fn a_skipped_plugin_is_closed_after_so_many_misses_in_a_row() {
    let skip = PluginPolicy {
        on_timeout: Some(OnTimeout::Skip),
        breaker: Some(3),
        ..Default::default()
    };
    let first = reported(Event::RunPodSandbox, &skip, 0, &Outcome::TimedOut);
    assert_eq!((first.close, first.misses), (None, 1));
    let second = reported(Event::RunPodSandbox, &skip, first.misses, &Outcome::Skipped);
    assert_eq!((second.close, second.misses), (None, 2));
    let unasked = reported(
        Event::RunPodSandbox,
        &skip,
        second.misses,
        &Outcome::NotSubscribed,
    );
    assert_eq!(
        unasked.misses, 2,
        "an event without a subscription does not count"
    );
    let third = reported(
        Event::RunPodSandbox,
        &skip,
        second.misses,
        &Outcome::TimedOut,
    );
    assert_eq!(third.close, Some(CloseReason::RequestTimeout));
    let answered = reported(Event::RunPodSandbox, &skip, 2, &Outcome::Answered);
    assert_eq!(answered.misses, 0);

    let never = PluginPolicy {
        breaker: Some(0),
        ..skip
    };
    let verdict = reported(Event::RunPodSandbox, &never, u32::MAX, &Outcome::TimedOut);
    assert_eq!((verdict.close, verdict.misses), (None, u32::MAX));
}

#[test]
fn a_lost_or_garbling_plugin_is_closed_whatever_its_policy() {
    let skip = PluginPolicy {
        on_timeout: Some(OnTimeout::Skip),
        ..Default::default()
    };
    for event in events() {
        let lost = reported(event, &skip, 0, &Outcome::Lost("gone".into()));
        assert_eq!(lost.close, Some(CloseReason::ConnectionLost));
        let garbled = reported(event, &skip, 0, &Outcome::Garbled("junk".into()));
        assert_eq!(garbled.close, Some(CloseReason::ProtocolError));
        let cancelled = reported(event, &PluginPolicy::default(), 0, &Outcome::Cancelled);
        assert_eq!(cancelled.close, None, "not the plugin's fault");
    }
}

#[test]
fn only_teardown_that_a_must_run_plugin_did_not_acknowledge_is_journalled() {
    let must = PluginPolicy {
        must_run: true,
        ..Default::default()
    };
    for outcome in outcomes() {
        let acknowledged = matches!(
            outcome,
            Outcome::Answered
                | Outcome::Refused(_)
                | Outcome::Conflict(_)
                | Outcome::Invalid(_)
                | Outcome::Denied(_)
                | Outcome::NotSubscribed
        );
        for event in events() {
            let teardown = Class::of(event) == Class::Teardown;
            let verdict = reported(event, &must, 0, &outcome);
            assert_eq!(
                verdict.journal,
                teardown && !acknowledged,
                "{event:?} {outcome:?}"
            );
            assert!(!reported(event, &PluginPolicy::default(), 0, &outcome).journal);
        }
    }
}

#[test]
fn a_late_answer_to_create_container_is_undone() {
    assert_eq!(late(Event::CreateContainer, true), Late::Undo);
    assert_eq!(late(Event::CreateContainer, false), Late::Drop);
    assert_eq!(late(Event::UpdateContainer, true), Late::Drop);
}
