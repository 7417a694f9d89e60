//! `nri-contract`: checks a running CRI runtime against CONTRACT.md, from outside and from inside
//! its hooks.
//!
//! ```text
//! main ── args, expect ── runner ──► one Stage for each point ── points/*: the checks, by guarantee
//!                           │              ├── cri     the kubelet's calls (crate k8s-cri)
//!                           │              ├── testkit plugins on our stub, raw: frames by hand
//!                           │              ├── look    the host: namespaces, cgroups, processes
//!                           │              └── witness a plugin that the runtime launches: this program
//!                           └──► report: table, JSON, JUnit
//! ```
//! It uses only the runtime's two sockets and the kernel's view of its objects; it uses no code of
//! cairn.

mod args;
mod cri;
mod expect;
mod look;
mod point;
mod points;
mod raw;
mod report;
mod restart;
mod runner;
mod stage;
mod witness;

use std::{
    fs,
    hash::{BuildHasher, RandomState},
    io::{IsTerminal, Write},
    process::ExitCode,
    sync::Arc,
    time::{Duration, Instant},
};

use args::Args;
use expect::Deviations;
use parking_lot::Mutex;
use point::{Cost, Point};
use report::{Counts, Subject};
use restart::Restart;
use runner::Runner;
use stage::Run;
use testkit::{journal::Journal, plugin::Wanted};

#[tokio::main]
async fn main() -> ExitCode {
    if let [_, flag, notes] = &std::env::args().collect::<Vec<_>>()[..]
        && flag == witness::FLAG
    {
        return witness::serve(notes.into()).await;
    }
    let args = match Args::parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) if why.is_empty() => {
            print(args::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("nri-contract: {why} (see --help)");
            return ExitCode::from(2);
        }
    };
    match asked(args).await {
        Ok(code) => code,
        Err(why) => {
            eprintln!("nri-contract: {why}");
            ExitCode::from(2)
        }
    }
}

/// Returns all points, or the requested ones, in their order.
fn chosen(args: &Args) -> Result<Vec<Point>, String> {
    let mut points = points::all();
    if let Some(only) = &args.only {
        points.retain(|point| point::matches(only, &point.id));
    }
    if args.fast {
        points.retain(|point| point.cost == Cost::Fast);
    }
    if points.is_empty() {
        return Err("no point is called so (see --list)".to_owned());
    }
    points.sort_by_key(|point| point.cost);
    if let Some(seed) = args.shuffle {
        point::shuffle(&mut points, seed);
    }
    if let Some((k, n)) = args.shard {
        let all = std::mem::take(&mut points).into_iter();
        points = all.skip(k - 1).step_by(n).collect();
    }
    Ok(points)
}

async fn asked(args: Args) -> Result<ExitCode, String> {
    let points = chosen(&args)?;
    if args.list {
        let lines = points.iter().map(|p| format!("{:<42} {}\n", p.id, p.title));
        print(&lines.collect::<String>());
        return Ok(ExitCode::SUCCESS);
    }
    let deviations = match &args.expect {
        Some(path) => Deviations::read(path, &points::all())?,
        None => Deviations::default(),
    };
    let scratch = tempfile::Builder::new()
        .prefix("nri-contract-")
        .tempdir()
        .map_err(|e| format!("no temporary directory: {e}"))?;
    let (run, subject) = prepare(&args, scratch.path()).await?;
    let begun = Instant::now();
    let mut runner = Runner::new(run.clone(), deviations, args.repeat);
    let mut rows = Vec::new();
    let interrupted = tokio::select! {
        () = runner.all(&points, &mut rows) => false,
        () = told_to_end() => true,
    };
    let took = begun.elapsed();
    let left = leave(&run).await;
    write_files(&args, &subject, &rows, took)?;
    let colour = std::io::stdout().is_terminal();
    print(&report::table(&rows, !args.quiet, colour));
    let counts = Counts::of(&rows);
    print(&format!(
        "{} {} (NRI {}): {} in {:.1} s\n",
        subject.runtime,
        subject.version,
        subject.nri_version,
        counts.line(),
        took.as_secs_f64()
    ));
    left?;
    if interrupted {
        return Err(format!(
            "interrupted after {} of {} points; what they made is removed",
            rows.len(),
            points.len()
        ));
    }
    Ok(ExitCode::from(u8::from(!counts.held())))
}

