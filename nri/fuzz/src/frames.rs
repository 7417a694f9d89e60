//! The multiplexer: compares its reader with a second, simple one, and its writer with the reader.

use std::{collections::BTreeMap, pin::pin, time::Duration};

use nri::{
    internals::{FrameReader, Mux, MuxConn, MuxError},
    wire::frame::MAX_FRAME,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    time::timeout,
};

use super::{clock::block_on, input::Input};

/// Bytes by connection.
type Streams = BTreeMap<u32, Vec<u8>>;

/// The result of parsing a complete trunk at once.
struct Parsed {
    streams: Streams,
    /// Connection and length of each complete frame.
    frames: Vec<(u32, usize)>,
    /// The trunk ends between two frames.
    whole: bool,
    /// Length and connection of a frame above the limit (NRI-107). Bytes after it do not count.
    too_long: Option<(usize, u32)>,
}

fn parse(mut wire: &[u8]) -> Parsed {
    let mut parsed = Parsed {
        streams: Streams::new(),
        frames: Vec::new(),
        whole: true,
        too_long: None,
    };
    while !wire.is_empty() {
        let Some((header, rest)) = wire.split_first_chunk::<8>() else {
            parsed.whole = false;
            break;
        };
        let word = |n: usize| u32::from_be_bytes([0, 1, 2, 3].map(|i| header[n + i]));
        let (id, len) = (word(0), word(4) as usize);
        if len > MAX_FRAME {
            parsed.too_long = Some((len, id));
            break;
        }
        let (payload, rest) = rest.split_at(len.min(rest.len()));
        if !payload.is_empty() {
            parsed.streams.entry(id).or_default().extend(payload);
        }
        parsed.whole = payload.len() == len;
        if parsed.whole {
            parsed.frames.push((id, len));
        }
        wire = rest;
    }
    parsed
}

/// Input: a count, as many cuts, the trunk. However the trunk is cut, the reader returns the same
/// as a parse of the complete trunk. It never passes on bytes that a header announced but that have
/// not arrived (NRI-107, NRI-111).
pub(super) fn read(data: &[u8]) {
    let mut input = Input(data);
    let count = usize::from(input.byte() % 32);
    let cuts: Vec<usize> = input
        .take(count)
        .iter()
        .map(|n| usize::from(*n) + 1)
        .collect();
    let wire = input.rest();
    let expected = parse(wire);
    let mut reader = FrameReader::default();
    let mut got = Streams::new();
    let mut end = Ok(());
    let (mut rest, mut cuts) = (wire, cuts.into_iter());
    while !rest.is_empty() && end.is_ok() {
        let cut = cuts.next().unwrap_or(rest.len()).min(rest.len());
        let (piece, more) = rest.split_at(cut);
        rest = more;
        end = reader.push(piece, |id, bytes| {
            assert!(!bytes.is_empty() && bytes.len() <= piece.len());
            got.entry(id).or_default().extend(bytes);
            Ok(())
        });
    }
    assert_eq!(got, expected.streams);
    match expected.too_long {
        Some((len, id)) => assert_eq!(end, Err(MuxError::FrameTooLong(len, id))),
        None => {
            assert_eq!(end, Ok(()));
            assert_eq!(reader.at_boundary(), expected.whole);
        }
    }
}

/// The number of connections, and the limits of one input: several times what the sockets hold.
const CONNECTIONS: u32 = 3;
const WRITES: usize = 16 << 10;
const MAX_READS: usize = 256;
/// Longer than any of these tests take on a clock that advances only when every task is idle.
const LONG: Duration = Duration::from_secs(60);

