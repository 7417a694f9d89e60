//! The CRI log format (CRI-250, 251), byte by byte.

use cairn_monitor::log::{Encoder, Stream};
use proptest::prelude::*;

const MAX: usize = 16384;
const NOW: u64 = 1_767_323_045_000_000_006; // 2026-01-02T03:04:05.000000006Z

/// Encodes these pieces of stdout and returns the records as `(tag, content)`.
fn encode(max: usize, pieces: &[&[u8]]) -> Vec<(char, Vec<u8>)> {
    let mut encoder = Encoder::new(max);
    let mut out = Vec::new();
    for piece in pieces {
        encoder.push(Stream::Stdout, piece, NOW, &mut |r| {
            out.extend_from_slice(r)
        });
    }
    encoder.finish(Stream::Stdout, NOW, &mut |r| out.extend_from_slice(r));
    records(&out)
        .into_iter()
        .map(|(_, tag, content)| (tag, content))
        .collect()
}

fn records(out: &[u8]) -> Vec<(String, char, Vec<u8>)> {
    let Some(body) = out.strip_suffix(b"\n") else {
        assert!(out.is_empty(), "the last record has no end");
        return Vec::new();
    };
    body.split(|b| *b == b'\n')
        .map(|line| {
            let mut parts = line.splitn(4, |b| *b == b' ');
            assert_eq!(
                parts.next().expect("time"),
                b"2026-01-02T03:04:05.000000006Z"
            );
            let stream = String::from_utf8(parts.next().expect("stream").to_vec()).expect("text");
            let tag = char::from(parts.next().expect("tag")[0]);
            (stream, tag, parts.next().expect("content").to_vec())
        })
        .collect()
}

fn bytes(b: u8, n: usize) -> Vec<u8> {
    vec![b; n]
}

#[test]
fn lines_are_full_records_and_an_empty_line_is_one_too() {
    let found = encode(MAX, &[b"a\n\nb c\n"]);
    assert_eq!(
        found,
        [
            ('F', b"a".to_vec()),
            ('F', b"".to_vec()),
            ('F', b"b c".to_vec())
        ]
    );
}

#[test]
fn runs_of_empty_lines_of_every_length_are_as_many_records() {
    let batch = (32 << 10) / 41;
    for lines in [1, 2, batch, batch + 1, batch + 2, 2 * batch + 1, 10_000] {
        let run = [b"a\n".to_vec(), bytes(b'\n', lines), b"b\n\n".to_vec()].concat();
        let found = encode(MAX, &[&run]);
        let full = |content: &[u8]| ('F', content.to_vec());
        assert_eq!(found.len(), lines + 3);
        assert_eq!((&found[0], &found[lines + 1]), (&full(b"a"), &full(b"b")));
        assert!(found[1..=lines].iter().all(|record| *record == full(b"")));
        assert_eq!(found[lines + 2], full(b""));
    }
    // A run ends an unfinished line first, and has the stream of its read.
    let mut encoder = Encoder::new(MAX);
    let mut out = Vec::new();
    let mut sink = |r: &[u8]| out.extend_from_slice(r);
    encoder.push(Stream::Stderr, b"err", NOW, &mut sink);
    encoder.push(Stream::Stdout, b"out", NOW, &mut sink);
    encoder.push(Stream::Stderr, &bytes(b'\n', 5000), NOW, &mut sink);
    let found = records(&out);
    assert_eq!(found.len(), 5000);
    assert_eq!(found[0].2, b"err");
    assert!(
        found[1..]
            .iter()
            .all(|(s, _, c)| s == "stderr" && c.is_empty())
    );
}

#[test]
fn what_has_no_newline_at_the_end_is_partial() {
    assert_eq!(
        encode(MAX, &[b"a\nrest"]),
        [('F', b"a".to_vec()), ('P', b"rest".to_vec())]
    );
    assert_eq!(encode(MAX, &[]), []);
}

