//! The life of a pod for people: each contract point with its time, the plugins' answers, and the
//! runtime's steps. Pure: drawn from events only.
//!
//! ```text
//! pod default/web  3f2a9c1d0e4b5  2026-11-21 02:51:07.120 UTC
//!    0.000 ▶ RunPodSandbox
//!    0.012 · network attached: 10.88.0.5
//!    0.013 ◆ C-01 RunPodSandbox
//!            10-logger      answered        0.42 ms
//! ```
//! Times are seconds since the first event of all pods. External text is shown without control
//! characters, and lines are folded at the given width.

use super::text::{clean, date, duration, fold, pad};
use super::words::{
    Tint, action_text, call, life_text, of, plugin_answer, point_text, since, update_text, who,
};
use crate::trace::{Event, What};
use std::collections::HashMap;
use std::fmt::Write;

/// Columns before the text of a line: time, space, mark, space.
const INDENT: usize = 12;
/// Columns for a plugin's name and for its outcome, if the width permits.
const PLUGIN: usize = 20;
const OUTCOME: usize = 15;
/// Limits of the assumed width of a terminal.
const NARROWEST: usize = 40;
const WIDEST: usize = 240;

/// Draws `events`, pod by pod in the order of their first event, daemon and plugins first.
/// `width`: the terminal's columns; `color`: only for terminals.
pub fn render<'a>(
    events: impl IntoIterator<Item = &'a Event>,
    width: usize,
    color: bool,
) -> String {
    let mut timeline = Timeline::new(width, color);
    let mut order: Vec<&str> = vec![""];
    let mut by_pod: HashMap<&str, Vec<&Event>> = HashMap::new();
    for event in events {
        let now = (event.mono_ns, event.wall_ns);
        timeline.begun.get_or_insert(now);
        let pod = event.subject.pod.as_str();
        if !by_pod.contains_key(pod) && !pod.is_empty() {
            order.push(pod);
        }
        by_pod.entry(pod).or_default().push(event);
    }
    let events = order.iter().filter_map(|pod| by_pod.remove(pod)).flatten();
    events.map(|event| timeline.line(event)).collect()
}

/// Draws single events, for a reader that follows.
#[derive(Debug)]
pub struct Timeline {
    width: usize,
    color: bool,
    /// The pod whose lines are being drawn; `None` before the first line.
    pod: Option<String>,
    /// Monotonic and wall time of the first event of all: one clock for pods and plugins.
    begun: Option<(u64, i64)>,
    /// The time of each pod's first event, for its heading.
    seen: HashMap<String, i64>,
    /// The contract point that is being drawn, with its container and number of answers.
    point: Option<(String, String, usize)>,
}

impl Timeline {
    pub fn new(width: usize, color: bool) -> Self {
        Self {
            width: width.clamp(NARROWEST, WIDEST),
            color,
            pod: None,
            begun: None,
            seen: HashMap::new(),
            point: None,
        }
    }

    /// The lines of one event, each with its newline; empty for hidden events.
    pub fn line(&mut self, event: &Event) -> String {
        let mut out = String::new();
        let lost_on_the_way = event.wall_ns == 0 && matches!(event.what, What::Lost { .. });
        if !lost_on_the_way {
            self.head(event, &mut out);
        }
        match &event.what {
            What::CallBegun => self.entry(event, '▶', Tint::Strong, call(event), &mut out),
            What::CallEnded { took_ns, error } => self.ended(event, *took_ns, error, &mut out),
            What::Step { step } => {
                let (text, tint) = action_text(step);
                self.entry(event, '·', tint, format!("{}{text}", who(event)), &mut out);
            }
            What::Point { point, hook } => self.point(event, point, hook, &mut out),
            What::Plugin { .. } => self.plugin(event, &mut out),
            What::Passed { hook, aborted, .. } => self.passed(event, hook, aborted, &mut out),
            What::PluginLife { plugin, life } => {
                let (text, tint) = life_text(life);
                self.entry(
                    event,
                    '·',
                    tint,
                    format!("plugin {plugin}: {text}"),
                    &mut out,
                );
            }
            What::Update { .. } => {
                if let Some((_, text, tint)) = update_text(&event.what) {
                    self.entry(event, '·', tint, format!("{}{text}", who(event)), &mut out);
                }
            }
            What::Lost { events } => {
                let text = format!("{events} events are missing here");
                self.entry(event, '!', Tint::Warn, text, &mut out);
            }
            What::Unknown => {}
        }
        out
    }

