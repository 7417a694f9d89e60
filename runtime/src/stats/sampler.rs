//! CPU rates (CRI-154): while rates are requested, reads the CPU time of each requested cgroup
//! every second. The files of each cgroup stay open.
//!
//! ```text
//!   asleep --watch() called--> sampling, once a period --not called for IDLE--> asleep
//! ```
//! Without requests the machine is not woken. The first answer after sleep is "unknown", on which
//! the kubelet computes its own rate.

use crate::cgroup::{Cgroup, Detail, OpenFiles, Stats};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

const PERIOD: Duration = Duration::from_secs(1);
/// How long sampling continues after the last request; kubelets ask every 10 to 15 s.
const IDLE: Duration = Duration::from_secs(120);
/// Older rates are not reported.
const STALE: Duration = Duration::from_secs(5);
/// Closer readings give no rate: the counters advance in ticks.
const SHORTEST: Duration = Duration::from_millis(100);

/// Reads rates in the background. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Sampler(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    watched: Mutex<HashMap<String, Rated>>,
    asked: Mutex<Option<Instant>>,
    wake: Notify,
}

/// A cgroup that is read repeatedly.
#[derive(Debug)]
pub struct Watched {
    group: Cgroup,
    files: Mutex<OpenFiles>,
}

impl Watched {
    /// Blocks on files.
    pub fn stats(&self, detail: Detail) -> Stats {
        self.group.stats(detail, &mut self.files.lock())
    }

    /// Its processes; empty if it was removed.
    pub fn pids(&self) -> Vec<u32> {
        self.group.procs().unwrap_or_default()
    }
}

#[derive(Debug)]
struct Rated {
    cgroup: Arc<Watched>,
    last: Option<(Instant, u64)>,
    rate: Option<(Instant, u64)>,
}

impl Sampler {
    /// The cgroup of the pod or container `id`, and its CPU time per second in ns over the last
    /// period, or `None` if unknown. Starts sampling that cgroup, which ends with the cgroup, and
    /// keeps all sampling running. `None` if it has no cgroup.
    pub fn watch(
        &self,
        id: &str,
        group: impl FnOnce() -> Option<Cgroup>,
    ) -> Option<(Arc<Watched>, Option<u64>)> {
        let now = Instant::now();
        *self.0.asked.lock() = Some(now);
        self.0.wake.notify_one();
        let mut watched = self.0.watched.lock();
        if let Some(one) = watched.get(id) {
            let fresh = |(at, _): &(Instant, u64)| now.duration_since(*at) <= STALE;
            let rate = one.rate.filter(fresh).map(|(_, rate)| rate);
            return Some((Arc::clone(&one.cgroup), rate));
        }
        let one = Rated::new(group()?);
        let cgroup = Arc::clone(&one.cgroup);
        watched.insert(id.to_owned(), one);
        Some((cgroup, None))
    }

    /// Samples until the future is dropped; one such task per sampler.
    pub async fn run(&self) {
        loop {
            self.0.wake.notified().await;
            let mut ticks = interval(PERIOD);
            // After a pause of the machine one reading suffices.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while self.is_asked() {
                ticks.tick().await;
                self.sample_all().await;
            }
            // Old readings would average over the pause.
            self.0.watched.lock().clear();
        }
    }

    fn is_asked(&self) -> bool {
        self.0.asked.lock().is_some_and(|at| at.elapsed() < IDLE)
    }

    async fn sample_all(&self) {
        let copy = |(id, w): (&String, &Rated)| (id.clone(), Arc::clone(&w.cgroup));
        let cgroups: Vec<_> = self.0.watched.lock().iter().map(copy).collect();
        // Reading may flush counters in the kernel: off the threads that serve requests.
        let read = tokio::task::spawn_blocking(move || {
            let read = |(id, cgroup): (String, Arc<Watched>)| {
                let usage = cgroup.group.cpu_usage_ns(&mut cgroup.files.lock());
                (id, usage, Instant::now())
            };
            cgroups.into_iter().map(read).collect::<Vec<_>>()
        });
        let Ok(read) = read.await else { return };
        let mut watched = self.0.watched.lock();
        for (id, usage, at) in read {
            match (usage, watched.get_mut(&id)) {
                (Some(usage), Some(one)) => one.take(at, usage),
                // The cgroup was removed; a later request starts again.
                _ => drop(watched.remove(&id)),
            }
        }
    }
}

