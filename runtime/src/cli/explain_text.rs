//! The output of `cairn explain`. Pure: the daemon's explanation in, text out.

use std::fmt::Write as _;

use serde_json::Value;

use super::{
    diff::{self, Line},
    text::{clean, cut, date, duration, fold},
    words::{Tint, some},
};
use crate::{
    explain::{Answer, Change, Effect, Explanation},
    trace::{Changed, shown},
};

/// Context lines around changed lines.
const AROUND: usize = 2;
/// Updates that are shown without `--full`.
const UPDATES: usize = 10;
/// Longest value that is shown beside a change; the specification below has it whole.
const VALUE: usize = 120;

/// Colors by meaning, as in the timeline; empty text gets no codes.
struct Paint(bool);

impl Paint {
    fn with(&self, tint: Tint, text: &str) -> String {
        tint.paint(text, self.0 && !text.is_empty())
    }
}

/// `full`: also the lines of the spec that no plugin changed.
pub(super) fn text(explained: &Explanation, width: usize, color: bool, full: bool) -> String {
    let paint = Paint(color);
    let mut out = String::new();
    let about = &explained.container;
    let is_pod = about.id.is_empty();
    let pod = format!("pod {} {:.13}", clean(&about.pod_name), about.pod);
    let name = paint.with(Tint::Strong, &clean(&about.name));
    let state = match about.state.as_str() {
        "refused" => paint.with(Tint::Bad, "refused"),
        state => state.to_owned(),
    };
    let _ = if is_pod {
        writeln!(out, "{}, {state}", paint.with(Tint::Strong, &pod))
    } else {
        writeln!(out, "container {name}  {:.13}  of {pod}, {state}", about.id)
    };
    if !about.image.is_empty() {
        let _ = writeln!(out, "image     {}", clean(&about.image));
    }
    out.push('\n');
    if explained.plugins.is_empty() {
        let what = if is_pod { "it" } else { "its creation" };
        let _ = writeln!(out, "no plugin was asked about {what}");
    } else {
        out.push_str("plugins, in the order in which they were asked\n");
    }
    let names = explained
        .plugins
        .iter()
        .map(|answer| answer.plugin.chars().count());
    let column = names.max().unwrap_or(0);
    for answer in &explained.plugins {
        plugin(&mut out, answer, column, width, &paint);
    }
    updates(&mut out, explained, &paint, full);
    let reasons = [
        ("not created: ", &explained.refused),
        ("failed: ", &explained.failed),
    ];
    for (label, why) in reasons {
        let Some(why) = why else { continue };
        let lines = fold(&clean(why), width.saturating_sub(label.len()).max(40), 0);
        let why = lines.join(&format!("\n{:1$}", "", label.len()));
        let _ = writeln!(out, "\n{label}{}", paint.with(Tint::Bad, &why));
    }
    if let Some(spec) = &explained.spec {
        specs(&mut out, explained.base.as_ref(), spec, &paint, full);
    }
    for container in &explained.containers {
        let _ = write!(out, "\n{}", text(container, width, color, full));
    }
    out
}

/// The updates after the creation, the last ones unless all are asked for.
fn updates(out: &mut String, explained: &Explanation, paint: &Paint, full: bool) {
    let all = &explained.updates;
    let first = if full {
        0
    } else {
        all.len().saturating_sub(UPDATES)
    };
    let more = explained.more_updates + first as u64;
    if all.is_empty() && more == 0 {
        return;
    }
    out.push_str("\nupdates of its resources, in order\n");
    if more > 0 {
        let text = format!("  {more} more events are earlier or not recorded");
        let _ = writeln!(out, "{}", paint.with(Tint::Warn, &text));
    }
    for update in &all[first..] {
        let plugin = clean(update.plugin.as_deref().unwrap_or("CRI"));
        let _ = write!(
            out,
            "  {}  {}  {}",
            paint.with(Tint::Faint, &date(update.wall_ns)),
            paint.with(Tint::Strong, &plugin),
            clean(&update.hook)
        );
        let (mark, tint) = match &update.error {
            None => ('+', Tint::Good),
            Some(why) => {
                let _ = write!(
                    out,
                    "  {}",
                    paint.with(Tint::Bad, &clean(&format!("failed: {why}")))
                );
                ('!', Tint::Bad)
            }
        };
        out.push('\n');
        for Changed { field, old, new } in &update.values.values {
            let old = old
                .as_ref()
                .map_or(String::new(), |old| format!(" (was {})", short(old)));
            let field = paint.with(tint, &format!("{mark} {}", clean(field)));
            let _ = writeln!(out, "      {field} = {}{old}", short(new));
        }
        if update.values.more > 0 {
            let _ = writeln!(out, "      and {} more", update.values.more);
        }
    }
}