/// Inspects the runtime before the run creates any object.
async fn prepare(args: &Args, scratch: &std::path::Path) -> Result<(Arc<Run>, Subject), String> {
    use std::os::unix::fs::PermissionsExt;
    // Containers of any user must reach the files of points.
    fs::set_permissions(scratch, fs::Permissions::from_mode(0o755)).map_err(|e| e.to_string())?;
    let client = cri::connect(&args.cri).await?;
    let (runtime, version) = cri::version(&client)
        .await
        .map_err(|e| format!("{}: {}", args.cri, e.message()))?;
    cri::provide(&client, &args.image).await?;
    // Random: runs in different PID namespaces have equal pids, and share cgroups.
    let drawn = RandomState::new().hash_one(std::process::id());
    let id = format!("nc{:07x}", drawn & 0xfff_ffff);
    let cgroup_parent = if cri::systemd_cgroups(&client).await {
        format!("{id}.slice")
    } else {
        format!("/{id}")
    };
    let journal = Arc::new(Journal::new(format!("{id}-none-"), stage::PATIENCE));
    let scout = Wanted::new(&args.nri, "00", &format!("{id}-scout"), journal);
    let scout = scout.try_start().await;
    let scout = scout.map_err(|e| format!("no plugin is taken at {}: {e}", args.nri.display()))?;
    let info = scout.info().clone();
    drop(scout);
    let run = Run {
        common: Arc::new(cri::Common {
            image: args.image.clone(),
            cgroup_parent,
            logs: scratch.join("logs"),
        }),
        client: Mutex::new(client),
        id,
        nri: args.nri.clone(),
        restart: args.restart.clone().map(|command| Restart {
            command,
            endpoint: args.cri.clone(),
            nri: args.nri.clone(),
        }),
        plugin_dir: args.plugin_dir.clone(),
        pod_ips: args.pod_ips,
        request_timeout: info.request_timeout,
        nri_version: info.nri_version.unwrap_or_else(|| "unknown".to_owned()),
        scratch: scratch.to_owned(),
    };
    let subject = Subject {
        runtime,
        version,
        nri_version: run.nri_version.clone(),
        protocol: "v1".to_owned(),
    };
    Ok((Arc::new(run), subject))
}

/// Removes every object of the run.
async fn leave(run: &Run) -> Result<(), String> {
    witness::leave(run);
    cri::clear(&run.cri("")).await?;
    let parent = &run.common.cgroup_parent;
    let left = if parent.starts_with('/') {
        testkit::look::remove_cgroup(parent)
    } else {
        Vec::new()
    };
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("cgroups that cannot be removed: {left:?}"))
    }
}

fn write_files(
    args: &Args,
    subject: &Subject,
    rows: &[runner::Row],
    took: Duration,
) -> Result<(), String> {
    let write = |path: &std::path::Path, text: String| {
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    if let Some(path) = &args.json {
        let value = report::json(subject, rows, took);
        write(path, format!("{value:#}\n"))?;
    }
    if let Some(path) = &args.junit {
        write(path, report::junit(subject, rows, took))?;
    }
    Ok(())
}

async fn told_to_end() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut end)) = (
        signal(SignalKind::interrupt()),
        signal(SignalKind::terminate()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = end.recv() => {}
    }
}

/// Ignores a closed standard output.
fn print(text: &str) {
    let _ = std::io::stdout().write_all(text.as_bytes());
}
