//! Asking the validators: all at once, and a failure to answer rejects (NRI-600…606).

use std::sync::{Arc, atomic::Ordering};

use proto_nri::{Event, ValidateContainerAdjustmentRequest};
use tokio::time::Instant;

use crate::{
    Refused, Shared,
    chain::{Told, call, delivery, settle},
    merge::MergedCreate,
    observe::Delivery,
    owners::PluginId,
    policy::{self, Case, Flow, Outcome},
    rpc::one_line,
    step::Weight,
    sync::{Seat, Slot},
    validate,
};

/// Asks all validators at once (NRI-600…606). A failure to answer rejects too.
pub(crate) async fn validate(
    shared: &Arc<Shared>,
    merged: &MergedCreate,
    told: &mut Vec<Delivery>,
) -> Result<(), Refused> {
    let slots = shared.roster.slots();
    let active = slots.iter().filter_map(|slot| match slot.seat() {
        Seat::Active(session) => Some((slot, session)),
        Seat::Joining(_) | Seat::Gone => None,
    });
    let mut parts = Vec::new();
    let mut validators = Vec::new();
    for (slot, session) in active {
        let events = session.events();
        let answered = |d: &Delivery| d.plugin == slot.id && d.outcome == Outcome::Answered;
        parts.push(validate::Part {
            plugin: slot.id.clone(),
            subscribed: events.has(Event::CreateContainer),
            answered: told.iter().any(answered),
        });
        if events.has(Event::ValidateContainerAdjustment) {
            validators.push(slot.clone());
        }
    }
    if validators.is_empty() {
        return Ok(());
    }
    let request = Arc::new(validate::request(merged, &parts));
    let asked: Vec<_> = validators
        .into_iter()
        .map(|slot| tokio::spawn(ask_validator(shared.clone(), slot, request.clone())))
        .collect();
    let mut answers = Vec::new();
    for one in asked {
        match one.await {
            Ok((answer, deliveries)) => {
                told.extend(deliveries);
                answers.extend(answer);
            }
            Err(e) => tracing::error!("a validator's task ended: {e}"),
        }
    }
    validate::verdict(answers).map_err(|rejected| Refused {
        event: Event::CreateContainer,
        reason: rejected.to_string(),
        deliveries: std::mem::take(told),
    })
}

type Verdicts = Option<(
    PluginId,
    Result<proto_nri::ValidateContainerAdjustmentResponse, String>,
)>;

async fn ask_validator(
    shared: Arc<Shared>,
    slot: Arc<Slot>,
    request: Arc<ValidateContainerAdjustmentRequest>,
) -> (Verdicts, Vec<Delivery>) {
    let _lane = slot.take_place().wait().await;
    let begun = Instant::now();
    let Seat::Active(session) = slot.seat() else {
        // It was there when the container was merged, and cannot speak any more.
        let gone = Err("it has gone".to_owned());
        return (Some((slot.id.clone(), gone)), Vec::new());
    };
    let (outcome, reply) = if session.overdue.since().is_some() {
        (Outcome::Skipped, None)
    } else {
        call(&shared, &session, &*request).await
    };
    let case = Case {
        plugin: &slot.id,
        event: Event::ValidateContainerAdjustment,
        policy: &session.settings.policy,
        misses: session.misses.load(Ordering::SeqCst),
        exempt: false,
    };
    let verdict = policy::decide(case, &outcome);
    let answer = match (reply, &verdict.flow) {
        (Some(mut reply), _) => {
            reply.reason = one_line(&reply.reason);
            Some(Ok(reply))
        }
        (None, Flow::Abort(reason)) => Some(Err(reason.clone())),
        (None, Flow::Proceed) => None,
    };
    let took = begun.elapsed();
    let delivery = delivery(&*request, &slot.id, outcome, took, Weight::default());
    let mut told = Told::default();
    settle(
        &shared,
        Some(&session),
        &*request,
        delivery,
        verdict,
        &mut told,
    );
    (answer.map(|a| (slot.id.clone(), a)), told.deliveries)
}
