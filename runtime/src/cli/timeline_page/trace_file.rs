//! The same lanes in the JSON of trace events: a pod is a process, a row of a lane a thread.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::model::Chart;

/// One object with `traceEvents`, which Perfetto and Chrome's tracing open, and a newline.
pub fn trace_events(chart: &Chart) -> String {
    let mut events = Vec::new();
    for (pid, group) in chart.groups.iter().enumerate() {
        let name = if group.id.is_empty() {
            "daemon and plugins"
        } else {
            &group.name
        };
        events.push(meta("process_name", pid, 0, &json!({ "name": name })));
        events.push(meta(
            "process_sort_index",
            pid,
            0,
            &json!({ "sort_index": pid }),
        ));
    }
    let threads: BTreeSet<(usize, usize, usize)> = chart
        .items
        .iter()
        .zip(&chart.places)
        .map(|(item, (lane, row))| (item.group, *lane, *row))
        .collect();
    for (pid, lane, row) in threads {
        let name = chart.lanes[pid][lane].name();
        events.push(meta(
            "thread_name",
            pid,
            tid(lane, row),
            &json!({ "name": name }),
        ));
    }
    for (item, (lane, row)) in chart.items.iter().zip(&chart.places) {
        let mut args = serde_json::Map::new();
        for (key, value) in [
            ("request", &item.asked),
            ("answer", &item.answer),
            ("container", &item.container.1),
            ("call", &item.call),
        ] {
            if !value.is_empty() {
                args.insert(key.to_owned(), json!(value));
            }
        }
        events.push(json!({
            "name": item.label,
            "cat": chart.lanes[item.group][*lane].name(),
            "ph": "X",
            "ts": item.at,
            "dur": item.took,
            "pid": item.group,
            "tid": tid(*lane, *row),
            "args": args,
        }));
    }
    format!(
        "{}\n",
        json!({ "traceEvents": events, "displayTimeUnit": "ms" })
    )
}

/// Thread ids in the order of lanes, from 1.
fn tid(lane: usize, row: usize) -> usize {
    lane * 10 + row + 1
}

fn meta(what: &str, pid: usize, tid: usize, args: &Value) -> Value {
    json!({ "name": what, "ph": "M", "pid": pid, "tid": tid, "args": args })
}
