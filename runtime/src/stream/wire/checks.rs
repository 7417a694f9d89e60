//! Properties of the wire parsers that hold for any bytes.

use bytes::Bytes;
use hyper::{
    HeaderMap, Method,
    header::{HeaderName, HeaderValue},
};

use super::{
    channels::{self, Incoming},
    handshake::{self, Verb},
    headers::Inflater,
    resize::Decoder,
    spdy::{self, Control, Header},
};

/// A connection's bytes, frame by frame, as the server reads them.
pub fn frames(mut data: &[u8]) {
    let mut inflater = Inflater::default();
    while let Some((head, rest)) = data.split_first_chunk::<{ spdy::HEADER }>() {
        let Ok(head) = Header::parse(*head) else {
            return;
        };
        let (Header::Data { len, .. } | Header::Control { len, .. }) = head;
        let Some((payload, rest)) = rest.split_at_checked(len) else {
            return;
        };
        data = rest;
        let Header::Control { kind, flags, .. } = head else {
            continue;
        };
        assert!(len <= spdy::MAX_CONTROL);
        let block = match Control::parse(kind, flags, payload) {
            Ok(
                Control::SynStream { block, stream, .. } | Control::Headers { block, stream, .. },
            ) => {
                assert!(stream < 1 << 31);
                block
            }
            Ok(Control::SynReply { block }) => block,
            Ok(_) => continue,
            Err(_) => return,
        };
        let Ok(headers) = inflater.block(block) else {
            return;
        };
        if let Some(value) = headers.get("streamtype") {
            assert!(value.len() <= super::headers::MAX_BLOCK);
        }
    }
}

/// One message; the first byte selects the protocol.
pub fn messages(data: &[u8]) {
    let Some((choice, message)) = data.split_first() else {
        return;
    };
    let format = channels::Format {
        base64: choice & 1 != 0,
        half_close: choice & 2 != 0,
    };
    if let Ok(Incoming::Data { channel, bytes }) = format.decode(&Bytes::copy_from_slice(message)) {
        let again = Bytes::from(format.encode(channel, &bytes));
        let end_in_binary = format.half_close && !format.base64 && channel == 255;
        assert!(end_in_binary || format.decode(&again) == Ok(Incoming::Data { channel, bytes }));
    }
}

/// Pieces of a stream of sizes, separated by zero bytes.
pub fn sizes(data: &[u8]) {
    let mut decoder = Decoder::default();
    for piece in data.split(|byte| *byte == 0) {
        match decoder.push(piece) {
            Ok(Some(size)) => assert!(size.width > 0 && size.height > 0),
            Ok(None) => {}
            Err(_) => return,
        }
    }
}

/// Lines: path, method, then headers with a colon.
pub fn request(data: &[u8]) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let path = String::from_utf8_lossy(lines.next().unwrap_or_default());
    let verb = match handshake::target(&path) {
        Some((verb, token)) => {
            assert!(!token.is_empty() && path.ends_with(token));
            verb
        }
        None => Verb::Exec,
    };
    let method = Method::from_bytes(lines.next().unwrap_or_default()).unwrap_or_default();
    let mut headers = HeaderMap::new();
    for line in lines.take(64) {
        let Some(at) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        if let (Ok(name), Ok(value)) = (
            HeaderName::from_bytes(&line[..at]),
            HeaderValue::from_bytes(&line[at + 1..]),
        ) {
            headers.append(name, value);
        }
    }
    if let Err(refusal) = handshake::upgrade(verb, &method, &headers) {
        assert!(refusal.code.is_client_error() && !refusal.text.contains('\n'));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_bytes_break_what_reads_frames(data: Vec<u8>) {
            frames(&data);
        }

        #[test]
        fn no_bytes_break_what_reads_messages(data: Vec<u8>) {
            messages(&data);
        }

        #[test]
        fn no_bytes_break_what_reads_sizes(data in "[{}\":,0-9WidthHeg\\x00]{0,80}") {
            sizes(data.as_bytes());
        }

        #[test]
        fn no_bytes_break_what_reads_a_request(
            data in "/?(exec|attach|portforward|x)?/?[a-z]{0,3}\n(GET|POST|PUT)?\n((connection|upgrade|sec-websocket-version|sec-websocket-key|sec-websocket-protocol|x-stream-protocol-version):(upgrade|websocket|spdy/3.1|13|v4.channel.k8s.io|,)*\n){0,6}"
        ) {
            request(data.as_bytes());
        }
    }
}
