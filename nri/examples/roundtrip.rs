//! Measures an event to idle plugins through a real socket: p50 and p99 of StartContainer and
//! CreateContainer with 1, 5 and 10 plugins.
//!
//! ```text
//! cargo run --release -p nri --features stub --example roundtrip [GO-PLUGIN]
//! ```
//!
//! `GO-PLUGIN`: a program with the flags `-idx -socket`, such as `tests/go/noop`; without it the
//! plugins are ours. Plugins are separate processes (this program with the argument `plugin`).

use std::{
    env,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use nri::{
    Adaptation, BoxFuture, FailedUpdate, Handlers, PluginId, Requester, Snapshot, Source, proto::*,
    stub::Stub,
};

struct Runtime;

impl Source for Runtime {
    fn snapshot(&self) -> Snapshot {
        Snapshot::default()
    }
    fn update(
        &self,
        _: &Requester,
        updates: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<FailedUpdate>> {
        let failed = updates
            .into_iter()
            .map(|update| FailedUpdate::new(update, "not supported"));
        Box::pin(std::future::ready(failed.collect()))
    }
    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

/// Ends its process when dropped.
struct Plugin(Child);

impl Drop for Plugin {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let args: Vec<String> = env::args().collect();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap();
    match args.get(1).map(String::as_str) {
        Some("plugin") => {
            let current = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build();
            current.unwrap().block_on(plugin(&args[2], &args[3]));
        }
        go => {
            for plugins in [1, 5, 10] {
                runtime.block_on(measure(plugins, go));
            }
        }
    }
}

async fn plugin(index: &str, socket: &str) {
    let handlers = Handlers::new()
        .start_container(|_, _| async { Ok(()) })
        .create_container(|_, _| async { Ok((None, Vec::new())) });
    let stub = Stub::builder(handlers)
        .name("noop")
        .index(index)
        .socket(socket)
        .reconnect(false);
    let _ = stub.run().await;
}

fn spawn(go: Option<&str>, index: &str, socket: &Path) -> Plugin {
    let mut command = match go {
        None => {
            let mut command = Command::new(env::current_exe().unwrap());
            command.args(["plugin", index]).arg(socket);
            command
        }
        Some(go) => {
            let mut command = Command::new(go);
            command.args(["-idx", index, "-socket"]).arg(socket);
            command
        }
    };
    Plugin(
        command
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap(),
    )
}

async fn measure(plugins: usize, go: Option<&str>) {
    let socket: PathBuf =
        env::temp_dir().join(format!("nri-roundtrip-{}-{plugins}", std::process::id()));
    let nri = Adaptation::builder("bench", "1.0")
        .socket(&socket)
        .plugin_dir("/nonexistent")
        .source(Arc::new(Runtime))
        .start()
        .await
        .unwrap();
    let children: Vec<_> = (0..plugins)
        .map(|n| spawn(go, &format!("{n:02}"), &socket))
        .collect();
    while nri
        .plugins()
        .iter()
        .filter(|p| p.state == nri::PluginState::Active)
        .count()
        < plugins
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let pod = PodSandbox {
        id: "pod".into(),
        name: "pod".into(),
        ..Default::default()
    };
    let container = Container {
        id: "container".into(),
        env: (0..20)
            .map(|n| format!("VARIABLE_{n}=some value of usual length"))
            .collect(),
        ..Default::default()
    };
    let (mut start, mut create) = (Vec::new(), Vec::new());
    for _ in 0..2000 {
        let begun = Instant::now();
        nri.start_container(pod.clone(), container.clone())
            .await
            .unwrap();
        start.push(begun.elapsed());
        let begun = Instant::now();
        let turn = nri.turn(Event::CreateContainer).await;
        nri.create_container(&turn, pod.clone(), container.clone())
            .await
            .unwrap();
        create.push(begun.elapsed());
    }
    println!(
        "{plugins:>2} plugins  StartContainer {}  CreateContainer {}",
        show(start),
        show(create)
    );
    drop(children);
    nri.shutdown("measured").await;
}

fn show(mut all: Vec<Duration>) -> String {
    all.sort_unstable();
    let at = |percent: usize| all[(all.len() * percent / 100).min(all.len() - 1)];
    format!("p50 {:>8.1?} p99 {:>8.1?}", at(50), at(99))
}
