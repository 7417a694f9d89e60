//! cairn-storm (run by `hack/storm`): CRI clients, seeded faults, and books of acknowledged calls.
//!
//! ```text
//! clients ──CRI──► cairn serve, in a yard ◄── faults: kill, hold, fill, starve, reboot
//!    │                                         │
//!    └── books: acknowledged calls             └── weather: the times of faults, as excuses
//! ```
//! Violations are: an unexcused error, delay or loss of a call, a state that the books do not
//! allow, a lost end or log line, and leftovers after all removals. Then the exit code is 1, and
//! the daemon's log and its event log are kept. Exit code 2: nothing could be tested.

mod arena;
mod args;
mod book;
mod calls;
mod client;
mod containers;
mod fault;
mod images;
mod keeper;
mod pods;
mod registry;
mod report;
mod target;
mod weather;

use std::{
    collections::{BTreeSet, HashSet},
    fs,
    path::Path,
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use arena::Arena;
use args::{Args, Asked};
use cairn_tests::{bins, daemon::inventory::NOBODY, rng::Rng};
use calls::{Link, Manner};
use client::Client;
use keeper::Keeper;
use parking_lot::Mutex;
use report::Report;
use weather::Weather;

fn main() -> ExitCode {
    let mut given = std::env::args().skip(1).peekable();
    if given.peek().is_some_and(|first| first == "registry") {
        let dir = given.nth(1).unwrap_or_default();
        let ended = registry::serve(Path::new(&dir));
        eprintln!("cairn-storm registry: {ended:?}");
        return ExitCode::FAILURE;
    }
    let keep = bins::repository().join("target/test-logs");
    let args = match Args::parse(given, some_seed(), keep) {
        Ok(Asked::Run(args)) => args,
        Ok(Asked::Print(text)) => {
            print!("{text}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("cairn-storm: {why}");
            return ExitCode::from(2);
        }
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("threads can be made");
    match runtime.block_on(run(&args)) {
        Ok(0) => {
            println!("storm: seed {}: nothing lost, nothing left over", args.seed);
            ExitCode::SUCCESS
        }
        Ok(violations) => {
            println!(
                "storm: seed {}: {violations} violations; again: hack/storm --seed {}",
                args.seed, args.seed
            );
            ExitCode::FAILURE
        }
        Err(why) => {
            eprintln!("storm: seed {}: {why}", args.seed);
            ExitCode::from(2)
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a seed that nobody chose; it is printed"
)]
fn some_seed() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(1, |since| since.as_secs() % 1_000_000)
}

/// Runs the storm; returns the number of violations.
async fn run(args: &Args) -> Result<usize, String> {
    let names: Vec<_> = args.faults.iter().map(|f| f.name()).collect();
    println!(
        "storm: seed {}, {:.1} minutes, {} clients, network {:?}, faults {}",
        args.seed,
        args.length.as_secs_f64() / 60.0,
        args.clients,
        args.network,
        names.join(",")
    );
    let (weather, report) = (Arc::new(Weather::default()), Arc::new(Report::new()));
    let arena = Arena::new(args, weather.clone(), report.clone()).await?;
    let link = Link {
        line: arena.line(),
        weather: weather.clone(),
        report: report.clone(),
        reported: Arc::new(Mutex::new(HashSet::new())),
    };
    warm_up(&link, args.seed).await;
    let before = arena.daemon.inventory().await;
    let descriptors = arena.descriptors();
    let end = Instant::now() + args.length;
    let clients: Vec<_> = (0..args.clients)
        .map(|n| {
            let mut client = Client::new(link.clone(), &format!("c{n}"), n, args.seed);
            tokio::spawn(async move {
                client.run(end).await;
                client
            })
        })
        .collect();
    let mut keeper = Keeper::new(arena, &weather, &report, args.seed);
    let lived = keeper.storm(&args.faults, args.every, end).await;
    if lived.is_ok() {
        settle(&mut keeper, clients).await?;
        publish_once(&link, args.seed).await;
        leftovers(&keeper.arena, &before, &report).await;
        hoards(&keeper.arena, descriptors, &report).await;
    }
    report.progress();
    report.summary();
    if report.violations() > 0 || lived.is_err() {
        keep(&keeper.arena, args);
    }
    lived.map(|()| report.violations())
}

/// Makes and removes a pod with a network and a port, so that the bridge and its rules exist. Also
/// after the storm: its last boot may have had no pod with a network.
async fn publish_once(link: &Link, seed: u64) {
    let mut rng = Rng::new(seed, "port");
    let mut pod = pods::plan(link, "port", 0, 0, &mut rng).await;
    pods::publish(&mut pod, 19_999);
    pods::run(link, &mut pod, Manner::default()).await;
    pods::be_rid_of(link, &mut pod).await;
}

/// Makes and removes a pod with a network, a container and an image, for all one-time resources.
async fn warm_up(link: &Link, seed: u64) {
    publish_once(link, seed).await;
    let mut client = Client::new(link.clone(), "warm", 0, seed);
    client.run(Instant::now() + Duration::from_secs(3)).await;
    client.leave().await;
}

/// After the storm, each client finishes its turns and removes its objects, while the daemon is
/// watched.
async fn settle(
    keeper: &mut Keeper<'_>,
    clients: Vec<tokio::task::JoinHandle<Client>>,
) -> Result<(), String> {
    let leaving: Vec<_> = clients
        .into_iter()
        .map(|client| {
            tokio::spawn(async move {
                let mut client = client
                    .await
                    .map_err(|e| format!("a client broke off: {e}"))?;
                client.leave().await;
                Ok::<_, String>(())
            })
        })
        .collect();
    while leaving.iter().any(|client| !client.is_finished()) {
        keeper.watch().await?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for client in leaving {
        client
            .await
            .map_err(|e| format!("a client broke off: {e}"))??;
    }
    Ok(())
}

/// New and missing resources, compared with those before the first client.
async fn leftovers(arena: &Arena, before: &BTreeSet<String>, report: &Report) {
    let (left, missing) = arena
        .daemon
        .changed_since(before, Duration::from_secs(30))
        .await;
    // The faults kill CNI programs, also with the daemon.
    let unwritten = |item: &String| item.starts_with("lease ") && item.ends_with(NOBODY);
    let (nobodys, left): (Vec<_>, _) = left.into_iter().partition(unwritten);
    report.fact(
        "leases made and not written by a killed host-local",
        nobodys.len().to_string(),
    );
    for (word, items) in [("left over", left), ("missing", missing)] {
        if !items.is_empty() {
            let history = report.history();
            for item in items.iter().take(60) {
                history.note(item);
            }
            report.violation(&format!("{} {word}", items.len()), &history);
        }
    }
}

/// Checks the daemon's own resources without pods: about as many descriptors as before, once its
/// sampler has run again and released the removed cgroups.
async fn hoards(arena: &Arena, before: usize, report: &Report) {
    const MORE: usize = 24;
    const SETTLING: Duration = Duration::from_secs(5);
    let settled = Instant::now() + SETTLING;
    let mut now = arena.descriptors();
    while now > before + MORE && Instant::now() < settled {
        tokio::time::sleep(Duration::from_millis(50)).await;
        now = arena.descriptors();
    }
    report.fact(
        "descriptors of the daemon, before and after",
        format!("{before}, {now}"),
    );
    report.fact("memory of the daemon", arena.memory());
    if now > before + MORE {
        let what = format!("the daemon has {now} descriptors open; before it had {before}");
        report.violation(&what, &report.history());
    }
}

/// Keeps the logs of a run with violations.
fn keep(arena: &Arena, args: &Args) {
    let to = args.keep.join(format!("storm-{}", args.seed));
    let copy = || -> std::io::Result<()> {
        fs::create_dir_all(&to)?;
        fs::copy(arena.daemon.path("daemon.log"), to.join("daemon.log"))?;
        let trace = arena.seen("root/trace");
        for entry in fs::read_dir(trace)?.flatten() {
            fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
        Ok(())
    };
    match copy() {
        Ok(()) => println!("\nthe daemon's log and its event log: {}", to.display()),
        Err(error) => println!("\nthe logs cannot be kept in {}: {error}", to.display()),
    }
}
