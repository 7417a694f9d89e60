//! The command line.

use std::{
    ffi::OsString,
    fmt::{Display, Write as _},
    fs,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{CommandFactory as _, Parser, Subcommand};
use nri_record::Values;
use rustix::fs::{Access, access};
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{
    init,
    plugin::How,
    record::{self, Proxy},
    replay::{self, Manners},
    report::{
        Report,
        human::{self, Paint},
        junit,
    },
    rules,
    run::{self, Misuse},
    scenario::{self, Scenario},
};

/// All expectations were met.
const HELD: u8 = 0;
/// A step failed, or a rule was broken.
const FAILED: u8 = 1;
/// The command line or a scenario is invalid, or the plugin did not join.
const MISUSE: u8 = 2;

/// Plays a container runtime to an NRI plugin: no root, no containers, the real wire
#[derive(Parser)]
#[command(name = "nri-bench", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run scenarios against a plugin; 0: all held, 1: something failed, 2: misuse, or the plugin
    /// did not join
    Run(Run),
    /// Print a scenario to begin with: of a pod as Kubernetes writes it, of a recording, or with
    /// comments
    Init {
        /// A Pod, or a Deployment, DaemonSet, StatefulSet or Job, in YAML or JSON, or a
        /// recording; - is standard input
        file: Option<PathBuf>,
        /// Of a recording, whose connection, as NN-name or name; needed where there are several
        #[arg(long, value_name = "NAME")]
        plugin: Option<String>,
    },
    /// Record what a runtime and its plugins say, from between them; Ctrl-C ends it
    Record(Record),
    /// Play a recording to a plugin; 0: it answers as recorded, 1: it does not, or broke a rule, 2:
    /// misuse, or it did not join
    Replay(Replay),
    /// List the rules that plugins are held to
    Rules,
    /// Print the script that completes this command's words in a shell
    Completion { shell: clap_complete::Shell },
}

#[derive(clap::Args)]
struct Run {
    /// Scenarios, in TOML; each is a runtime of its own
    #[arg(required = true)]
    scenarios: Vec<PathBuf>,
    #[command(flatten)]
    target: Target,
}

#[derive(clap::Args)]
struct Record {
    /// The runtime's NRI socket
    #[arg(long, value_name = "SOCKET", default_value = nri::DEFAULT_SOCKET)]
    nri: PathBuf,
    /// Where plugins connect in its stead
    #[arg(long, value_name = "SOCKET")]
    listen: PathBuf,
    /// Keep values of environment variables, and undecodable bytes
    #[arg(long)]
    with_env: bool,
    /// Gets the recording, in place of what is in it
    file: PathBuf,
}

#[derive(clap::Args)]
struct Replay {
    /// A recording
    recording: PathBuf,
    /// Whose connection, as NN-name or name; needed where there are several
    #[arg(long = "plugin", value_name = "NAME")]
    name: Option<String>,
    /// Wait as long between events as it was then
    #[arg(long)]
    pace: bool,
    #[command(flatten)]
    target: Target,
}

/// The plugin, and where what came out goes.
#[derive(clap::Args)]
struct Target {
    /// Wait at this socket for a plugin that somebody else starts
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ["connect", "plugin"])]
    listen: Option<PathBuf>,
    /// The plugin connects by itself: {socket} in its arguments is the socket's path
    #[arg(long)]
    connect: bool,
    /// Write what came out as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write what came out as JUnit XML
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// The plugin and its arguments; started as a runtime launches plugins, unless --connect
    #[arg(last = true)]
    plugin: Vec<OsString>,
}

impl Target {
    /// Checks before a run that its reports can be written after it.
    fn check_report_files(&self) -> Result<(), String> {
        let files = self.json.iter().chain(&self.junit);
        files.map(PathBuf::as_path).try_for_each(check_writable)
    }

    fn how(&self) -> Result<How, String> {
        match (&self.listen, self.connect) {
            (Some(_), _) => Ok(How::Awaited),
            (None, _) if self.plugin.is_empty() => {
                Err("no plugin: name it after --, or wait for one with --listen".to_owned())
            }
            (None, true) => Ok(How::Connected(self.plugin.clone())),
            (None, false) => Ok(How::Launched(self.plugin.clone())),
        }
    }
}

