//! The guarantees for plugins on every transport. Each test runs three times: with plugins that use
//! `StateChange`, dedicated calls, and in-process plugins.

#[path = "../common/mod.rs"]
mod common;
mod world;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use common::{Record, container, pod, until};
use nri::{EventMask, Handlers, Outcome, PluginState, policy::OnTimeout, proto::*};
use world::*;

macro_rules! on_every_transport {
    ($($(#[$meta:meta])* async fn $name:ident($transport:ident) $body:block)*) => {
        $(mod $name {
            use super::*;

            async fn check($transport: Transport) $body

            #[tokio::test]
            async fn state_change() { check(Transport::StateChange).await }
            #[tokio::test]
            async fn dedicated() { check(Transport::Dedicated).await }
            #[tokio::test]
            async fn in_process() { check(Transport::InProcess).await }
        })*
    };
}

on_every_transport! {
    async fn all_thirteen_events_arrive_once_and_in_order(transport) {
        let record = Record::default();
        let world = world(transport, vec![("10-all", record.handlers())]).await;
        let expected = whole_life(&world.nri).await;
        assert_eq!(record.lines()[0], "Synchronize");
        assert_eq!(record.lines()[1..], expected);
    }

    async fn plugins_are_called_in_the_order_of_their_index(transport) {
        let order = Arc::new(Mutex::new(Vec::new()));
        let says = |name: &'static str| {
            let order = order.clone();
            Handlers::new().start_container(move |_, _| {
                order.lock().unwrap().push(name);
                async { Ok(()) }
            })
        };
        let plugins = vec![("20-b", says("20")), ("99-c", says("99")), ("00-a", says("00"))];
        let world = world(transport, plugins).await;
        world.nri.start_container(pod("p"), container("c", "p")).await.unwrap();
        assert_eq!(*order.lock().unwrap(), ["00", "20", "99"]);
    }

    async fn a_plugin_gets_only_what_it_subscribed_to(transport) {
        let count = Arc::new(AtomicUsize::new(0));
        let seen = count.clone();
        let handlers = Handlers::new().post_start_container(move |_, _| {
            seen.fetch_add(1, Ordering::SeqCst);
            async { Ok(()) }
        });
        let world = world(transport, vec![("10-one", handlers)]).await;
        whole_life(&world.nri).await;
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let reported = world.nri.run_pod_sandbox(pod("q")).await.unwrap();
        assert_eq!(*outcome(&reported.deliveries, "10-one"), Outcome::NotSubscribed);
    }

    async fn a_veto_stops_setup_and_names_plugin_event_and_cause(transport) {
        let record = Record::default();
        let plugins = vec![("10-no", failing()), ("20-later", record.handlers())];
        let world = world(transport, plugins).await;
        let (p, c) = (|| pod("p"), || container("c", "p"));
        let nri = &world.nri;
        let turn = nri.turn(Event::CreateContainer).await;
        let refusals = [
            nri.run_pod_sandbox(p()).await.unwrap_err(),
            nri.update_pod_sandbox(p(), LinuxResources::default(), LinuxResources::default())
                .await
                .unwrap_err(),
            nri.create_container(&turn, p(), c()).await.unwrap_err(),
            nri.start_container(p(), c()).await.unwrap_err(),
            nri.update_container(&turn, p(), c(), LinuxResources::default()).await.unwrap_err(),
        ];
        for refused in refusals {
            let text = refused.to_string();
            for part in ["10-no", nri::mask::event_name(refused.event), "it will not"] {
                assert!(text.contains(part), "{part:?} is not in {text:?}");
            }
        }
        assert_eq!(record.lines(), ["Synchronize"], "a later plugin was called");
    }

    async fn a_failing_plugin_does_not_hide_teardown_from_later_plugins(transport) {
        let record = Record::default();
        let plugins = vec![("10-no", failing()), ("20-later", record.handlers())];
        let world = world(transport, plugins).await;
        for deliveries in teardown(&world.nri).await {
            assert!(matches!(outcome(&deliveries, "10-no"), Outcome::Refused(_)), "{deliveries:?}");
            assert_eq!(*outcome(&deliveries, "20-later"), Outcome::Answered);
        }
        assert_eq!(record.lines().len(), 1 + 8);
        // An error is an answer, so the plugin stays connected.
        assert_eq!(common::there(&world.nri).len(), 2);
    }

    async fn a_panicking_handler_is_an_error_and_nothing_more(transport) {
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| async {
                // Without the panic report: a backtrace takes longer than the plugin's timeout.
                std::panic::resume_unwind(Box::new("on purpose"))
            })
            .stop_pod_sandbox(|_| async { Ok(()) });
        let world = world(transport, vec![("10-panics", handlers)]).await;
        let refused = world.nri.run_pod_sandbox(pod("p")).await.unwrap_err();
        assert!(refused.to_string().contains("panicked"), "{refused}");
        let reported = world.nri.stop_pod_sandbox(pod("p")).await;
        assert_eq!(*outcome(&reported.deliveries, "10-panics"), Outcome::Answered);
    }

    async fn a_plugin_that_hangs_is_closed_and_setup_goes_on_without_it(transport) {
        let record = Record::default();
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| std::future::pending())
            .stop_pod_sandbox(|_| async { Ok(()) });
        let world = world(transport, vec![("10-hangs", handlers), ("20-later", record.handlers())]).await;
        let begun = Instant::now();
        let reported = world.nri.run_pod_sandbox(pod("p")).await.unwrap();
        assert!(begun.elapsed() < Duration::from_secs(10) * common::patience());
        assert_eq!(*outcome(&reported.deliveries, "10-hangs"), Outcome::TimedOut);
        assert_eq!(*outcome(&reported.deliveries, "20-later"), Outcome::Answered);
        // It does not get the Stop event either (NRI-1104).
        let reported = world.nri.stop_pod_sandbox(pod("p")).await;
        assert_eq!(reported.deliveries.len(), 1);
        let limit = world.nri.timeouts().request;
        let end = format!("RunPodSandbox request: timed out (limit {limit:?})");
        assert!(world.place.seen.saw("10-hangs", |e| matches!(
            e,
            nri::PluginEvent::Closed { reason }
                if reason.starts_with("request-timeout: ") && reason.ends_with(&end)
        )));
    }

    async fn adjustments_are_merged_and_later_plugins_see_earlier_ones(transport) {
        let saw = Arc::new(Mutex::new(String::new()));
        let seen = saw.clone();
        let second = Handlers::new().create_container(move |_, c| {
            *seen.lock().unwrap() = c.annotations.get("first").cloned().unwrap_or_default();
            async { Ok((Some(annotate("second", "2")), Vec::new())) }
        });
        let plugins = vec![("10-a", adjuster(annotate("first", "1"))), ("20-b", second)];
        let world = world(transport, plugins).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        let created = world.nri.create_container(&turn, pod("p"), container("c", "p")).await;
        let merged = created.unwrap().merged;
        assert_eq!(merged.adjust.annotations.len(), 2);
        assert_eq!(*saw.lock().unwrap(), "1");
        assert!(merged.container.annotations.is_empty());
    }

    async fn updates_of_target_and_others_come_back_apart(transport) {
        let handlers = Handlers::new().update_container(|_, _, _| async {
            Ok(vec![shares("c", 7), shares("other", 8)])
        });
        let world = world(transport, vec![("10-a", handlers)]).await;
        let turn = world.nri.turn(Event::UpdateContainer).await;
        let updated = world
            .nri
            .update_container(&turn, pod("p"), container("c", "p"), LinuxResources::default())
            .await
            .unwrap()
            .merged;
        let target = updated.target.unwrap().cpu.unwrap().shares.unwrap();
        assert_eq!(target.value, 7);
        assert_eq!(updated.others.len(), 1);
        assert_eq!(updated.others[0].container_id, "other");
    }

    async fn a_stop_brings_updates_of_others(transport) {
        let handlers = Handlers::new().stop_container(|_, _| async { Ok(vec![shares("o", 9)]) });
        let world = world(transport, vec![("10-a", handlers)]).await;
        let turn = world.nri.turn(Event::StopContainer).await;
        let stopped = world.nri.stop_container(&turn, pod("p"), container("c", "p")).await;
        assert_eq!(stopped.merged.update[0].container_id, "o");
    }

    async fn validators_judge_the_sum_and_all_their_reasons_are_told(transport) {
        let check = |why: &'static str| {
            Handlers::new().validate_container_adjustment(move |request| async move {
                let adjust = request.adjust.unwrap_or_default();
                if adjust.annotations.contains_key("bad") {
                    return Err(why.into());
                }
                Ok(())
            })
        };
        let bad = Handlers::new().create_container(|_, c| async move {
            let key = if c.id == "good" { "good" } else { "bad" };
            Ok((Some(annotate(key, "1")), Vec::new()))
        });
        let plugins = vec![("10-a", bad), ("80-v", check("first reason")), ("90-w", check("second"))];
        let world = world(transport, plugins).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        let create = |id| world.nri.create_container(&turn, pod("p"), container(id, "p"));
        create("good").await.unwrap();
        let text = create("evil").await.unwrap_err().to_string();
        for part in ["80-v", "first reason", "90-w", "second"] {
            assert!(text.contains(part), "{part:?} is not in {text:?}");
        }
    }

    async fn validators_are_asked_at_the_same_time(transport) {
        // Each plugin answers only after all are called.
        let all = Arc::new(tokio::sync::Barrier::new(3));
        let waits = || {
            let all = all.clone();
            Handlers::new().validate_container_adjustment(move |_| {
                let all = all.clone();
                async move {
                    all.wait().await;
                    Ok(())
                }
            })
        };
        let world = world(transport, vec![("10-a", waits()), ("20-b", waits()), ("30-c", waits())]).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        world.nri.create_container(&turn, pod("p"), container("c", "p")).await.unwrap();
    }

    async fn a_validator_that_hangs_rejects(transport) {
        let hangs = Handlers::new().validate_container_adjustment(|_| std::future::pending());
        let world = world(transport, vec![("10-v", hangs)]).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        let refused = world.nri.create_container(&turn, pod("p"), container("c", "p")).await;
        assert!(refused.unwrap_err().to_string().contains("10-v"));
        until("it is closed", || common::there(&world.nri).is_empty()).await;
    }

    async fn validators_are_told_who_has_answered(transport) {
        let reported = Arc::new(Mutex::new(Vec::new()));
        let names = reported.clone();
        let validator = Handlers::new().validate_container_adjustment(move |request| {
            let plugins = request.plugins.iter().map(|p| format!("{}-{}", p.index, p.name));
            *names.lock().unwrap() = plugins.collect();
            async { Ok(()) }
        });
        let hangs = Handlers::new().create_container(|_, _| std::future::pending());
        let plugins = vec![
            ("10-answers", adjuster(annotate("k", "v"))),
            ("20-hangs", hangs),
            ("30-idle", Handlers::new().run_pod_sandbox(|_| async { Ok(()) })),
            ("40-judge", validator),
        ];
        let world = world(transport, plugins).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        world.nri.create_container(&turn, pod("p"), container("c", "p")).await.unwrap();
        assert_eq!(*reported.lock().unwrap(), ["10-answers", "30-idle", "40-judge"]);
    }

    async fn a_required_plugin_that_hangs_fails_this_very_creation(transport) {
        let handlers = Handlers::new()
            .run_pod_sandbox(|_| std::future::pending())
            .create_container(|_, _| async { Ok((None, Vec::new())) });
        let required = settings("10-must", |s| s.policy.required = true);
        let world = world_with(transport, required, vec![("10-must", handlers)]).await;
        let refused = world.nri.run_pod_sandbox(pod("p")).await.unwrap_err();
        let why = "plugin 10-must failed to handle RunPodSandbox request: timed out";
        assert!(refused.to_string().starts_with(why), "{refused}");
        // Now the plugin is absent, so containers are not created either.
        let turn = world.nri.turn(Event::CreateContainer).await;
        let refused = world.nri.create_container(&turn, pod("p"), container("c", "p")).await;
        assert!(refused.unwrap_err().to_string().contains("not connected"));
        let info = common::there(&world.nri);
        assert_eq!((info.len(), info[0].state), (1, PluginState::Absent));
    }

    async fn an_adjustment_outside_the_permitted_fields_fails(transport) {
        let limited = settings("10-a", |s| s.policy.fields = "Env".parse().unwrap());
        let world =
            world_with(transport, limited, vec![("10-a", adjuster(annotate("k", "v")))]).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        let created = world.nri.create_container(&turn, pod("p"), container("c", "p")).await;
        let text = created.unwrap_err().to_string();
        assert!(text.contains("10-a") && text.contains("Annotations"), "{text}");
    }

    async fn events_that_are_not_permitted_are_not_delivered(transport) {
        let record = Record::default();
        let limited = settings("10-a", |s| s.policy.events = EventMask::POD);
        let world = world_with(transport, limited, vec![("10-a", record.handlers())]).await;
        whole_life(&world.nri).await;
        assert_eq!(record.lines().len(), 1 + 5);
    }

    async fn a_slow_plugin_may_be_skipped_until_its_answer_came(transport) {
        let release = Arc::new(tokio::sync::Notify::new());
        let (released, record) = (release.clone(), Record::default());
        let handlers = record.handlers().create_container(move |_, _| {
            let released = released.clone();
            async move {
                released.notified().await;
                Ok((Some(annotate("late", "1")), Vec::new()))
            }
        });
        let patient = settings("10-slow", |s| {
            s.policy.on_timeout = Some(OnTimeout::Skip);
            s.policy.breaker = Some(5);
        });
        let world = world_with(transport, patient, vec![("10-slow", handlers)]).await;
        let turn = world.nri.turn(Event::CreateContainer).await;
        let created = world.nri.create_container(&turn, pod("p"), container("c", "p")).await;
        let created = created.unwrap();
        assert_eq!(*outcome(&created.deliveries, "10-slow"), Outcome::TimedOut);
        assert!(created.merged.adjust.annotations.is_empty());
        let reported = world.nri.run_pod_sandbox(pod("q")).await.unwrap();
        assert_eq!(*outcome(&reported.deliveries, "10-slow"), Outcome::Skipped);

        // Its late answer is dropped, and it gets StopContainer and RemoveContainer to forget the
        // container.
        release.notify_one();
        until("it gets Stop and Remove", || {
            record.lines().ends_with(&["StopContainer p c".into(), "RemoveContainer p c".into()])
        })
        .await;
        let mut answered = false;
        for _ in 0..1000 {
            let reported = world.nri.post_start_container(pod("p"), container("d", "p")).await;
            answered = *outcome(&reported.deliveries, "10-slow") == Outcome::Answered;
            if answered {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        assert!(answered, "it gets events again");
        // It gets no further events of that container, which runs without it.
        let forgotten = record.lines().len();
        let (p, c) = (|| pod("p"), || container("c", "p"));
        world.nri.stop_container(&turn, p(), c()).await;
        world.nri.remove_container(p(), c()).await;
        assert_eq!(record.lines().len(), forgotten);
    }

    async fn a_slow_must_run_plugin_is_told_what_it_missed_when_its_answer_came(transport) {
        let release = Arc::new(tokio::sync::Notify::new());
        let (released, record) = (release.clone(), Record::default());
        let handlers = record.handlers().start_container(move |_, _| {
            let released = released.clone();
            async move {
                released.notified().await;
                Ok(())
            }
        });
        let patient = settings("10-slow", |s| {
            s.policy.on_timeout = Some(OnTimeout::Skip);
            s.policy.must_run = true;
        });
        let world = world_with(transport, patient, vec![("10-slow", handlers)]).await;
        world.nri.start_container(pod("p"), container("c", "p")).await.unwrap();
        let reported = world.nri.stop_pod_sandbox(pod("p")).await;
        assert_eq!(*outcome(&reported.deliveries, "10-slow"), Outcome::Skipped);
        assert_eq!(common::there(&world.nri)[0].backlog, 1);
        release.notify_one();
        until("the event arrives", || record.lines().ends_with(&["StopPodSandbox p".into()])).await;
        until("nothing is kept", || common::there(&world.nri)[0].backlog == 0).await;
    }

    async fn the_breaker_closes_a_plugin_that_is_skipped_too_often(transport) {
        let handlers = Handlers::new().start_container(|_, _| std::future::pending());
        let patient = settings("10-slow", |s| {
            s.policy.on_timeout = Some(OnTimeout::Skip);
            s.policy.breaker = Some(3);
        });
        let world = world_with(transport, patient, vec![("10-slow", handlers)]).await;
        let start = || world.nri.start_container(pod("p"), container("c", "p"));
        for expected in [Outcome::TimedOut, Outcome::Skipped, Outcome::Skipped] {
            let reported = start().await.unwrap();
            assert_eq!(*outcome(&reported.deliveries, "10-slow"), expected);
        }
        assert!(common::there(&world.nri).is_empty());
    }

    async fn plugins_and_metrics_tell_of_calls_and_errors(transport) {
        let world = world(transport, vec![("10-no", failing())]).await;
        world.nri.stop_pod_sandbox(pod("p")).await;
        let info = &common::there(&world.nri)[0];
        assert_eq!((info.calls, info.errors), (1, 1));
        assert!(info.last_error.as_ref().unwrap().contains("it will not"));
        let text = world.nri.metrics("nri");
        let line = "nri_plugin_invocations_total{plugin=\"10-no\",operation=\"StopPodSandbox\",\
                    status=\"error\",error=\"unknown\"} 1";
        assert!(text.contains(line), "{text}");
        assert!(text.contains("nri_active_plugins_total 1"));
    }

    async fn shutdown_says_goodbye_to_every_plugin(transport) {
        let shutdowns = Arc::new(AtomicUsize::new(0));
        let count = shutdowns.clone();
        let handlers = Handlers::new().run_pod_sandbox(|_| async { Ok(()) }).shutdown(move || {
            count.fetch_add(1, Ordering::SeqCst);
            async {}
        });
        let world = world(transport, vec![("10-a", handlers)]).await;
        world.nri.shutdown("enough").await;
        assert_eq!(shutdowns.load(Ordering::SeqCst), 1);
        assert!(common::there(&world.nri).is_empty());
        until("the socket is removed", || !world.place.socket().exists()).await;
        assert!(world.place.seen.saw("10-a", |e| matches!(
            e,
            nri::PluginEvent::Closed { reason } if reason == "runtime-stopping: enough"
        )));
    }
}
