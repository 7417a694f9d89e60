//! A span per CRI call, below the caller's, with the names of OpenTelemetry's gRPC conventions.

use tonic::codegen::http::{HeaderMap, Request, Response};

use crate::spans::{Open, Recorder, Value};

/// The prefix of CRI; our own commands are not traced.
const TRACED: &str = "/runtime.v1.";

/// The span of a call, if it is traced.
pub(super) fn begin<B>(recorder: &Recorder, request: &Request<B>) -> Option<Open> {
    let name = request.uri().path();
    let (service, method) = name.strip_prefix('/')?.split_once('/')?;
    let is_traced = name.starts_with(TRACED) && method.len() <= 64;
    let mut span = is_traced.then(|| recorder.call(&name[1..], request.headers()))??;
    for (key, value) in [
        ("rpc.system", "grpc"),
        ("rpc.service", service),
        ("rpc.method", method),
    ] {
        span.say(key, Value::Text(value.to_owned()));
    }
    Some(span)
}

/// Runs the call in its span.
pub(super) async fn during<B, E>(
    span: Open,
    call: impl Future<Output = Result<Response<B>, E>>,
) -> Result<Response<B>, E> {
    let answer = span.context().scope(call).await?;
    finish(span, answer.headers());
    Ok(answer)
}

/// Errors have their code among the headers; without a code the call has begun well.
fn finish(mut span: Open, headers: &HeaderMap) {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    let code: i64 = text("grpc-status").map_or(0, |code| code.parse().unwrap_or(2));
    span.say("rpc.grpc.status_code", Value::Number(code));
    // UNKNOWN, DEADLINE_EXCEEDED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS are the server's
    // fault, others the caller's.
    let is_ours = matches!(code, 2 | 4 | 12 | 13 | 14 | 15);
    span.end(is_ours.then(|| message(text("grpc-message").unwrap_or_default())));
}

/// Decodes gRPC's percent-encoded message.
fn message(encoded: &str) -> String {
    let bytes = percent_encoding::percent_decode_str(encoded);
    bytes.decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_as_grpc_writes_it() {
        assert_eq!(
            message("sandbox \"x\": a%20b%0Ac%C3%B6"),
            "sandbox \"x\": a b\ncö"
        );
        assert_eq!(message("100%"), "100%");
        assert_eq!(message("%zz%4%+f"), "%zz%4%+f");
    }
}
