//! cairn-bench-load [--pods 250] [--containers 2] [--seconds 60] [--name NAME]: measures how a
//! runtime answers a kubelet that has this many pods, polls, execs probes, makes and ends a pod per
//! second, and has problems with some. It only prints figures.
//!
//! The problems are permanent: a container whose monitor (shim) is stopped, with a waiting exec;
//! and a pull from a registry that accepts the connection and never answers.
//!
//! Environment: CRI, the socket; IMAGE, an existing busybox; PID_FILE of the runtime. `hack/bench
//! load` starts the runtimes, one at a time.

use std::{
    collections::{BTreeMap, HashMap},
    env, fs,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use cairn_tests::{
    bench::{self, CLIENTS, HONOURS_SIGTERM, end, is_helper, rss},
    client::Cri,
    container::Container,
    cri,
    pod::{Pod, set_image},
};
use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{net::TcpListener, task::JoinSet, time};

/// One of this many containers has an exec probe, every ten seconds.
const PROBED: usize = 5;

/// The durations of each kind of call.
#[derive(Clone, Default)]
struct Times(Arc<Mutex<BTreeMap<&'static str, Vec<Duration>>>>);

impl Times {
    async fn take<T, E: std::fmt::Display>(
        &self,
        kind: &'static str,
        call: impl Future<Output = Result<T, E>>,
    ) -> Option<T> {
        let begun = Instant::now();
        let answer = call.await;
        let mut all = self.0.lock();
        match answer {
            Ok(answer) => {
                all.entry(kind).or_default().push(begun.elapsed());
                Some(answer)
            }
            Err(error) => {
                eprintln!("{kind}: {error}");
                all.entry("calls that failed")
                    .or_default()
                    .push(begun.elapsed());
                None
            }
        }
    }

    fn report(&self, name: &str) {
        println!(
            "{name:<12} {:<34} {:>7} {:>9} {:>9} {:>9}",
            "", "calls", "p50 ms", "p99 ms", "max ms"
        );
        for (kind, times) in self.0.lock().iter_mut() {
            times.sort_unstable();
            let at = |share: usize| times[(times.len() - 1) * share / 100].as_secs_f64() * 1e3;
            println!(
                "{name:<12} {kind:<34} {:>7} {:>9.2} {:>9.2} {:>9.2}",
                times.len(),
                at(50),
                at(99),
                at(100)
            );
        }
    }
}

struct Options {
    pods: usize,
    containers: usize,
    seconds: u64,
    name: String,
}

fn options() -> Option<Options> {
    let mut options = Options {
        pods: 250,
        containers: 2,
        seconds: 60,
        name: "cairn".to_owned(),
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--pods" => options.pods = value.parse().ok()?,
            "--containers" => options.containers = value.parse().ok()?,
            "--seconds" => options.seconds = value.parse().ok()?,
            "--name" => options.name = value,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!(
            "usage: cairn-bench-load [--pods N] [--containers N] [--seconds N] [--name NAME]"
        );
        return ExitCode::from(2);
    };
    let Some((socket, image)) = bench::given() else {
        eprintln!("cairn-bench-load: CRI and IMAGE are not set; `hack/bench` says how it is run");
        return ExitCode::from(2);
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().expect("a tokio runtime");
    runtime.block_on(measure(&options, &socket, &image));
    ExitCode::SUCCESS
}

async fn measure(options: &Options, socket: &Path, image: &str) {
    let cri = bench::cri(socket).await;
    let memory = |when: &str| {
        if let Some(rss) = rss() {
            println!(
                "{:<12} memory of the runtime (RSS), {when:<20} {rss:>9.1} MB",
                options.name
            );
        }
    };
    memory("before");
    let begun = Instant::now();
    let pods = grow(&cri, options, image).await;
    println!(
        "{:<12} {} pods of {} containers in {:.1} s",
        options.name,
        options.pods,
        options.containers,
        begun.elapsed().as_secs_f64()
    );
    memory("with all pods");

    let stuck = made(&cri, "stuck", 1, image).await;
    let monitor = newest_helper();
    let times = Times::default();
    let mut tasks = JoinSet::new();
    if let Some(monitor) = monitor {
        kill_process(monitor, Signal::STOP).expect("it runs");
        let container = stuck.1[0].clone();
        tasks.spawn(async move { drop(container.try_exec(&["true"], 3600).await) });
    }
    let registry = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = registry.local_addr().expect("an address").port();
    tasks.spawn(async move {
        let mut held = Vec::new();
        while let Ok((stream, _)) = registry.accept().await {
            held.push(stream);
        }
    });
    let puller = cri.clone();
    tasks.spawn(async move {
        let request = cri::PullImageRequest {
            image: Some(cri::ImageSpec {
                image: format!("127.0.0.1:{port}/never:1"),
                ..Default::default()
            }),
            ..Default::default()
        };
        drop(puller.client.image.clone().pull_image(request).await);
    });
    let containers: Vec<Container> = pods.iter().flat_map(|(_, all)| all.clone()).collect();
    tasks.spawn(relists(cri.clone(), times.clone()));
    tasks.spawn(statistics(cri.clone(), times.clone()));
    tasks.spawn(statuses(
        cri.clone(),
        times.clone(),
        pods.iter().map(|(pod, _)| pod.id.clone()).collect(),
    ));
    let probed = containers.into_iter().step_by(PROBED).collect();
    tasks.spawn(probes(times.clone(), probed));
    tasks.spawn(churn(cri.clone(), times.clone(), image.to_owned()));
    time::sleep(Duration::from_secs(options.seconds)).await;
    memory("under polling");
    tasks.shutdown().await;
    times.report(&options.name);
    if let Some(monitor) = monitor {
        kill_process(monitor, Signal::CONT).expect("it is there");
    }
    end(pods
        .into_iter()
        .chain([stuck])
        .map(|(pod, _)| pod)
        .collect())
    .await;
    for left in cri.pods().await {
        cri.pod_by_id(&left.id, "churned").end().await;
    }
    memory("with no pod again");
}

/// Every second, like the PLEG.
async fn relists(cri: Cri, times: Times) {
    let mut every = time::interval(Duration::from_secs(1));
    loop {
        every.tick().await;
        let pods = cri.client.pods(HashMap::new());
        times.take("ListPodSandbox", pods).await;
        let containers = cri.client.containers(HashMap::new());
        times.take("ListContainers", containers).await;
    }
}

/// Every ten seconds, for eviction; every five the node's status.
async fn statistics(cri: Cri, times: Times) {
    let mut every = time::interval(Duration::from_secs(5));
    let (mut runtime, mut image) = (cri.client.runtime.clone(), cri.client.image.clone());
    for round in 0.. {
        every.tick().await;
        times
            .take("Status", runtime.status(cri::StatusRequest::default()))
            .await;
        if round % 2 == 0 {
            times
                .take(
                    "ListContainerStats",
                    runtime.list_container_stats(cri::ListContainerStatsRequest::default()),
                )
                .await;
            times
                .take(
                    "ImageFsInfo",
                    image.image_fs_info(cri::ImageFsInfoRequest {}),
                )
                .await;
        }
    }
}

/// Every ten seconds for each container, for log rotation; and for each pod.
async fn statuses(cri: Cri, times: Times, pods: Vec<String>) {
    let mut every = time::interval(Duration::from_secs(10));
    loop {
        every.tick().await;
        for container in cri.containers().await {
            // One may have ended meanwhile.
            let begun = Instant::now();
            let status = cri.client.container_status(&container.id, false);
            if status.await.is_ok() {
                let mut all = times.0.lock();
                all.entry("ContainerStatus")
                    .or_default()
                    .push(begun.elapsed());
            }
        }
        for pod in &pods {
            let status = cri.client.pod_status(pod, false);
            times.take("PodSandboxStatus", status).await;
        }
    }
}

async fn probes(times: Times, probed: Vec<Container>) {
    let pause = Duration::from_secs(10) / u32::try_from(probed.len().max(1)).expect("not so many");
    let mut every = time::interval(pause);
    for container in probed.iter().cycle() {
        every.tick().await;
        times
            .take("ExecSync, a probe", container.try_exec(&["true"], 1))
            .await;
    }
}

/// One complete life of a pod per second.
async fn churn(cri: Cri, times: Times, image: String) {
    let mut every = time::interval(Duration::from_secs(1));
    for n in 0_u64.. {
        every.tick().await;
        let life = async {
            let (pod, _) = made(&cri, &format!("churn{n}"), 1, &image).await;
            Ok::<_, tonic::Status>(pod)
        };
        if let Some(pod) = times.take("a pod, to running", life).await {
            pod.end().await;
        }
    }
}

async fn grow(cri: &Cri, options: &Options, image: &str) -> Vec<(Pod, Vec<Container>)> {
    let mut tasks = JoinSet::new();
    for client in 0..CLIENTS {
        let mine = (0..options.pods).skip(client).step_by(CLIENTS);
        let (cri, image, containers) = (cri.clone(), image.to_owned(), options.containers);
        tasks.spawn(async move {
            let mut all = Vec::new();
            for n in mine {
                all.push(made(&cri, &format!("other{n}"), containers, &image).await);
            }
            all
        });
    }
    tasks.join_all().await.into_iter().flatten().collect()
}

async fn made(cri: &Cri, name: &str, containers: usize, image: &str) -> (Pod, Vec<Container>) {
    let pod = cri
        .try_pod(cri.pod_config(name))
        .await
        .expect("RunPodSandbox");
    let mut all = Vec::new();
    for n in 0..containers {
        let mut config = cri.container_config(&format!("c{n}"), &["sh", "-c", HONOURS_SIGTERM]);
        set_image(&mut config, image);
        let container = pod.try_create(config).await.expect("CreateContainer");
        container.start().await.expect("StartContainer");
        all.push(container);
    }
    (pod, all)
}

/// The runtime's process for the newest container.
fn newest_helper() -> Option<Pid> {
    let processes = fs::read_dir("/proc").expect("/proc is there").flatten();
    let helpers = processes.filter_map(|entry| {
        let command = fs::read_to_string(entry.path().join("comm")).ok()?;
        is_helper(&command).then_some(())?;
        let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
        let begun: u64 = stat
            .rsplit_once(')')?
            .1
            .split_whitespace()
            .nth(19)?
            .parse()
            .ok()?;
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        Some((begun, pid))
    });
    helpers.max().and_then(|(_, pid)| Pid::from_raw(pid))
}
