//! cairn: a small CRI runtime with NRI built in.
//!
//! Only this file chooses signals, exit codes and where text goes.

use std::{io::IsTerminal as _, process::ExitCode};

use cairn::{
    app,
    args::{Cli, Command, ConfigCommand, ImageCommand, Serve},
    client,
    config::{self, Config, Format},
};
use clap::{CommandFactory as _, Parser as _};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Serve(serve) => report(run_daemon(serve)),
        Command::Config(command) => report(run_config(command)),
        Command::Image(ImageCommand::Import {
            file,
            name,
            connect,
        }) => report(client(client::import(&connect.connect, &file, name))),
        Command::Timeline(arguments) => report(client(client::timeline(arguments))),
        Command::Plugins(arguments) => report(client(client::plugins(arguments))),
        Command::Completion { shell } => {
            let mut command = Cli::command();
            clap_complete::generate(shell, &mut command, "cairn", &mut std::io::stdout());
            ExitCode::SUCCESS
        }
        Command::Unpack { args } => cairn::image::unpack::helper_main(args),
        Command::Sandbox => {
            ExitCode::from(u8::try_from(cni_shim::namespaces::helper_main()).unwrap_or(1))
        }
    }
}

/// Errors are one line for a person.
fn report(result: Result<(), String>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("cairn: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run_config(command: ConfigCommand) -> Result<(), String> {
    match command {
        ConfigCommand::Default => print!("{}", config::DEFAULT_TEXT),
        ConfigCommand::Check { file } => {
            config::read(&file)
                .and_then(Config::check)
                .map_err(|error| error.to_string())?;
            println!("{}: fine", file.display());
        }
    }
    Ok(())
}

fn run_daemon(serve: Serve) -> Result<(), String> {
    let config = serve
        .over_file()
        .and_then(Config::check)
        .map_err(|error| error.to_string())?;
    start_log(&config);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("start the async runtime: {error}"))?;
    let result = runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate()).map_err(|e| e.to_string())?;
        let mut interrupt = signal(SignalKind::interrupt()).map_err(|e| e.to_string())?;
        let shutdown = async move {
            tokio::select! {
                _ = terminate.recv() => tracing::info!("told to end by SIGTERM"),
                _ = interrupt.recv() => tracing::info!("told to end by SIGINT"),
            }
        };
        app::serve(config, shutdown)
            .await
            .map_err(|error| error.to_string())
    });
    // Steps under way are abandoned; their records resume at the next start.
    runtime.shutdown_background();
    result
}

fn start_log(config: &Config) {
    let level = match config.log.level {
        config::Level::Error => "error",
        config::Level::Warn => "warn",
        config::Level::Info => "info",
        config::Level::Debug => "debug",
        config::Level::Trace => "trace",
    };
    // Libraries speak from the level above ours.
    let filter = format!("warn,cairn={level},nri={level},cni_shim={level}");
    let builder = tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::new(filter))
        .with_writer(std::io::stderr);
    match config.log.format {
        Format::Human => builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .init(),
        Format::Json => builder.json().init(),
    }
}

fn client<F: Future<Output = Result<(), String>>>(work: F) -> Result<(), String> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| error.to_string())?
        .block_on(work)
}
