//! Runs an NRI plugin that is a WebAssembly module, for any runtime: a normal plugin in its own
//! process, with access only to a clock, random numbers and a log.
//!
//! ```text
//!  runtime ◄─NRI─► nri-wasm: Stub ─► plugin (handlers) ─► module (calls, deadlines) ─► host (WASI)
//! ```
//! cairn starts it for each module in its plugin directory.

mod host;
mod module;
mod plugin;

use std::{fs, path::PathBuf, process::ExitCode};

use nri::Stub;

const USAGE: &str = "\
nri-wasm: runs an NRI plugin that is a WebAssembly module

  nri-wasm MODULE [-idx NN] [-name NAME] [-socket-path PATH] [-memory MIB]

  -idx NN             two-digit index; without it the module's file must be called NN-name
  -name NAME          name to register with (default: that of the file)
  -socket-path PATH   NRI socket of the runtime (default: /var/run/nri/nri.sock)
  -memory MIB         as much as the module may take, tables included (default: 256)

It connects again when the runtime is restarted. cairn starts it by itself for modules in its plugin directory.
";

#[derive(Debug, Default, PartialEq, Eq)]
struct Args {
    module: PathBuf,
    index: Option<String>,
    name: Option<String>,
    socket: Option<PathBuf>,
    memory: usize,
}

fn parse(given: impl IntoIterator<Item = String>) -> Result<Args, String> {
    let mut args = Args {
        memory: 256,
        ..Args::default()
    };
    let mut given = given.into_iter();
    while let Some(arg) = given.next() {
        let Some(flag) = arg.strip_prefix('-') else {
            if !args.module.as_os_str().is_empty() {
                return Err(format!("{arg}: one module at a time"));
            }
            args.module = arg.into();
            continue;
        };
        let flag = flag.strip_prefix('-').unwrap_or(flag);
        let (flag, value) = match flag.split_once('=') {
            Some((flag, value)) => (flag, Some(value.to_owned())),
            None => (flag, None),
        };
        if matches!(flag, "h" | "help") {
            return Err(String::new());
        }
        if !matches!(flag, "idx" | "name" | "socket-path" | "memory") {
            return Err(format!("-{flag}: no such flag"));
        }
        let value = value.or_else(|| given.next());
        let value = value.ok_or_else(|| format!("-{flag}: needs a value"))?;
        match flag {
            "idx" => args.index = Some(value),
            "name" => args.name = Some(value),
            "socket-path" => args.socket = Some(value.into()),
            _ => {
                let memory = value.parse().ok().filter(|mib| (1..=4096).contains(mib));
                args.memory =
                    memory.ok_or_else(|| format!("-memory {value}: must be from 1 to 4096 MiB"))?;
            }
        }
    }
    if args.module.as_os_str().is_empty() {
        Err("a module is needed".to_owned())
    } else {
        Ok(args)
    }
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(why) if why.is_empty() => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprint!("nri-wasm: {why}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("nri-wasm: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> Result<(), String> {
    let at = |why: &dyn std::fmt::Display| format!("{}: {why}", args.module.display());
    let bytes = fs::read(&args.module).map_err(|e| at(&e))?;
    let module = module::Module::load(&bytes, args.memory << 20).map_err(|e| at(&e))?;
    drop(bytes);
    let launched = std::env::var_os("NRI_PLUGIN_SOCKET").is_some();
    let mut builder = Stub::builder(plugin::handlers(module))
        .reconnect(!launched)
        .on_disconnect(|why, _| host::say("warning", &why.to_string()));
    if !launched {
        let file = args
            .module
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy();
        let (index, name) = match file.split_once('-') {
            Some((index, name)) if index.len() == 2 => (Some(index.to_owned()), name.to_owned()),
            _ => (None, file.into_owned()),
        };
        let index = args.index.clone().or(index);
        let index =
            index.ok_or_else(|| at(&"-idx NN is needed where the file is not called NN-name"))?;
        builder = builder.index(index).name(args.name.clone().unwrap_or(name));
        if let Some(socket) = &args.socket {
            builder = builder.socket(socket);
        }
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.map_err(|e| e.to_string())?;
    runtime
        .block_on(builder.run_until(ended()))
        .map_err(|e| e.to_string())
}

/// SIGTERM or SIGINT.
async fn ended() {
    use tokio::signal::unix::{SignalKind, signal};
    let term = signal(SignalKind::terminate());
    let int = signal(SignalKind::interrupt());
    match (term, int) {
        (Ok(mut term), Ok(mut int)) => {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
        }
        _ => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn arguments_are_taken_in_the_forms_of_the_samples() {
        let args = parsed("a.wasm -idx 10 --name=x -socket-path /s -memory 8").expect("good");
        assert_eq!(
            args,
            Args {
                module: "a.wasm".into(),
                index: Some("10".into()),
                name: Some("x".into()),
                socket: Some("/s".into()),
                memory: 8,
            }
        );
        for (line, why) in [
            ("", "a module is needed"),
            ("a b", "b: one module at a time"),
            ("a -nope 1", "-nope: no such flag"),
            ("a -idx", "-idx: needs a value"),
            ("a -memory 0", "-memory 0: must be from 1 to 4096 MiB"),
            ("-help", ""),
        ] {
            assert_eq!(parsed(line), Err(why.to_owned()));
        }
    }
}
