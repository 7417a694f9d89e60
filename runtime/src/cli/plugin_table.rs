//! The output of `cairn plugins`. Pure: the daemon's answer in, text out.
//!
//! A line per plugin, in call order; below it errors, their effect on pods, and since when.

use proto_cairn::v1::{Plugin, PluginsResponse};
use serde_json::{Value, json};

use super::text::{age, clean, duration, fold, line, widths, with};

const HEAD: [&str; 11] = [
    "PLUGIN", "STATE", "KIND", "PID", "PROTOCOL", "EVENTS", "CALLS", "ERRORS", "P50", "P99",
    "BACKLOG",
];
/// Columns from this one on are numbers, aligned to the right.
const NUMBERS: usize = 6;
/// Events that a plugin can get, without validation.
const EVENTS: usize = 13;
const INDENT: usize = 4;

/// For people. `width` is the terminal's; only what stands below a plugin is folded to it.
pub(super) fn table(
    PluginsResponse { plugins, rejected }: &PluginsResponse,
    width: usize,
) -> String {
    let mut text = if plugins.is_empty() {
        "no NRI plugin is connected, and none is required\n".to_owned()
    } else {
        connected(plugins, width)
    };
    if !rejected.is_empty() {
        text.push_str("\nrejected\n");
    }
    for one in rejected {
        let times = if one.times > 1 {
            format!(", {} times", one.times)
        } else {
            String::new()
        };
        let pid = if one.pid > 0 {
            format!(", pid {}", one.pid)
        } else {
            String::new()
        };
        let line = format!(
            "{}{pid}, {} ago{times}: {}",
            one.kind,
            age(one.age_ns),
            one.reason
        );
        for line in fold(&clean(&line), width.saturating_sub(2).max(40), 2) {
            text.push_str(&format!("  {line}\n"));
        }
    }
    text
}

fn connected(plugins: &[Plugin], width: usize) -> String {
    let mut rows = vec![HEAD.map(str::to_owned)];
    rows.extend(plugins.iter().map(row));
    let widths = widths(&rows);
    let mut text = String::new();
    for (number, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths).enumerate();
        let cells = cells.map(|(column, (cell, width))| match column {
            NUMBERS.. => format!("{cell:>width$}"),
            _ => format!("{cell:width$}"),
        });
        text += &line(&cells.collect::<Vec<_>>());
        for note in number
            .checked_sub(1)
            .map_or(Vec::new(), |n| notes(&plugins[n]))
        {
            for line in fold(&clean(&note), width.saturating_sub(INDENT).max(40), 2) {
                text.push_str(&format!("{:INDENT$}{line}\n", ""));
            }
        }
    }
    text
}

/// For programs: everything, durations in nanoseconds.
pub(super) fn json(PluginsResponse { plugins, rejected }: &PluginsResponse) -> Value {
    let all = plugins.iter();
    let all = all.map(|plugin| with(plugin, "id", id(plugin)));
    json!({ "plugins": all.collect::<Vec<_>>(), "rejected": rejected })
}

fn id(plugin: &Plugin) -> String {
    format!("{}-{}", plugin.index, plugin.name)
}

fn row(plugin: &Plugin) -> [String; HEAD.len()] {
    let dash = |text: &str| if text.is_empty() { "-" } else { text }.to_owned();
    let number = |n: u64, shown: bool| if shown { n.to_string() } else { "-".to_owned() };
    let known = !plugin.kind.is_empty();
    let time = |ns| match plugin.calls {
        0 => "-".to_owned(),
        _ => duration(ns),
    };
    [
        id(plugin),
        state(plugin),
        dash(&plugin.kind),
        number(plugin.pid.into(), plugin.pid != 0),
        dash(&plugin.protocol),
        dash(&events(&plugin.events)),
        number(plugin.calls, known),
        number(plugin.errors, known),
        time(plugin.p50_ns),
        time(plugin.p99_ns),
        number(plugin.backlog, plugin.must_run),
    ]
}

