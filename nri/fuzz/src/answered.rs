//! The answers of one input, and the invariants of each alone.
//!
//! Most inputs are a control byte and an answer. The control byte selects the plugin's policy
//! (`samples::policy`), the other answering plugins, and whether the input has two answers. If it
//! has, the length of the first (little endian) precedes both.

use nri::{
    HookRequest, Outcome, PluginId, internals::Operation, mask::FieldMask, permit::Sets,
    policy::PluginPolicy,
};
use prost::Message;

use super::{input::Input, samples};

/// Bit of the control byte: the input has both answers.
pub(super) const TWO: u8 = 128;
/// Bits of the control byte: the answering plugins, in order.
pub(super) const FIRST_ALONE: u8 = 0;
pub(super) const FIRST_SECOND: u8 = 16;
pub(super) const SECOND_FIRST: u8 = 32;
pub(super) const FIRST_TWICE: u8 = 48;

/// Decodes a message, and checks that encoding preserves it.
pub(super) fn decode<M: Message + Default + PartialEq>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    let again = M::decode(message.encode_to_vec().as_slice());
    assert_eq!(again.as_ref(), Ok(&message));
    Some(message)
}

/// One plugin's part in an operation.
#[derive(Clone)]
pub(super) struct Answer<A> {
    pub(super) plugin: PluginId,
    pub(super) policy: PluginPolicy,
    pub(super) answer: A,
}

/// Returns the answers of an input in order; `None` if the fuzzed one cannot be decoded.
pub(super) fn answers<A>(
    input: &mut Input<'_>,
    sample: impl FnOnce() -> A,
) -> Option<Vec<Answer<A>>>
where
    A: Message + Default + PartialEq + Clone,
{
    let control = input.byte();
    let (first, second) = match control & TWO {
        0 => (input.rest(), None),
        _ => {
            let len = usize::from(input.u16());
            (input.take(len), Some(input.rest()))
        }
    };
    let first = Answer {
        plugin: samples::plugin("20-fuzzed"),
        policy: samples::policy(control),
        answer: decode(first)?,
    };
    let other = second.map_or_else(|| Some(sample()), decode)?;
    let second = |id: &str, answer| Answer {
        plugin: samples::plugin(id),
        policy: PluginPolicy::default(),
        answer,
    };
    Some(match control & FIRST_TWICE {
        FIRST_ALONE => vec![first],
        FIRST_SECOND => vec![first, second("30-second", other)],
        SECOND_FIRST => vec![second("10-second", other), first],
        _ => vec![first.clone(), second("30-same", first.answer)],
    })
}

pub(super) fn masks<A>(answers: &[Answer<A>]) -> Vec<(&PluginId, FieldMask)> {
    answers
        .iter()
        .map(|s| (&s.plugin, s.policy.fields))
        .collect()
}

/// Merges all answers. Returns false if one is rejected, for a reason that must fit.
pub(super) fn take_all<S: Operation>(
    step: &mut S,
    answers: &[Answer<<S::Request as HookRequest>::Reply>],
) -> bool
where
    <S::Request as HookRequest>::Reply: Clone + Sets,
{
    answers.iter().all(|s| {
        let taken = step.take(&s.plugin, &s.policy, s.answer.clone());
        match taken {
            Ok(_) => true,
            Err(Outcome::Conflict(why) | Outcome::Invalid(why)) => {
                assert!(why.contains(&s.plugin.to_string()), "{why}");
                false
            }
            Err(Outcome::Denied(_)) => {
                assert_ne!(s.answer.sets() - s.policy.fields, FieldMask::NONE);
                false
            }
            Err(other) => panic!("an answer comes to {other:?}"),
        }
    })
}
