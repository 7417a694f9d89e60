//! Messages of the WebSocket protocols `channel.k8s.io` and their like: each belongs to one of
//! several channels. Binary messages begin with the channel's number. In the base64 protocols
//! messages are text: the number as a digit, then base64. From v5 on, the message `255 n` ends
//! channel n.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;

/// The channels of exec and attach. In port-forward 2n is for the data of the n-th port, 2n+1 for
/// its errors.
pub const STDIN: u8 = 0;
pub const STDOUT: u8 = 1;
pub const STDERR: u8 = 2;
pub const ERROR: u8 = 3;
pub const RESIZE: u8 = 4;

/// Channels of one connection: in base64 a number is one character of text.
pub const MAX_CHANNELS: u8 = b'~' - b'0';

const HALF_CLOSE: u8 = 255;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Format {
    pub base64: bool,
    /// v5 and later.
    pub half_close: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Incoming {
    Data {
        channel: u8,
        bytes: Bytes,
    },
    /// The client has ended this channel.
    End {
        channel: u8,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("message without a channel")]
    Empty,
    #[error("invalid message: must be a digit for the channel, then base64")]
    Base64,
}

impl Format {
    /// # Errors
    /// The message is invalid in the client's protocol.
    pub fn decode(self, message: &Bytes) -> Result<Incoming, Error> {
        let (&first, rest) = message.split_first().ok_or(Error::Empty)?;
        if self.base64 {
            let channel = first.checked_sub(b'0').filter(|n| *n < MAX_CHANNELS);
            return Ok(Incoming::Data {
                channel: channel.ok_or(Error::Base64)?,
                bytes: STANDARD.decode(rest).map_err(|_| Error::Base64)?.into(),
            });
        }
        match rest {
            [channel] if self.half_close && first == HALF_CLOSE => {
                Ok(Incoming::End { channel: *channel })
            }
            _ => Ok(Incoming::Data {
                channel: first,
                bytes: message.slice(1..),
            }),
        }
    }

    /// The payload of a message: binary, or text with base64.
    pub fn encode(self, channel: u8, bytes: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(1 + bytes.len());
        if self.base64 {
            message.push(b'0' + channel.min(MAX_CHANNELS));
            message.extend_from_slice(STANDARD.encode(bytes).as_bytes());
        } else {
            message.push(channel);
            message.extend_from_slice(bytes);
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V5: Format = Format {
        base64: false,
        half_close: true,
    };
    const V4: Format = Format {
        base64: false,
        half_close: false,
    };

    #[test]
    fn stdin_ends_by_a_message_from_v5_on() {
        let end = Bytes::from_static(&[255, 0]);
        assert_eq!(V5.decode(&end), Ok(Incoming::End { channel: STDIN }));
        let data = |channel, bytes| Ok(Incoming::Data { channel, bytes });
        assert_eq!(V4.decode(&end), data(255, Bytes::from_static(&[0])));
        let longer = Bytes::from_static(&[255, 0, 1]);
        assert_eq!(V5.decode(&longer), data(255, Bytes::from_static(&[0, 1])));
    }

    #[test]
    fn an_empty_message_and_bad_base64_are_refused() {
        let base64 = Format {
            base64: true,
            half_close: false,
        };
        assert_eq!(V5.decode(&Bytes::new()), Err(Error::Empty));
        for bad in ["!", "0*", "/aGk=", "\u{7f}"] {
            assert_eq!(base64.decode(&bad.into()), Err(Error::Base64), "{bad}");
        }
        assert_eq!(base64.encode(STDOUT, b"hi"), b"1aGk=");
    }

    proptest! {
        #[test]
        fn a_message_is_read_as_it_was_written(channel in 0..MAX_CHANNELS, bytes: Vec<u8>, base64: bool) {
            let format = Format { base64, half_close: !base64 };
            let message = Bytes::from(format.encode(channel, &bytes));
            prop_assert!(!base64 || std::str::from_utf8(&message).is_ok());
            prop_assert_eq!(format.decode(&message), Ok(Incoming::Data { channel, bytes: bytes.into() }));
        }
    }
}
