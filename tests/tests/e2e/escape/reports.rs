//! Attempts of a pod's author to hide a container from plugins by texts that are too long for a
//! message.

use std::{collections::HashMap, time::Duration};

use cairn_tests::{
    Daemon, Setup, cri,
    output::stdout,
    plugin::{Plugin, Seen},
    pod::Pod,
};
use nri::proto::{ContainerAdjustment, Event};

use crate::policy::info;

const END: [Event; 2] = [Event::StopContainer, Event::RemoveContainer];

fn padded(bytes: usize) -> HashMap<String, String> {
    HashMap::from([("pad".to_owned(), "x".repeat(bytes))])
}

fn with_annotations(pod: &Pod, name: &str, bytes: usize) -> cri::ContainerConfig {
    let mut config = pod.cri.container_config(name, &["sleep", "1000"]);
    config.annotations.extend(padded(bytes));
    config
}

/// Returns the excess of a request, from the error "request of N bytes exceeds the limit of M".
fn excess(refused: &tonic::Status) -> usize {
    let number = |after: &str| -> usize {
        let rest = refused.message().split(after).nth(1);
        let digits = rest.and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
        let number = digits.and_then(|digits| digits.parse().ok());
        number.unwrap_or_else(|| panic!("no number after {after:?}: {refused}"))
    };
    number("request of ") - number("the limit of ")
}

const LONG: usize = 4 << 20;

#[tokio::test]
async fn the_longest_container_that_plugins_are_told_of_is_reported_until_it_is_removed() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let events = [&[Event::CreateContainer][..], &END].concat();
    let plugin = Plugin::subscribed(&daemon.nri_socket(), "30", "logger", &events).await;
    let refused = pod.try_create(with_annotations(&pod, "c1", LONG)).await;
    let longest = LONG - excess(&refused.expect_err("it is too long"));
    let config = with_annotations(&pod, "c2", longest);
    let container = pod.started(config).await;
    container.stop(Duration::ZERO).await.expect("StopContainer");
    container.remove().await.expect("RemoveContainer");
    for event in END {
        let seen = plugin
            .sees_where(&format!("{event:?}"), |s| is_of(s, event, "c2"))
            .await;
        let pad = &seen.container.expect("a container").annotations["pad"];
        assert_eq!(pad.len(), longest, "{event:?} is whole");
    }
    pod.end().await;
}

fn is_of(seen: &Seen, event: Event, container: &str) -> bool {
    let of = seen.container.as_ref().map(|c| c.name.as_str());
    seen.event == event && of == Some(container)
}

#[tokio::test]
async fn the_longest_pod_that_plugins_are_told_of_is_reported_until_it_is_removed() {
    let daemon = Daemon::start().await;
    let cri = daemon.cri();
    let events = [
        Event::RunPodSandbox,
        Event::StopPodSandbox,
        Event::RemovePodSandbox,
    ];
    let plugin = Plugin::subscribed(&daemon.nri_socket(), "30", "logger", &events).await;
    let config = |name: &str, bytes: usize| {
        let mut config = cri.pod_config(name);
        config.annotations.extend(padded(bytes));
        config
    };
    let refused = cri.try_pod(config("p1", LONG)).await;
    let longest = LONG - excess(&refused.expect_err("it is too long"));
    let pod = cri
        .try_pod(config("p2", longest))
        .await
        .expect("it just fits");
    pod.end().await;
    for event in &events[1..] {
        let seen = plugin.sees(*event, "p2").await;
        assert_eq!(seen.pod.annotations["pad"].len(), longest, "{event:?}");
    }
}

#[tokio::test]
async fn a_container_too_long_for_plugins_is_listed_and_reported_without_its_longest_field() {
    let toml = "[nri.plugin.\"30-late\"]\nmust_run = true";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let pod = daemon.cri().pod("p").await;
    // No plugin gets it, so that its length does not matter.
    let config = with_annotations(&pod, "c", 5 << 20);
    let container = pod.started(config).await;
    let late = Plugin::subscribed(&daemon.nri_socket(), "30", "late", &END).await;
    let (_, listed) = late.synchronised().await;
    let names: Vec<_> = listed.iter().map(|c| c.name.as_str()).collect();
    assert_eq!(names, ["c"]);
    assert!(listed[0].annotations.is_empty() && !listed[0].args.is_empty());
    pod.end().await;
    let without = format!("container {}: annotations", container.id);
    for event in END {
        let seen = late.sees(event, "p").await;
        let reported = seen.container.expect("a container");
        assert!(
            reported.annotations.is_empty() && !reported.args.is_empty(),
            "{event:?}"
        );
        assert_eq!(seen.left_out.join("; "), without, "{event:?}");
    }
    let info = info(&daemon, "30-late").await;
    assert_eq!((&info["backlog"], &info["errors"]), (&0.into(), &0.into()));
    let log = daemon.log();
    for event in ["StopContainer", "RemoveContainer"] {
        let line = format!("{event} is too long and was sent without fields of {without}");
        assert!(log.contains(&line), "{event}");
    }
    let timeline = stdout(&daemon.cairn(&["timeline", "--json"]).await);
    for kind in ["\"life\":\"shortened\"", "\"hook\":\"StopContainer\""] {
        let mut lines = timeline.lines().filter(|line| line.contains(kind));
        assert!(lines.any(|line| line.contains(&without)), "{kind}");
    }
}

#[tokio::test]
async fn a_container_that_plugins_make_too_long_to_report_is_refused_by_their_names() {
    let daemon = Daemon::start().await;
    let pod = daemon.cri().pod("p").await;
    let events = [&[Event::CreateContainer][..], &END].concat();
    let plugin = Plugin::subscribed(&daemon.nri_socket(), "30", "long", &events).await;
    plugin.adjusts(|_, _| {
        let annotations = padded(3 << 20).into_iter().collect();
        Some(ContainerAdjustment {
            annotations,
            ..Default::default()
        })
    });
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.labels.extend(padded(2 << 20));
    let refused = pod.try_create(config).await.expect_err("5 MiB in all");
    let says = "too long for plugins as adjusted by 30-long";
    assert!(refused.message().contains(says), "{refused}");
    assert!(pod.cri.containers().await.is_empty());
    for event in END {
        plugin.sees(event, "p").await;
    }
    pod.end().await;
}
