//! Compares the plugin's unsolicited calls with the recorded ones.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{DIFFERENT, Replay, SAME, runtime::Runtime, script::Call, title};
use crate::{differ::differences, report::StepReport};

/// Wait for a recorded call of the plugin.
const OWN_CALL: Duration = Duration::from_secs(1);
/// The same after one was missing.
const LATER_CALL: Duration = Duration::from_millis(100);

impl Replay {
    /// A call that the recorded plugin made here.
    pub(super) async fn update(
        &mut self,
        runtime: &mut Runtime,
        call: &Call,
    ) -> Option<StepReport> {
        let began = std::time::Instant::now();
        let patience = if self.awaited.is_empty() {
            OWN_CALL
        } else {
            LATER_CALL
        };
        let deadline = Instant::now() + patience;
        let same = |runtime: &Runtime| {
            let mut made = runtime.made.iter();
            made.position(|m| !m.matched && differences(&call.message, &m.message).is_empty())
        };
        // A lost connection is noticed at the next call.
        let _ = runtime
            .until(deadline, |runtime| same(runtime).is_some())
            .await;
        let Some(at) = same(runtime) else {
            self.awaited.push(call.clone());
            return None;
        };
        runtime.made[at].matched = true;
        let mut step = StepReport {
            title: title(call),
            took: began.elapsed(),
            outcome: Some(SAME),
            ..StepReport::default()
        };
        step.findings = self.known.of_updates(&call.message);
        Some(step)
    }

    /// Reports missing and additional calls of the plugin.
    pub(super) async fn settle(&mut self, runtime: &mut Runtime) {
        let wanted = self.awaited.len();
        let open = |runtime: &Runtime| runtime.made.iter().filter(|made| !made.matched).count();
        if wanted > 0 {
            // A lost connection is noticed at the next call.
            let _ = runtime
                .until(Instant::now() + OWN_CALL, |r| open(r) >= wanted)
                .await;
        }
        let mut made = runtime.made.iter_mut().filter(|made| !made.matched);
        let mut steps = Vec::new();
        for call in std::mem::take(&mut self.awaited) {
            let now = made.next();
            let message = now.as_ref().map(|made| made.message.clone());
            now.into_iter().for_each(|made| made.matched = true);
            steps.push(self.own_call(Some(&call.message), message.as_ref()));
        }
        for extra in made {
            extra.matched = true;
            steps.push(self.own_call(None, Some(&extra.message)));
        }
        steps.into_iter().for_each(|step| self.file(step));
    }

    fn own_call(&self, recorded: Option<&Value>, now: Option<&Value>) -> StepReport {
        let mut step = StepReport {
            title: "UpdateContainers of the plugin".to_owned(),
            outcome: Some(DIFFERENT),
            ..StepReport::default()
        };
        let nothing = json!({});
        step.differences = differences(recorded.unwrap_or(&nothing), now.unwrap_or(&nothing));
        match (recorded, now) {
            (Some(_), None) => step.fail("it did not ask for this now"),
            (None, Some(_)) => step.fail("it did not ask for this then"),
            _ if step.differences.is_empty() => step.outcome = Some(SAME),
            _ => {}
        }
        step.findings = now
            .map(|now| self.known.of_updates(now))
            .unwrap_or_default();
        step
    }
}
