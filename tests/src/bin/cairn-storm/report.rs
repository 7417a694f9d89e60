//! The report of a run: progress lines, violations when found, and tables at the end.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

/// The clients' calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Op {
    RunPodSandbox,
    StopPodSandbox,
    RemovePodSandbox,
    CreateContainer,
    StartContainer,
    StopContainer,
    RemoveContainer,
    ExecSync,
    UpdateResources,
    ReopenContainerLog,
    ListPodSandbox,
    ListContainers,
    PodSandboxStatus,
    ContainerStatus,
    ListContainerStats,
    PullImage,
    ImageStatus,
    RemoveImage,
}

/// The outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Done,
    /// The daemon returned an error.
    Refused,
    /// No answer came, or the client left.
    Lost,
}

#[derive(Default)]
struct Calls {
    done: u64,
    refused: u64,
    lost: u64,
    /// Of completed calls.
    times: Vec<Duration>,
}

/// One of the slowest calls.
struct Slow {
    took: Duration,
    op: Op,
    object: String,
    at: Duration,
}

#[derive(Default)]
struct Books {
    calls: BTreeMap<Op, Calls>,
    faults: BTreeMap<&'static str, u64>,
    missed: BTreeMap<&'static str, u64>,
    slowest: Vec<Slow>,
    violations: Vec<String>,
    facts: BTreeMap<String, String>,
}

const SLOWEST: usize = 12;

/// Shared by all actors.
pub(crate) struct Report {
    start: Instant,
    books: Mutex<Books>,
}

/// The events of one object, line by line.
#[derive(Debug)]
pub(crate) struct History {
    start: Instant,
    lines: Mutex<Vec<String>>,
}

impl History {
    pub(crate) fn note(&self, line: impl AsRef<str>) {
        let at = self.start.elapsed().as_secs_f64();
        let line = format!("{at:9.3} {}", line.as_ref());
        let lines = &mut self.lines.lock();
        // Long histories keep their beginning and their end.
        if lines.len() > 120 {
            lines.remove(60);
        }
        lines.push(line);
    }
    fn shown(&self) -> String {
        let lines = self.lines.lock();
        lines.iter().map(|l| format!("    {l}\n")).collect()
    }
}

impl Report {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            books: Mutex::default(),
        }
    }

    /// The history of a new object.
    pub(crate) fn history(&self) -> History {
        History {
            start: self.start,
            lines: Mutex::default(),
        }
    }

    /// Time since the start, for histories and violations.
    pub(crate) fn age(&self) -> Duration {
        self.start.elapsed()
    }

    pub(crate) fn call(&self, op: Op, object: &str, end: End, took: Duration) {
        let at = self.age();
        let mut books = self.books.lock();
        let calls = books.calls.entry(op).or_default();
        match end {
            End::Done => {
                calls.done += 1;
                calls.times.push(took);
            }
            End::Refused => calls.refused += 1,
            End::Lost => calls.lost += 1,
        }
        let slowest = &mut books.slowest;
        if slowest.len() < SLOWEST || slowest.last().is_some_and(|s| s.took < took) {
            let object = object.to_owned();
            let place = slowest.partition_point(|s| s.took >= took);
            slowest.insert(
                place,
                Slow {
                    took,
                    op,
                    object,
                    at,
                },
            );
            slowest.truncate(SLOWEST);
        }
    }

    pub(crate) fn fault(&self, name: &'static str) {
        *self.books.lock().faults.entry(name).or_default() += 1;
    }
    /// A fault without a target.
    pub(crate) fn missed(&self, name: &'static str) {
        *self.books.lock().missed.entry(name).or_default() += 1;
    }
    /// A figure for the final report.
    pub(crate) fn fact(&self, name: &str, value: String) {
        self.books.lock().facts.insert(name.to_owned(), value);
    }

    /// A violation, printed at once with the history of its object.
    pub(crate) fn violation(&self, what: &str, history: &History) {
        let number = {
            let mut books = self.books.lock();
            books.violations.push(what.to_owned());
            books.violations.len()
        };
        let at = self.age().as_secs_f64();
        print!("VIOLATION {number} at {at:.3}: {what}\n{}", history.shown());
    }
    pub(crate) fn violations(&self) -> usize {
        self.books.lock().violations.len()
    }

    /// Prints one line of progress.
    pub(crate) fn progress(&self) {
        let books = self.books.lock();
        let sum = |of: fn(&Calls) -> u64| books.calls.values().map(of).sum::<u64>();
        println!(
            "{:6.0} s  {} calls ({} refused, {} lost), {} faults, {} violations",
            self.age().as_secs_f64(),
            sum(|c| c.done + c.refused + c.lost),
            sum(|c| c.refused),
            sum(|c| c.lost),
            books.faults.values().sum::<u64>(),
            books.violations.len()
        );
    }

    /// Prints the final tables.
    pub(crate) fn summary(&self) {
        let mut books = self.books.lock();
        println!("\ncall                    done  refused   lost    p50 ms    p99 ms    max ms");
        for (op, calls) in &mut books.calls {
            calls.times.sort_unstable();
            let at = |percent: usize| {
                let index = (calls.times.len() * percent / 100).min(calls.times.len().max(1) - 1);
                calls.times.get(index).map_or(0.0, millis)
            };
            println!(
                "{:<20} {:>7}  {:>7} {:>6} {:>9.1} {:>9.1} {:>9.1}",
                format!("{op:?}"),
                calls.done,
                calls.refused,
                calls.lost,
                at(50),
                at(99),
                at(100)
            );
        }
        println!("\nfault              done  found nothing to hit");
        let names: std::collections::BTreeSet<_> =
            books.faults.keys().chain(books.missed.keys()).collect();
        for name in names {
            let of = |map: &BTreeMap<_, u64>| map.get(name).copied().unwrap_or(0);
            println!(
                "{name:<16} {:>6}  {:>6}",
                of(&books.faults),
                of(&books.missed)
            );
        }
        println!("\nslowest calls");
        for slow in &books.slowest {
            println!(
                "{:>10.1} ms  {:<20} {}  at {:.1} s",
                millis(&slow.took),
                format!("{:?}", slow.op),
                slow.object,
                slow.at.as_secs_f64()
            );
        }
        println!();
        for (name, value) in &books.facts {
            println!("{name}: {value}");
        }
        if !books.violations.is_empty() {
            println!("\nviolations");
        }
        for (n, what) in books.violations.iter().enumerate() {
            println!("{:>4}  {what}", n + 1);
        }
    }
}

fn millis(time: &Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
