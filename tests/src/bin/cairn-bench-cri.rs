//! cairn-bench-cri [--pods 0,100,500] [--rounds N] [--name NAME] [--json FILE]: measures a CRI
//! runtime beside this many pods. `hack/bench` starts the runtimes, one at a time, and compares the
//! figures. Environment: CRI, the socket; IMAGE, an existing busybox; PID_FILE of the runtime;
//! RESTART, a command that kills and starts it. `--json` adds
//! {"runtime","pods","row","unit","value"} per figure.
//!
//! Each other pod has a network and a sleeping container. One measured pod exists at a time.

use std::{
    collections::HashMap,
    env, fs,
    io::Write as _,
    path::PathBuf,
    process::{Command, ExitCode},
    time::{Duration, Instant},
};

use cairn_tests::{
    bench::{self, CLIENTS, HONOURS_SIGTERM, end, is_helper, kib, pid, rss},
    client::Client,
    client::Cri,
    container::Container,
    cri,
    pod::{Pod, container_namespaces, host_network, set_image},
};
use tokio::task::JoinSet;

/// Pods after each growth that are not counted.
const WARM: usize = 2;
/// Pods on the host's network, where throughput is measured.
const THROUGHPUT: usize = 100;

struct Options {
    pods: Vec<usize>,
    rounds: usize,
    name: String,
    json: Option<PathBuf>,
}

fn options() -> Option<Options> {
    let mut options = Options {
        pods: vec![0, 100, 500],
        rounds: 20,
        name: "cairn".to_owned(),
        json: None,
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--pods" => {
                let counts = value.split(',').map(|n| n.parse().ok());
                options.pods = counts.collect::<Option<_>>()?;
            }
            "--rounds" => options.rounds = value.parse().ok().filter(|n| *n > 0)?,
            "--name" => options.name = value,
            "--json" => options.json = Some(value.into()),
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!(
            "usage: cairn-bench-cri [--pods N,N...] [--rounds N] [--name NAME] [--json FILE]"
        );
        return ExitCode::from(2);
    };
    let Some((socket, image)) = bench::given() else {
        eprintln!("cairn-bench-cri: CRI and IMAGE are not set; `hack/bench` says how it is run");
        return ExitCode::from(2);
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().expect("a tokio runtime");
    let mut bench = Bench {
        socket,
        image,
        options,
        pods: 0,
    };
    runtime.block_on(bench.measure());
    ExitCode::SUCCESS
}

struct Bench {
    socket: PathBuf,
    image: String,
    options: Options,
    /// The number of other pods.
    pods: usize,
}

impl Bench {
    async fn cri(&self) -> Cri {
        bench::cri(&self.socket).await
    }

    fn report(&self, row: &str, unit: &str, value: f64) {
        println!("{:>5} pods  {row:<48} {value:>10.2} {unit}", self.pods);
        let Some(path) = &self.options.json else {
            return;
        };
        let line = serde_json::json!({
            "runtime": self.options.name, "pods": self.pods, "row": row, "unit": unit, "value": value,
        });
        let file = fs::OpenOptions::new().create(true).append(true).open(path);
        let written = file.and_then(|mut file| writeln!(file, "{line}"));
        written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    }

    fn tell_p50(&self, row: &str, mut times: Vec<Duration>) {
        times.sort_unstable();
        if let Some(p50) = times.get(times.len() / 2) {
            self.report(row, "ms", p50.as_secs_f64() * 1e3);
        }
    }

    async fn measure(&mut self) {
        self.restart("cold start until Version answers").await;
        let mut cri = self.cri().await;
        self.memory();
        let mut others: Vec<Pod> = Vec::new();
        for count in self.options.pods.clone() {
            let more = count.saturating_sub(others.len());
            if more > 0 {
                others.extend(
                    self.grow(&cri, others.len(), more, Network::Pod, count)
                        .await,
                );
            }
            self.pods = others.len();
            for network in [Network::Pod, Network::Host] {
                self.lives(&cri, network).await;
            }
            if self.pods == 0 {
                let hosts = self
                    .grow(&cri, 0, THROUGHPUT, Network::Host, THROUGHPUT)
                    .await;
                end(hosts).await;
            } else {
                self.lists(&cri).await;
                self.memory();
                self.restart("restart until all are listed").await;
                cri = self.cri().await;
                for pod in &mut others {
                    *pod = cri.pod_by_id(&pod.id, "other");
                }
            }
        }
        end(others).await;
        self.pods = 0;
    }

    /// Makes `more` pods with a container each, [`CLIENTS`] concurrently.
    async fn grow(
        &self,
        cri: &Cri,
        from: usize,
        more: usize,
        network: Network,
        to: usize,
    ) -> Vec<Pod> {
        let begun = Instant::now();
        let mut tasks = JoinSet::new();
        for client in 0..CLIENTS {
            let mine = (from..from + more).skip(client).step_by(CLIENTS);
            let (cri, image) = (cri.clone(), self.image.clone());
            tasks.spawn(async move {
                let mut made = Vec::new();
                for n in mine {
                    let pod = network.pod(&cri, &format!("other{n}")).await;
                    let container = create(&cri, &pod, network, &image).await;
                    container.start().await.expect("StartContainer");
                    made.push(pod);
                }
                made
            });
        }
        let made: Vec<Pod> = tasks.join_all().await.into_iter().flatten().collect();
        let rate = more as f64 / begun.elapsed().as_secs_f64();
        let row = format!("pods made by {CLIENTS} clients, {from} to {to}, {network}");
        self.report(&row, "pods/s", rate);
        made
    }

