//! The log in temporary directories: order, bounds, restarts, torn lines, slow readers.

use super::super::Action;
use super::*;
use std::sync::atomic::AtomicI64;

static CLOCK: AtomicI64 = AtomicI64::new(1);

fn tick() -> i64 {
    CLOCK.fetch_add(1, Ordering::Relaxed)
}

fn small() -> Options {
    Options {
        queue: 4096,
        unwritten_bytes: 1 << 20,
        max_bytes: 2000,
        files: 3,
        now: tick,
    }
}

fn pod(number: u64) -> Subject {
    Subject::pod(&format!("pod{number}"), "default", &format!("web{number}"))
}

async fn all(log: &EventLog, filter: Filter) -> Vec<u64> {
    let mut events = log.subscribe(filter, false);
    let mut seqs = Vec::new();
    while let Some(event) = events.recv().await {
        seqs.push(event.seq);
    }
    seqs
}

#[tokio::test]
async fn events_have_numbers_and_times_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &Options::new(tick)).unwrap();
    for _ in 0..20 {
        log.record(pod(1), Action::Ready);
    }
    let mut events = log.subscribe(Filter::new(""), false);
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        all.push((event.seq, event.wall_ns, event.mono_ns));
    }
    assert!(all.iter().map(|(seq, ..)| *seq).eq(1..=20), "{all:?}");
    assert!(all.is_sorted_by_key(|(_, wall, mono)| (*wall, *mono)));
}

#[tokio::test]
async fn the_past_comes_from_the_files_each_event_once() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        max_bytes: 1 << 20,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    for number in 0..100 {
        log.record(pod(number % 2), Action::Started);
    }
    log.flush().await;
    assert_eq!(
        all(&log, Filter::new("")).await,
        (1..=100).collect::<Vec<_>>()
    );
    let odd: Vec<u64> = (1..=100).filter(|seq| seq % 2 == 1).collect();
    assert_eq!(all(&log, Filter::new("pod0")).await, odd);
    assert_eq!(all(&log, Filter::new("web0")).await, odd);
    assert_eq!(all(&log, Filter::new("default/web0")).await, odd);
    assert_eq!(all(&log, Filter::new("eb0")).await, [0_u64; 0]);
}

#[tokio::test]
async fn files_are_bounded_in_size_and_number() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    for _ in 0..40 {
        for _ in 0..5 {
            log.record(
                pod(1),
                Action::StartFailed {
                    reason: "x".repeat(100),
                },
            );
        }
        log.flush().await;
    }
    let files = files::list(dir.path()).unwrap();
    assert_eq!(files.len(), 3);
    for (_, path) in &files {
        assert!(path.metadata().unwrap().len() <= 2000);
    }
    let kept = all(&log, Filter::new("")).await;
    assert!(kept.len() < 200 && kept.last() == Some(&200), "{kept:?}");
    assert!(kept.is_sorted_by(|a, b| a + 1 == *b), "{kept:?}");
}

#[tokio::test]
async fn a_restart_goes_on_counting_after_a_torn_line() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    (0..3).for_each(|_| _ = log.record(pod(1), Action::Ready));
    log.flush().await;
    drop(log);
    let (_, last) = files::list(dir.path()).unwrap().pop().unwrap();
    let torn = [
        std::fs::read(&last).unwrap(),
        b"{\"schema\":1,\"seq\":4,\"wa".to_vec(),
    ]
    .concat();
    std::fs::write(&last, torn).unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    assert_eq!(log.record(pod(1), Action::Ready), 4);
    log.flush().await;
    assert_eq!(all(&log, Filter::new("")).await, [1, 2, 3, 4]);
    // Without the memory, like a reader after another restart.
    let again = EventLog::open(dir.path(), &small()).unwrap();
    assert_eq!(all(&again, Filter::new("")).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_follower_gets_past_and_future_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        max_bytes: 1 << 20,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    (0..50).for_each(|_| _ = log.record(pod(1), Action::Ready));
    let mut events = log.subscribe(Filter::new(""), true);
    let recorder = log.clone();
    let recording = tokio::spawn(async move {
        for _ in 0..500 {
            recorder.record(pod(2), Action::Ready);
            tokio::task::yield_now().await;
        }
    });
    for seq in 1..=550 {
        assert_eq!(events.recv().await.unwrap().seq, seq);
    }
    recording.await.unwrap();
    drop(log);
    assert!(events.recv().await.is_none(), "following ends with the log");
}

