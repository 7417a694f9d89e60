//! The CRI log format (CRI-250, 251): converts bytes of two streams into complete records.
//!
//! Pure: no file, no clock. A record is `<time> <stream> <F|P> <content>\n`. A line longer than the
//! maximum becomes `P` pieces of exactly that length and a last `F`. A rest without a newline at
//! the end of the stream becomes a `P`, to which readers add no newline. `\r\n` ends a line like
//! `\n`. Every call of the sink gets complete records, so that one write(2) never splits one.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// The longest piece this encoder keeps in memory; stands for "unlimited".
pub const MAX_PIECE: usize = 1 << 20;

/// Passes records to the sink in batches of this size.
const BATCH: usize = 32 << 10;

/// `<time> <stream> <tag> `
const HEAD: usize = 40;
const TAG_AT: usize = 38;
/// Records of empty lines per batch.
const EMPTY: usize = BATCH / (HEAD + 1);

pub struct Encoder {
    max: usize,
    pending: [Vec<u8>; 2],
    out: Vec<u8>,
    stamp: Stamp,
    /// The head of the records of one read, which all have its time.
    head: [u8; HEAD],
}

impl Encoder {
    /// `max`: content bytes per record; 0 or too large is [`MAX_PIECE`].
    pub fn new(max: usize) -> Encoder {
        let max = if max == 0 {
            MAX_PIECE
        } else {
            max.min(MAX_PIECE)
        };
        Encoder {
            max,
            pending: Default::default(),
            out: Vec::new(),
            stamp: Stamp::default(),
            head: [0; HEAD],
        }
    }

    /// Encodes `data`, read at `now` (nanoseconds since 1970).
    pub fn push(&mut self, stream: Stream, data: &[u8], now: u64, sink: &mut impl FnMut(&[u8])) {
        self.begin(stream, now);
        let mut rest = data;
        while let Some(at) = rest.iter().position(|b| *b == b'\n') {
            self.line(&rest[..at], stream, sink);
            rest = &rest[at + 1..];
            if rest.first() == Some(&b'\n') {
                let empty = rest.iter().take_while(|b| **b == b'\n').count();
                self.empty_lines(empty, sink);
                rest = &rest[empty..];
            }
        }
        self.keep(stream, rest, sink);
        self.flush(sink);
    }

    pub fn finish(&mut self, stream: Stream, now: u64, sink: &mut impl FnMut(&[u8])) {
        self.begin(stream, now);
        let mut pending = std::mem::take(&mut self.pending[stream as usize]);
        while !pending.is_empty() {
            let n = pending.len().min(self.max);
            self.record(b'P', &pending[..n], sink);
            pending.drain(..n);
        }
        self.flush(sink);
    }

    fn begin(&mut self, stream: Stream, now: u64) {
        self.stamp.set(now);
        let (time, rest) = self.head.split_at_mut(self.stamp.text.len());
        time.copy_from_slice(&self.stamp.text);
        rest.copy_from_slice(match stream {
            Stream::Stdout => b" stdout F ",
            Stream::Stderr => b" stderr F ",
        });
    }

    /// Encodes empty lines after the end of a line. They cost the container next to nothing, so the
    /// records of a long run, which are equal, are written again and again.
    fn empty_lines(&mut self, lines: usize, sink: &mut impl FnMut(&[u8])) {
        if lines < EMPTY {
            (0..lines).for_each(|_| self.record(b'F', &[], sink));
            return;
        }
        self.flush(sink);
        let mut batch = [self.head.as_slice(), b"\n"].concat().repeat(EMPTY);
        let mut left = lines;
        while left > 0 {
            batch.truncate(left * (HEAD + 1));
            sink(&batch);
            left -= batch.len() / (HEAD + 1);
        }
    }

    /// Ends a line with `tail`.
    fn line(&mut self, tail: &[u8], stream: Stream, sink: &mut impl FnMut(&[u8])) {
        if self.pending[stream as usize].is_empty() && tail.len() <= self.max {
            self.record(b'F', tail.strip_suffix(b"\r").unwrap_or(tail), sink);
            return;
        }
        self.keep(stream, tail, sink);
        let pending = std::mem::take(&mut self.pending[stream as usize]);
        self.record(b'F', pending.strip_suffix(b"\r").unwrap_or(&pending), sink);
        self.pending[stream as usize] = pending;
        self.pending[stream as usize].clear();
    }

    /// Keeps `data` for later and emits full pieces. One byte beyond the maximum may stay if it is
    /// a `\r`: before a `\n` it ends the line and is not content.
    fn keep(&mut self, stream: Stream, mut data: &[u8], sink: &mut impl FnMut(&[u8])) {
        loop {
            let mut pending = std::mem::take(&mut self.pending[stream as usize]);
            let room = (self.max + 1).saturating_sub(pending.len()).min(data.len());
            pending.extend_from_slice(&data[..room]);
            data = &data[room..];
            let full = pending.len() > self.max;
            if full && (pending[self.max] != b'\r' || !data.is_empty()) {
                self.record(b'P', &pending[..self.max], sink);
                pending.drain(..self.max);
            }
            self.pending[stream as usize] = pending;
            if data.is_empty() {
                return;
            }
        }
    }

    fn record(&mut self, tag: u8, content: &[u8], sink: &mut impl FnMut(&[u8])) {
        let mut head = self.head;
        head[TAG_AT] = tag;
        self.out.extend_from_slice(&head);
        self.out.extend_from_slice(content);
        self.out.push(b'\n');
        if self.out.len() >= BATCH {
            self.flush(sink);
        }
    }

    fn flush(&mut self, sink: &mut impl FnMut(&[u8])) {
        if !self.out.is_empty() {
            sink(&self.out);
            self.out.clear();
        }
    }
}

/// RFC 3339 with nanoseconds, in UTC. Formats the date only when the second changes.
struct Stamp {
    second: u64,
    text: [u8; 30],
}

impl Default for Stamp {
    fn default() -> Stamp {
        let mut stamp = Stamp {
            second: u64::MAX,
            text: *b"0000-00-00T00:00:00.000000000Z",
        };
        stamp.set(0);
        stamp
    }
}

impl Stamp {
    fn set(&mut self, nanos: u64) {
        let second = nanos / 1_000_000_000;
        if second != self.second {
            self.second = second;
            self.set_date(second);
        }
        digits(&mut self.text[20..29], nanos % 1_000_000_000);
    }

    fn set_date(&mut self, second: u64) {
        let (day, of_day) = (second / 86_400, second % 86_400);
        let [year, month, day] = date_of(day.cast_signed()).map(i64::cast_unsigned);
        digits(&mut self.text[0..4], year);
        digits(&mut self.text[5..7], month);
        digits(&mut self.text[8..10], day);
        digits(&mut self.text[11..13], of_day / 3600);
        digits(&mut self.text[14..16], of_day / 60 % 60);
        digits(&mut self.text[17..19], of_day % 60);
    }
}

/// Converts days since 1 January 1970 to year, month and day.
pub fn date_of(day: i64) -> [i64; 3] {
    // Days since 1 March of year 0, in 400-year cycles of 146097 days, so that leap days come last.
    let z = day + 719_468;
    let (era, of_era) = (z.div_euclid(146_097), z.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march = (5 * of_year + 2) / 153;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    [year, month, of_year - (153 * march + 2) / 5 + 1]
}

fn digits(into: &mut [u8], mut value: u64) {
    for d in into.iter_mut().rev() {
        *d = b'0' + (value % 10) as u8;
        value /= 10;
    }
}
