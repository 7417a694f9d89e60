//! cairn: a small CRI runtime with NRI built in.
//!
//! Only this file chooses signals, exit codes and the destination of output.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    fs::File,
    io::{self, IsTerminal as _, Write as _},
    os::fd::AsFd as _,
    process::ExitCode,
    time::Duration,
};

use cairn::{
    cli::{
        args::{Check, Cli, Command, ConfigCommand, ImageCommand, NetworkCommand},
        check_table, client, image, network, ps,
        serve_flags::Serve,
        standard_output, status,
    },
    config::{self, Config, Format},
    daemon::{log::Log, serve},
    inherited, memory,
    preflight::{self, State},
};
use clap::{CommandFactory as _, Parser as _};
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::{
    filter::{LevelFilter, Targets},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

/// Lifetime of an idle thread for blocking work.
const IDLE_THREAD: Duration = Duration::from_secs(2);
/// The daemon's exit code if every start would fail until the configuration or the host changes:
/// EX_CONFIG of sysexits(3). Its unit then does not restart it.
const CHANGE_FIRST: u8 = 78;

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(serve) => run_daemon(serve),
        Command::Config(command) => report(run_config(command)),
        Command::Check(arguments) => verdict(run_check(arguments)),
        Command::Image(ImageCommand::Ls(arguments)) => report(client(image::ls(arguments))),
        Command::Image(ImageCommand::Rm(arguments)) => report(client(image::rm(arguments))),
        Command::Image(ImageCommand::Pull(arguments)) => {
            report(client(image::pull(arguments, interrupt())))
        }
        Command::Image(ImageCommand::Import {
            file,
            name,
            connect,
        }) => report(client(client::import(&connect, &file, name))),
        Command::Network(NetworkCommand::Ls(arguments)) => report(client(network::ls(arguments))),
        Command::Network(NetworkCommand::Gc(arguments)) => verdict(client(network::gc(arguments))),
        Command::Ps(arguments) => report(client(ps::ps(arguments))),
        Command::Status(arguments) => verdict(client(status::status(arguments))),
        Command::Timeline(arguments) => report(client(client::timeline(arguments))),
        Command::Plugins(arguments) => report(client(client::plugins(arguments))),
        Command::Explain(arguments) => report(client(client::explain(arguments))),
        Command::Rm(arguments) => report(client(client::rm(arguments))),
        Command::Completion { shell } => {
            let mut command = Cli::command();
            clap_complete::generate(shell, &mut command, "cairn", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Man { dir } => report(write_manual(&dir)),
        Command::Unpack { args } => cairn::image::unpack::helper_main(args),
        Command::Look => cairn::host::lookup_helper::helper_main(),
        Command::Sandbox => cni_shim::namespaces::helper_main(),
    }
}

/// Ready at the first SIGINT. If it cannot be caught, SIGINT ends the program.
async fn interrupt() {
    match signal(SignalKind::interrupt()) {
        Ok(mut interrupt) => {
            interrupt.recv().await;
        }
        Err(_) => std::future::pending().await,
    }
}

/// Prints an error as one line for the user.
fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The exit code shows whether the result is good.
fn verdict(result: Result<bool, String>) -> ExitCode {
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => report(Err(error)),
    }
}

fn run_config(command: ConfigCommand) -> Result<(), String> {
    match command {
        ConfigCommand::Default => standard_output::write(config::DEFAULT_TEXT).map(drop),
        ConfigCommand::Check { file } => {
            config::read(&file)
                .and_then(Config::check)
                .map_err(|error| error.to_string())?;
            standard_output::write(&format!("{}: fine\n", file.display())).map(drop)
        }
    }
}

/// A page for each public command, and one for the configuration.
#[expect(
    clippy::disallowed_methods,
    reason = "a command has no clients to delay"
)]
fn write_manual(dir: &std::path::Path) -> Result<(), String> {
    clap_mangen::generate_to(Cli::command(), dir)
        .and_then(|()| std::fs::write(dir.join("cairn.toml.5"), config::manual()))
        .map_err(|error| format!("write manual pages into {}: {error}", dir.display()))
}

