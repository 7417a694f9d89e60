//! cairn-bench-growth [--cri SOCKET] [--pods 0,100,500,1000] [--rounds N]: what each call of a pod's life costs beside so many
//! others.
//!
//! A daemon in a yard of its own. The others have a network and a container each, which sleeps. The pod that is measured
//! is made, lives and goes, N times, alone. `--cri` measures another runtime that serves there.

use std::{
    env,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup,
    client::Client,
    pod::{Cri, Pod},
};

const CALLS: [&str; 6] = [
    "RunPodSandbox",
    "CreateContainer",
    "StartContainer",
    "ExecSync",
    "StopContainer",
    "StopPodSandbox",
];
/// Not counted, after each growth.
const WARM: usize = 2;

struct Options {
    cri: Option<PathBuf>,
    pods: Vec<usize>,
    rounds: usize,
}

fn options() -> Option<Options> {
    let mut options = Options {
        cri: None,
        pods: vec![0, 100, 500, 1000],
        rounds: 20,
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--cri" => options.cri = Some(value.into()),
            "--pods" => {
                let counts = value.split(',').map(|n| n.parse().ok());
                options.pods = counts.collect::<Option<_>>()?;
            }
            "--rounds" => options.rounds = value.parse().ok().filter(|n| *n > 0)?,
            _ => return None,
        }
    }
    Some(options)
}

fn main() -> ExitCode {
    let Some(options) = options() else {
        eprintln!("usage: cairn-bench-growth [--cri SOCKET] [--pods N,N...] [--rounds N]");
        return ExitCode::from(2);
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().expect("a tokio runtime");
    runtime.block_on(measure(&options));
    ExitCode::SUCCESS
}

async fn measure(options: &Options) {
    let (daemon, cri) = match &options.cri {
        Some(socket) => {
            let client = Client::connect(socket).await.expect("the runtime serves");
            let logs = socket.parent().expect("a socket lies somewhere");
            (None, Cri::new(client, logs, "/cairn-bench"))
        }
        None => {
            let setup = Setup {
                log_level: Some("info"),
                ..Setup::default()
            };
            let daemon = Daemon::with(setup).await;
            let cri = daemon.cri();
            (Some(daemon), cri)
        }
    };
    println!("p50 in ms of {} rounds, each alone", options.rounds);
    print!("{:>6}", "pods");
    CALLS.iter().for_each(|call| print!("{call:>17}"));
    println!("{:>22}", "others made, pods/s");
    let mut others: Vec<Pod> = Vec::new();
    for count in &options.pods {
        let (before, begun) = (others.len(), Instant::now());
        while others.len() < *count {
            let pod = cri.pod(&format!("other{}", others.len())).await;
            pod.sleeper("c").await;
            others.push(pod);
        }
        let grown = (others.len() - before) as f64 / begun.elapsed().as_secs_f64();
        let mut times: [Vec<Duration>; CALLS.len()] = Default::default();
        for round in 0..WARM + options.rounds {
            let taken = life(&cri, &format!("pod{count}-{round}")).await;
            if round >= WARM {
                for (times, taken) in times.iter_mut().zip(taken) {
                    times.push(taken);
                }
            }
        }
        print!("{count:>6}");
        for mut times in times {
            times.sort_unstable();
            print!("{:>17.2}", times[times.len() / 2].as_secs_f64() * 1e3);
        }
        println!("{grown:>22.1}");
    }
    for pod in others {
        pod.end().await;
    }
    drop(daemon);
}

/// A pod with a container, from its making to its end; how long each of [`CALLS`] took.
async fn life(cri: &Cri, name: &str) -> [Duration; CALLS.len()] {
    let mut taken = [Duration::ZERO; CALLS.len()];
    let mut begun = Instant::now();
    let mut lap = |at: usize| {
        taken[at] = begun.elapsed();
        begun = Instant::now();
    };
    let pod = cri.pod(name).await;
    lap(0);
    let config = cri.container_config("c", &["sleep", "1000"]);
    let container = pod.try_create(config).await.expect("CreateContainer");
    lap(1);
    container.start().await.expect("StartContainer");
    lap(2);
    container.exec(&["true"]).await;
    lap(3);
    container.stop(Duration::ZERO).await.expect("StopContainer");
    lap(4);
    pod.stop().await.expect("StopPodSandbox");
    lap(5);
    pod.end().await;
    taken
}
