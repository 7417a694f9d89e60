//! The load: two clients, each of which makes and ends one pod after the other, and the times of
//! their calls.

use std::{
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use cairn_tests::{
    bench::HONOURS_SIGTERM,
    client::Cri,
    container::Container,
    cri,
    pod::{Pod, container_namespaces, host_network, set_image},
};
use parking_lot::Mutex;
use tokio::{task::JoinSet, time};
use tonic::Status;

pub(crate) const CLIENTS: usize = 2;
/// A row counts as blocked if no call succeeds for this time.
pub(crate) const STILL: Duration = Duration::from_secs(10);
/// Pause of a client after a failed call.
const PAUSE: Duration = Duration::from_millis(10);
/// Limit for the calls that are under way when the load ends.
const DRAIN: Duration = Duration::from_secs(30);

/// The calls that the table has, and all others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    RunPodSandbox,
    CreateContainer,
    Other,
}

/// A call that was answered or given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub kind: Kind,
    pub client: usize,
    pub begun: Instant,
    pub took: Duration,
    /// Whether it succeeded.
    pub done: bool,
}

/// The calls of all clients in one period.
#[derive(Clone, Debug, Default)]
pub(crate) struct Period {
    pub calls: Vec<Call>,
    pub pods: usize,
    pub seconds: f64,
    /// The longest time in which no call of any client succeeded.
    pub gap: Duration,
    /// The error of the first failed call.
    pub why: Option<String>,
}

impl Period {
    /// Joins two periods.
    pub(crate) fn joined(mut self, other: &Self) -> Self {
        self.calls.extend(&other.calls);
        self.pods += other.pods;
        self.seconds += other.seconds;
        self.gap = self.gap.max(other.gap);
        self
    }

    pub(crate) fn pods_a_second(&self) -> f64 {
        self.pods as f64 / self.seconds
    }

    pub(crate) fn failed(&self) -> usize {
        self.calls.iter().filter(|call| !call.done).count()
    }

    /// The longest call of each client, if it is of this kind and its time is in this range.
    pub(crate) fn waits(&self, kind: Kind, long: RangeInclusive<Duration>) -> Vec<Duration> {
        let waits = (0..CLIENTS).filter_map(|client| {
            let calls = self.calls.iter();
            let calls = calls.filter(|call| call.client == client && call.kind != Kind::Other);
            calls.max_by_key(|call| call.took)
        });
        let waits = waits.filter(|call| call.kind == kind && long.contains(&call.took));
        waits.map(|call| call.took).collect()
    }

    /// The times of the calls of a kind, sorted.
    pub(crate) fn times(&self, kind: Kind) -> Vec<Duration> {
        let calls = self.calls.iter().filter(|call| call.kind == kind);
        let mut times: Vec<_> = calls.map(|call| call.took).collect();
        times.sort_unstable();
        times
    }
}

/// By the nearest rank: of fewer than 100 calls, p99 is the longest.
pub(crate) fn percentile(sorted: &[Duration], percent: usize) -> Option<Duration> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

/// The state that the clients share.
#[derive(Clone)]
pub(crate) struct Load {
    pub cri: Cri,
    pub image: String,
    over: Arc<AtomicBool>,
    calls: Arc<Mutex<Vec<Call>>>,
    why: Arc<Mutex<Option<String>>>,
    pods: Arc<AtomicUsize>,
}

/// Records a call when dropped, also one that is given up.
struct Clock<'a> {
    load: &'a Load,
    call: Call,
}

impl Drop for Clock<'_> {
    fn drop(&mut self) {
        self.call.took = self.call.begun.elapsed();
        self.load.calls.lock().push(self.call);
    }
}

impl Load {
    pub(crate) fn new(cri: Cri, image: &str) -> Self {
        Self {
            cri,
            image: image.to_owned(),
            over: Arc::default(),
            calls: Arc::default(),
            why: Arc::default(),
            pods: Arc::default(),
        }
    }