#[tokio::test]
async fn a_follower_that_falls_behind_learns_how_much_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    let mut events = log.subscribe(Filter::new("pod1"), true);
    // Without a receiver both the channel and the lag overflow.
    let count = 2 * BEHIND as u64;
    for _ in 0..count {
        log.record(pod(1), Action::Ready);
        tokio::task::yield_now().await;
    }
    let mut got = 0;
    let mut missed = 0;
    while got + missed < count {
        match events.recv().await.unwrap().what {
            What::Lost { events } => missed += events,
            _ => got += 1,
        }
    }
    assert_eq!(got + missed, count);
    assert!(missed > 0);
}

#[tokio::test]
async fn a_full_queue_never_blocks_and_its_losses_are_counted_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        queue: 1,
        max_bytes: 1 << 30,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    while log.lost() == 0 {
        log.record(pod(1), Action::Ready);
    }
    log.flush().await;
    let recorded = log.record(pod(1), Action::Stopped);
    log.flush().await;
    let (mut expected, mut marked) = (1, 0);
    for (seq, missing) in in_files(dir.path()) {
        let missing = missing.unwrap_or(0);
        marked += missing;
        expected += missing;
        assert_eq!(seq + u64::from(missing > 0), expected);
        expected += u64::from(missing == 0);
    }
    assert_eq!(marked, log.lost());
    assert_eq!(expected, recorded + 1);
}

/// Sequence numbers in the files, and for a loss the number of missing events.
fn in_files(dir: &Path) -> Vec<(u64, Option<u64>)> {
    in_files_and(dir, &[]).0
}

/// The same, with these lines; and the number missing up to the 60th.
fn in_files_and(dir: &Path, unwritten: &[u8]) -> (Vec<(u64, Option<u64>)>, u64) {
    let mut found = Vec::new();
    let mut reader = Reader::new(61, |event: Event| {
        let missing = match event.what {
            What::Lost { events } => Some(events),
            _ => None,
        };
        found.push((event.seq, missing));
        true
    });
    reader.files(dir).unwrap();
    reader.lines(unwritten);
    let missing = reader.missing();
    (found, missing)
}

#[tokio::test]
async fn events_the_disk_refuses_are_shown_and_written_when_it_works_again() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = EventLog::open(&path, &small()).unwrap();
    std::fs::remove_dir(&path).unwrap();
    log.record(pod(1), Action::Ready);
    log.record(pod(2), Action::Ready);
    log.flush().await;
    assert_eq!(log.lost(), 0);
    std::fs::create_dir(&path).unwrap();
    // A reader alone triggers another attempt; it sees each event once.
    assert_eq!(all(&log, Filter::new("")).await, [1, 2]);
    assert_eq!(in_files(&path), [(1, None), (2, None)]);
    log.record(pod(1), Action::Stopped);
    assert_eq!(all(&log, Filter::new("")).await, [1, 2, 3]);
    assert_eq!(log.lost(), 0);
}

#[tokio::test]
async fn a_reader_sees_events_that_are_in_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    log.record(pod(1), Action::Ready);
    log.flush().await;
    // The next event needs a new file, which cannot be made.
    let next = dir.path().join(format!("events-{:020}.jsonl", 2));
    std::os::unix::fs::symlink("nowhere/file", next).unwrap();
    let reason = "x".repeat(2000);
    log.record(pod(1), Action::StartFailed { reason });
    log.record(pod(2), Action::Ready);
    log.flush().await;
    assert_eq!(in_files(dir.path()), [(1, None)]);
    assert_eq!(all(&log, Filter::new("pod1")).await, [1, 2]);
}

#[tokio::test]
async fn the_oldest_events_that_the_disk_refuses_for_too_long_are_lost_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        unwritten_bytes: 1000,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    log.record(pod(1), Action::Ready);
    log.flush().await;
    // The next event needs a new file, which cannot be made.
    let next = dir.path().join(format!("events-{:020}.jsonl", 2));
    std::os::unix::fs::symlink("nowhere/file", &next).unwrap();
    let reason = "x".repeat(2000);
    log.record(pod(1), Action::StartFailed { reason });
    for _ in 3..=50 {
        // One batch each.
        log.flush().await;
        log.record(pod(1), Action::Ready);
    }
    log.flush().await;
    let lost = log.lost();
    assert!((30..50).contains(&lost), "{lost}");
    std::fs::remove_file(next).unwrap();
    log.flush().await;
    let found = in_files(dir.path());
    let (_, file) = files::list(dir.path()).unwrap().pop().unwrap();
    let written_meanwhile = std::fs::read(file).unwrap();
    let again = in_files_and(dir.path(), &written_meanwhile);
    assert_eq!(again, (found.clone(), 10));
    assert_eq!(found[..2], [(1, None), (lost + 1, Some(lost))]);
    assert!(
        found[2..]
            .iter()
            .copied()
            .eq((lost + 2..=50).map(|seq| (seq, None)))
    );
    assert_eq!(log.lost(), lost);
}

