//! The daemon's log: lines wait in a bounded queue, and one thread writes them. A reader that does
//! not read (a stopped journal, a full pipe) blocks only that thread: a line that finds the queue
//! full is dropped and counted, and the count is logged when the reader is back.

use std::{
    io::{self, Write},
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::{Condvar, Mutex};

use crate::one_line::{escaped, is_hidden};

/// Limit of waiting bytes; as many may be in the write to the reader.
const QUEUE: usize = 1 << 20;
/// Room for the report of dropped lines and a little more.
const REPORT: usize = 1024;
/// Time limit for the reader at the end of the daemon.
const DRAIN: Duration = Duration::from_secs(2);
const STACK: usize = 256 << 10;

/// Cheap to clone. One write is one line.
#[derive(Clone)]
pub struct Log {
    shared: Arc<Shared>,
    /// Whether the lines have our own colors.
    colored: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    filled: Condvar,
    written: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// A write to the reader is running.
    writing: bool,
    dropped: u64,
}

impl Log {
    /// Starts the thread, which ends with the program.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(to: impl Write + Send + 'static, colored: bool) -> io::Result<Self> {
        Self::reporting(to, colored, |dropped, _| {
            tracing::error!("{dropped} lines of this log were dropped: its reader did not keep up");
        })
    }

    /// `report` logs the number of dropped lines.
    fn reporting(
        to: impl Write + Send + 'static,
        colored: bool,
        report: impl Fn(u64, &mut Log) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::<Shared>::default();
        let log = Self { shared, colored };
        let mut own = log.clone();
        std::thread::Builder::new()
            .name("log".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let shared = Arc::clone(&own.shared);
                run(&shared, to, |dropped| report(dropped, &mut own));
            })?;
        Ok(log)
    }

    /// Waits up to [`DRAIN`] until all lines are written.
    pub fn drain(&self) {
        let deadline = Instant::now() + DRAIN;
        let mut queue = self.shared.queue.lock();
        while queue.writing || !queue.lines.is_empty() {
            let waited = self.shared.written.wait_until(&mut queue, deadline);
            if waited.timed_out() {
                return;
            }
        }
    }
}

impl Write for Log {
    /// Queues the line, or drops it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = String::from_utf8_lossy(bytes);
        let line = line.strip_suffix('\n').unwrap_or(&line);
        // With colors, the subscriber has escaped those in values.
        let color = |c| self.colored && c == '\x1b';
        let line = escaped(line, |c| is_hidden(c) && !color(c));
        let mut queue = self.shared.queue.lock();
        if queue.lines.len() + line.len() < QUEUE {
            queue.lines.extend_from_slice(line.as_bytes());
            queue.lines.push(b'\n');
            self.shared.filled.notify_one();
        } else {
            queue.dropped += 1;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(shared: &Shared, mut to: impl Write, mut report: impl FnMut(u64)) {
    let mut queue = shared.queue.lock();
    loop {
        // Only if the report fits; else the count would be lost. A full queue is written first.
        if queue.dropped > 0 && queue.lines.len() + REPORT < QUEUE {
            let dropped = std::mem::take(&mut queue.dropped);
            drop(queue);
            report(dropped);
            queue = shared.queue.lock();
        }
        if queue.lines.is_empty() {
            queue.lines = Vec::new();
            queue.writing = false;
            shared.written.notify_all();
            shared.filled.wait(&mut queue);
            continue;
        }
        queue.writing = true;
        let lines = std::mem::take(&mut queue.lines);
        drop(queue);
        // The daemon continues without a reader.
        let _ = to.write_all(&lines);
        queue = shared.queue.lock();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Writes a piece when the test takes one.
    struct Slow(SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let taken = self.0.send(bytes.to_vec());
            taken.map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn log(colored: bool) -> (Log, Receiver<Vec<u8>>) {
        let (to, reader) = sync_channel(0);
        let report = |dropped, log: &mut Log| {
            let line = format!("dropped {dropped}\n");
            log.write_all(line.as_bytes()).expect("it never fails");
        };
        let log = Log::reporting(Slow(to), colored, report).expect("a thread");
        (log, reader)
    }

    fn all(reader: &Receiver<Vec<u8>>) -> String {
        let patience = Duration::from_millis(200);
        let pieces = std::iter::from_fn(|| reader.recv_timeout(patience).ok());
        String::from_utf8(pieces.flatten().collect()).expect("UTF-8")
    }

    #[test]
    fn a_reader_that_does_not_read_costs_lines_and_no_time() {
        let (mut log, reader) = log(false);
        for length in [1023, 31] {
            let line = vec![b'x'; length];
            let sent = (4 * QUEUE / (length + 1)) as u64;
            for _ in 0..sent {
                log.write_all(&line).expect("it never fails");
            }
            let lines = all(&reader);
            let (reports, kept): (Vec<_>, Vec<_>) =
                lines.lines().partition(|line| line.starts_with("dropped "));
            let numbers = reports.iter().filter_map(|line| line.split_once(' '));
            let dropped: u64 = numbers.filter_map(|(_, n)| n.parse::<u64>().ok()).sum();
            assert!(
                dropped >= sent / 2 && kept.len() as u64 + dropped == sent,
                "{} of {sent}, {reports:?}",
                kept.len()
            );
            log.write_all(b"back\n").expect("it never fails");
            assert_eq!(all(&reader), "back\n");
        }
        log.drain();
    }

    #[test]
    fn draining_gives_up_a_reader_that_does_not_read() {
        let (mut log, _reader) = log(false);
        log.write_all(b"x\n").expect("it never fails");
        let start = Instant::now();
        log.drain();
        assert!(start.elapsed() >= DRAIN);
    }

    #[test]
    fn an_event_is_one_line_and_only_our_own_colours_are_left() {
        for (colored, expected) in [
            (false, "a\\nforged \\u001b[2J\n"),
            (true, "a\\nforged \x1b[2J\n"),
        ] {
            let (mut log, reader) = log(colored);
            log.write_all(b"a\nforged \x1b[2J\n")
                .expect("it never fails");
            assert_eq!(all(&reader), expected);
        }
    }
}
