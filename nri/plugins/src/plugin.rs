//! Shared code of the binaries: from the command line to a serving plugin.

use std::{env, io::Write, process::ExitCode};

use nri::{
    Handlers, Stub,
    proto::{Container, PodSandbox},
};

use crate::{
    cli::{Args, Flag, Stop, Usage},
    log::Log,
};

/// A sample, built from a command line: a [`nri::Plugin`], or a builder of a handler table.
pub trait Sample: Into<Handlers> {
    /// Name of the program, and for registration.
    const NAME: &'static str;
    const USAGE: Usage;
    /// Flags in addition to the common ones.
    const FLAGS: &'static [Flag];

    /// Builds it from the command line; an error ends the program with this line.
    fn new(args: &Args, log: Log) -> Result<Self, String>;
}

/// Runs a plugin until its runtime ends: exit 0 then and for help and version, 2 for a wrong
/// command line, 1 else.
pub fn main<P: Sample>() -> ExitCode {
    match arguments(P::NAME, &P::USAGE, P::FLAGS) {
        Err(code) => code,
        Ok(args) => {
            let log = Log::new(P::NAME, args.is("verbose"));
            let served = P::new(&args, log.clone()).and_then(|plugin| {
                let index = args.get("idx").map(str::to_owned);
                run(serve(P::NAME, index, args, plugin))
            });
            end(&log, served)
        }
    }
}

/// Parses the command line, or prints the requested text and returns the exit code.
pub fn arguments(name: &str, usage: &Usage, flags: &[Flag]) -> Result<Args, ExitCode> {
    match Args::parse(name, usage, flags, env::args().skip(1)) {
        Ok(args) => Ok(args),
        Err(Stop::Text(text)) => {
            let _ = std::io::stdout().write_all(text.as_bytes());
            Err(ExitCode::SUCCESS)
        }
        Err(Stop::Bad(reason)) => {
            let _ = writeln!(std::io::stderr(), "{name}: {reason}; -help lists the flags");
            Err(ExitCode::from(2))
        }
    }
}

/// Logs why the plugin ended.
pub fn end(log: &Log, served: Result<(), String>) -> ExitCode {
    let Err(reason) = served else {
        return ExitCode::SUCCESS;
    };
    log.info(reason);
    ExitCode::FAILURE
}

/// Runs a future on one thread.
pub fn run(work: impl Future<Output = Result<(), String>>) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .map_err(|e| format!("no runtime: {e}"))?
        .block_on(work)
}

/// Serves a plugin by the common flags until the connection is lost; returns the reason. Its name
/// is that of the program unless the stub derives it, and the index, from the program's file name
/// (NRI-900).
pub async fn serve(
    program: &str,
    index: Option<String>,
    args: Args,
    plugin: impl Into<Handlers>,
) -> Result<(), String> {
    let mut stub = Stub::builder(plugin).reconnect(args.is("reconnect"));
    if let Some(name) = args.get("name").or(index.as_ref().map(|_| program)) {
        stub = stub.name(name);
    }
    if let Some(index) = index {
        stub = stub.index(index);
    }
    if let Some(socket) = args.get("socket-path") {
        stub = stub.socket(socket);
    }
    stub.run().await.map_err(|e| e.to_string())
}

/// The name of a container in logs.
pub fn display(pod: &PodSandbox, container: &Container) -> String {
    format!("{}/{}/{}", pod.namespace, pod.name, container.name)
}
