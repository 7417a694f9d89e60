//! Measures namespaces and network of a pod: `bench ROUNDS DIR [BIN_DIR]`. `DIR` keeps the state. A
//! CNI configuration in `DIR/net.d` is used with the plugins of `BIN_DIR`. Run it as root in its
//! own network and mount namespaces: `unshare --net --mount target/release/examples/bench 200
//! /tmp/bench`.

use std::path::Path;
use std::time::{Duration, Instant};

use cni_shim::namespaces::{HelperCommand, PinSpec, pin, unpin};
use cni_shim::{Attach, BridgeConfig, Config, Network};

type Failure = Box<dyn std::error::Error + Send + Sync>;

const POD_COUNT: usize = 100;
const TASKS: usize = 4;

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rounds, dir, bin_dirs @ ..] = args.as_slice() else {
        return Err("usage: bench ROUNDS DIR [BIN_DIR]".into());
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(measure(Path::new(dir), rounds.parse()?, bin_dirs))
}

async fn measure(dir: &Path, rounds: usize, bin_dirs: &[String]) -> Result<(), Failure> {
    let network = Network::new(Config {
        conf_dir: dir.join("net.d"),
        bin_dirs: bin_dirs.iter().map(Into::into).collect(),
        cache_dir: dir.join("cache"),
        state_dir: dir.join("state"),
        bridge: Some(BridgeConfig {
            name: "bench0".into(),
            table: "bench0".into(),
            subnets: vec!["10.99.0.0/16".parse()?],
            masquerade: true,
            non_masquerade_cidrs: Vec::new(),
            spoof_check: true,
            mtu: None,
        }),
        add_timeout: Duration::from_secs(60),
        parallel: 16,
        ..Config::default()
    })?;
    network.status().await?;
    let names = ["pin", "attach", "pin+attach", "detach", "unpin"];
    let mut times: [Vec<Duration>; 5] = Default::default();
    for round in 0..rounds {
        let id = format!("bench-{round}");
        let pins = dir.join("netns").join(&id);
        let steps = one_pod(&network, &pins, id).await?;
        times
            .iter_mut()
            .zip(steps)
            .for_each(|(all, one)| all.push(one));
        // Without a pause each round would wait for the kernel's clean-up of the previous one.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (name, mut all) in names.into_iter().zip(times) {
        all.sort();
        let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
        println!(
            "{name:12} p50 {:>9.2?}  p95 {:>9.2?}  max {:>9.2?}",
            at(50),
            at(95),
            at(100)
        );
    }
    crowd(&network, dir).await
}

/// Measures pods per second if several tasks attach them and all stay until the last is attached.
async fn crowd(network: &Network, dir: &Path) -> Result<(), Failure> {
    let start = Instant::now();
    let each = POD_COUNT / TASKS;
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (network, dir) = (network.clone(), dir.to_owned());
        tasks.spawn(async move {
            for number in 0..each {
                let id = format!("crowd-{task}-{number}");
                let pins = dir.join("netns").join(&id);
                let netns = tokio::task::spawn_blocking(move || pin(&spec(), &pins, &unused()))
                    .await??
                    .net
                    .ok_or("no network namespace")?;
                let attach = Attach {
                    sandbox_id: id,
                    netns,
                    ..Attach::default()
                };
                network.attach(attach).await?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let up = start.elapsed();
    let start = Instant::now();
    for task in 0..TASKS {
        let (network, dir) = (network.clone(), dir.to_owned());
        tasks.spawn(async move {
            for number in 0..each {
                let id = format!("crowd-{task}-{number}");
                network.detach(&id).await?;
                unpin(&dir.join("netns").join(&id))?;
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    let rate = |time: Duration| POD_COUNT as f64 / time.as_secs_f64();
    println!(
        "{POD_COUNT} pods by {TASKS} tasks: up {:.0}/s, down {:.0}/s",
        rate(up),
        rate(start.elapsed())
    );
    Ok(())
}

fn spec() -> PinSpec {
    PinSpec {
        net: true,
        ipc: true,
        uts: true,
        hostname: Some("bench".into()),
        sysctls: vec![("net.ipv4.ip_unprivileged_port_start".into(), "0".into())],
        userns: None,
    }
}

/// No pod here has a user namespace.
fn unused() -> HelperCommand {
    HelperCommand {
        program: "unused".into(),
        args: Vec::new(),
    }
}

async fn one_pod(network: &Network, pins: &Path, id: String) -> Result<[Duration; 5], Failure> {
    let start = Instant::now();
    let pinned = pin(&spec(), pins, &unused())?;
    let pin_time = start.elapsed();
    let netns = pinned.net.ok_or("no network namespace")?;
    let attach = Instant::now();
    network
        .attach(Attach {
            sandbox_id: id.clone(),
            netns,
            ..Attach::default()
        })
        .await?;
    let (attach_time, both) = (attach.elapsed(), start.elapsed());
    let detach = Instant::now();
    network.detach(&id).await?;
    let detach_time = detach.elapsed();
    let last = Instant::now();
    unpin(pins)?;
    Ok([pin_time, attach_time, both, detach_time, last.elapsed()])
}
