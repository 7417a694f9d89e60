//! Measures the monitor chain and the memory of a monitor. Needs root; prints figures, and is run
//! by name: `cargo test -p cairn --test monitor_bench -- --ignored --nocapture`. `GAP_MS` is the
//! pause before each operation (200: a shorter one hides the RCU waits of cgroup moves), `ROUNDS`
//! their number.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

mod common;

use std::fs;
use std::time::{Duration, Instant};

use common::{Box, Ground};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|v| v.parse().ok())
        .unwrap_or(default)
}

/// Includes the minimum: on a busy machine it is the only meaningful figure of the chain itself.
fn report(what: &str, mut times: Vec<Duration>) {
    times.sort();
    let at = |q: usize| times[(times.len() - 1) * q / 100].as_secs_f64() * 1e3;
    let (min, p50, p95) = (at(0), at(50), at(95));
    println!(
        "{what}: min {min:.2} ms, p50 {p50:.2} ms, p95 {p95:.2} ms ({} rounds)",
        times.len()
    );
}

fn with_default_filter(b: &mut Box) {
    // The size of a default profile: some 300 calls by name, for three architectures.
    let names: Vec<&str> = include_str!("fixtures/syscalls.txt")
        .split_whitespace()
        .collect();
    b.spec["linux"]["seccomp"] = serde_json::json!({
        "defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
        "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"],
        "syscalls": [
            {"names": names, "action": "SCMP_ACT_ALLOW"},
            {"names": ["clone"], "action": "SCMP_ACT_ALLOW",
             "args": [{"index": 0, "value": 2114060288u64, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]},
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
        ]
    });
}

#[tokio::test]
#[ignore = "prints figures"]
async fn figures() {
    let (gap, rounds) = (
        Duration::from_millis(number("GAP_MS", 200)),
        number("ROUNDS", 30),
    );
    let mut ground = Ground::new().await;
    let containers: Vec<Box> = (0..2 * rounds)
        .map(|_| ground.container(&["sleep", "1000"]))
        .collect();
    for (what, filter) in [("no filter", false), ("default filter", true)] {
        let (mut create, mut start, mut both, mut kill) = (vec![], vec![], vec![], vec![]);
        for b in &containers[if filter { rounds as usize.. } else { 0.. }][..rounds as usize] {
            let mut b = Box {
                spec: b.spec.clone(),
                id: b.id.clone(),
                dir: b.dir.clone(),
                log: b.log.clone(),
                cgroups: b.cgroups.clone(),
                ..*b
            };
            if filter {
                with_default_filter(&mut b);
            }
            tokio::time::sleep(gap).await;
            let t = Instant::now();
            let monitor = ground.launch(&b).await.expect("create");
            create.push(t.elapsed());
            let t1 = Instant::now();
            monitor.start().await.expect("start");
            start.push(t1.elapsed());
            both.push(t.elapsed());
            tokio::time::sleep(gap).await;
            let t = Instant::now();
            monitor.kill(9, false).await.expect("kill");
            monitor.wait().await;
            monitor.delete().await.expect("delete");
            kill.push(t.elapsed());
        }
        report(&format!("create, {what}"), create);
        report(&format!("start, {what}"), start);
        report(&format!("create+start, {what}"), both);
        report(&format!("kill+wait+delete, {what}"), kill);
    }
    execs(&mut ground, gap, rounds).await;
    weight(&mut ground).await;
}

async fn execs(ground: &mut Ground, gap: Duration, rounds: u64) {
    let mut b = ground.container(&["sleep", "1000"]);
    with_default_filter(&mut b);
    let monitor = ground.launch(&b).await.expect("create");
    monitor.start().await.expect("start");
    let mut times = vec![];
    for _ in 0..rounds {
        tokio::time::sleep(gap).await;
        let t = Instant::now();
        assert_eq!(
            monitor
                .exec_sync(b.exec(&["true"]))
                .await
                .expect("exec")
                .code,
            0
        );
        times.push(t.elapsed());
    }
    report("exec_sync true, default filter", times);
    monitor.kill(9, true).await.expect("kill");
    monitor.wait().await;
    monitor.delete().await.expect("delete");
}

async fn weight(ground: &mut Ground) {
    let mut monitors = vec![];
    for _ in 0..20 {
        let b = ground.container(&["sleep", "1000"]);
        let monitor = ground.launch(&b).await.expect("create");
        monitor.start().await.expect("start");
        monitors.push((monitor, b));
    }
    let mut sums = [0u64; 3];
    for (monitor, b) in &monitors {
        assert_eq!(
            monitor
                .exec_sync(b.exec(&["true"]))
                .await
                .expect("exec")
                .code,
            0
        );
        let pid = cairn::monitor::Launcher::recorded(&b.dir)
            .expect("pid file")
            .monitor;
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("smaps");
        for (sum, field) in sums.iter_mut().zip(["Rss:", "Pss:", "Private_Dirty:"]) {
            let line = rollup
                .lines()
                .find(|l| l.starts_with(field))
                .expect("field");
            *sum += line
                .split_whitespace()
                .nth(1)
                .and_then(|n| n.parse::<u64>().ok())
                .expect("number");
        }
    }
    let [rss, pss, dirty] = sums.map(|s| s / monitors.len() as u64);
    println!(
        "monitor, one of 20, after an exec: RSS {rss} kB, PSS {pss} kB, private dirty {dirty} kB"
    );
    for (monitor, _) in monitors {
        monitor.kill(9, true).await.expect("kill");
        monitor.wait().await;
        monitor.delete().await.expect("delete");
    }
}