impl Rated {
    fn new(group: Cgroup) -> Self {
        Self {
            cgroup: Arc::new(Watched {
                group,
                files: Mutex::default(),
            }),
            last: None,
            rate: None,
        }
    }

    fn take(&mut self, at: Instant, usage: u64) {
        if let Some((before, used)) = self.last {
            let elapsed = at.duration_since(before);
            if elapsed < SHORTEST {
                return;
            }
            self.rate = rate(usage, used, elapsed).map(|rate| (at, rate));
        }
        self.last = Some((at, usage));
    }
}

/// ns of CPU per second; `None` if the counter decreased, as for a new cgroup.
fn rate(usage: u64, before: u64, elapsed: Duration) -> Option<u64> {
    let used = u128::from(usage.checked_sub(before)?);
    u64::try_from(used * 1_000_000_000 / elapsed.as_nanos().max(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Host;
    use std::path::Path;

    #[test]
    fn a_rate_is_time_used_by_time_passed() {
        let second = Duration::from_secs(1);
        assert_eq!(rate(1_500, 500, second), Some(1000));
        assert_eq!(rate(u64::MAX, 0, second / 2), None);
        assert_eq!(rate(5, 6, second), None);
    }

    /// A recorded v2 cgroup whose counter the test sets.
    fn tree(dir: &Path) -> Cgroup {
        let write = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let table = "1 0 0:1 / /cg rw - cgroup2 cgroup2 rw\n";
        write("proc/self/mountinfo", table);
        write("cg/pod/c/cpu.stat", "usage_usec 0\n");
        let host = Host::detect_at(dir).unwrap();
        host.container("/pod", "c").unwrap()
    }

    fn used(dir: &Path, usec: u64) {
        let text = format!("usage_usec {usec}\n");
        std::fs::write(dir.join("cg/pod/c/cpu.stat"), text).unwrap();
    }

    fn rate_of(sampler: &Sampler, group: &Cgroup) -> Option<u64> {
        sampler.watch("c", || Some(group.clone()))?.1
    }

    /// Lets the sampler's task settle after each step of paused time.
    async fn pass(time: Duration) {
        tokio::time::advance(time).await;
        for _ in 0..200 {
            tokio::task::yield_now().await;
            std::thread::yield_now();
        }
    }

    async fn until_known(sampler: &Sampler, dir: &Path, group: &Cgroup) {
        let mut usec = 0;
        for _ in 0..1000 {
            if rate_of(sampler, group).is_some() {
                return;
            }
            usec += 500_000;
            used(dir, usec);
            pass(PERIOD).await;
        }
        panic!("the rate never became known");
    }

    #[tokio::test(start_paused = true)]
    async fn a_rate_comes_with_the_second_reading_and_goes_with_the_cgroup() {
        let dir = tempfile::tempdir().unwrap();
        let (sampler, group) = (Sampler::default(), tree(dir.path()));
        let running = sampler.clone();
        let task = tokio::spawn(async move { running.run().await });
        assert_eq!(rate_of(&sampler, &group), None);
        until_known(&sampler, dir.path(), &group).await;
        std::fs::remove_file(dir.path().join("cg/pod/c/cpu.stat")).unwrap();
        for _ in 0..1000 {
            if sampler.0.watched.lock().is_empty() {
                break;
            }
            pass(PERIOD).await;
        }
        assert!(
            sampler.0.watched.lock().is_empty(),
            "it is not read for ever"
        );
        assert_eq!(rate_of(&sampler, &group), None);
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn sampling_ends_without_requests() {
        let dir = tempfile::tempdir().unwrap();
        let (sampler, group) = (Sampler::default(), tree(dir.path()));
        let running = sampler.clone();
        let task = tokio::spawn(async move { running.run().await });
        assert_eq!(rate_of(&sampler, &group), None);
        for _ in 0..1000 {
            if sampler.0.watched.lock().is_empty() {
                break;
            }
            pass(PERIOD).await;
        }
        assert!(sampler.0.watched.lock().is_empty());
        task.abort();
    }
}
