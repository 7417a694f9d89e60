//! The adaptation under a seed: one thread, a paused clock, and one seed for all random values.
//! `hack/model` runs many seeds, `hack/test nri` a few.

mod check;
mod instance;
mod plan;
mod shrink;
mod world;

use std::{
    env, fs,
    io::Write as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use check::Fault;
use nri::{
    Adaptation, Handlers, Stub,
    proto::PodSandbox,
    sim::{Link, Memory},
};
use plan::Plan;

/// Seeds that failed once, one per line with the fault; every run repeats them first.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim/seeds.txt");
/// The log lines that are printed before a fault.
const TAIL: usize = 60;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |number| number.parse().expect("a number"))
}

fn kept() -> Vec<u64> {
    let text = fs::read_to_string(KEPT).unwrap_or_default();
    let first = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    first.map(|seed| seed.parse().expect("a seed")).collect()
}

/// Used with mutants: records no seed, and does not shrink plans.
fn forgets() -> bool {
    env::var_os("SIM_FORGET").is_some()
}

/// Returns the first of `SIM_SEEDS` seeds, from `SIM_FROM` on, that breaks a rule; uses all cores.
fn first_failure() -> Option<u64> {
    let (from, count) = (number("SIM_FROM", 0), number("SIM_SEEDS", 200));
    let kept = if forgets() { Vec::new() } else { kept() };
    let seeds: Vec<u64> = kept.into_iter().chain(from..from + count).collect();
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let begun = Instant::now();
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, SeqCst) as usize) {
                    if failed.lock().unwrap().is_some() {
                        return;
                    }
                    if !world::run(&Plan::new(*seed)).0.is_empty() {
                        failed.lock().unwrap().get_or_insert(*seed);
                    }
                }
            });
        }
    });
    let took = begun.elapsed().as_secs_f64();
    let (ran, failed) = (
        next.into_inner().min(seeds.len() as u64),
        failed.into_inner().unwrap(),
    );
    let rate = ran as f64 / took;
    println!(
        "model: {ran} seeds in {took:.1} s, {rate:.0} seeds/s, first failing seed: {failed:?}"
    );
    failed
}

#[test]
fn no_seed_breaks_a_rule() {
    let Some(seed) = first_failure() else { return };
    let mut plan = Plan::new(seed);
    let mut faults = world::run(&plan).0;
    let rule = faults[0].rule;
    let of_rule = |faults: Vec<Fault>| faults.into_iter().find(|fault| fault.rule == rule);
    if !forgets() {
        plan = shrink::shrink(plan, rule);
        let log;
        (faults, log) = world::run(&plan);
        let end = log
            .iter()
            .position(|line| line.contains(&format!("FAULT ({rule})")));
        let end = end.map_or(log.len(), |at| at + 1);
        println!(
            "{plan:#?}\n{}",
            log[end.saturating_sub(TAIL)..end].join("\n")
        );
    }
    let text = of_rule(faults).expect("a plan that fails").text;
    if !forgets() && !kept().contains(&seed) {
        let file = fs::File::options().append(true).create(true).open(KEPT);
        writeln!(file.unwrap(), "{seed} ({rule}) {text}").unwrap();
    }
    panic!("seed {seed} breaks rule ({rule}): {text}");
}

#[test]
fn a_seed_run_twice_gives_the_same_log() {
    for seed in 0..number("SIM_TWICE", 10) {
        let (once, again) = (
            world::run(&Plan::new(seed)).1,
            world::run(&Plan::new(seed)).1,
        );
        let differs = once.iter().zip(&again).find(|(a, b)| a != b);
        assert!(once == again, "seed {seed}: {differs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stub_runs_over_memory() {
    let nri = Adaptation::builder("sim", "1").settings(world::without_files());
    let nri = nri
        .source(Arc::<world::Disk>::default())
        .start()
        .await
        .unwrap();
    let (runtimes, plugins) = Memory::pair(Link::default());
    nri.connect(runtimes);
    let veto = Handlers::new().run_pod_sandbox(|_| async { Err("no".into()) });
    let mut stub = Stub::builder(veto).index("10").name("a").memory(plugins);
    let stub = stub.start().await.unwrap();
    let refused = nri.run_pod_sandbox(PodSandbox::default()).await;
    assert!(refused.is_err_and(|refused| refused.reason.contains("10-a")));
    stub.stop();
}

/// Prints each rule's first seed: `SIM_SURVEY=1`, with `SIM_SEEDS` and `SIM_FROM`.
#[test]
fn survey() {
    if env::var_os("SIM_SURVEY").is_none() {
        return;
    }
    let mut kinds = std::collections::BTreeMap::new();
    let begun = Instant::now();
    let (from, count) = (number("SIM_FROM", 0), number("SIM_SEEDS", 200));
    for seed in from..from + count {
        for fault in world::run(&Plan::new(seed)).0 {
            let kind = fault.text.split([':', '#']).skip(1).collect::<String>();
            let kind: String = kind.chars().filter(|c| !c.is_ascii_digit()).collect();
            let first = || (0, seed, begun.elapsed().as_secs_f64(), fault.text.clone());
            kinds.entry((fault.rule, kind)).or_insert_with(first).0 += 1;
        }
    }
    for ((rule, _), (times, seed, after, text)) in kinds {
        println!("({rule}) {times:>6} x, first by seed {seed} after {after:.1} s: {text}");
    }
    println!("{count} seeds in {:.1} s", begun.elapsed().as_secs_f64());
}

/// Prints one seed in full: `SIM_SHOW=SEED`, shrunk for a rule by `SIM_RULE=f`.
#[test]
fn show() {
    let Ok(seed) = env::var("SIM_SHOW") else {
        return;
    };
    let mut plan = Plan::new(seed.parse().expect("a seed"));
    if let Ok(rule) = env::var("SIM_RULE") {
        plan = shrink::shrink(plan, rule.chars().next().expect("a rule"));
    }
    println!("{plan:#?}\n{}", world::run(&plan).1.join("\n"));
}