#[test]
fn a_line_of_exactly_the_maximum_is_full_and_one_byte_more_is_split() {
    for pieces in [1, 3, 4096] {
        let encode = |line: &[u8]| encode(MAX, &line.chunks(pieces).collect::<Vec<_>>());
        let with_end = |n: usize, end: &[u8]| [bytes(b'x', n), end.to_vec()].concat();
        assert_eq!(encode(&with_end(MAX, b"\n")), [('F', bytes(b'x', MAX))]);
        assert_eq!(
            encode(&with_end(MAX - 1, b"\n")),
            [('F', bytes(b'x', MAX - 1))]
        );
        assert_eq!(
            encode(&with_end(MAX + 1, b"\n")),
            [('P', bytes(b'x', MAX)), ('F', bytes(b'x', 1))]
        );
        assert_eq!(encode(&with_end(MAX, b"\r\n")), [('F', bytes(b'x', MAX))]);
        assert_eq!(
            encode(&with_end(2 * MAX, b"\n")),
            [('P', bytes(b'x', MAX)), ('F', bytes(b'x', MAX))]
        );
        assert_eq!(encode(&with_end(MAX, b"")), [('P', bytes(b'x', MAX))]);
        assert_eq!(
            encode(&with_end(MAX, b"\r")),
            [('P', bytes(b'x', MAX)), ('P', b"\r".to_vec())]
        );
    }
}

#[test]
fn a_carriage_return_counts_only_inside_a_line() {
    assert_eq!(encode(MAX, &[b"a\r\n"]), [('F', b"a".to_vec())]);
    assert_eq!(encode(MAX, &[b"a\r", b"\n"]), [('F', b"a".to_vec())]);
    assert_eq!(encode(MAX, &[b"a\rb\n"]), [('F', b"a\rb".to_vec())]);
    assert_eq!(encode(MAX, &[b"\r\n"]), [('F', b"".to_vec())]);
}

#[test]
fn both_streams_keep_their_own_unfinished_line() {
    let mut encoder = Encoder::new(MAX);
    let mut out = Vec::new();
    let mut sink = |r: &[u8]| out.extend_from_slice(r);
    encoder.push(Stream::Stdout, b"out ", NOW, &mut sink);
    encoder.push(Stream::Stderr, b"err ", NOW, &mut sink);
    encoder.push(Stream::Stdout, b"line\n", NOW, &mut sink);
    encoder.push(Stream::Stderr, b"line\n", NOW, &mut sink);
    let found: Vec<_> = records(&out).into_iter().map(|(s, _, c)| (s, c)).collect();
    assert_eq!(
        found,
        [
            ("stdout".to_owned(), b"out line".to_vec()),
            ("stderr".to_owned(), b"err line".to_vec())
        ]
    );
}

#[test]
fn the_time_is_rfc_3339_with_nanoseconds() {
    for (nanos, text) in [
        (0, "1970-01-01T00:00:00.000000000Z"),
        (951_782_399_999_999_999, "2000-02-28T23:59:59.999999999Z"),
        (951_868_799_000_000_000, "2000-02-29T23:59:59.000000000Z"),
        (4_107_542_400_000_000_000, "2100-03-01T00:00:00.000000000Z"),
        (1_735_689_599_000_000_001, "2024-12-31T23:59:59.000000001Z"),
    ] {
        let mut out = Vec::new();
        Encoder::new(0).push(Stream::Stderr, b"\n", nanos, &mut |r| {
            out.extend_from_slice(r)
        });
        assert_eq!(
            String::from_utf8(out).expect("text"),
            format!("{text} stderr F \n")
        );
    }
}

/// Lines of many lengths around the maximum, with all kinds of ends.
fn output() -> impl Strategy<Value = Vec<u8>> {
    let byte = prop_oneof![8 => Just(b'x'), 2 => Just(b'\n'), 1 => Just(b'\r')];
    proptest::collection::vec(byte, 0..200)
}

proptest! {
    #[test]
    fn how_output_is_cut_into_reads_changes_nothing(data in output(), cuts in proptest::collection::vec(1usize..20, 1..50)) {
        let mut pieces = Vec::new();
        let mut rest = &data[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() { break; }
            let (piece, tail) = rest.split_at(rest.len().min(*cut));
            pieces.push(piece);
            rest = tail;
        }
        prop_assert_eq!(encode(7, &pieces), encode(7, &[&data]));
    }

    #[test]
    fn readers_get_every_byte_back_but_the_ends_of_lines(data in output()) {
        let found = encode(7, &[&data]);
        prop_assert!(found.iter().all(|(tag, c)| c.len() <= 7 && !c.contains(&b'\n') && (*tag == 'F' || !c.is_empty())));
        let joined: Vec<u8> = found.iter().flat_map(|(tag, c)| {
            let end: &[u8] = if *tag == 'F' { b"\n" } else { b"" };
            [c, end].concat()
        }).collect();
        // As a reader sees it: `\r\n` has become `\n`.
        let mut wanted = Vec::new();
        for (i, b) in data.iter().enumerate() {
            if !(*b == b'\r' && data.get(i + 1) == Some(&b'\n')) { wanted.push(*b); }
        }
        prop_assert_eq!(joined, wanted);
    }
}
