//! The results: a table for people; JSON and JUnit for programs.

use std::{fmt::Write, time::Duration};

use serde_json::{Value, json};

use crate::{
    point::Cost,
    runner::{Row, Verdict},
};

/// The runtime under test.
pub(crate) struct Subject {
    pub runtime: String,
    pub version: String,
    pub nri_version: String,
    pub protocol: String,
}

/// The number of rows per verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub passed: usize,
    pub failed: usize,
    pub known: usize,
    pub unexpected: usize,
    pub skipped: usize,
}

impl Counts {
    pub(crate) fn of(rows: &[Row]) -> Self {
        let mut counts = Self::default();
        for row in rows {
            *match row.verdict {
                Verdict::Pass => &mut counts.passed,
                Verdict::Fail { .. } => &mut counts.failed,
                Verdict::Known { .. } => &mut counts.known,
                Verdict::Unexpected(_) => &mut counts.unexpected,
                Verdict::Skip(_) => &mut counts.skipped,
            } += 1;
        }
        counts
    }
    /// Whether all results are as expected.
    pub(crate) fn held(self) -> bool {
        self.failed == 0 && self.unexpected == 0
    }
    /// Returns "162 points: 160 passed, …".
    pub(crate) fn line(self) -> String {
        let all = self.passed + self.failed + self.known + self.unexpected + self.skipped;
        let mut line = format!(
            "{all} points: {} passed, {} failed",
            self.passed, self.failed
        );
        for (count, what) in [
            (self.known, "failed as expected"),
            (self.unexpected, "passed unexpectedly"),
            (self.skipped, "skipped"),
        ] {
            if count > 0 {
                let _ = write!(line, ", {count} {what}");
            }
        }
        line
    }
}

/// Returns a line for each point. Failures include expected and actual values; `all` includes
/// passes.
pub(crate) fn table(rows: &[Row], all: bool, colour: bool) -> String {
    let paint = |code: &str, text: &str| {
        if colour {
            format!("\x1b[{code}m{text}\x1b[0m")
        } else {
            text.to_owned()
        }
    };
    let mut sorted: Vec<&Row> = rows.iter().collect();
    sorted.sort_by_key(|row| order(&row.point.id));
    let mut text = String::new();
    for row in sorted {
        let (code, word) = match row.verdict {
            Verdict::Pass => ("32", "pass"),
            Verdict::Fail { .. } => ("31", "FAIL"),
            Verdict::Known { .. } => ("33", "known"),
            Verdict::Unexpected(_) => ("31", "PASSES"),
            Verdict::Skip(_) => ("2", "skip"),
        };
        if row.verdict == Verdict::Pass && !all {
            continue;
        }
        let id = &row.point.id;
        let mark = paint(code, &format!("{word:<6}"));
        let _ = writeln!(text, "{mark} {id:<42} {}", row.point.title);
        let mut more = |key: &str, value: &str| {
            let _ = writeln!(
                text,
                "         {} {value}",
                paint("2", &format!("{key:<9}"))
            );
        };
        match &row.verdict {
            Verdict::Pass => {}
            Verdict::Skip(missing) => more("missing:", missing),
            Verdict::Unexpected(because) => more("expected:", &format!("to fail: {because}")),
            Verdict::Known {
                expected,
                seen,
                because,
            } => {
                more("expected:", expected);
                more("seen:", seen);
                more("because:", because);
            }
            Verdict::Fail {
                expected,
                seen,
                events,
            } => {
                more("expected:", expected);
                more("seen:", seen);
                for (n, event) in events.iter().enumerate() {
                    more(if n == 0 { "before:" } else { "" }, event);
                }
            }
        }
    }
    text
}

/// Sorts guarantees by number, not by text: C-01.2 before C-01.10.
pub(crate) fn order(id: &str) -> (String, Vec<u32>, String) {
    let (guarantee, point) = id.split_once('/').unwrap_or((id, ""));
    let (kind, numbers) = guarantee.split_once('-').unwrap_or((guarantee, ""));
    let numbers = numbers.split('.').filter_map(|n| n.parse().ok()).collect();
    (kind.to_owned(), numbers, point.to_owned())
}

