//! Turns events into items: begin and end of a call become one, in the lane of its actor.

use std::collections::HashMap;

use super::model::{Built, Group, Item, Lane};
use crate::{
    cli::{
        text::clean,
        words::{
            Tint, action_text, call, life_text, of, plugin_answer, point_text, since, update_text,
            who,
        },
    },
    trace::{Action, Event, What},
};

/// Items by begin, groups by their first event.
pub(super) fn build<'a>(events: impl IntoIterator<Item = &'a Event>) -> Built {
    let mut builder = Builder::default();
    for event in events {
        builder.event(event);
    }
    builder.finish()
}

#[derive(Default)]
struct Builder {
    begun: Option<(u64, i64)>,
    groups: Vec<Group>,
    by_pod: HashMap<String, usize>,
    items: Vec<Item>,
    /// Running calls: group, call, container, item.
    calls: HashMap<(usize, String), Vec<usize>>,
    /// Contract points that are asking plugins: group, container, hook.
    points: HashMap<(usize, String, String), usize>,
    now: u64,
}

impl Builder {
    fn event(&mut self, event: &Event) {
        let begun = *self.begun.get_or_insert((event.mono_ns, event.wall_ns));
        let now = since(begun, event) / 1000;
        self.now = self.now.max(now);
        let group = self.group(event);
        match &event.what {
            What::CallBegun => {
                let item = Item {
                    is_call: true,
                    open: true,
                    asked: clean(&call(event)),
                    answer: "no answer yet".to_owned(),
                    ..item(event, group, Lane::Cri, now, call(event), Tint::Plain)
                };
                let key = (group, event.subject.call.clone());
                self.calls.entry(key).or_default().push(self.items.len());
                self.items.push(item);
            }
            What::CallEnded { took_ns, error } => self.ended(event, group, now, *took_ns, error),
            What::Step { step } => self.step(event, group, now, step),
            What::Point { point, hook } => {
                let label = point_text(point, hook, event);
                let item = Item {
                    asked: "each plugin, in order".to_owned(),
                    open: true,
                    ..item(event, group, Lane::Runtime, now, label, Tint::Point)
                };
                self.points
                    .insert(key(event, group, hook), self.items.len());
                self.items.push(item);
            }
            What::Plugin { .. } => self.plugin(event, group, now),
            What::Passed {
                hook,
                took_ns,
                aborted,
            } => self.passed(event, group, now, hook, *took_ns, aborted),
            What::PluginLife { plugin, life } => {
                let (text, tint) = life_text(life);
                let lane = Lane::Plugin(clean(id_of(plugin)));
                self.items.push(item(event, group, lane, now, text, tint));
            }
            What::Update { .. } => {
                if let Some((plugin, text, tint)) = update_text(&event.what) {
                    let lane = Lane::Plugin(clean(plugin));
                    let label = format!("{}{text}", who(event));
                    self.items.push(item(event, group, lane, now, label, tint));
                }
            }
            What::Lost { events } => {
                let text = format!("{events} events are missing here");
                self.items
                    .push(item(event, group, Lane::Runtime, now, text, Tint::Warn));
            }
            What::Unknown => {}
        }
    }

    fn group(&mut self, event: &Event) -> usize {
        let subject = &event.subject;
        if let Some(known) = self.by_pod.get(&subject.pod) {
            return *known;
        }
        self.groups.push(Group {
            name: clean(&subject.pod_name),
            id: clean(&subject.pod),
        });
        let new = self.groups.len() - 1;
        self.by_pod.insert(subject.pod.clone(), new);
        new
    }

    fn ended(&mut self, event: &Event, group: usize, now: u64, took: u64, error: &Option<String>) {
        let took = took / 1000;
        let at = now.saturating_sub(took);
        let open = self
            .calls
            .entry((group, event.subject.call.clone()))
            .or_default();
        // Of several concurrent calls, the one of this container with a matching begin.
        let fits = |i: &&usize| self.items[**i].container.0 == clean(&event.subject.container);
        let best = open
            .iter()
            .filter(fits)
            .min_by_key(|i| self.items[**i].at.abs_diff(at));
        let index = match best.copied() {
            Some(index) => {
                open.retain(|i| *i != index);
                index
            }
            None => {
                let text = call(event);
                let mut begun = item(event, group, Lane::Cri, at, text, Tint::Plain);
                begun.is_call = true;
                begun.asked.clone_from(&begun.label);
                self.items.push(begun);
                self.items.len() - 1
            }
        };
        let item = &mut self.items[index];
        item.open = false;
        item.took = now.saturating_sub(item.at);
        (item.tint, item.answer) = match error {
            None => (Tint::Good, "ok".to_owned()),
            Some(error) => (Tint::Bad, clean(error)),
        };
    }