    async fn lives(&self, cri: &Cri, network: Network) {
        let mut times: [Vec<Duration>; CALLS.len()] = Default::default();
        for round in 0..WARM + self.options.rounds {
            let name = format!("pod{}-{round}", self.pods);
            let taken = life(cri, network, &self.image, &name).await;
            if round >= WARM {
                for (times, taken) in times.iter_mut().zip(taken) {
                    times.push(taken);
                }
            }
        }
        for (call, times) in CALLS.iter().zip(times) {
            self.tell_p50(&format!("{call}, {network}"), times);
        }
    }

    async fn lists(&self, cri: &Cri) {
        let mut runtime = cri.client.runtime.clone();
        macro_rules! list {
            ($($method:ident($request:ident) as $row:literal;)*) => {$(
                let mut times = Vec::new();
                for _ in 0..WARM + self.options.rounds {
                    let begun = Instant::now();
                    if runtime.$method(cri::$request::default()).await.is_err() {
                        // Some runtimes lack some lists.
                        times.clear();
                        break;
                    }
                    times.push(begun.elapsed());
                }
                self.tell_p50($row, times);
            )*};
        }
        list! {
            list_pod_sandbox(ListPodSandboxRequest) as "ListPodSandbox";
            list_containers(ListContainersRequest) as "ListContainers";
            list_container_stats(ListContainerStatsRequest) as "ListContainerStats";
            list_pod_sandbox_stats(ListPodSandboxStatsRequest) as "ListPodSandboxStats";
            list_pod_sandbox_metrics(ListPodSandboxMetricsRequest) as "ListPodSandboxMetrics";
        }
    }

    /// Memory of the runtime, and of its processes for pods.
    fn memory(&self) {
        let Some(rss) = rss() else {
            return;
        };
        self.report("memory of the runtime (RSS)", "MB", rss);
        let mut all = 0.0;
        for entry in fs::read_dir("/proc").expect("/proc is there").flatten() {
            let command = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if is_helper(&command) {
                all += kib(entry.path(), "smaps_rollup", "Pss:").unwrap_or_default();
            }
        }
        if self.pods > 0 {
            let each = all / 1024.0 / self.pods as f64;
            self.report("memory of other processes, per pod (PSS)", "MB", each);
        }
    }

    async fn restart(&self, row: &str) {
        let Ok(command) = env::var("RESTART") else {
            return;
        };
        let mut times = Vec::new();
        for _ in 0..5 {
            kill();
            let begun = Instant::now();
            let status = Command::new(&command).status().expect("RESTART runs");
            assert!(status.success(), "{command}: {status}");
            loop {
                if let Ok(client) = Client::connect(&self.socket).await {
                    let listed = client.pods(HashMap::new()).await;
                    if listed.is_ok_and(|pods| pods.len() >= self.pods) {
                        break;
                    }
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            times.push(begun.elapsed());
        }
        self.tell_p50(row, times);
    }
}

/// Called before the measurement, which covers only the start.
fn kill() {
    let Some(pid) = pid().and_then(|pid| pid.parse().ok()) else {
        return;
    };
    let pid = rustix::process::Pid::from_raw(pid).expect("a pid");
    let _gone = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    while rustix::process::test_kill_process(pid).is_ok() {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[derive(Clone, Copy)]
enum Network {
    Pod,
    Host,
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod network",
            Self::Host => "host network",
        })
    }
}

impl Network {
    async fn pod(self, cri: &Cri, name: &str) -> Pod {
        let mut config = cri.pod_config(name);
        if let Self::Host = self {
            host_network(&mut config);
            // Such a pod has the host's name, and some runtimes reject another.
            config.hostname.clear();
        }
        cri.try_pod(config).await.expect("RunPodSandbox")
    }
}

const CALLS: [&str; 7] = [
    "pod to running",
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "ExecSync",
    "StopContainer, SIGTERM honoured",
    "StopPodSandbox and Remove",
];

async fn create(cri: &Cri, pod: &Pod, network: Network, image: &str) -> Container {
    let mut config = cri.container_config("c", &["sh", "-c", HONOURS_SIGTERM]);
    set_image(&mut config, image);
    if let Network::Host = network {
        container_namespaces(&mut config).network = cri::NamespaceMode::Node.into();
    }
    pod.try_create(config).await.expect("CreateContainer")
}

/// The life of a pod with a container; returns the duration of each of [`CALLS`].
async fn life(cri: &Cri, network: Network, image: &str, name: &str) -> [Duration; CALLS.len()] {
    let mut marks = [Instant::now(); 7];
    let pod = network.pod(cri, name).await;
    marks[1] = Instant::now();
    let container = create(cri, &pod, network, image).await;
    marks[2] = Instant::now();
    container.start().await.expect("StartContainer");
    marks[3] = Instant::now();
    container.exec(&["true"]).await;
    marks[4] = Instant::now();
    let grace = Duration::from_secs(10);
    container.stop(grace).await.expect("StopContainer");
    marks[5] = Instant::now();
    pod.stop().await.expect("StopPodSandbox");
    pod.remove().await.expect("RemovePodSandbox");
    marks[6] = Instant::now();
    let took = |from: usize, to: usize| marks[to] - marks[from];
    [
        took(0, 3),
        took(0, 1),
        took(1, 2),
        took(2, 3),
        took(3, 4),
        took(4, 5),
        took(5, 6),
    ]
}
