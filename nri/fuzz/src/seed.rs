//! One seed, and the list that collects them.

use nri::wire::frame::header;
use prost::Message;

use super::answered::{FIRST_ALONE, FIRST_SECOND, FIRST_TWICE, SECOND_FIRST};

/// One input in the repository.
pub struct Seed {
    pub target: &'static str,
    pub name: String,
    pub bytes: Vec<u8>,
}

pub(super) struct Seeds(pub(super) Vec<Seed>);

impl Seeds {
    pub(super) fn add(
        &mut self,
        target: &'static str,
        name: impl Into<String>,
        bytes: impl AsRef<[u8]>,
    ) {
        let (name, bytes) = (name.into(), bytes.as_ref().to_vec());
        self.0.push(Seed {
            target,
            name,
            bytes,
        });
    }

    /// Adds an answer in every combination: alone, before and after another one, and twice.
    pub(super) fn company(
        &mut self,
        target: &'static str,
        name: &str,
        before: &[u8],
        answer: &impl Message,
    ) {
        let all = [
            ("alone", FIRST_ALONE),
            ("first", FIRST_SECOND),
            ("second", SECOND_FIRST),
            ("twice", FIRST_TWICE),
        ];
        for (order, control) in all {
            let bytes = [before, &[control], &answer.encode_to_vec()].concat();
            self.add(target, format!("{name}-{order}"), bytes);
        }
    }
}

pub(super) fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    [header(id, payload.len()).as_slice(), payload].concat()
}
