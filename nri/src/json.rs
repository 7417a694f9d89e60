//! The form of values in a runtime's event log, which is JSON: names of events, nanoseconds, text
//! in one line. For `serde(with)` and `serde(into)`.

use proto_nri::Event;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error};

use crate::{
    mask::{EventMask, event_name, event_named},
    shorten::LeftOut,
    wire::rpc::{Code, Status},
};

/// A duration as its nanoseconds.
pub(crate) mod nanoseconds {
    use std::time::Duration;

    use super::*;

    pub(crate) fn serialize<S: Serializer>(duration: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_nanos)
    }
}

/// An event as the name of its call.
pub(crate) mod event {
    use super::*;

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        reason = "serde asks for this shape"
    )]
    pub(crate) fn serialize<S: Serializer>(event: &Event, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(event_name(*event))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Event, D::Error> {
        let name = String::deserialize(from)?;
        event_named(&name).ok_or_else(|| D::Error::custom(format!("unknown event {name:?}")))
    }
}

impl From<EventMask> for Vec<String> {
    fn from(mask: EventMask) -> Self {
        mask.iter().map(|e| event_name(e).to_owned()).collect()
    }
}

impl From<Vec<String>> for EventMask {
    /// Ignores events of a newer version.
    fn from(names: Vec<String>) -> Self {
        let known = names.iter().filter_map(|name| event_named(name));
        known.fold(Self::NONE, Self::with)
    }
}

impl From<Status> for String {
    fn from(status: Status) -> Self {
        status.message
    }
}

impl From<String> for Status {
    /// JSON has no code.
    fn from(message: String) -> Self {
        Self::new(Code::Unknown, message)
    }
}

impl From<LeftOut> for String {
    fn from(left_out: LeftOut) -> Self {
        left_out.to_string()
    }
}

impl From<String> for LeftOut {
    fn from(text: String) -> Self {
        let (object, fields) = text.split_once(": ").unwrap_or((&text, ""));
        Self {
            object: object.to_owned(),
            fields: fields.split(", ").map(|f| f.to_owned().into()).collect(),
        }
    }
}