/// Runs the program with these arguments; returns its exit code.
pub fn main(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let mut out = io::stdout().lock();
    let colour = io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    ExitCode::from(answer(args, &mut out, &mut io::stderr(), Paint(colour)))
}

/// Runs the program for tests: it prints to `out` and `errors`, without colour.
pub fn answer_to(
    args: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    errors: &mut dyn Write,
) -> u8 {
    answer(args, out, errors, Paint(false))
}

fn answer(
    args: impl IntoIterator<Item = OsString>,
    out: &mut dyn Write,
    errors: &mut dyn Write,
    paint: Paint,
) -> u8 {
    let cli = match Cli::try_parse_from(args) {
        Ok(cli) => cli,
        Err(e) => {
            let code = if e.use_stderr() { MISUSE } else { HELD };
            // An error on a closed standard error cannot be reported.
            let _ = if e.use_stderr() {
                write!(errors, "{e}")
            } else {
                write!(out, "{e}")
            };
            return code;
        }
    };
    let done = match cli.command {
        Command::Run(run) => run_all(&run, out, paint),
        Command::Init { file, plugin } => begin(file.as_deref(), plugin.as_deref())
            .and_then(|text| say(out, &text))
            .map(|()| HELD),
        Command::Record(record) => run_record(&record, out),
        Command::Replay(replay) => run_replay(&replay, out, paint),
        Command::Rules => say(out, &list_of_rules()).map(|()| HELD),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "nri-bench", &mut script);
            say(out, &String::from_utf8_lossy(&script)).map(|()| HELD)
        }
    };
    done.unwrap_or_else(|why| {
        let _ = writeln!(errors, "nri-bench: {why}");
        MISUSE
    })
}

fn say(out: &mut dyn Write, text: &str) -> Result<(), String> {
    let printed = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    printed.map_err(|e| format!("standard output: {e}"))
}

fn begin(file: Option<&Path>, plugin: Option<&str>) -> Result<String, String> {
    let Some(path) = file else {
        return Ok(init::TEMPLATE.to_owned());
    };
    let in_file = |e: String| format!("{}: {e}", path.display());
    let text = match path.to_str() {
        Some("-") => io::read_to_string(io::stdin()),
        _ => fs::read_to_string(path),
    };
    let text = text.map_err(|e| in_file(e.to_string()))?;
    if nri_record::is_recording(text.as_bytes()) {
        let recording = nri_record::read(text.as_bytes()).map_err(|e| in_file(e.to_string()))?;
        let scripts = replay::scripts(&recording, plugin).map_err(in_file)?;
        let first = scripts.first().map(init::from_script);
        return Ok(first.unwrap_or_default());
    }
    if plugin.is_some() {
        return Err(in_file(
            "--plugin is for recordings, and this is none".to_owned(),
        ));
    }
    init::from_pod(&text).map_err(in_file)
}

fn run_record(args: &Record, out: &mut dyn Write) -> Result<u8, String> {
    let env = if args.with_env {
        Values::Kept
    } else {
        Values::Redacted
    };
    let runtime = tokio()?;
    let summary = runtime.block_on(async {
        let mut interrupts = Interrupts::take().map_err(|e| e.to_string())?;
        let mut proxy = Proxy::new(&args.nri, &args.listen, &args.file, env)?;
        let (listen, file) = (args.listen.display(), args.file.display());
        say(
            out,
            &format!("plugins connect to {listen}; {file} gets what is said; Ctrl-C ends it\n"),
        )?;
        tokio::select! {
            () = proxy.serve() => {}
            _ = interrupts.wait() => {}
        }
        Ok::<_, String>(proxy.end().await)
    })?;
    say(out, &record::reported(&summary, &args.file))?;
    Ok(if summary.incomplete { FAILED } else { HELD })
}

fn run_replay(args: &Replay, out: &mut dyn Write, paint: Paint) -> Result<u8, String> {
    let manners = Manners {
        how: args.target.how()?,
        socket: args.target.listen.clone(),
        pace: args.pace,
    };
    let path = args.recording.display();
    let file = fs::File::open(&args.recording).map_err(|e| format!("{path}: {e}"))?;
    let recording = nri_record::read(io::BufReader::new(file));
    let recording = recording.map_err(|e| format!("{path}: {e}"))?;
    let scripts = replay::scripts(&recording, args.name.as_deref());
    let scripts = scripts.map_err(|e| format!("{path}: {e}"))?;
    let replays = scripts.into_iter().map(|script| {
        let (plugin, connection) = (&script.plugin, script.connection);
        let name = format!("{path}: {plugin}, connection {connection}");
        let (replay, file) = (replay::replay(name, script, &manners), path.to_string());
        async move {
            let mut report = replay.await?;
            report.file = file;
            Ok::<_, String>(report)
        }
    });
    report_each(replays, &args.target, out, paint)
}

