//! The node under seeds: `hack/model node` runs many, `hack/test unit` a few.

use cairn_model::{Outcome, Plan, Tally, run};

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn report(what: &str, Outcome { faults, world, .. }: &Outcome) {
    if faults.is_empty() {
        return;
    }
    if std::env::var_os("MODEL_LOG").is_some() {
        for line in world.log() {
            eprintln!("  {line}");
        }
    }
    panic!("{what}: {faults:#?}");
}

#[test]
fn a_life_killed_at_every_await_leaves_nothing_and_tells_every_end() {
    let plan = Plan::quiet(number("MODEL_SEED", 1));
    let unkilled = run(&plan);
    report("not killed", &unkilled);
    let (polls, stride) = (unkilled.polls, number("MODEL_STRIDE", 1));
    let mut kill = number("MODEL_FROM", 0);
    eprintln!("{polls} polls");
    while kill < polls {
        let plan = Plan {
            kills: vec![kill],
            ..plan.clone()
        };
        let what = format!("seed {}, killed after poll {kill} of {polls}", plan.seed);
        report(&what, &run(&plan));
        kill += stride;
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    for seed in 0..3 {
        let (one, two) = (run(&Plan::drawn(seed)), run(&Plan::drawn(seed)));
        assert_eq!(one.world.log(), two.world.log(), "seed {seed}");
        assert_eq!(one.polls, two.polls, "seed {seed}");
    }
}

#[test]
fn lives_side_by_side_killed_at_random_leave_nothing_and_tell_every_end() {
    let (from, seeds) = (number("MODEL_FROM", 0), number("MODEL_SEEDS", 20));
    let (mut tally, mut all_polls) = (Tally::default(), 0);
    for seed in from..from + seeds {
        let plan = Plan::drawn(seed);
        let unkilled = run(&plan);
        report(&format!("seed {seed}, not killed"), &unkilled);
        tally.add(&unkilled.world);
        all_polls += unkilled.polls;
        let plan = plan.killed(unkilled.polls);
        let killed = run(&plan);
        let what = format!("seed {seed}, killed after polls {:?}", plan.kills);
        report(&what, &killed);
        tally.add(&killed.world);
    }
    eprintln!("{seeds} seeds, {all_polls} polls: {tally:#?}");
}
