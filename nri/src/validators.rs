//! Calls all validators at once. A validator that fails to answer rejects.
//!
//! Connected and joining validators are called. The absence of a required validator counts as a
//! rejection, so that its rules hold while it is disconnected.

use std::sync::Arc;

use proto_nri::{Event, ValidateContainerAdjustmentRequest};
use tokio::time::Instant;

use crate::{
    call::{Held, ask},
    dispatch::{absent, pass_by, until},
    merge::MergedCreate,
    observe::Delivery,
    operation::{Notified, Refused},
    plugin_id::PluginId,
    policy::{Flow, Outcome},
    roster::Slot,
    rt,
    settle::{Carried, Who, conclude},
    shared::Shared,
    validate,
    wire::rpc::one_line,
};

/// Calls all validators at once. A failure to answer rejects too.
pub(crate) async fn validate(
    shared: &Arc<Shared>,
    merged: &MergedCreate,
    deliveries: &mut Vec<Delivery>,
    deadline: Option<Instant>,
) -> Result<(), Refused> {
    let slots = shared.roster.slots();
    let mut parts = Vec::new();
    let mut validators = Vec::new();
    for slot in &slots {
        let is_in = slot.active().is_some();
        let Some(session) = slot.session() else {
            continue;
        };
        let events = session.events();
        if is_in {
            let answered = |d: &Delivery| d.plugin == slot.id && d.outcome == Outcome::Answered;
            parts.push(validate::Part {
                plugin: slot.id.clone(),
                subscribed: events.has(Event::CreateContainer),
                answered: deliveries.iter().any(answered),
            });
        }
        if events.has(Event::ValidateContainerAdjustment) {
            validators.push((slot.clone(), is_in));
        }
    }
    let there = |id: &PluginId| slots.iter().any(|slot| slot.id == *id);
    let event = Event::ValidateContainerAdjustment;
    let mut named = shared.settings.plugins.iter();
    let missing =
        named.any(|(id, s)| s.policy.required && s.policy.events.has(event) && !there(id));
    if validators.is_empty() && !missing {
        return Ok(());
    }
    let request = Arc::new(validate::request(merged, &parts));
    let exempt = shared.settings.is_exempt(&*request);
    let mut sent = Notified {
        deliveries: std::mem::take(deliveries),
        failed: None,
    };
    absent(shared, &*request, exempt, there, &mut sent)?;
    let asked: Vec<_> = validators
        .into_iter()
        .map(|(slot, was_in)| {
            let ask = ask_validator(
                shared.clone(),
                slot.clone(),
                was_in,
                exempt,
                deadline,
                request.clone(),
            );
            (slot, rt::spawn(ask))
        })
        .collect();
    let mut answers = Vec::new();
    for (slot, one) in asked {
        match one.await {
            Ok((answer, more)) => {
                sent.deliveries.extend(more);
                answers.extend(answer);
            }
            Err(e) => answers.push((slot.id.clone(), Err(format!("asking it failed: {e}")))),
        }
    }
    validate::verdict(answers)
        .map_err(|rejected| sent.refused(Event::CreateContainer, rejected.to_string()))?;
    *deliveries = sent.deliveries;
    Ok(())
}

type Verdicts = Option<(
    PluginId,
    Result<proto_nri::ValidateContainerAdjustmentResponse, String>,
)>;

/// `was_in`: it was synchronised when the container's adjustments were merged.
async fn ask_validator(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    was_in: bool,
    exempt: bool,
    deadline: Option<Instant>,
    request: Arc<ValidateContainerAdjustmentRequest>,
) -> (Verdicts, Vec<Delivery>) {
    // The caller waited for it before it took the turn.
    let joining = slot.joining();
    let passed_by = joining.is_some_and(|joining| pass_by(&shared, &slot, &joining));
    let lane = if passed_by {
        None
    } else {
        until(deadline, slot.take_place().wait()).await
    };
    let mut lane = lane.map(Held::from);
    let begun = Instant::now();
    let session = slot.active();
    let (outcome, reply) = match (&session, &mut lane) {
        (_, None) if passed_by => (Outcome::Joining, None),
        // The operation's own timeout has expired.
        (_, None) => (Outcome::Cancelled, None),
        (Some(session), _) if session.overdue.since().is_some() => (Outcome::Skipped, None),
        (Some(session), Some(lane)) => {
            let called = ask(&shared, lane, session, &*request, deadline).await;
            (called.outcome, called.reply)
        }
        (None, _) if was_in => (Outcome::Lost("it has gone".to_owned()), None),
        (None, _) => (Outcome::Absent, None),
    };
    let who = Who {
        plugin: &slot.id,
        session: session.as_ref(),
    };
    let carried = Carried {
        took: begun.elapsed(),
        ..Carried::default()
    };
    let mut sent = Notified::default();
    let flow = conclude(&shared, who, &*request, outcome, carried, exempt, &mut sent);
    let answer = match (reply, flow) {
        (Some(mut reply), _) => {
            reply.reason = one_line(&reply.reason);
            Some(Ok(reply))
        }
        (None, Flow::Abort(reason)) => Some(Err(reason)),
        (None, Flow::Proceed) => None,
    };
    (answer.map(|a| (slot.id.clone(), a)), sent.deliveries)
}
