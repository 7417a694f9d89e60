//! Decodes every message that a plugin can answer, and processes it as the runtime does. `answered.rs`
//! describes how an input selects the answering plugins.

use std::collections::{BTreeMap, BTreeSet};

use nri::{
    EventMask, Outcome, Snapshot,
    internals::{Operation, Run, Stop, chunks, one_line, permitted_updates, takes_parts},
    mask::FieldMask,
    merge::{
        CreateMerge, MergedCreate, MergedStop, MergedUpdate, RunMerge, StopMerge, UpdateMerge,
    },
    permit::Sets as _,
    proto::*,
    validate,
};
use prost::Message;

use super::{
    answered::{Answer, answers, decode, masks, take_all},
    check,
    input::Input,
    samples,
};

/// CreateContainerResponse: permissions, merge, ownership, validation.
pub(super) fn create(data: &[u8]) {
    let Some(answers) = answers(&mut Input(data), samples::create_answer) else {
        return;
    };
    let Some((merged, seen)) = merge_create(&answers) else {
        return assert!(merge_create(&answers).is_none());
    };
    check::created(&merged, &seen, &masks(&answers));
    let mut turned = answers.clone();
    for s in &mut turned {
        s.answer = with_maps_backwards(&s.answer);
    }
    assert_eq!(merge_create(&turned), Some((merged, seen)));
}

fn merge_create(answers: &[Answer<CreateContainerResponse>]) -> Option<(MergedCreate, Container)> {
    let mut merge = CreateMerge::new(CreateContainerRequest {
        pod: Some(samples::pod(samples::POD)),
        container: Some(samples::container(samples::CONTAINER)),
    });
    take_all(&mut merge, answers).then(|| {
        let seen = merge.request().container.clone();
        (merge.finish(), seen.expect("always present"))
    })
}

/// Re-encodes the answer with the entries of its maps in reverse order, and decodes it.
fn with_maps_backwards(answer: &CreateContainerResponse) -> CreateContainerResponse {
    let Some(adjust) = &answer.adjust else {
        return answer.clone();
    };
    let mut rest = answer.clone();
    let mut pieces = Vec::new();
    let mut piece = |adjust: ContainerAdjustment| {
        pieces.push(CreateContainerResponse {
            adjust: Some(adjust),
            ..Default::default()
        });
    };
    for (key, value) in adjust.annotations.iter().rev() {
        piece(ContainerAdjustment {
            annotations: BTreeMap::from([(key.clone(), value.clone())]),
            ..Default::default()
        });
    }
    for (key, value) in adjust
        .linux
        .iter()
        .flat_map(|linux| linux.sysctl.iter().rev())
    {
        piece(ContainerAdjustment {
            linux: Some(LinuxContainerAdjustment {
                sysctl: BTreeMap::from([(key.clone(), value.clone())]),
                ..Default::default()
            }),
            ..Default::default()
        });
    }
    if let Some(adjust) = &mut rest.adjust {
        adjust.annotations.clear();
        adjust
            .linux
            .iter_mut()
            .for_each(|linux| linux.sysctl.clear());
    }
    let mut wire = rest.encode_to_vec();
    for piece in pieces {
        wire.extend(piece.encode_to_vec());
    }
    let turned = CreateContainerResponse::decode(wire.as_slice()).expect("two halves of a message");
    assert_eq!(turned, *answer);
    turned
}

/// UpdateContainerResponse: permissions, merge, ownership, and the target separately from other
/// containers.
pub(super) fn update(data: &[u8]) {
    let Some(answers) = answers(&mut Input(data), samples::update_answer) else {
        return;
    };
    let Some((merged, seen)) = merge_update(&answers) else {
        return assert!(merge_update(&answers).is_none());
    };
    check::updated(&merged, samples::CONTAINER, seen.as_ref(), &masks(&answers));
    assert_eq!(merge_update(&answers), Some((merged, seen)));
}

