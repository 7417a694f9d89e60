//! Counts of events, which show whether a changed plan still exercises them.

use crate::world::World;

#[derive(Debug, Default)]
pub struct Tally(std::collections::BTreeMap<String, usize>);

impl Tally {
    pub fn add(&mut self, world: &World) {
        let mut count = |what: String| *self.0.entry(what).or_default() += 1;
        for event in &world.plugins.seen.lock().events {
            count(format!(
                "event {}",
                event.split(' ').nth(1).unwrap_or_default()
            ));
        }
        for line in &*world.notified.lock() {
            let (call, notified) = line.split_once(": ").unwrap_or((line, ""));
            let notified = match notified {
                "OK" | "given up" => notified,
                _ => "refused",
            };
            let call = call.split(' ').next().unwrap_or_default();
            count(format!("call {call}: {notified}"));
        }
    }
}
