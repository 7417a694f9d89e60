//! Lanes, causes, folds, and that external text stays text.

use proptest::prelude::*;

use super::{
    chart, chart_of,
    fixtures::{Script, pod, refused},
    html::escape,
    model::{Chart, Lane},
    page,
    scale::{Scale, scale},
};
use crate::{
    cli::words::Tint,
    trace::{Action, Life, Outcome, Values, What},
};

fn lane_of(chart: &Chart, label: &str) -> Lane {
    let item = chart.items.iter().find(|item| item.label == label);
    let labels: Vec<_> = chart.items.iter().map(|item| &item.label).collect();
    item.unwrap_or_else(|| panic!("{label} is not among {labels:?}"))
        .lane
        .clone()
}

#[test]
fn each_event_is_in_the_lane_of_who_did_it() {
    let chart = chart(&refused("web", "no quota").events);
    let plugin = Lane::Plugin("10-quota".to_owned());
    for (label, lane) in [
        ("RunPodSandbox", Lane::Cri),
        ("namespaces made", Lane::Runtime),
        ("network attached: 10.88.0.5", Lane::Network),
        ("C-01 RunPodSandbox", Lane::Runtime),
        ("RunPodSandbox answered", plugin.clone()),
        ("CreateContainer refused", plugin.clone()),
        ("launched", plugin.clone()),
        ("cairn 0.1.0 started", Lane::Runtime),
    ] {
        assert_eq!(lane_of(&chart, label), lane, "{label}");
    }
    assert_eq!(
        chart.lanes[0],
        [Lane::Cri, Lane::Runtime, Lane::Network, plugin]
    );
}

#[test]
fn the_life_of_a_plugin_is_in_the_lane_of_its_answers() {
    let mut script = Script::new();
    for name in [
        "external:10-quota[4242]",
        "launched:10-quota[7]",
        "10-quota",
    ] {
        let (plugin, life) = (name.to_owned(), Life::Shadowed);
        script.after(1, &pod("web"), What::PluginLife { plugin, life });
    }
    let lane = Lane::Plugin("10-quota".to_owned());
    assert_eq!(chart(&script.events).lanes, [[lane]]);
}

#[test]
fn begin_and_end_of_a_call_are_one_bar_also_of_several_at_once() {
    let (a, b) = (pod("p").container("1", "a"), pod("p").container("2", "b"));
    let (a, b) = (a.during("CreateContainer"), b.during("CreateContainer"));
    let mut script = Script::new();
    script
        .after(0, &a, What::CallBegun)
        .after(100, &b, What::CallBegun)
        .ended(&a, 140, None)
        .ended(&b, 80, None);
    let chart = chart(&script.events);
    let bars: Vec<_> = chart
        .items
        .iter()
        .map(|i| (i.label.as_str(), i.at, i.end()))
        .collect();
    assert_eq!(
        bars,
        [
            ("CreateContainer a", 0, 140),
            ("CreateContainer b", 100, 180)
        ]
    );
    assert_eq!(chart.places, [(0, 0), (0, 1)], "they overlap: a row each");
}

#[test]
fn a_call_that_has_not_ended_reaches_to_the_last_event() {
    let subject = pod("p").during("StopContainer");
    let mut script = Script::new();
    script.after(0, &subject, What::CallBegun).after(
        700,
        &pod("p"),
        Action::Updated {
            values: Values::default(),
        },
    );
    let chart = chart(&script.events);
    assert!(chart.items[0].open && chart.items[0].end() == 700);
}

#[test]
fn a_refused_container_is_told_once_and_its_cause_is_the_plugins_answer() {
    let chart = chart(&refused("web", "no quota").events);
    assert_eq!(chart.failures.len(), 1, "{:?}", chart.failures);
    let failure = &chart.failures[0];
    assert_eq!(failure.what, "CreateContainer app failed");
    assert_eq!(failure.why, "10-quota refused CreateContainer: no quota");
    let cause = &chart.items[failure.cause];
    assert_eq!(cause.lane, Lane::Plugin("10-quota".to_owned()));
    assert_eq!(cause.answer, "refused: no quota");
    assert_eq!(cause.asked, "C-04 CreateContainer app");
    assert_eq!(
        chart.items[cause.point.expect("its point")].label,
        "C-04 CreateContainer app"
    );
}

