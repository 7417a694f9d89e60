//! Properties of frames, and every way a trunk ends.

use std::collections::BTreeMap;

use proptest::prelude::*;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
};

use super::*;

const SLOW: Duration = Duration::from_millis(200);

fn pair() -> (Mux, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    (Mux::new(ours, SLOW), theirs)
}

fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    [header(id, payload.len()).as_slice(), payload].concat()
}

async fn read_all(mut conn: MuxConn) -> io::Result<Vec<u8>> {
    let mut all = Vec::new();
    conn.read_to_end(&mut all).await.map(|_| all)
}

/// Payload lengths of the frames of a ttrpc message with `len` payload bytes.
async fn frames_of(len: usize) -> Vec<usize> {
    let (mux, mut peer) = pair();
    let mut conn = mux.open(1);
    mux.start();
    // As ttrpc writes: the header with the start of the payload, then the rest.
    let message = vec![7u8; len + 10];
    let first = message.len().min(4096);
    let writer = async move {
        conn.write_all(&message[..first]).await.unwrap();
        conn.write_all(&message[first..]).await.unwrap();
        conn
    };
    let reader = async {
        let (mut frames, mut got) = (Vec::new(), 0);
        while got < len + 10 {
            assert_eq!(peer.read_u32().await.unwrap(), 1);
            let n = peer.read_u32().await.unwrap() as usize;
            let mut payload = vec![0; n];
            peer.read_exact(&mut payload).await.unwrap();
            assert!(payload.iter().all(|b| *b == 7));
            frames.push(n);
            got += n;
        }
        frames
    };
    let (_conn, frames) = tokio::join!(writer, reader);
    frames
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime.unwrap().block_on(future)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn a_message_is_one_frame_or_4096_bytes_and_the_rest(len in 0usize..9000) {
        let total = len + 10;
        let expected = if total <= 4096 { vec![total] } else { vec![4096, total - 4096] };
        prop_assert_eq!(block_on(frames_of(len)), expected);
    }

    #[test]
    fn frames_are_a_stream_of_bytes_however_they_are_cut(
        payloads in prop::collection::vec((1u32..4, prop::collection::vec(any::<u8>(), 0..300)), 0..20),
        cuts in prop::collection::vec(1usize..50, 1..50),
    ) {
        let mut wire = Vec::new();
        let mut expected: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        for (id, payload) in &payloads {
            wire.extend(frame(*id, payload));
            expected.entry(*id).or_default().extend(payload);
        }
        expected.retain(|_, bytes| !bytes.is_empty());
        let mut reader = FrameReader::default();
        let mut got: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
        let (mut rest, mut cuts) = (wire.as_slice(), cuts.iter().cycle());
        while !rest.is_empty() {
            let (piece, more) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = more;
            reader.push(piece, |id, bytes| {
                got.entry(id).or_default().extend(bytes);
                Ok::<_, MuxError>(())
            }).unwrap();
        }
        prop_assert!(reader.at_boundary());
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn no_bytes_at_all_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut reader = FrameReader::default();
        let _ = reader.push(&bytes, |_, _| Ok::<_, MuxError>(()));
    }
}

#[tokio::test]
async fn four_mebibytes_are_two_frames() {
    assert_eq!(frames_of(4 << 20).await, [4096, (4 << 20) + 10 - 4096]);
}

#[tokio::test]
async fn a_write_beyond_the_largest_frame_becomes_several() {
    let (mux, mut peer) = pair();
    let mut conn = mux.open(3);
    mux.start();
    let total = 3 * MAX_FRAME + 200;
    let writer = async move {
        conn.write_all(&vec![1; total]).await.unwrap();
        conn
    };
    let reader = async {
        let mut frames = Vec::new();
        while frames.iter().sum::<usize>() < total {
            assert_eq!(peer.read_u32().await.unwrap(), 3);
            let n = peer.read_u32().await.unwrap() as usize;
            peer.read_exact(&mut vec![0; n]).await.unwrap();
            frames.push(n);
        }
        frames
    };
    let (_conn, frames) = tokio::join!(writer, reader);
    assert_eq!(frames, [MAX_FRAME, MAX_FRAME, MAX_FRAME, 200]);
}

