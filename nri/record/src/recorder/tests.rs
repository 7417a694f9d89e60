use std::sync::mpsc;

use parking_lot::Mutex;

use super::*;
use crate::{line::Side, queue, read, recorder};

/// A disk controlled by the test.
struct Disk {
    lines: Arc<Mutex<Vec<u8>>>,
    /// Each write waits for its result: true for success.
    words: mpsc::Receiver<bool>,
    first: bool,
}

impl Sink for Disk {
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let header = std::mem::take(&mut self.first);
        if !header && !self.words.recv().unwrap_or(true) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.lines.lock().extend(lines);
        Ok(())
    }
}

struct Rig {
    recorder: Recorder,
    lines: Arc<Mutex<Vec<u8>>>,
    words: mpsc::Sender<bool>,
    failures: mpsc::Receiver<String>,
}

fn rig() -> Rig {
    let lines = Arc::<Mutex<Vec<u8>>>::default();
    let (words, heard) = mpsc::channel();
    let (report, failures) = mpsc::channel();
    let disk = Disk {
        lines: lines.clone(),
        words: heard,
        first: true,
    };
    let failed = move |why: &str| report.send(why.to_owned()).expect("heard");
    let recorder = recorder::Recorder::begin(disk, About::default(), failed).expect("a header");
    Rig {
        recorder,
        lines,
        words,
        failures,
    }
}

const LONG: Duration = Duration::from_secs(30);

#[test]
fn a_disk_that_hangs_costs_lines_which_are_counted_and_no_memory_and_no_time() {
    let Rig {
        recorder,
        lines,
        words,
        ..
    } = rig();
    let connection = recorder.connection();
    // Invalid frames are kept unparsed, so all their bytes are queued.
    let piece = vec![0xff; 1 << 20];
    for _ in 0..100 {
        connection.saw(Side::Plugin, &piece);
    }
    let held = recorder.0.queue.bytes();
    assert!(held <= queue::BUDGET, "{held} bytes wait");
    drop(words);
    let summary = recorder.finish(LONG);
    assert!(!summary.incomplete && summary.dropped > 60, "{summary:?}");
    let recording = read(lines.lock().as_slice()).expect("a recording");
    let gaps = recording.lines.iter().filter_map(|line| match line.what {
        What::Dropped { lines } => Some(lines),
        _ => None,
    });
    let gaps: Vec<u64> = gaps.collect();
    assert_eq!(gaps.iter().sum::<u64>(), summary.dropped);
    assert_eq!(gaps.len(), 1, "one line tells it");
    assert!(matches!(
        recording.lines.last().map(|l| &l.what),
        Some(What::Ended { .. })
    ));
}

#[test]
fn a_write_that_fails_is_told_once_and_ends_the_recording_alone() {
    let Rig {
        recorder,
        lines,
        words,
        failures,
    } = rig();
    let connection = recorder.connection();
    words.send(false).expect("a writer");
    let why = failures.recv_timeout(LONG).expect("told");
    assert!(why.contains("storage"), "{why}");
    for _ in 0..10 {
        connection.saw(Side::Plugin, &[0xff; 64]);
    }
    assert!(recorder.finish(LONG).incomplete);
    assert!(failures.recv_timeout(LONG).is_err(), "told a second time");
    let recording = read(lines.lock().as_slice()).expect("a header");
    assert_eq!(recording.lines, []);
}

#[test]
fn a_recorder_that_is_dropped_ends_its_recording() {
    let Rig {
        recorder,
        lines,
        words,
        failures,
    } = rig();
    drop(words);
    drop(recorder.connection());
    drop(recorder);
    // The writer ends with its callback.
    assert!(failures.recv_timeout(LONG).is_err());
    let recording = read(lines.lock().as_slice()).expect("a recording");
    assert!(matches!(
        recording.lines.last().map(|l| &l.what),
        Some(What::Ended { .. })
    ));
}
