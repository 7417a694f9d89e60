//! Answers: a single message, or a list in several messages.

use std::pin::Pin;

use prost::Message;
use tokio_stream::Stream;
use tonic::{Response, Status};

/// Items in one message of a streamed list (CRI-120).
const CHUNK: usize = 200;
/// Limit of bytes in one message of a streamed list: a pod's metrics may have 100 kB.
const CHUNK_BYTES: usize = 4 << 20;

pub type Answer<T> = Result<Response<T>, Status>;
pub type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub fn answer<T>(value: T) -> Answer<T> {
    Ok(Response::new(value))
}

/// Streams a list in the messages of [`chunks`]; an empty list is an empty stream.
pub(super) fn streamed<I, M>(items: Vec<I>, message: fn(Vec<I>) -> M) -> Streamed<M>
where
    I: Message,
    M: Send + 'static,
{
    let messages: Vec<_> = chunks(items)
        .into_iter()
        .map(|chunk| Ok(message(chunk)))
        .collect();
    Box::pin(tokio_stream::iter(messages))
}

/// Items in order, at most [`CHUNK`] of them or [`CHUNK_BYTES`] together; a larger item has its own
/// message.
fn chunks<I: Message>(items: Vec<I>) -> Vec<Vec<I>> {
    let mut chunks: Vec<Vec<I>> = Vec::new();
    let mut bytes = 0;
    for item in items {
        let size = item.encoded_len();
        match chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK && bytes + size <= CHUNK_BYTES => {
                bytes += size;
                chunk.push(item);
            }
            _ => {
                bytes = size;
                chunks.push(vec![item]);
            }
        }
    }
    chunks
}

#[cfg(test)]
mod tests {
    use proto_cri::v1 as cri;

    use super::*;

    fn image(bytes: usize) -> cri::Image {
        cri::Image {
            id: "i".repeat(bytes),
            ..Default::default()
        }
    }

    fn lengths(items: Vec<cri::Image>) -> Vec<usize> {
        chunks(items).iter().map(Vec::len).collect()
    }

    #[test]
    fn a_streamed_list_is_cut_by_count_and_by_bytes_and_loses_nothing() {
        assert_eq!(lengths(Vec::new()), [0; 0]);
        assert_eq!(lengths(vec![image(10); CHUNK + 1]), [CHUNK, 1]);
        // With the field's own bytes, three of these exceed the limit.
        assert_eq!(lengths(vec![image(CHUNK_BYTES / 3); 5]), [2, 2, 1]);
        let large = vec![image(1), image(CHUNK_BYTES), image(1)];
        assert_eq!(lengths(large), [1, 1, 1]);
    }
}
