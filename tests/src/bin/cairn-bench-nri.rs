//! cairn-bench-nri [--containers N] [--cri SOCKET --nri SOCKET] [GO-PLUGIN [ARGS...]]: measures how
//! much idle plugins add to CreateContainer.
//!
//! One daemon in a yard, a pod on the host's network, containers created and removed one by one,
//! with 0, 1, 5 and 10 plugins that subscribe to every event. The series take turns, to spread
//! other load of the machine evenly. Without `GO-PLUGIN` the plugins are this program, as `plugin
//! INDEX SOCKET`. `--cri` and `--nri` measure another serving runtime.
//!
//! A plugin with all thirteen events is called twice per CreateContainer: with CreateContainer and
//! PostCreateContainer.

use std::{
    env,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use cairn_tests::{
    Daemon, Setup,
    client::Client,
    client::Cri,
    cri,
    pod::{container_namespaces, host_network},
};
use nri::{Handlers, stub::Stub};

const SERIES: [usize; 4] = [0, 1, 5, 10];
const ROUNDS: usize = 5;
/// Containers after each change of the plugins that are not counted.
const WARM: usize = 5;
/// CreateContainer and PostCreateContainer.
const EVENTS: u32 = 2;

struct Options {
    containers: usize,
    /// CRI and NRI socket of another runtime.
    other: Option<(PathBuf, PathBuf)>,
    /// A program and its arguments, before `-idx` and `-socket`.
    plugin: Vec<String>,
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let builder = if args.first().is_some_and(|a| a == "plugin") {
        tokio::runtime::Builder::new_current_thread()
    } else {
        tokio::runtime::Builder::new_multi_thread()
    };
    let runtime = { builder }.enable_all().build().expect("a tokio runtime");
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["plugin", index, socket] => runtime.block_on(plugin(index, Path::new(socket))),
        _ => match options(args) {
            Some(options) => runtime.block_on(measure(&options)),
            None => return ExitCode::from(2),
        },
    }
    ExitCode::SUCCESS
}

fn options(args: Vec<String>) -> Option<Options> {
    let mut options = Options {
        containers: 200,
        other: None,
        plugin: Vec::new(),
    };
    let (mut cri, mut nri) = (None, None);
    let mut args = args.into_iter();
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--containers" => options.containers = args.next()?.parse().ok()?,
            "--cri" => cri = Some(args.next()?.into()),
            "--nri" => nri = Some(args.next()?.into()),
            _ => {
                options.plugin.push(arg);
                options.plugin.extend(args.by_ref());
            }
        }
    }
    options.other = cri.zip(nri);
    Some(options)
}

/// A plugin that subscribes to all thirteen events and does nothing.
async fn plugin(index: &str, socket: &Path) {
    let handlers = Handlers::new()
        .run_pod_sandbox(|_| async { Ok(()) })
        .update_pod_sandbox(|_, _, _| async { Ok(()) })
        .post_update_pod_sandbox(|_| async { Ok(()) })
        .stop_pod_sandbox(|_| async { Ok(()) })
        .remove_pod_sandbox(|_| async { Ok(()) })
        .create_container(|_, _| async { Ok((None, Vec::new())) })
        .post_create_container(|_, _| async { Ok(()) })
        .start_container(|_, _| async { Ok(()) })
        .post_start_container(|_, _| async { Ok(()) })
        .update_container(|_, _, _| async { Ok(Vec::new()) })
        .post_update_container(|_, _| async { Ok(()) })
        .stop_container(|_, _| async { Ok(Vec::new()) })
        .remove_container(|_, _| async { Ok(()) })
        .synchronize(|_, _| async {
            println!("synchronized");
            Ok(Vec::new())
        });
    let stub = Stub::builder(handlers)
        .name("noop")
        .index(index)
        .socket(socket)
        .reconnect(false);
    let _ = stub.run().await;
}

/// Ends its process when dropped.
struct Plugin(Child);

impl Plugin {
    /// Starts one and waits until it is synchronized.
    fn start(program: &[String], index: usize, socket: &Path) -> Self {
        let index = format!("{index:02}");
        let mut command = match program {
            [] => {
                let mut ours = Command::new(env::current_exe().expect("this program has a path"));
                ours.args(["plugin", &index]).arg(socket);
                ours
            }
            [program, args @ ..] => {
                let mut go = Command::new(program);
                go.args(args).args(["-idx", &index, "-socket"]).arg(socket);
                go
            }
        };
        let started = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut child = started.expect("the plugin starts");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let synchronized = lines.any(|line| line.is_ok_and(|l| l == "synchronized"));
        assert!(synchronized, "plugin {index} is not taken");
        Self(child)
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn measure(options: &Options) {
    let (daemon, cri, nri) = match &options.other {
        Some((socket, nri)) => {
            let client = Client::connect(socket).await.expect("the runtime serves");
            let logs = socket.parent().expect("a socket is in a directory");
            let cri = Cri::new(client, logs, "/cairn-bench");
            (None, cri, nri.clone())
        }
        None => {
            let setup = Setup {
                log_level: Some("info"),
                ..Setup::default()
            };
            let daemon = Daemon::with(setup).await;
            let (cri, nri) = (daemon.cri(), daemon.nri_socket());
            (Some(daemon), cri, nri)
        }
    };
    let mut config = cri.pod_config("bench");
    config.hostname = String::new();
    host_network(&mut config);
    let pod = cri.try_pod(config).await.expect("RunPodSandbox");
    let mut times: [Vec<Duration>; SERIES.len()] = Default::default();
    let mut made = 0;
    for _ in 0..ROUNDS {
        for (plugins, times) in SERIES.iter().zip(&mut times) {
            let company: Vec<_> = (0..*plugins)
                .map(|index| Plugin::start(&options.plugin, index, &nri))
                .collect();
            for n in 0..WARM + options.containers / ROUNDS {
                made += 1;
                let mut config = cri.container_config(&format!("c{made}"), &["true"]);
                container_namespaces(&mut config).network = cri::NamespaceMode::Node.into();
                let begun = Instant::now();
                let container = pod.try_create(config).await.expect("CreateContainer");
                if n >= WARM {
                    times.push(begun.elapsed());
                }
                container.remove().await.expect("RemoveContainer");
            }
            drop(company);
        }
    }
    pod.end().await;
    drop(daemon);
    show(times);
}

fn show(times: [Vec<Duration>; SERIES.len()]) {
    let mut none = None;
    for (plugins, mut times) in SERIES.into_iter().zip(times) {
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() * percent / 100).min(times.len() - 1)];
        let (p50, p99) = (at(50), at(99));
        let none = *none.get_or_insert(p50);
        let calls = EVENTS * u32::try_from(plugins).unwrap_or(u32::MAX);
        let each = match calls {
            0 => String::new(),
            _ => format!(
                "  {:.3} ms per event and plugin",
                (p50.as_secs_f64() - none.as_secs_f64()) * 1e3 / f64::from(calls)
            ),
        };
        println!(
            "{plugins:>2} plugins  CreateContainer p50 {:>6.2} ms p99 {:>6.2} ms{each}",
            p50.as_secs_f64() * 1e3,
            p99.as_secs_f64() * 1e3
        );
    }
}
