//! cairn-bench-hostile [--name NAME] [--json FILE] [--only TEXT] [--seconds 12]: measures how long
//! the calls of other pods take while NRI plugins misbehave. Two clients make and end pods; each
//! row is compared with a quiet period right before and right after it.
//!
//! ```text
//! main ── rows: a Scene each ──► load: two clients of CRI, the times of their calls
//!            └── plugin: this program again, in a process of its own, killed at the row's end
//! ```
//! Environment: CRI and NRI, the sockets; IMAGE, a busybox that the runtime has; RESTART, a command
//! that kills the runtime and starts it again. `hack/bench nri --hostile` starts the runtimes, one
//! at a time, and makes the table from the JSON lines.

mod load;
mod plugin;
mod rows;

use std::{
    env, fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use cairn_tests::bench;
use load::{Kind, Period, STILL, percentile};
use plugin::Attack;
use rows::{ROWS, Row, Stage, WARM};
use rustix::process::{Resource, getrlimit, setrlimit};
use serde_json::{Value, json};

/// Length of the quiet periods before and after each row.
const QUIET: Duration = Duration::from_secs(4);
/// `hack/contract` sets it for every runtime.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);
/// Goal for a row's p99, as a multiple of the quiet p99.
const GOAL: f64 = 1.2;

struct Options {
    name: String,
    json: Option<PathBuf>,
    only: String,
    length: Duration,
}

fn options() -> Option<Options> {
    let mut options = Options {
        name: "cairn".to_owned(),
        json: None,
        only: String::new(),
        length: Duration::from_secs(12),
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        let value = args.next()?;
        match arg.as_str() {
            "--name" => options.name = value,
            "--json" => options.json = Some(value.into()),
            "--only" => options.only = value,
            "--seconds" => options.length = Duration::from_secs(value.parse().ok()?),
            _ => return None,
        }
    }
    // A shorter row could not be detected as blocked.
    (options.length > STILL).then_some(options)
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().build().expect("a tokio runtime");
    if let [plugin, attack, socket] = &args[..]
        && plugin == "plugin"
    {
        let attack = Attack::named(attack).expect("a misdeed");
        allow_connections();
        runtime.block_on(attack.commit(Path::new(socket)));
        return ExitCode::SUCCESS;
    }
    let Some(options) = options() else {
        eprintln!(
            "usage: cairn-bench-hostile [--name NAME] [--json FILE] [--only TEXT] [--seconds MORE-THAN-10]"
        );
        return ExitCode::from(2);
    };
    let (Some((socket, image)), Some(nri), Ok(restart)) =
        (bench::given(), env::var_os("NRI"), env::var("RESTART"))
    else {
        eprintln!(
            "cairn-bench-hostile: CRI, NRI, IMAGE or RESTART is not set; `hack/bench` says how it is run"
        );
        return ExitCode::from(2);
    };
    let stage = Stage {
        socket,
        nri: nri.into(),
        image,
        restart,
    };
    match runtime.block_on(measure(&options, &stage)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("cairn-bench-hostile: {why}");
            ExitCode::FAILURE
        }
    }
}

/// Raises the limit of descriptors to its maximum.
fn allow_connections() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("up to its own maximum");
}

async fn measure(options: &Options, stage: &Stage) -> Result<(), String> {
    stage.quiet(WARM).await?;
    let mut before = stage.quiet(QUIET).await?;
    for row in ROWS.iter().filter(|row| row.name.contains(&options.only)) {
        if let Some(lacks) = row.scene.lacks(&options.name) {
            report(options, row, json!({ "note": lacks }));
            continue;
        }
        let period = stage.row(row.scene, options.length).await;
        let period = period.map_err(|why| format!("{}: {why}", row.name))?;
        let after = stage.quiet(QUIET).await?;
        report(options, row, figures(row, &period, &before.joined(&after)));
        before = after;
    }
    Ok(())
}

fn figures(row: &Row, period: &Period, quiet: &Period) -> Value {
    json!({
        "pods_s": period.pods_a_second(),
        "quiet_pods_s": quiet.pods_a_second(),
        "gap_s": period.gap.as_secs_f64(),
        "still": period.gap >= STILL,
        "failed": period.failed(),
        "why": period.why,
        "RunPodSandbox": cell(row, period, quiet, Kind::RunPodSandbox),
        "CreateContainer": cell(row, period, quiet, Kind::CreateContainer),
    })
}

/// The times of one kind of call, and whether they meet the goal.
fn cell(row: &Row, period: &Period, quiet: &Period, kind: Kind) -> Option<Value> {
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let quiet = quiet.times(kind);
    let (quiet_p50, quiet_p99) = (percentile(&quiet, 50)?, percentile(&quiet, 99)?);
    let goal = quiet_p99.mul_f64(GOAL);
    let once = if row.waits {
        period.waits(kind, goal..=REQUEST_TIMEOUT + goal)
    } else {
        Vec::new()
    };
    let mut times = period.times(kind);
    let p50 = percentile(&times, 50)?;
    times.retain(|time| !once.contains(time));
    // If every call is excused, the longest one stands for them.
    let p99 = percentile(&times, 99).or(once.iter().max().copied())?;
    Some(json!({
        "calls": times.len(), "p50": ms(p50), "p99": ms(p99),
        "quiet_p50": ms(quiet_p50), "quiet_p99": ms(quiet_p99),
        "times": ms(p99) / ms(quiet_p99),
        "once": once.iter().max().map(|time| ms(*time)),
        "holds": p99 <= goal,
    }))
}

fn report(options: &Options, row: &Row, mut line: Value) {
    let text = |of: &str| match &line[of] {
        Value::Null => "no call".to_owned(),
        cell => format!(
            "{:.0} / {:.0} ms ({:.1}{}{})",
            cell["p50"].as_f64().unwrap_or_default(),
            cell["p99"].as_f64().unwrap_or_default(),
            cell["times"].as_f64().unwrap_or_default(),
            cell["once"]
                .as_f64()
                .map(|once| format!(", once {once:.0}"))
                .unwrap_or_default(),
            if cell["holds"] == true { "" } else { " !" },
        ),
    };
    match line["note"].as_str() {
        Some(note) => println!("{:<12} {:<54} {note}", options.name, row.name),
        None => println!(
            "{:<12} {:<54} Run {:<32} Create {:<32} {:>5.1} pods/s (quiet {:.1}), no answer for {:.1} s, {} failed{}",
            options.name,
            row.name,
            text("RunPodSandbox"),
            text("CreateContainer"),
            line["pods_s"].as_f64().unwrap_or_default(),
            line["quiet_pods_s"].as_f64().unwrap_or_default(),
            line["gap_s"].as_f64().unwrap_or_default(),
            line["failed"],
            line["why"]
                .as_str()
                .map(|why| format!(" ({why})"))
                .unwrap_or_default(),
        ),
    }
    let Some(path) = &options.json else {
        return;
    };
    line["runtime"] = options.name.clone().into();
    line["row"] = row.name.into();
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{line}"));
    written.unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
