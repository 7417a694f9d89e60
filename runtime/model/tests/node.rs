//! The node under seeds: `hack/model node` runs many, `hack/test unit` a few. A seed is two runs:
//! one without kills, and one that is killed twice.

#![allow(clippy::disallowed_methods, reason = "tests may block")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::Write as _,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    thread,
    time::Instant,
};

use cairn_model::{Fault, Outcome, Plan, Rule, Tally, known, run, shrink};

/// Seeds that failed once, one per line with the fault; every run repeats them first.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/seeds.txt");
/// The log lines that are printed before a fault.
const TAIL: usize = 60;

fn number(name: &str, default: u64) -> u64 {
    env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn is_set(name: &str) -> bool {
    env::var_os(name).is_some()
}

fn kept() -> Vec<u64> {
    let text = fs::read_to_string(KEPT).unwrap_or_default();
    let first = text
        .lines()
        .filter_map(|line| line.split_whitespace().next());
    first.map(|seed| seed.parse().expect("a seed")).collect()
}

/// The runs of a seed, until one breaks a rule.
fn runs(seed: u64) -> Vec<(Plan, Outcome)> {
    let plan = Plan::drawn(seed);
    let unkilled = run(&plan);
    let (polls, is_broken) = (unkilled.polls, !unkilled.faults.is_empty());
    let mut runs = vec![(plan.clone(), unkilled)];
    if !is_broken {
        let plan = plan.killed(polls);
        let killed = run(&plan);
        runs.push((plan, killed));
    }
    runs
}

/// Without known ones, unless `MODEL_ALL` is set.
fn first_fault(runs: &[(Plan, Outcome)]) -> Option<(&Plan, &Fault)> {
    let all = is_set("MODEL_ALL");
    let faults = runs
        .iter()
        .filter(|(plan, outcome)| all || known(plan, outcome).is_none())
        .map(|(plan, outcome)| (plan, outcome.faults.first()));
    faults
        .filter_map(|(plan, fault)| Some((plan, fault?)))
        .next()
}

/// Gives each seed to `each`, on all cores, until it returns false.
fn over_seeds(seeds: &[u64], each: impl Fn(u64) -> bool + Sync) -> u64 {
    let (next, ends) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(seed) = seeds.get(next.fetch_add(1, SeqCst) as usize) {
                    if ends.load(SeqCst) == 0 {
                        return;
                    }
                    if !each(*seed) {
                        ends.store(0, SeqCst);
                    }
                }
            });
        }
    });
    next.into_inner().min(seeds.len() as u64)
}

/// Prints the shrunk plan of a broken rule and the end of its log, keeps its seed, and panics.
fn fail(plan: &Plan, fault: &Fault) -> ! {
    let (mut text, seed) = (fault.to_string(), plan.seed);
    if !is_set("MODEL_FORGET") {
        let plan = shrink(plan.clone(), fault.rule);
        let Outcome { faults, world, .. } = run(&plan);
        println!("{plan:#?}");
        print_log(&world.log(), fault.rule);
        let shrunk = faults.iter().find(|found| found.rule == fault.rule);
        text = shrunk.map_or(text, Fault::to_string);
        if !kept().contains(&seed) {
            let file = fs::File::options().append(true).create(true).open(KEPT);
            writeln!(file.expect("the kept seeds"), "{seed} {text}").expect("a kept seed");
        }
    }
    panic!("seed {seed} breaks {text}");
}

fn print_log(log: &[String], rule: Rule) {
    let mark = format!("FAULT ({rule})");
    let end = log.iter().position(|line| line.contains(&mark));
    let end = end.map_or(log.len(), |at| at + 1);
    println!("{}", log[end.saturating_sub(TAIL)..end].join("\n"));
}

