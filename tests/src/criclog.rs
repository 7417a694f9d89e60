//! Parses a container's log like the kubelet (CRI-250): `RFC3339nano stream P|F content\n`. P: the
//! line continues in the next record.

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub time: String,
    /// `stdout` or `stderr`.
    pub stream: String,
    /// The line continues in the next record of the same stream.
    pub partial: bool,
    pub content: Vec<u8>,
}

/// The complete records of a log that another process is writing, up to the last newline.
pub fn whole(log: &[u8]) -> &[u8] {
    let end = log.iter().rposition(|b| *b == b'\n');
    &log[..end.map_or(0, |at| at + 1)]
}

/// Splits a log into its records.
///
/// # Panics
/// At the first invalid byte.
pub fn records(log: &[u8]) -> Vec<Record> {
    parse(log).unwrap_or_else(|why| panic!("{why}"))
}

/// As [`records`].
///
/// # Errors
/// The first invalid record.
pub fn parse(log: &[u8]) -> Result<Vec<Record>, String> {
    if log.is_empty() {
        return Ok(Vec::new());
    }
    let body = log
        .strip_suffix(b"\n")
        .ok_or("a log ends with a whole record")?;
    body.split(|b| *b == b'\n').map(record).collect()
}

fn record(line: &[u8]) -> Result<Record, String> {
    let shown = String::from_utf8_lossy(line);
    let mut parts = line.splitn(4, |b| *b == b' ');
    let mut next = |what: &str| {
        let part = parts.next();
        part.ok_or_else(|| format!("no {what} in the record {shown:?}"))
    };
    let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
    let (time, stream, tag) = (
        text(next("time")?),
        text(next("stream")?),
        text(next("tag")?),
    );
    let sound = time.len() >= "2026-01-02T03:04:05.000000000Z".len() && time.contains('T');
    if !sound {
        return Err(format!(
            "not a time with nanoseconds: {time:?} in {shown:?}"
        ));
    }
    if !matches!(&*stream, "stdout" | "stderr") || !matches!(&*tag, "P" | "F") {
        return Err(format!("stream {stream:?}, tag {tag:?} in {shown:?}"));
    }
    Ok(Record {
        time,
        stream,
        partial: tag == "P",
        content: next("content")?.to_vec(),
    })
}

/// The container's output to one stream. A final F stands for the newline of the line, or for the
/// end of the output.
pub fn written(records: &[Record], stream: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for record in records.iter().filter(|r| r.stream == stream) {
        all.extend_from_slice(&record.content);
        if !record.partial {
            all.push(b'\n');
        }
    }
    all
}

/// The complete lines of one stream, as text.
pub fn lines(records: &[Record], stream: &str) -> Vec<String> {
    String::from_utf8_lossy(&written(records, stream))
        .lines()
        .map(str::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_record_is_joined_with_the_next_of_its_stream() {
        let log = b"2026-01-02T03:04:05.000000000Z stdout P ab\n\
                    2026-01-02T03:04:05.000000001Z stderr F err\n\
                    2026-01-02T03:04:05.000000002Z stdout F cd ef\n\
                    2026-01-02T03:04:05.000000003Z stdout F \n";
        let records = records(log);
        assert_eq!(written(&records, "stdout"), b"abcd ef\n\n");
        assert_eq!(lines(&records, "stderr"), ["err"]);
    }

    #[test]
    #[should_panic(expected = "whole record")]
    fn a_torn_record_is_noticed() {
        records(b"2026-01-02T03:04:05.000000000Z stdout F torn");
    }
}
