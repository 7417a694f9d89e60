//! Measures namespaces and network of a pod: `bench [rounds]`. Run it as root in a network and mount namespace of its
//! own: `unshare --net --mount target/release/examples/bench 200`.

use std::path::Path;
use std::time::{Duration, Instant};

use cni_shim::namespaces::{HelperCommand, PinSpec, pin, unpin};
use cni_shim::{Attach, BridgeConfig, Config, Network};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let rounds = std::env::args()
        .nth(1)
        .map_or(Ok(100), |rounds| rounds.parse())?;
    let dir = std::env::temp_dir().join(format!("cni-shim-bench-{}", std::process::id()));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let measured = runtime.block_on(measure(&dir, rounds));
    std::fs::remove_dir_all(&dir)?;
    measured
}

async fn measure(dir: &Path, rounds: usize) -> Result<(), Failure> {
    let network = Network::new(Config {
        conf_dir: dir.join("net.d"),
        bin_dirs: Vec::new(),
        cache_dir: dir.join("cache"),
        state_dir: dir.join("state"),
        bridge: Some(BridgeConfig {
            name: "bench0".into(),
            table: "bench0".into(),
            subnets: vec!["10.99.0.0/16".parse()?],
            masquerade: true,
            mtu: None,
        }),
        add_timeout: Duration::from_secs(60),
        parallel: 16,
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
        // Without a pause each round would wait for the kernel's clean-up of the one before.
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
    Ok(())
}

async fn one_pod(network: &Network, pins: &Path, id: String) -> Result<[Duration; 5], Failure> {
    let spec = PinSpec {
        net: true,
        ipc: true,
        uts: true,
        hostname: Some("bench".into()),
        sysctls: vec![("net.ipv4.ip_unprivileged_port_start".into(), "0".into())],
        userns: None,
    };
    let unused = HelperCommand {
        program: "unused".into(),
        args: Vec::new(),
    };
    let start = Instant::now();
    let pinned = pin(&spec, pins, &unused)?;
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