fn plugin(out: &mut String, answer: &Answer, column: usize, width: usize, paint: &Paint) {
    let name = format!("{:column$}", clean(&answer.plugin));
    let mut effects = Vec::new();
    let validated = answer.hook == "ValidateContainerAdjustment";
    match (answer.outcome.as_str(), answer.changes.len()) {
        ("answered", _) if validated => effects.push(paint.with(Tint::Good, "validated the sum")),
        ("answered", 0) => effects.push(paint.with(Tint::Faint, "changed nothing")),
        ("answered", 1) => effects.push(paint.with(Tint::Good, "1 change")),
        ("answered", n) => effects.push(paint.with(Tint::Good, &format!("{n} changes"))),
        (outcome, _) => {
            let outcome = outcome.replace('_', " ");
            let text = match &answer.reason {
                Some(why) => format!("{outcome}: {}", clean(why)),
                None => outcome,
            };
            let rest = width.saturating_sub(column + 4).max(40);
            let lines = fold(&text, rest, 0);
            effects.push(paint.with(Tint::Bad, &lines.join(&format!("\n{:1$}", "", column + 4))));
        }
    }
    effects.extend(some(answer.updates, "update").map(|effect| effect + " of others"));
    effects
        .extend(some(answer.evictions, "eviction").map(|effect| paint.with(Tint::Warn, &effect)));
    let took = answer
        .took_ns
        .map_or(String::new(), |ns| format!("  {}", duration(ns)));
    let _ = writeln!(
        out,
        "  {}  {}{}",
        paint.with(Tint::Strong, &name),
        effects.join(", "),
        paint.with(Tint::Faint, &took)
    );
    for one in &answer.changes {
        let _ = writeln!(out, "      {}", change(one, paint));
    }
}

fn change(change: &Change, paint: &Paint) -> String {
    let field = clean(&change.field);
    let key = change
        .key
        .as_ref()
        .map_or(String::new(), |key| format!("[{key:?}]"));
    match change.effect {
        Effect::Removed => paint.with(Tint::Bad, &format!("- {field}{key}")),
        Effect::Overridden => paint.with(
            Tint::Warn,
            &format!("~ {field}{key} (overridden by a plugin behind it)"),
        ),
        Effect::Set | Effect::Added => {
            let value = match &change.value {
                Some(value) => format!(" = {}", short(value)),
                None if change.field == "env" => " (value not shown)".to_owned(),
                None => String::new(),
            };
            format!(
                "{}{value}",
                paint.with(Tint::Good, &format!("+ {field}{key}"))
            )
        }
    }
}

fn short(value: &Value) -> String {
    cut(&clean(&shown(value)), VALUE)
}