    fn step(&mut self, event: &Event, group: usize, now: u64, step: &Action) {
        let (text, mut tint) = action_text(step);
        let lane = match step {
            Action::Network { .. } | Action::NetworkGone => Lane::Network,
            Action::Paused { .. }
            | Action::Created { .. }
            | Action::Started
            | Action::StartFailed { .. }
            | Action::Exited { .. } => Lane::Monitor,
            Action::Evicted { plugin, .. } | Action::RequestFailed { plugin, .. } => {
                Lane::Plugin(clean(plugin))
            }
            _ => Lane::Runtime,
        };
        if matches!(step, Action::Exited { code, .. } if *code != 0) && !self.is_ending(group) {
            tint = Tint::Warn;
        }
        let text = format!("{}{text}", who(event));
        self.items.push(item(event, group, lane, now, text, tint));
    }

    /// An end was requested in this pod: an exit code other than 0 is not a failure.
    fn is_ending(&self, group: usize) -> bool {
        let ends = |call: &str| call.starts_with("Stop") || call.starts_with("Remove");
        let mut open = self.calls.iter().filter(|(_, open)| !open.is_empty());
        open.any(|((of, call), _)| *of == group && ends(call))
    }

    fn plugin(&mut self, event: &Event, group: usize, now: u64) {
        let Some(answer) = plugin_answer(&event.what) else {
            return;
        };
        let took = answer.took_ns.unwrap_or(0) / 1000;
        let name = clean(answer.plugin);
        let point = self.points.get(&key(event, group, answer.hook)).copied();
        let asked = match point {
            Some(point) => self.items[point].label.clone(),
            None => clean(&format!("{}{}", answer.hook, of(event))),
        };
        let mut parts = vec![answer.word.to_owned()];
        parts.extend((!answer.set.is_empty()).then(|| format!("set {}", answer.set.join(", "))));
        parts.extend((!answer.detail.is_empty()).then_some(answer.detail));
        let status_text = parts.join(": ");
        let label = format!("{} {}", answer.hook, answer.word);
        let at = now.saturating_sub(took);
        self.items.push(Item {
            took: now - at,
            asked,
            answer: clean(&status_text),
            point,
            ..item(event, group, Lane::Plugin(name), at, label, answer.tint)
        });
    }

    fn passed(
        &mut self,
        event: &Event,
        group: usize,
        now: u64,
        hook: &str,
        took: u64,
        aborted: &Option<String>,
    ) {
        let index = self
            .points
            .remove(&key(event, group, hook))
            .unwrap_or_else(|| {
                let at = now.saturating_sub(took / 1000);
                let label = format!("{hook}{}", of(event));
                let lane = Lane::Runtime;
                self.items
                    .push(item(event, group, lane, at, label, Tint::Point));
                self.items.len() - 1
            });
        let item = &mut self.items[index];
        item.open = false;
        item.took = now.saturating_sub(item.at);
        item.answer = "passed".to_owned();
        if let Some(why) = aborted {
            item.tint = Tint::Bad;
            item.answer = clean(&format!("refused: {why}"));
        }
    }

    /// Extends unfinished items to the last event; then sorts all by time, with their points.
    fn finish(mut self) -> Built {
        for item in self.items.iter_mut().filter(|item| item.open) {
            item.took = self.now.saturating_sub(item.at);
        }
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by_key(|i| self.items[*i].at);
        Built {
            items: super::model::taken(&self.items, &order),
            groups: self.groups,
            begun: self.begun.map_or(0, |(_, wall)| wall),
        }
    }
}

/// `10-quota` of `external:10-quota[1234]`, so that its life is in the lane of its answers.
fn id_of(plugin: &str) -> &str {
    let id = plugin.split_once(':').map_or(plugin, |(_, id)| id);
    id.split_once('[').map_or(id, |(id, _)| id)
}

fn key(event: &Event, group: usize, hook: &str) -> (usize, String, String) {
    (group, event.subject.container.clone(), hook.to_owned())
}

fn item(event: &Event, group: usize, lane: Lane, at: u64, label: String, tint: Tint) -> Item {
    let subject = &event.subject;
    Item {
        group,
        lane,
        at,
        took: 0,
        open: false,
        tint,
        label: clean(&label),
        asked: String::new(),
        answer: String::new(),
        container: (clean(&subject.container), clean(&subject.container_name)),
        call: clean(&subject.call),
        is_call: false,
        point: None,
    }
}