fn merge_update(
    answers: &[Answer<UpdateContainerResponse>],
) -> Option<(MergedUpdate, Option<LinuxResources>)> {
    let mut merge = UpdateMerge::new(UpdateContainerRequest {
        pod: Some(samples::pod(samples::POD)),
        container: Some(samples::container(samples::CONTAINER)),
        linux_resources: Some(samples::resources()),
    });
    take_all(&mut merge, answers).then(|| {
        let seen = merge.request().linux_resources.clone();
        (merge.finish(), seen)
    })
}

/// StopContainerResponse: a conflict drops the later update and fails no call (NRI-410).
pub(super) fn stop(data: &[u8]) {
    let sample = || StopContainerResponse {
        update: samples::updates(),
    };
    let Some(answers) = answers(&mut Input(data), sample) else {
        return;
    };
    let merged = merge_stop(&answers);
    check::owners(&merged.owners, &masks(&answers));
    check::updates(&merged.update, &merged.owners);
    let first = merge_stop(&answers[..1]);
    check::kept(&first.update, &merged.update);
    assert_eq!(merge_stop(&answers), merged);
}

fn merge_stop(answers: &[Answer<StopContainerResponse>]) -> MergedStop {
    let mut step = Stop {
        request: StopContainerRequest::default(),
        merge: StopMerge::new(),
    };
    for s in answers {
        match step.take(&s.plugin, &s.policy, s.answer.clone()) {
            Ok(contents) => assert_eq!(contents.updates, s.answer.update.len()),
            Err(Outcome::Denied(_)) => {
                assert_ne!(s.answer.sets() - s.policy.fields, FieldMask::NONE)
            }
            Err(other) => panic!("a stop comes to {other:?}"),
        }
    }
    step.merge.finish()
}

/// RunPodSandboxResponse: the runtime gets addresses only, each once, and none that the pod already
/// had.
pub(super) fn run(data: &[u8]) {
    let sample = || RunPodSandboxResponse {
        adjust: Some(samples::addresses()),
    };
    let Some(answers) = answers(&mut Input(data), sample) else {
        return;
    };
    for takes_ips in [false, true] {
        let pod = PodSandbox {
            ips: vec!["192.0.2.7".to_owned()],
            ..PodSandbox::default()
        };
        let mut step = Run {
            merge: RunMerge::new(RunPodSandboxRequest { pod: Some(pod) }),
            takes_ips,
        };
        if !take_all(&mut step, &answers) {
            continue;
        }
        let reported = step.request().pod.clone().unwrap_or_default().ips;
        let given = step.merge.finish();
        assert!(takes_ips || given.is_empty());
        assert!(given.len() <= 32 && given.iter().all(|ip| *ip == ip.to_canonical()));
        let given: Vec<String> = given.iter().map(ToString::to_string).collect();
        assert_eq!(reported[1..], given);
        assert_eq!(
            reported.iter().collect::<BTreeSet<_>>().len(),
            reported.len()
        );
    }
}

/// SynchronizeResponse: which answers to the parts of a list count, and the updates at start-up, of
/// which the first wins (NRI-317, NRI-320). The first byte of the input sets the size of a part.
pub(super) fn synchronize(data: &[u8]) {
    let mut input = Input(data);
    let room = usize::from(input.byte()) * 8;
    let sample = || SynchronizeResponse {
        update: samples::updates(),
        more: false,
    };
    let Some(answers) = answers(&mut input, sample) else {
        return;
    };
    let all = Snapshot {
        pods: vec![samples::pod(samples::POD)],
        containers: vec![
            samples::container(samples::CONTAINER),
            samples::container(samples::OTHER),
        ],
    };
    let parts: Vec<_> = chunks(all, room).into_iter().map(|c| c.message).collect();
    let mut merge = StopMerge::new();
    for (n, s) in answers.iter().enumerate() {
        // Simulates a plugin that gives the same answer to every part.
        if !parts.iter().all(|part| takes_parts(part, &s.answer)) {
            assert!(parts.len() > 1);
            continue;
        }
        let asked = s.answer.update.clone();
        let (granted, failed) = permitted_updates(&s.plugin, &s.policy, asked.clone());
        assert_eq!(granted.len() + failed.len(), asked.len());
        assert!(failed.iter().all(|update| asked.contains(update)));
        for conflict in merge.apply(&s.plugin, granted) {
            assert_eq!(conflict.later, s.plugin);
            assert!(answers[..=n].iter().any(|s| s.plugin == conflict.earlier));
        }
    }
    let merged = merge.finish();
    check::owners(&merged.owners, &masks(&answers));
    check::updates(&merged.update, &merged.owners);
}

