//! Corrects answers of ttrpc's server: the codes of an unknown service and of a long message.

use protobuf::{EnumOrUnknown, Message as _};
use ttrpc::proto::Response;

use super::{
    envelope::{HEADER, RESPONSE},
    status::Code,
};

/// Whether this is ttrpc's INVALID_ARGUMENT for a message that is too long.
fn is_too_long(status: &ttrpc::proto::Status) -> bool {
    let text = &status.message;
    status.code.value() == Code::InvalidArgument as i32
        && text.starts_with("message length ")
        && text.contains(" exceed maximum message size of ")
}

/// Rewrites two answers to Go's form: UNIMPLEMENTED for an unknown service, RESOURCE_EXHAUSTED for
/// a message that is too long. ttrpc returns INVALID_ARGUMENT, which a peer that tries one version
/// after the other takes for a rejection. `None`: another message. ttrpc writes a short one in one
/// piece.
pub(super) fn with_gos_code(message: &[u8]) -> Option<Vec<u8>> {
    let (header, payload) = message.split_at_checked(HEADER)?;
    let length = u32::from_be_bytes(header[..4].try_into().ok()?);
    if header[8] != RESPONSE || usize::try_from(length) != Ok(payload.len()) {
        return None;
    }
    let mut answer = Response::parse_from_bytes(payload).ok()?;
    let status = answer.status.as_mut()?;
    let unknown = status.message.ends_with(" service does not exist")
        && status.code.value() == Code::InvalidArgument as i32;
    let code = if unknown {
        Code::Unimplemented
    } else if is_too_long(status) {
        Code::ResourceExhausted
    } else {
        return None;
    };
    status.code = EnumOrUnknown::from_i32(code as i32);
    let payload = answer.write_to_bytes().ok()?;
    let length = u32::try_from(payload.len()).ok()?.to_be_bytes();
    Some([&length, &header[4..], &payload].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_answers_about_an_unknown_service_or_a_long_message_get_another_code() {
        let message = |code: Code, text: &str| {
            let status = ttrpc::proto::Status {
                code: EnumOrUnknown::from_i32(code as i32),
                message: text.to_owned(),
                ..Default::default()
            };
            let answer = Response {
                status: Some(status).into(),
                ..Response::default()
            };
            let payload = answer.write_to_bytes().unwrap();
            let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
            [&length[..], &[0, 0, 0, 5, RESPONSE, 0], &payload].concat()
        };
        let unknown = message(Code::InvalidArgument, "a.b.C service does not exist");
        let changed = with_gos_code(&unknown).unwrap();
        assert_eq!(
            changed,
            message(Code::Unimplemented, "a.b.C service does not exist")
        );
        assert_eq!(with_gos_code(&changed), None);
        let long = "message length 5000000 exceed maximum message size of 4194304";
        assert_eq!(
            with_gos_code(&message(Code::InvalidArgument, long)),
            Some(message(Code::ResourceExhausted, long))
        );
        assert_eq!(
            with_gos_code(&message(Code::InvalidArgument, "no name")),
            None
        );
        assert_eq!(with_gos_code(&unknown[..20]), None);
        assert_eq!(with_gos_code(b""), None);
    }
}