/// Whether pods can run.
fn run_check(arguments: Check) -> Result<bool, String> {
    let config = arguments.serve.over_file().and_then(Config::check);
    let config = config.map_err(|error| error.to_string())?;
    let program = std::env::current_exe().map_err(|e| format!("find our own program: {e}"))?;
    let report = preflight::inspect(&config, &program, None);
    let (width, color) = client::terminal();
    arguments.output.print(
        || check_table::table(&report, width, color),
        || check_table::json(&report),
    );
    Ok(report.state() != State::Fails)
}

fn run_daemon(serve: Serve) -> ExitCode {
    let config = match serve.over_file().and_then(Config::check) {
        Ok(config) => config,
        Err(error) => {
            report(Err(error.to_string()));
            return ExitCode::from(CHANGE_FIRST);
        }
    };
    memory::bound_the_allocator();
    let log = match start_log(&config) {
        Ok(log) => log,
        Err(error) => return report(Err(format!("start the log: {error}"))),
    };
    let mut log = DrainedAtEnd(log);
    let served = serve_until_stopped(config);
    if let Err(error) = &served {
        let line = format!("cairn: {error}");
        // A log that cannot be written is not reported.
        let _ = log.0.write_all(line.as_bytes());
    }
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(serve::Error::Unusable(_)) => ExitCode::from(CHANGE_FIRST),
        Err(_) => ExitCode::FAILURE,
    }
}

/// Drains the log even if the daemon panics.
struct DrainedAtEnd(Log);

impl Drop for DrainedAtEnd {
    fn drop(&mut self) {
        self.0.drain();
    }
}

fn serve_until_stopped(config: Config) -> Result<(), serve::Error> {
    inherited::raise_open_files();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        // Each keeps a stack, and allocator chunks that pin pages; a new one takes 20 us.
        .thread_keep_alive(IDLE_THREAD)
        .build()
        .map_err(serve::Error::Threads)?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(serve::Error::Signals)?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(serve::Error::Signals)?;
        // A handler: if it were ignored, so would it be in every process that the daemon starts.
        let mut hangup = signal(SignalKind::hangup()).map_err(serve::Error::Signals)?;
        let shutdown = async move {
            loop {
                tokio::select! {
                    _ = terminate.recv() => break tracing::info!("ending on SIGTERM"),
                    _ = interrupt.recv() => break tracing::info!("ending on SIGINT"),
                    _ = hangup.recv() => tracing::info!("ignored SIGHUP: a changed cairn.toml needs a restart"),
                }
            }
        };
        serve::serve(config, Box::pin(shutdown)).await
    });
    // Running steps are abandoned; their records resume at the next start.
    runtime.shutdown_background();
    result
}

/// From now on only the log's thread writes to stderr, including panics.
fn start_log(config: &Config) -> io::Result<Log> {
    let colored = config.log.format == Format::Human && io::stderr().is_terminal();
    // Its own descriptor, so that nothing waits for the lock of `io::stderr`.
    let stderr = File::from(io::stderr().as_fd().try_clone_to_owned()?);
    let log = Log::start(stderr, colored)?;
    let level = match config.log.level {
        config::Level::Error => LevelFilter::ERROR,
        config::Level::Warn => LevelFilter::WARN,
        config::Level::Info => LevelFilter::INFO,
        config::Level::Debug => LevelFilter::DEBUG,
        config::Level::Trace => LevelFilter::TRACE,
    };
    // Libraries log from the level above ours.
    let filter = Targets::new()
        .with_default(LevelFilter::WARN)
        .with_targets(["cairn", "nri", "cni_shim"].map(|of| (of, level)));
    let layer = tracing_subscriber::fmt::layer().with_writer({
        let log = log.clone();
        move || log.clone()
    });
    let all = tracing_subscriber::registry().with(filter);
    match config.log.format {
        Format::Human => {
            let layer = layer.with_ansi(colored).with_target(false);
            all.with(layer).init();
        }
        Format::Json => all.with(layer.json()).init(),
    }
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = Backtrace::capture();
        match backtrace.status() {
            BacktraceStatus::Captured => tracing::error!("{panic}: {backtrace}"),
            _ => tracing::error!("{panic}"),
        }
    }));
    Ok(log)
}

fn client<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?;
    let result = runtime.block_on(work);
    // Does not wait for standard input, which a failed import may still read.
    runtime.shutdown_background();
    result
}