/// Its state, since when, and its requirements. Capitals if it prevents pods.
fn state(plugin: &Plugin) -> String {
    let since = age(plugin.since_ns);
    let mut text = match plugin.state.as_str() {
        "active" => format!("connected {since}"),
        "overdue" => format!("hung {since}"),
        "absent" if plugin.required => format!("MISSING {since}"),
        "absent" => format!("missing {since}"),
        "gone" => format!("closed {since} ago"),
        other => format!("{other} {since}"),
    };
    for (is, mark) in [
        (plugin.required, ", required"),
        (plugin.must_run, ", must run"),
        (plugin.fail_request, ", fail request"),
        (plugin.on_timeout == "keep", ", keep connected"),
    ] {
        if is {
            text.push_str(mark);
        }
    }
    text
}

/// The shortest description of the events.
fn events(events: &[String]) -> String {
    let is_pod = |event: &&String| event.contains("PodSandbox");
    let pod = events.iter().filter(is_pod).count();
    let validates = events.iter().any(|e| e == "ValidateContainerAdjustment");
    let reported = match events.len() - usize::from(validates) {
        0..=2 => return events.join(","),
        EVENTS => "all".to_owned(),
        n if n == pod => format!("{n} of pods"),
        n if pod == 0 => format!("{n} of containers"),
        n => format!("{pod} of pods, {} of containers", n - pod),
    };
    if validates {
        format!("{reported}, validation")
    } else {
        reported
    }
}

/// The effect of its state, and its last error.
fn notes(plugin: &Plugin) -> Vec<String> {
    let mut notes = Vec::new();
    match plugin.state.as_str() {
        "absent" if plugin.required => {
            notes.push("no pod and no container is created without it".to_owned());
        }
        "overdue" if plugin.required => {
            notes.push("no pod and no container is created until it answers".to_owned());
        }
        "overdue" => notes.push("it gets no event until it answers".to_owned()),
        _ => {}
    }
    match plugin.backlog {
        0 => {}
        1 => notes.push("a Stop or Remove event waits for it".to_owned()),
        n => notes.push(format!("{n} Stop and Remove events wait for it")),
    }
    if !plugin.last_error.is_empty() {
        let ago = age(plugin.last_error_age_ns);
        notes.push(format!("{ago} ago: {}", plugin.last_error));
    }
    notes
}

#[cfg(test)]
mod tests {
    use proto_cairn::v1::RejectedPlugin;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn table(plugins: &[Plugin], width: usize) -> String {
        let plugins = plugins.to_vec();
        super::table(
            &PluginsResponse {
                plugins,
                ..PluginsResponse::default()
            },
            width,
        )
    }

    #[test]
    fn what_was_rejected_is_listed_with_its_reason() {
        let rejected = vec![
            RejectedPlugin {
                kind: "external".into(),
                pid: 7,
                reason: "an NRI plugin connected to the CRI socket".into(),
                age_ns: 2 * S,
                times: 3,
            },
            RejectedPlugin {
                kind: "launched".into(),
                reason: "31-x: is not executable".into(),
                times: 1,
                ..Default::default()
            },
        ];
        let answer = PluginsResponse {
            plugins: Vec::new(),
            rejected,
        };
        let expected = "\
no NRI plugin is connected, and none is required

rejected
  external, pid 7, 2s ago, 3 times: an NRI plugin connected to the CRI socket
  launched, 0s ago: 31-x: is not executable
";
        assert_eq!(super::table(&answer, 100), expected);
        assert_eq!(json(&answer)["rejected"][0]["pid"], 7);
    }

    fn connected() -> Plugin {
        Plugin {
            index: "10".into(),
            name: "logger".into(),
            state: "active".into(),
            since_ns: 200 * S,
            kind: "launched".into(),
            pid: 4711,
            protocol: "v1alpha1".into(),
            events: vec!["RunPodSandbox".into(), "StopPodSandbox".into()],
            calls: 120,
            p50_ns: 120_000,
            p99_ns: 2_000_000,
            ..Plugin::default()
        }
    }