/// Returns all results as one object.
pub(crate) fn json(subject: &Subject, rows: &[Row], took: Duration) -> Value {
    let counts = Counts::of(rows);
    let points: Vec<Value> = rows.iter().map(row_json).collect();
    json!({
        "runtime": { "name": subject.runtime, "version": subject.version, "cri": subject.protocol,
                     "nri": subject.nri_version },
        "seconds": seconds(took),
        "passed": counts.passed, "failed": counts.failed, "failed_as_expected": counts.known,
        "passed_unexpectedly": counts.unexpected, "skipped": counts.skipped,
        "points": points,
    })
}

fn row_json(row: &Row) -> Value {
    let mut value = json!({
        "id": row.point.id,
        "guarantee": row.point.guarantee(),
        "title": row.point.title,
        "cost": match row.point.cost { Cost::Fast => "fast", Cost::Slow => "slow", Cost::Restart => "restart" },
        "seconds": seconds(row.took),
    });
    let more = match &row.verdict {
        Verdict::Pass => json!({ "result": "pass" }),
        Verdict::Skip(missing) => json!({ "result": "skip", "missing": missing }),
        Verdict::Unexpected(because) => {
            json!({ "result": "passed unexpectedly", "because": because })
        }
        Verdict::Known {
            expected,
            seen,
            because,
        } => {
            json!({ "result": "failed as expected", "expected": expected, "seen": seen, "because": because })
        }
        Verdict::Fail {
            expected,
            seen,
            events,
        } => {
            json!({ "result": "fail", "expected": expected, "seen": seen, "events": events })
        }
    };
    if let (Some(value), Value::Object(more)) = (value.as_object_mut(), more) {
        value.extend(more);
    }
    value
}

fn seconds(took: Duration) -> f64 {
    (took.as_secs_f64() * 1000.0).round() / 1000.0
}

/// Returns one suite with a case per point.
pub(crate) fn junit(subject: &Subject, rows: &[Row], took: Duration) -> String {
    let counts = Counts::of(rows);
    let mut xml = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"nri-contract {}\" tests=\"{}\" failures=\"{}\" skipped=\"{}\" time=\"{}\">\n",
        escaped(&format!("{} {}", subject.runtime, subject.version)),
        rows.len(),
        counts.failed + counts.unexpected,
        counts.skipped + counts.known,
        seconds(took)
    );
    for row in rows {
        let _ = write!(
            xml,
            "  <testcase classname=\"{}\" name=\"{}: {}\" time=\"{}\">",
            escaped(row.point.guarantee()),
            escaped(&row.point.id),
            escaped(&row.point.title),
            seconds(row.took)
        );
        let inner = match &row.verdict {
            Verdict::Pass => String::new(),
            Verdict::Skip(why) => format!("<skipped message=\"{}\"/>", escaped(why)),
            Verdict::Known { because, .. } => {
                format!("<skipped message=\"known: {}\"/>", escaped(because))
            }
            Verdict::Unexpected(because) => format!(
                "<failure message=\"passes, though it is expected to fail: {}\"/>",
                escaped(because)
            ),
            Verdict::Fail {
                expected,
                seen,
                events,
            } => format!(
                "<failure message=\"{}\">{}</failure>",
                escaped(&format!("expected: {expected}; seen: {seen}")),
                escaped(&events.join("\n"))
            ),
        };
        xml.push_str(&inner);
        xml.push_str("</testcase>\n");
    }
    xml.push_str("</testsuite>\n");
    xml
}

fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            // XML 1.0 cannot contain other control characters.
            c if c.is_control() && c != '\n' && c != '\t' => out.push(' '),
            c => out.push(c),
        }
    }
    out
}