#[test]
fn a_plugin_in_time_trouble_is_the_cause_of_a_call_that_fails_by_it() {
    let subject = pod("p").during("RunPodSandbox");
    let mut script = Script::new();
    script
        .after(0, &subject, What::CallBegun)
        .point(&subject, "C-01", "RunPodSandbox")
        .answer(&subject, "RunPodSandbox", "05-fine", Outcome::Answered)
        .answer(&subject, "RunPodSandbox", "10-late", Outcome::TimedOut)
        .passed(&subject, "RunPodSandbox", Some("10-late timed out"))
        .ended(&subject, 1000, Some("10-late timed out"));
    let chart = chart(&script.events);
    let cause = &chart.items[chart.failures[0].cause];
    assert_eq!(cause.label, "RunPodSandbox timed out");
    assert_eq!(chart.failures.len(), 1);
}

#[test]
fn an_exit_is_trouble_unless_somebody_asked_for_the_end() {
    let exit = || Action::Exited {
        code: 137,
        reason: "Error".to_owned(),
        message: String::new(),
    };
    let stop = pod("p").during("StopContainer");
    let mut script = Script::new();
    script
        .after(0, &pod("p"), exit())
        .after(10, &stop, What::CallBegun)
        .after(10, &pod("p"), exit());
    let chart = chart(&script.events);
    let tints: Vec<_> = chart.items.iter().map(|i| i.tint).collect();
    assert_eq!(tints, [Tint::Warn, Tint::Plain, Tint::Plain]);
    assert!(chart.failures.is_empty());
    assert!(page(&chart).contains("Nothing failed; one event is worth a look."));
}

#[test]
fn of_many_pods_those_with_failures_come_first_and_the_daemon_last() {
    let mut events = refused("p00", "x").events;
    events.truncate(10);
    for n in 1..40 {
        let mut script = refused(&format!("p{n:02}"), "x");
        let keep = if n == 30 { script.events.len() } else { 10 };
        events.extend(script.events.drain(2..keep));
    }
    let chart = chart(&events);
    assert!(chart.many);
    assert_eq!(chart.pods(), 40);
    assert_eq!(chart.groups[0].name, "default/p30");
    assert_eq!(chart.groups[1].name, "default/p00");
    assert_eq!(chart.groups[40].name, "");
}

#[test]
fn where_not_all_fits_failures_and_calls_stay_and_the_rest_is_counted() {
    let events = refused("web", "no quota").events;
    let whole = chart(&events);
    let thin = chart_of(&events, 4);
    assert_eq!(thin.left_out, whole.items.len() - 4);
    assert_eq!(thin.failures.len(), 1);
    assert!(thin.items.iter().any(|item| item.label == "RunPodSandbox"));
    assert_eq!(
        thin.items[thin.failures[0].cause].answer,
        "refused: no quota"
    );
    assert!(page(&thin).contains("events are not drawn"));
}

#[test]
fn three_hundred_pods_fit_into_two_megabytes() {
    let mut events = Vec::new();
    for n in 0..300 {
        for _ in 0..5 {
            let name = format!("a-deployment-with-a-name-{n}");
            events.extend(
                refused(&name, &format!("no quota for {n}"))
                    .events
                    .drain(2..),
            );
        }
    }
    let chart = chart(&events);
    let length = page(&chart).len();
    assert!(chart.left_out == 0 && length < 2_000_000, "{length} bytes");
}

#[test]
fn a_pause_of_days_leaves_the_milliseconds_around_it_in_sight() {
    let day = 86_400_000_000;
    let Scale { breaks, folds } = scale(&[(0, 400_000), (day, day + 100_000)], day + 100_000);
    assert_eq!(folds, [1]);
    assert_eq!((breaks[1].0, breaks[2].0), (400_000, day));
    let width = |i: usize| breaks[i + 1].1 - breaks[i].1;
    assert_eq!(width(0), 400_000);
    assert_eq!(width(2), 100_000);
    assert!(width(1) < 30_000, "{breaks:?}");
}