/// Input: a control byte, the size of reads, then writes: connection, length, a byte to fill it.
/// Through sockets with minimal buffers, the bytes that one end writes arrive at the other in
/// order, and each write is one frame (NRI-106, NRI-110, NRI-111).
pub(super) fn write(data: &[u8]) {
    let mut input = Input(data);
    let (control, at_once) = (input.byte(), usize::from(input.u16() % 8192) + 1);
    let mut writes = Vec::new();
    let mut left = WRITES;
    while !input.is_empty() && left > 0 {
        let id = u32::from(input.byte()) % CONNECTIONS + 1;
        let len = (usize::from(input.u16()) % 10_000).min(left);
        // An empty write also uses some of the limit.
        left = left.saturating_sub(len + 64);
        writes.push((id, vec![input.byte(); len]));
    }
    let frames = control & 1 == 1;
    block_on(async {
        let done = timeout(LONG, async {
            if frames {
                as_frames(&writes).await
            } else {
                as_streams(&writes, at_once).await
            }
        });
        done.await.expect("what was written arrives");
    });
}

fn pair() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("sockets can be made");
    // The kernel's minimum, so that most writes find the buffer full at first.
    for end in [&ours, &theirs] {
        rustix::net::sockopt::set_socket_send_buffer_size(end, 1).expect("a buffer has a size");
    }
    (ours, theirs)
}

fn open(mux: &Mux) -> BTreeMap<u32, MuxConn> {
    (1..=CONNECTIONS).map(|id| (id, mux.open(id))).collect()
}

async fn write_all(conns: &mut BTreeMap<u32, MuxConn>, writes: &[(u32, Vec<u8>)]) {
    for (id, bytes) in writes {
        let conn = conns.get_mut(id).expect("it was opened");
        conn.write_all(bytes)
            .await
            .expect("the other end is there and reads");
    }
}

async fn as_frames(writes: &[(u32, Vec<u8>)]) {
    let (ours, mut theirs) = pair();
    let mux = Mux::new(ours, LONG);
    let mut conns = open(&mux);
    mux.start();
    let expected: Vec<(u32, usize)> = writes
        .iter()
        .map(|(id, bytes)| (*id, bytes.len()))
        .filter(|(_, len)| *len > 0)
        .collect();
    let total = expected.iter().map(|(_, len)| len + 8).sum();
    let mut wire = vec![0; total];
    let (_, read) = tokio::join!(write_all(&mut conns, writes), theirs.read_exact(&mut wire));
    read.expect("all of it comes");
    let parsed = parse(&wire);
    assert_eq!(parsed.frames, expected);
    assert_eq!(parsed.streams, streams(writes));
}

async fn as_streams(writes: &[(u32, Vec<u8>)], at_once: usize) {
    // Read short streams only byte by byte.
    let total: usize = writes.iter().map(|(_, bytes)| bytes.len()).sum();
    let at_once = at_once.max(total / MAX_READS);
    let (ours, theirs) = pair();
    let (from, to) = (Mux::new(ours, LONG), Mux::new(theirs, LONG));
    let (mut sending, receiving) = (open(&from), open(&to));
    from.start();
    to.start();
    let expected = streams(writes);
    let reading = async {
        let mut got = Streams::new();
        for (id, mut conn) in receiving {
            let wanted = expected.get(&id).map_or(0, Vec::len);
            let mut bytes = Vec::new();
            while bytes.len() < wanted {
                let mut piece = vec![0; at_once];
                let n = conn.read(&mut piece).await.expect("it is open");
                assert!(n > 0, "an end of stream before all was read");
                bytes.extend(&piece[..n]);
            }
            if wanted > 0 {
                got.insert(id, bytes);
            }
        }
        got
    };
    let mut reading = pin!(reading);
    let (_, got) = tokio::join!(write_all(&mut sending, writes), reading.as_mut());
    assert_eq!(got, expected);
    drop(from);
    assert_eq!(to.closed().await, MuxError::Eof);
}

fn streams(writes: &[(u32, Vec<u8>)]) -> Streams {
    let mut streams = Streams::new();
    for (id, bytes) in writes.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        streams.entry(*id).or_default().extend(bytes);
    }
    streams
}
