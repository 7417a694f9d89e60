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
        ring: 8,
        queue: 4096,
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
async fn events_are_numbered_in_order_and_the_ring_is_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    for _ in 0..20 {
        log.record(pod(1), Action::Ready);
    }
    let recent = log.recent(&Filter::All);
    let seqs: Vec<u64> = recent.iter().map(|e| e.seq).collect();
    assert_eq!(seqs, (13..=20).collect::<Vec<_>>());
    assert!(recent.is_sorted_by_key(|e| (e.wall_ns, e.mono_ns)));
}

#[tokio::test]
async fn the_past_beyond_the_ring_comes_from_the_files_each_event_once() {
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
    assert_eq!(all(&log, Filter::All).await, (1..=100).collect::<Vec<_>>());
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
    let kept = all(&log, Filter::All).await;
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
    assert_eq!(all(&log, Filter::All).await, [1, 2, 3, 4]);
    // What is in the file alone, as a reader after another restart has it.
    let again = EventLog::open(dir.path(), &small()).unwrap();
    assert_eq!(all(&again, Filter::All).await, [1, 2, 3, 4]);
}

#[tokio::test]
async fn a_follower_gets_past_and_future_without_a_gap() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        ring: 4096,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    (0..50).for_each(|_| _ = log.record(pod(1), Action::Ready));
    let mut events = log.subscribe(Filter::All, true);
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
async fn a_follower_that_falls_behind_is_told_how_much_it_missed() {
    let dir = tempfile::tempdir().unwrap();
    let log = EventLog::open(dir.path(), &small()).unwrap();
    let mut events = log.subscribe(Filter::new("pod1"), true);
    // Nothing is received meanwhile: the channel to the reader and the ring both overflow.
    for _ in 0..300 {
        log.record(pod(1), Action::Ready);
        tokio::task::yield_now().await;
    }
    let mut got = 0;
    let mut missed = 0;
    while got + missed < 300 {
        match events.recv().await.unwrap().what {
            What::Lost { events } => missed += events,
            _ => got += 1,
        }
    }
    assert_eq!(got + missed, 300);
    assert!(missed > 0);
}

#[tokio::test]
async fn a_full_queue_is_counted_and_told_in_the_file_and_never_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        queue: 1,
        ring: 100_000,
        max_bytes: 1 << 30,
        ..small()
    };
    let log = EventLog::open(dir.path(), &options).unwrap();
    while log.lost() == 0 {
        log.record(pod(1), Action::Ready);
    }
    log.flush().await;
    log.record(pod(1), Action::Stopped);
    log.flush().await;
    let (mut events, mut told) = (0, 0);
    for (_, path) in files::list(dir.path()).unwrap() {
        for line in std::fs::read_to_string(path).unwrap().lines() {
            match serde_json::from_str::<Event>(line).unwrap().what {
                What::Lost { events } => told += events,
                _ => events += 1,
            }
        }
    }
    assert_eq!(told, log.lost());
    assert_eq!(events + told, log.recent(&Filter::All).len() as u64);
}

#[tokio::test]
async fn a_log_that_cannot_write_keeps_its_memory_and_heals() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let log = EventLog::open(&path, &small()).unwrap();
    std::fs::remove_dir(&path).unwrap();
    log.record(pod(1), Action::Ready);
    log.flush().await;
    assert_eq!(log.lost(), 1);
    assert_eq!(log.recent(&Filter::All).len(), 1);
    std::fs::create_dir(&path).unwrap();
    log.record(pod(1), Action::Stopped);
    log.flush().await;
    assert_eq!(log.lost(), 1);
    let mut kinds = Vec::new();
    files::read(&path, u64::MAX, |event| {
        kinds.push(event.what);
        true
    })
    .unwrap();
    assert_eq!(kinds, [What::Lost { events: 1 }, Action::Stopped.into()]);
}