/// ConfigureResponse: a set of events, or an error that names the invalid bits (NRI-310, NRI-313).
pub(super) fn configure(data: &[u8]) {
    let Some(reply) = decode::<ConfigureResponse>(data) else {
        return;
    };
    match EventMask::from_wire(reply.events) {
        Ok(events) => {
            assert!(!events.is_empty());
            assert_eq!(events - EventMask::ALL, EventMask::NONE);
            assert_eq!(EventMask::from_wire(events.to_wire()), Ok(events));
            assert_eq!(events.to_string().parse::<EventMask>(), Ok(events));
            let named = events.iter().fold(EventMask::NONE, EventMask::with);
            assert_eq!(named, events);
        }
        Err(e) => {
            let bits = format!("{:#x}", reply.events);
            assert!(e.to_string().contains(&bits), "{e}");
        }
    }
}

/// ValidateContainerAdjustmentResponse, beside other verdicts: the order does not change the
/// result, and a rejection is one line that names the plugin (NRI-602).
pub(super) fn validate(data: &[u8]) {
    let mut input = Input(data);
    let control = input.byte();
    let Some(mut reply) = decode::<ValidateContainerAdjustmentResponse>(input.rest()) else {
        return;
    };
    reply.reason = one_line(&reply.reason);
    let rejects = reply.reject;
    let mut answers = vec![(samples::plugin("20-fuzzed"), Ok(reply))];
    let others = [
        Ok(ValidateContainerAdjustmentResponse::default()),
        Ok(ValidateContainerAdjustmentResponse {
            reject: true,
            reason: "no".into(),
        }),
        Err("it has gone".to_owned()),
    ];
    let mut rejected = usize::from(rejects);
    for (n, other) in others.into_iter().enumerate() {
        if control & (1 << n) != 0 {
            rejected += usize::from(n > 0);
            answers.push((samples::plugin(&format!("{n}0-other")), other));
        }
    }
    let verdict = validate::verdict(answers.clone());
    answers.reverse();
    assert_eq!(validate::verdict(answers), verdict);
    match verdict {
        Ok(()) => assert_eq!(rejected, 0),
        Err(by) => {
            assert_eq!(by.by.len(), rejected);
            let text = by.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(!rejects || text.contains("20-fuzzed"));
        }
    }
}

/// The replies without fields: all accept the same bytes, and decode to an empty message.
pub(super) fn plain(data: &[u8]) {
    let all = [
        decode::<Empty>(data).is_some(),
        decode::<UpdatePodSandboxResponse>(data).is_some(),
        decode::<PostUpdatePodSandboxResponse>(data).is_some(),
        decode::<StopPodSandboxResponse>(data).is_some(),
        decode::<RemovePodSandboxResponse>(data).is_some(),
        decode::<PostCreateContainerResponse>(data).is_some(),
        decode::<StartContainerResponse>(data).is_some(),
        decode::<PostStartContainerResponse>(data).is_some(),
        decode::<PostUpdateContainerResponse>(data).is_some(),
        decode::<RemoveContainerResponse>(data).is_some(),
    ];
    assert!(all.iter().all(|taken| *taken == all[0]));
    if let Some(reply) = decode::<UpdatePodSandboxResponse>(data) {
        assert!(reply.encode_to_vec().is_empty());
    }
}