    /// Draws a heading if the pod changes.
    fn head(&mut self, event: &Event, out: &mut String) {
        let pod = &event.subject.pod;
        let now = (event.mono_ns, event.wall_ns);
        self.begun.get_or_insert(now);
        let begun = *self.seen.entry(pod.clone()).or_insert(event.wall_ns);
        if self.pod.as_ref() == Some(pod) {
            return;
        }
        if self.pod.is_some() {
            out.push('\n');
        }
        self.pod = Some(pod.clone());
        self.point = None;
        let name = if pod.is_empty() {
            "daemon and plugins".to_owned()
        } else {
            let short: String = pod.chars().take(13).collect();
            format!("pod {}  {short}", event.subject.pod_name)
        };
        let line = format!("{}  {}", clean(&name), date(begun));
        for piece in fold(&line, self.width, 4) {
            self.paint(Tint::Strong, &piece, out);
            out.push('\n');
        }
    }

    /// One entry: time, mark, text, folded with indentation.
    fn entry(
        &mut self,
        event: &Event,
        mark: char,
        tint: Tint,
        text: impl AsRef<str>,
        out: &mut String,
    ) {
        self.point = None;
        let text = clean(text.as_ref());
        for (at, piece) in fold(&text, self.width - INDENT, 2).iter().enumerate() {
            let lead = if at == 0 {
                format!("{} {mark} ", self.time(event))
            } else {
                " ".repeat(INDENT)
            };
            self.paint(Tint::Faint, &lead, out);
            self.paint(tint, piece, out);
            out.push('\n');
        }
    }

    /// Seconds since the first event, eight columns wide below 10,000 s.
    fn time(&self, event: &Event) -> String {
        let milliseconds = self.begun.map_or(0, |begun| since(begun, event)) / 1_000_000;
        format!("{:4}.{:03}", milliseconds / 1000, milliseconds % 1000)
    }

    fn ended(&mut self, event: &Event, took: u64, error: &Option<String>, out: &mut String) {
        let (call, took) = (call(event), duration(took));
        match error {
            None => self.entry(event, '◀', Tint::Good, format!("{call} ok, {took}"), out),
            Some(error) => {
                let text = format!("{call} failed, {took}: {error}");
                self.entry(event, '◀', Tint::Bad, text, out);
            }
        }
    }

    fn point(&mut self, event: &Event, point: &str, hook: &str, out: &mut String) {
        let text = point_text(point, hook, event);
        self.entry(event, '◆', Tint::Point, text, out);
        self.point = Some((hook.to_owned(), event.subject.container.clone(), 0));
    }

    /// One plugin's answer, in columns below its point. The point is repeated after lines of
    /// another container.
    fn plugin(&mut self, event: &Event, out: &mut String) {
        let Some(answer) = plugin_answer(&event.what) else {
            return;
        };
        let hook = answer.hook;
        let here = |(h, c, _): &(String, String, usize)| h == hook && *c == event.subject.container;
        if !self.point.as_ref().is_some_and(here) {
            self.point(event, "", hook, out);
        }
        if let Some((_, _, answers)) = &mut self.point {
            *answers += 1;
        }
        let (word, tint) = (answer.word, answer.tint);
        let took = answer.took_ns.map(duration).unwrap_or_default();
        let name = pad(&clean(answer.plugin), PLUGIN);
        let lead = " ".repeat(INDENT);
        let detail = clean(&answer.detail);
        let used = INDENT + name.chars().count() + 1 + OUTCOME + 1 + 9;
        let word = pad(word, OUTCOME);
        let took = format!(" {took:>9}");
        let last = took.trim().is_empty() && detail.is_empty();
        let _ = write!(out, "{lead}{name} ");
        self.paint(tint, if last { word.trim_end() } else { &word }, out);
        let mut below: Vec<String> = answer
            .set
            .iter()
            .map(|set| format!("set {}", clean(set)))
            .collect();
        if used + 2 + detail.chars().count() <= self.width && !detail.is_empty() {
            self.paint(Tint::Faint, &took, out);
            let _ = writeln!(out, "  {detail}");
        } else {
            self.paint(Tint::Faint, took.trim_end(), out);
            out.push('\n');
            below.extend((!detail.is_empty()).then_some(detail));
        }
        for text in below {
            for piece in fold(&text, self.width - INDENT - 2, 2) {
                let _ = writeln!(out, "{lead}  {piece}");
            }
        }
    }

    fn passed(&mut self, event: &Event, hook: &str, aborted: &Option<String>, out: &mut String) {
        if let Some(why) = aborted {
            let text = format!("{hook}{} refused: {why}", of(event));
            self.entry(event, '✗', Tint::Bad, text, out);
            return;
        }
        if let Some((at, container, 0)) = &self.point
            && at == hook
            && *container == event.subject.container
        {
            let line = format!("{}no plugin", " ".repeat(INDENT));
            self.paint(Tint::Faint, &line, out);
            out.push('\n');
        }
        self.point = None;
    }

    fn paint(&self, tint: Tint, text: &str, out: &mut String) {
        out.push_str(&tint.paint(text, self.color));
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;