    /// Runs the clients for this long, then `end`, which must remove the cause of any delay. Calls
    /// under way at the end are counted with the time they take. The second result is an error if
    /// they do not end.
    pub(crate) async fn run(
        self,
        length: Duration,
        end: impl Future<Output = ()>,
    ) -> (Period, Result<(), String>) {
        let begun = Instant::now();
        let mut clients = JoinSet::new();
        for client in 0..CLIENTS {
            let load = self.clone();
            clients.spawn(async move { load.client(client).await });
        }
        time::sleep(length).await;
        let stopped = Instant::now();
        let pods = self.pods.load(Ordering::SeqCst);
        self.over.store(true, Ordering::SeqCst);
        end.await;
        let drained = time::timeout(DRAIN, async {
            while clients.join_next().await.is_some() {}
        });
        let drained = drained.await.map_err(|_| {
            let held = clients.len();
            format!(
                "{held} clients had no answer {} s after the end",
                DRAIN.as_secs()
            )
        });
        clients.shutdown().await;
        let mut calls = std::mem::take(&mut *self.calls.lock());
        calls.sort_by_key(|call| call.begun + call.took);
        let answers = calls.iter().filter(|call| call.done);
        let answers = answers.map(|call| call.begun + call.took);
        let marks: Vec<_> = [begun]
            .into_iter()
            .chain(answers.take_while(|at| *at < stopped))
            .chain([stopped])
            .collect();
        let gap = marks.windows(2).map(|pair| pair[1] - pair[0]).max();
        let period = Period {
            calls,
            pods,
            seconds: (stopped - begun).as_secs_f64(),
            gap: gap.unwrap_or_default(),
            why: self.why.lock().take(),
        };
        (period, drained)
    }

    async fn client(&self, client: usize) {
        for n in 0_usize.. {
            if self.over.load(Ordering::SeqCst) {
                return;
            }
            match self.life(client, &format!("pod{client}-{n}")).await {
                Ok(()) => drop(self.pods.fetch_add(1, Ordering::SeqCst)),
                Err(status) => {
                    self.why
                        .lock()
                        .get_or_insert_with(|| status.message().to_owned());
                    time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Makes a pod with one container on the host's network, and removes it.
    async fn life(&self, client: usize, name: &str) -> Result<(), Status> {
        let run = self.cri.try_pod(self.pod_config(name));
        let pod = self.timed(client, Kind::RunPodSandbox, run).await?;
        let lived = async {
            let config = self.container_config("c", &["sh", "-c", HONOURS_SIGTERM]);
            let create = pod.try_create(config);
            let container = self.timed(client, Kind::CreateContainer, create).await?;
            self.other(client, container.start()).await?;
            // Without a grace period: the runtime is measured, not the container.
            self.other(client, container.stop(Duration::ZERO)).await?;
            self.other(client, container.remove()).await
        }
        .await;
        self.other(client, pod.stop()).await?;
        self.other(client, pod.remove()).await?;
        lived
    }

    async fn other<T>(
        &self,
        client: usize,
        asked: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        self.timed(client, Kind::Other, asked).await
    }

    async fn timed<T>(
        &self,
        client: usize,
        kind: Kind,
        asked: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let call = Call {
            kind,
            client,
            begun: Instant::now(),
            took: Duration::ZERO,
            done: false,
        };
        let mut clock = Clock { load: self, call };
        let answer = asked.await;
        clock.call.done = answer.is_ok();
        answer
    }

    /// Runs a pod beside the load.
    pub(crate) async fn pod(&self, name: &str) -> Result<Pod, Status> {
        self.cri.try_pod(self.pod_config(name)).await
    }

    /// Creates and starts a container in it.
    pub(crate) async fn container(
        &self,
        pod: &Pod,
        name: &str,
        command: &[&str],
    ) -> Result<Container, Status> {
        let container = pod.try_create(self.container_config(name, command)).await?;
        container.start().await.map(|()| container)
    }

    /// The configuration of a pod on the host's network.
    fn pod_config(&self, name: &str) -> cri::PodSandboxConfig {
        let mut config = self.cri.pod_config(name);
        host_network(&mut config);
        // Some runtimes refuse a name that is not the host's.
        config.hostname.clear();
        config
    }

    /// The configuration of a container in such a pod.
    pub(crate) fn container_config(&self, name: &str, command: &[&str]) -> cri::ContainerConfig {
        let mut config = self.cri.container_config(name, command);
        set_image(&mut config, &self.image);
        container_namespaces(&mut config).network = cri::NamespaceMode::Node.into();
        config
    }
}