#[test]
fn what_is_short_or_busy_is_not_folded() {
    assert!(scale(&[(0, 1000), (1400, 2000)], 2000).folds.is_empty());
    assert!(scale(&[(0, 5_000_000)], 5_000_000).folds.is_empty());
    let nothing = scale(&[], 0);
    assert_eq!(nothing.breaks, [(0, 0), (1, 1)]);
}

/// Attempts of a hostile plugin, or of a client that chooses pod names.
const HOSTILE: [&str; 6] = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\" onmouseover=\"alert(1)\" x=\"",
    "<!--<script>",
    "{{data}}{{script}}",
    "&lt;b&gt;\u{2028}\u{202e}\u{1b}[31m",
];

#[test]
fn a_strangers_text_becomes_no_markup_wherever_it_stands() {
    for text in HOSTILE {
        let plain = page(&chart(&refused("web", "why").events));
        let subject = pod(text).container(text, text).during(text);
        let mut script = refused(text, text);
        let plugin = format!("10-{text}");
        let refusal = Outcome::Refused(text.to_owned().into());
        script
            .point(&subject, text, text)
            .answer(&subject, text, &plugin, refusal)
            .passed(&subject, text, Some(text))
            .ended(&subject, 1, Some(text));
        let drawn = page(&chart(&script.events));
        // The number of elements is the same as without hostile text; data contains none.
        let count = |page: &str, what: &str| page.matches(what).count();
        for what in ["<script", "</script", "<img", "<!--", "<b>"] {
            let extra = count(&drawn, what) - count(&plain, what);
            assert_eq!(extra, 0, "{text}: {what}");
        }
        let data = drawn.split("id=\"data\">").nth(1).expect("data");
        let data = data.split("</script>").next().expect("its end");
        assert!(!data.contains(['<', '>', '&']), "{data}");
        assert!(serde_json::from_str::<serde_json::Value>(data).is_ok());
        assert!(!drawn.contains(['\u{202e}', '\u{1b}']));
        let verdict = drawn.split("id=\"what\">").nth(1).expect("a verdict");
        let verdict = verdict.split("</p>").next().expect("its end");
        assert!(
            !verdict.contains("<img") && !verdict.contains("<script"),
            "{verdict}"
        );
    }
}

#[test]
fn the_page_names_its_own_script_and_style_and_lets_nothing_else_load() {
    let page = page(&chart(&refused("web", "why").events));
    assert!(page.contains("default-src 'none'; script-src 'sha256-"));
    assert!(!page.contains("unsafe-inline"));
    for outside in ["http:", "https:", "src=", "@import", "//cdn"] {
        let found = page.replace("http://www.w3.org/2000/svg", "");
        let code = found.split("id=\"data\"").next().expect("before the data");
        assert!(!code.contains(outside), "{outside}");
    }
    // A policy with digests would block such an attribute.
    for dead in [" style=\"", " onclick=\""] {
        assert!(!page.contains(dead), "{dead}");
    }
}

proptest! {
    #[test]
    fn places_grow_with_time_and_no_quiet_time_eats_the_chart(
        mut busy in prop::collection::vec((0_u64..10_000_000_000, 0_u64..1_000_000), 0..40),
    ) {
        busy.sort_unstable();
        let busy: Vec<_> = busy.into_iter().map(|(at, took)| (at, at + took)).collect();
        let end = busy.iter().map(|(_, to)| *to).max().unwrap_or(0);
        let Scale { breaks, folds } = scale(&busy, end);
        for pair in breaks.windows(2) {
            prop_assert!(pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1, "{breaks:?}");
        }
        prop_assert!(breaks.last().unwrap().0 >= end);
        let folded: u64 = folds.iter().map(|i| breaks[i + 1].1 - breaks[*i].1).sum();
        let rest = breaks.last().unwrap().1 - folded;
        prop_assert!(folded <= rest + folds.len() as u64, "{folded} of {rest}");
    }

    #[test]
    fn escaped_text_has_no_markup(text in "\\PC{0,200}") {
        let escaped = escape(&text);
        prop_assert!(!escaped.contains(['<', '>', '"', '\'']));
    }
}