fn tokio() -> Result<tokio::runtime::Runtime, String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| e.to_string())
}

fn list_of_rules() -> String {
    let mut text = String::new();
    for about in rules::ALL {
        let _ = writeln!(text, "{}: {}", about.name, about.what);
        let _ = writeln!(text, "    source: {}", about.source);
        let _ = writeln!(text, "    remedy: {}", about.remedy);
    }
    text
}

fn read(path: &Path) -> Result<Scenario, String> {
    let text = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut scenario = scenario::read(&name, &text)
        .map_err(|e| format!("{}:{}: {}", path.display(), e.line, e.why))?;
    scenario.file = path.display().to_string();
    Ok(scenario)
}

fn run_all(args: &Run, out: &mut dyn Write, paint: Paint) -> Result<u8, String> {
    let how = args.target.how()?;
    // All are read before the first is run.
    let scenarios: Result<Vec<_>, _> = args.scenarios.iter().map(|path| read(path)).collect();
    let runs = scenarios?.into_iter().zip(&args.scenarios);
    let runs = runs.map(|(scenario, path)| {
        let run = run::run(scenario, how.clone(), args.target.listen.clone());
        async move {
            run.await.map_err(|misuse| match misuse {
                Misuse::Step { line, why } => format!("{}:{line}: {why}", path.display()),
                other => format!("{}: {other}", path.display()),
            })
        }
    });
    report_each(runs, &args.target, out, paint)
}

/// Makes the runs in sequence, and reports each.
fn report_each(
    runs: impl Iterator<Item = impl Future<Output = Result<Report, String>>>,
    target: &Target,
    out: &mut dyn Write,
    paint: Paint,
) -> Result<u8, String> {
    target.check_report_files()?;
    let runtime = tokio()?;
    let mut reports = Vec::new();
    for run in runs {
        let report = runtime.block_on(async {
            // Before any resource exists.
            let mut interrupts = Interrupts::take().map_err(|e| e.to_string())?;
            tokio::select! {
                // On the heap, because it contains all its steps.
                report = Box::pin(run) => report,
                // Dropping the run kills its plugins and removes its directories.
                why = interrupts.wait() => Err(why),
            }
        })?;
        say(out, &human::render(&report, paint))?;
        reports.push(report);
    }
    write_files(target, &reports)?;
    Ok(code(&reports))
}

/// SIGINT and SIGTERM, which end a run instead of only the process.
struct Interrupts(Signal, Signal);

impl Interrupts {
    /// From here on signals are queued.
    fn take() -> io::Result<Self> {
        let interrupt = signal(SignalKind::interrupt())?;
        Ok(Self(interrupt, signal(SignalKind::terminate())?))
    }

    async fn wait(&mut self) -> String {
        tokio::select! {
            _ = self.0.recv() => {}
            _ = self.1.recv() => {}
        }
        "interrupted: the plugin was killed, and nothing is reported".to_owned()
    }
}

fn check_writable(file: &Path) -> Result<(), String> {
    let failed = |error: &dyn Display| format!("cannot write {}: {error}", file.display());
    if file.is_dir() {
        return Err(failed(&"it is a directory"));
    }
    if file.exists() {
        return access(file, Access::WRITE_OK).map_err(|error| failed(&error));
    }
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    access(dir, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|error| failed(&format!("directory {}: {error}", dir.display())))
}

fn write_files(args: &Target, reports: &[Report]) -> Result<(), String> {
    let write = |path: &Path, text: String| {
        fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))
    };
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(reports).map_err(|e| e.to_string())?;
        write(path, json + "\n")?;
    }
    if let Some(path) = &args.junit {
        write(path, junit::render(reports))?;
    }
    Ok(())
}

fn code(reports: &[Report]) -> u8 {
    match reports {
        _ if reports.iter().any(|r| r.not_joined.is_some()) => MISUSE,
        _ if reports.iter().all(Report::held) => HELD,
        _ => FAILED,
    }
}