    fn hung() -> Plugin {
        Plugin {
            index: "20".into(),
            name: "slow".into(),
            state: "overdue".into(),
            since_ns: 12 * S,
            errors: 1,
            p99_ns: 2 * S,
            last_error: "plugin 20-slow failed to handle StopContainer request: timed out".into(),
            last_error_age_ns: 12 * S,
            ..connected()
        }
    }

    fn missing() -> Plugin {
        Plugin {
            index: "30".into(),
            name: "guard".into(),
            state: "absent".into(),
            since_ns: 200 * S,
            required: true,
            ..Plugin::default()
        }
    }

    #[test]
    fn healthy_hung_and_missing_plugins_are_told_apart_at_a_glance() {
        let shown = table(&[connected(), hung(), missing()], 120);
        let expected = "\
PLUGIN     STATE                 KIND      PID   PROTOCOL  EVENTS                        CALLS  ERRORS      P50      P99  BACKLOG
10-logger  connected 3m          launched  4711  v1alpha1  RunPodSandbox,StopPodSandbox    120       0  0.12 ms  2.00 ms        -
20-slow    hung 12s              launched  4711  v1alpha1  RunPodSandbox,StopPodSandbox    120       1  0.12 ms   2.00 s        -
    it gets no event until it answers
    12s ago: plugin 20-slow failed to handle StopContainer request: timed out
30-guard   MISSING 3m, required  -         -     -         -                                 -       -        -        -        -
    no pod and no container is created without it
";
        assert_eq!(shown, expected, "\n{shown}");
    }

    #[test]
    fn a_backlog_is_shown_where_there_can_be_one() {
        let plugin = Plugin {
            must_run: true,
            backlog: 3,
            ..missing()
        };
        let shown = table(&[plugin], 120);
        assert!(shown.contains("MISSING 3m, required, must run"), "{shown}");
        assert!(shown.contains("        3\n"), "{shown}");
        assert!(
            shown.contains("    3 Stop and Remove events wait for it\n"),
            "{shown}"
        );
    }

    #[test]
    fn what_a_plugin_wants_of_its_failures_is_shown_where_it_is_not_the_default() {
        let plugin = Plugin {
            on_timeout: "keep".into(),
            fail_request: true,
            ..connected()
        };
        let shown = table(&[plugin], 120);
        assert!(
            shown.contains("connected 3m, fail request, keep connected"),
            "{shown}"
        );
        let plugin = Plugin {
            on_timeout: "close".into(),
            ..connected()
        };
        assert!(table(&[plugin], 120).contains("connected 3m  launched"));
    }

    #[test]
    fn an_error_moves_no_cursor_and_is_folded() {
        let plugin = Plugin {
            last_error: format!("\u{1b}[2J{}", "word ".repeat(40)),
            ..connected()
        };
        let shown = table(&[plugin], 80);
        assert!(!shown.contains('\u{1b}'), "{shown:?}");
        assert!(shown.lines().skip(2).count() >= 3, "{shown}");
        assert!(
            shown.lines().skip(2).all(|l| l.chars().count() <= 80),
            "{shown}"
        );
    }

    #[test]
    fn many_events_are_counted_by_kind() {
        let all: Vec<String> = nri::mask::EVENTS
            .iter()
            .map(|(_, name)| (*name).to_owned())
            .collect();
        assert_eq!(events(&all), "all, validation");
        assert_eq!(events(&all[..13]), "all");
        assert_eq!(events(&all[..3]), "3 of pods");
        assert_eq!(events(&all[..5]), "3 of pods, 2 of containers");
        assert_eq!(events(&all[3..6]), "3 of containers");
        assert_eq!(events(&[]), "");
    }

    #[test]
    fn json_has_every_plugin_with_its_id() {
        let plugins = vec![connected(), missing()];
        let value = json(&PluginsResponse {
            plugins,
            ..PluginsResponse::default()
        });
        assert_eq!(value["plugins"][0]["id"], "10-logger");
        assert_eq!(value["plugins"][0]["p50_ns"], 120_000);
        assert_eq!(value["plugins"][1]["required"], true);
    }
}