fn specs(out: &mut String, base: Option<&Value>, spec: &Value, paint: &Paint, full: bool) {
    let pretty = |value: &Value| serde_json::to_string_pretty(value).unwrap_or_default();
    let new = pretty(spec);
    let old = base.map_or_else(|| new.clone(), pretty);
    let all = diff::lines(&old, &new);
    let differs = |line: &Line<'_>| !matches!(line, Line::Both(_));
    let note = match (base.is_some() && all.iter().any(differs), full) {
        (true, false) => "what plugins changed; --full shows the rest",
        (true, true) => "- as CRI asks for it, + as plugins made it",
        (false, false) => "as CRI asks for it, no plugin changed it; --full shows it",
        (false, true) => "as CRI asks for it, no plugin changed it",
    };
    let _ = writeln!(
        out,
        "\nspec  {}",
        paint.with(Tint::Faint, &format!("({note})"))
    );
    let mut skipped = 0;
    for (at, line) in all.iter().enumerate() {
        let near = &all[at.saturating_sub(AROUND)..(at + AROUND + 1).min(all.len())];
        if !full && !near.iter().any(differs) {
            skipped += 1;
            continue;
        }
        if std::mem::take(&mut skipped) > 0 {
            let _ = writeln!(out, "  {}", paint.with(Tint::Faint, "…"));
        }
        let painted = match line {
            Line::Both(text) => format!("  {}", clean(text)),
            Line::Old(text) => paint.with(Tint::Bad, &format!("- {}", clean(text))),
            Line::New(text) => paint.with(Tint::Good, &format!("+ {}", clean(text))),
        };
        let _ = writeln!(out, "{painted}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        explain::{About, Updated},
        trace::Values,
    };

    fn answer(plugin: &str, outcome: &str, reason: Option<&str>, changes: Vec<Change>) -> Answer {
        Answer {
            plugin: plugin.to_owned(),
            hook: "CreateContainer".to_owned(),
            outcome: outcome.to_owned(),
            reason: reason.map(str::to_owned),
            took_ns: Some(420_000),
            changes,
            updates: 0,
            evictions: 0,
        }
    }

    fn explained() -> Explanation {
        let set = |field: &str, key: &str, value: Option<Value>| Change {
            effect: Effect::Set,
            field: field.to_owned(),
            key: Some(key.to_owned()),
            value,
        };
        let removed = Change {
            effect: Effect::Removed,
            ..set("mounts", "/old", None)
        };
        let mount =
            json!({"destination": "/data", "source": "/srv", "options": [], "type": "bind"});
        let about = About {
            id: "0123456789abcdef".to_owned(),
            name: "web".to_owned(),
            pod: "fedcba9876543210".to_owned(),
            pod_name: "default/pod".to_owned(),
            state: "running".to_owned(),
            image: "busybox:1".to_owned(),
        };
        Explanation {
            schema: 2,
            container: about,
            plugins: vec![
                answer(
                    "10-a",
                    "answered",
                    None,
                    vec![set("mounts", "/data", Some(mount)), removed],
                ),
                answer(
                    "15-longer",
                    "answered",
                    None,
                    vec![set("env", "SECRET", None)],
                ),
                answer("20-idle", "answered", None, Vec::new()),
                answer("30-b", "denied", Some("it may not touch Args"), Vec::new()),
            ],
            base: Some(json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 6})),
            spec: Some(json!({"a": 1, "b": 2, "c": 3, "d": 4, "e": 5, "f": 7})),
            ..Explanation::default()
        }
    }

    #[test]
    fn each_plugin_is_shown_with_its_changes_and_the_spec_where_it_differs() {
        let expected = "\
container web  0123456789abc  of pod default/pod fedcba9876543, running
image     busybox:1

plugins, in the order in which they were asked
  10-a       2 changes  0.42 ms
      + mounts[\"/data\"] = {\"destination\":\"/data\",\"source\":\"/srv\",\"type\":\"bind\"}
      - mounts[\"/old\"]
  15-longer  1 change  0.42 ms
      + env[\"SECRET\"] (value not shown)
  20-idle    changed nothing  0.42 ms
  30-b       denied: it may not touch Args  0.42 ms

spec  (what plugins changed; --full shows the rest)
  …
    \"d\": 4,
    \"e\": 5,
-   \"f\": 6
+   \"f\": 7
  }
";
        assert_eq!(text(&explained(), 100, false, false), expected);
        let full = text(&explained(), 100, false, true);
        assert!(full.contains("\"a\": 1") && !full.contains('…'), "{full}");
    }

    #[test]
    fn a_refused_container_has_its_reason_and_no_spec() {
        let mut refused = explained();
        refused.refused = Some("plugin 30-b refused CreateContainer: no".to_owned());
        (refused.base, refused.spec) = (None, None);
        let text = text(&refused, 100, false, false);
        assert!(
            text.ends_with("\nnot created: plugin 30-b refused CreateContainer: no\n"),
            "{text}"
        );
    }

    #[test]
    fn updates_are_shown_by_plugin_with_old_and_new_values_and_a_pod_with_its_containers() {
        let changed = |old| Changed {
            field: "linux.resources.cpu.cpus".to_owned(),
            old,
            new: json!("1"),
        };
        let update = |plugin: Option<&str>, hook: &str, error: Option<&str>, old| Updated {
            plugin: plugin.map(str::to_owned),
            hook: hook.to_owned(),
            wall_ns: 0,
            values: Values {
                values: vec![changed(old)],
                more: 0,
            },
            error: error.map(str::to_owned),
        };
        let mut container = explained();
        container.plugins.clear();
        container.spec = None;
        container.updates = vec![
            update(Some("10-a"), "Synchronize", None, Some(json!("0-1"))),
            update(Some("10-a"), "UpdateContainers", Some("busy"), None),
            update(None, "UpdateContainerResources", None, None),
        ];
        container.failed = Some("exited 1".to_owned());
        let about = About {
            id: String::new(),
            name: String::new(),
            image: String::new(),
            state: "ready".to_owned(),
            ..container.container.clone()
        };
        let pod = Explanation {
            container: about,
            containers: vec![container],
            ..Explanation::default()
        };
        let expected = "\
pod default/pod fedcba9876543, ready

no plugin was asked about it

container web  0123456789abc  of pod default/pod fedcba9876543, running
image     busybox:1

no plugin was asked about its creation

updates of its resources, in order
  1970-01-01 00:00:00.000 UTC  10-a  Synchronize
      + linux.resources.cpu.cpus = \"1\" (was \"0-1\")
  1970-01-01 00:00:00.000 UTC  10-a  UpdateContainers  failed: busy
      ! linux.resources.cpu.cpus = \"1\"
  1970-01-01 00:00:00.000 UTC  CRI  UpdateContainerResources
      + linux.resources.cpu.cpus = \"1\"

failed: exited 1
";
        assert_eq!(text(&pod, 100, false, false), expected);
        let mut many = pod.containers[0].clone();
        many.updates = vec![many.updates[0].clone(); 25];
        let short = text(&many, 100, false, false);
        assert_eq!(short.matches("10-a").count(), UPDATES);
        assert!(short.contains("15 more events"), "{short}");
        assert_eq!(text(&many, 100, false, true).matches("10-a").count(), 25);
    }

    #[test]
    fn nothing_of_a_container_moves_the_cursor_and_colours_are_ours_alone() {
        let mut hostile = explained();
        hostile.container.name = "\x1b[31mred".to_owned();
        hostile.plugins[0].changes[0].key = Some("\x1b[2J".to_owned());
        hostile.spec = Some(json!({"a": "\u{202e}"}));
        let plain = text(&hostile, 100, false, true);
        assert!(!plain.contains(['\x1b', '\u{202e}']), "{plain:?}");
        let colours = text(&explained(), 100, true, false);
        assert!(
            colours.contains("\x1b[32m+   \"f\": 7\x1b[0m"),
            "{colours:?}"
        );
    }
}