#[test]
fn a_life_killed_at_every_await_leaves_nothing_and_tells_every_end() {
    let plan = Plan::quiet(number("MODEL_SEED", 1));
    let report = |plan: &Plan, outcome: &Outcome| {
        let is_known = known(plan, outcome).is_some() && !is_set("MODEL_ALL");
        if let Some(fault) = outcome.faults.first().filter(|_| !is_known) {
            fail(plan, fault);
        }
    };
    let unkilled = run(&plan);
    report(&plan, &unkilled);
    let (polls, stride) = (unkilled.polls, number("MODEL_STRIDE", 1));
    let mut kill = number("MODEL_FROM", 0);
    eprintln!("{polls} polls");
    while kill < polls {
        let plan = Plan {
            kills: vec![kill],
            ..plan.clone()
        };
        report(&plan, &run(&plan));
        kill += stride;
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..3 {
        let (one, two) = (run(&Plan::drawn(seed)), run(&Plan::drawn(seed)));
        let (one, two) = (one.world.log(), two.world.log());
        let differs = one.iter().zip(&two).find(|(one, two)| one != two);
        assert_eq!(differs, None, "seed {seed}");
        assert_eq!(one.len(), two.len(), "seed {seed}");
    }
}

#[test]
fn lives_side_by_side_killed_at_random_leave_nothing_and_tell_every_end() {
    let (from, count) = (number("MODEL_FROM", 0), number("MODEL_SEEDS", 20));
    let kept = kept().into_iter().filter(|_| !is_set("MODEL_FORGET"));
    let seeds: Vec<u64> = kept.chain(from..from + count).collect();
    let (failed, tally) = (Mutex::new(None), Mutex::new(Tally::default()));
    let begun = Instant::now();
    let ran = over_seeds(&seeds, |seed| {
        let runs = runs(seed);
        for (_, outcome) in &runs {
            tally.lock().expect("a tally").add(&outcome.world);
        }
        let fault = first_fault(&runs).map(|(plan, fault)| (plan.clone(), fault.clone()));
        let is_right = fault.is_none();
        if let Some(fault) = fault {
            failed.lock().expect("a fault").get_or_insert(fault);
        }
        is_right
    });
    let took = begun.elapsed().as_secs_f64();
    let failed = failed.into_inner().expect("a fault");
    let seed = failed.as_ref().map(|(plan, _)| plan.seed);
    println!(
        "model: {ran} seeds in {took:.1} s, {:.0} seeds/s, first failing seed: {seed:?}",
        ran as f64 / took
    );
    if let Some((plan, fault)) = failed {
        fail(&plan, &fault);
    }
    if is_set("MODEL_TALLY") {
        println!("{:#?}", tally.into_inner().expect("a tally"));
    }
}

/// Prints each rule's first seeds: `MODEL_SURVEY=1`, with `MODEL_SEEDS` and `MODEL_FROM`; without
/// runs of known faults with `MODEL_NEW=1`.
#[test]
fn survey() {
    if !is_set("MODEL_SURVEY") {
        return;
    }
    let (from, count) = (number("MODEL_FROM", 0), number("MODEL_SEEDS", 200));
    let seeds: Vec<u64> = (from..from + count).collect();
    let kinds = Mutex::new(BTreeMap::new());
    let begun = Instant::now();
    over_seeds(&seeds, |seed| {
        for (plan, outcome) in runs(seed) {
            if is_set("MODEL_NEW") && known(&plan, &outcome).is_some() {
                continue;
            }
            for fault in outcome.faults {
                let words = fault.text.split_whitespace();
                // Without ids and numbers.
                let words = words.filter(|word| word.len() < 60);
                let words: Vec<&str> = words.filter(|word| !word.contains('#')).collect();
                let words = words.join(" ");
                let kind: String = words.chars().filter(|c| !c.is_ascii_digit()).collect();
                let after = begun.elapsed().as_secs_f64();
                let first = || (0, seed, !plan.kills.is_empty(), after, fault.text.clone());
                let mut kinds = kinds.lock().expect("the kinds");
                kinds.entry((fault.rule, kind)).or_insert_with(first).0 += 1;
            }
        }
        true
    });
    for ((rule, _), (times, seed, killed, after, text)) in kinds.into_inner().expect("the kinds") {
        let killed = ["", ", killed"][usize::from(killed)];
        println!("({rule}) {times:>6} x, first by seed {seed}{killed} after {after:.1} s: {text}");
    }
    println!("{count} seeds in {:.1} s", begun.elapsed().as_secs_f64());
}

/// Prints one seed in full: `MODEL_SHOW=SEED`; shrunk for a rule by `MODEL_RULE=turn`.
#[test]
fn show() {
    let Ok(seed) = env::var("MODEL_SHOW") else {
        return;
    };
    let runs = runs(seed.parse().expect("a seed"));
    let rule = env::var("MODEL_RULE").unwrap_or_default();
    for (plan, outcome) in &runs {
        let mut faults = outcome.faults.iter();
        let (plan, log) = match faults.find(|fault| fault.rule.to_string() == rule) {
            Some(fault) => {
                let plan = shrink(plan.clone(), fault.rule);
                let log = run(&plan).world.log();
                (plan, log)
            }
            None => (plan.clone(), outcome.world.log()),
        };
        println!("{plan:#?}\n{}", log.join("\n"));
    }
}