#[tokio::test]
async fn connections_are_apart_and_unknown_ones_are_dropped() {
    let (mux, mut peer) = pair();
    let (one, two) = (mux.open(1), mux.open(2));
    mux.start();
    for (id, text) in [(2, "two"), (9, "nobody"), (1, ""), (1, "one"), (2, "!")] {
        peer.write_all(&frame(id, text.as_bytes())).await.unwrap();
    }
    drop(peer);
    assert_eq!(read_all(one).await.unwrap(), b"one");
    assert_eq!(read_all(two).await.unwrap(), b"two!");
    assert_eq!(mux.closed().await, MuxError::Eof);
}

#[tokio::test]
async fn a_frame_that_is_too_long_closes_the_trunk() {
    let (mux, mut peer) = pair();
    let conn = mux.open(1);
    mux.start();
    peer.write_all(&header(1, MAX_FRAME + 1)).await.unwrap();
    assert_eq!(mux.closed().await, MuxError::FrameTooLong(MAX_FRAME + 1, 1));
    read_all(conn).await.unwrap_err();
}

#[tokio::test]
async fn the_end_inside_a_frame_is_an_error_and_between_frames_is_none() {
    for (bytes, expected) in [
        (frame(1, b"whole"), MuxError::Eof),
        (frame(1, b"cut off")[..12].to_vec(), MuxError::Truncated),
        (vec![0, 0, 0], MuxError::Truncated),
        (Vec::new(), MuxError::Eof),
    ] {
        let (mux, mut peer) = pair();
        let _conn = mux.open(1);
        mux.start();
        peer.write_all(&bytes).await.unwrap();
        drop(peer);
        assert_eq!(mux.closed().await, expected);
    }
}

#[tokio::test]
async fn a_peer_that_sends_what_nobody_reads_is_cut_off() {
    let (mux, mut peer) = pair();
    let _unread = mux.open(1);
    mux.start();
    let chunk = frame(1, &vec![0; 1 << 20]);
    while peer.write_all(&chunk).await.is_ok() {}
    assert_eq!(mux.closed().await, MuxError::Overflow(1));
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_cut_off() {
    let (mux, _deaf) = pair();
    let mut conn = mux.open(1);
    mux.start();
    let chunk = vec![0; 1 << 20];
    while conn.write_all(&chunk).await.is_ok() {}
    assert_eq!(mux.closed().await, MuxError::Stalled(SLOW));
}

#[tokio::test]
async fn after_the_end_writes_fail_and_the_first_reason_stands() {
    let (mux, _peer) = pair();
    let mut conn = mux.open(1);
    mux.start();
    mux.close(MuxError::Stalled(SLOW));
    mux.close(MuxError::Closed);
    conn.write_all(b"x").await.unwrap_err();
    assert_eq!(mux.closed().await, MuxError::Stalled(SLOW));
}

/// Slow to record an end.
#[derive(Debug)]
struct Slow(Arc<std::sync::atomic::AtomicBool>);

impl Watch for Slow {
    fn came(&self, _: &[u8]) {}
    fn goes(&self, _: &[u8]) {}
    fn ended(&self, _: bool, _: &str) {
        std::thread::sleep(SLOW / 4);
        self.0.store(true, std::sync::atomic::Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_is_written_down_before_anyone_is_woken() {
    let (ours, _theirs) = UnixStream::pair().unwrap();
    let written = Arc::default();
    let watch = Box::new(Slow(Arc::clone(&written)));
    let mux = Arc::new(Mux::watched(ours, SLOW, Some(watch)));
    let closes = mux.clone();
    let closing = std::thread::spawn(move || closes.close(MuxError::Closed));
    mux.closed().await;
    assert!(written.load(std::sync::atomic::Ordering::SeqCst));
    closing.join().unwrap();
}