#[tokio::test]
async fn refused_events_are_written_without_new_ones() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = EventLog::open(&path, &small()).unwrap();
    std::fs::remove_dir(&path).unwrap();
    log.record(pod(1), Action::Ready);
    log.flush().await;
    std::fs::create_dir(&path).unwrap();
    let written = || in_files(&path) == [(1, None)];
    let end = std::time::Instant::now() + Duration::from_secs(20);
    while !written() && std::time::Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(written());
}

#[tokio::test]
async fn beside_an_unreadable_file_the_rest_is_shown_with_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    for _ in 0..60 {
        log.record(pod(1), Action::Ready);
        log.flush().await;
    }
    let all_files = files::list(dir.path()).unwrap();
    let [(first, _), (second, path), (third, _), ..] = &all_files[..] else {
        panic!("{all_files:?}");
    };
    std::fs::remove_file(path).unwrap();
    std::fs::create_dir(path).unwrap();
    let mut events = log.subscribe(Filter::new(""), false);
    let mut seen = Vec::new();
    while let Some(event) = events.recv().await {
        seen.push((event.seq, event.what.clone()));
    }
    let events = third - second;
    let gap = seen
        .iter()
        .position(|(_, what)| *what == What::Lost { events });
    assert_eq!(seen[gap.expect("a gap")].0, third - 1);
    assert_eq!(seen.first().map(|(seq, _)| seq), Some(first));
    assert_eq!(seen.last().map(|(seq, _)| *seq), Some(60));
    assert_eq!(seen.len() as u64, 60 - first + 1 - events + 1);
}

#[tokio::test]
async fn an_event_of_a_later_version_is_skipped_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(format!("events-{:020}.jsonl", 1));
    let later = r#"{"schema":1,"seq":2,"wall_ns":0,"mono_ns":0,"event":"of the next version"}"#;
    let log = EventLog::open(dir.path(), &small()).unwrap();
    log.record(pod(1), Action::Ready);
    log.flush().await;
    drop(log);
    let mut lines = std::fs::read_to_string(&path).unwrap();
    lines.push_str(later);
    std::fs::write(&path, lines + "\n").unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    assert_eq!(log.record(pod(1), Action::Stopped), 3);
    assert_eq!(all(&log, Filter::new("")).await, [1, 3]);
}

#[tokio::test]
async fn losses_written_by_an_earlier_version_are_reported_once() {
    let dir = tempfile::tempdir().unwrap();
    let event = |seq, what| {
        let (schema, subject) = (SCHEMA, Subject::daemon());
        let event = Event {
            schema,
            seq,
            wall_ns: 1,
            mono_ns: 1,
            subject,
            what,
        };
        serde_json::to_string(&event).unwrap() + "\n"
    };
    let lines = event(1, Action::Ready.into())
        + &event(4, What::Lost { events: 3 })
        + &event(5, Action::Stopped.into());
    std::fs::write(dir.path().join("events-1.jsonl"), lines).unwrap();
    assert_eq!(in_files(dir.path()), [(1, None), (4, Some(3)), (5, None)]);
}

#[tokio::test]
async fn events_beyond_a_plugins_share_are_one_event_with_their_number_for_every_reader() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &Options::new(tick)).unwrap();
    for _ in 0..700 {
        log.record_of("10-a", pod(1), Action::Ready);
    }
    log.record_of("10-b", pod(1), Action::Started);
    tokio::time::pause();
    tokio::time::sleep(COUNT * 2).await;
    tokio::time::resume();
    let mut events = log.subscribe(Filter::new("pod2"), false);
    let missing = events.recv().await.unwrap();
    let what = |requests| Action::Unrecorded {
        plugin: "10-a".to_owned(),
        requests,
    };
    assert_eq!(missing.what, what(missing.missing()).into());
    // The plugin earns a few while it is counted.
    assert!((190..=200).contains(&missing.missing()), "{missing:?}");
    assert_eq!(events.recv().await, None, "one event");
    assert!(all(&log, Filter::new("pod1")).await.len() > 500);
}

#[tokio::test]
async fn the_number_of_events_beyond_a_share_is_written_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &Options::new(tick)).unwrap();
    for _ in 0..700 {
        log.record_of("10-a", pod(1), Action::Ready);
    }
    log.end().await;
    let missing = log.subscribe(Filter::new("pod2"), false).recv().await;
    let missing = missing.unwrap().missing();
    assert!((190..=200).contains(&missing), "{missing}");
}
