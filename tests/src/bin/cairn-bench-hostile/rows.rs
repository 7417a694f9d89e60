//! The rows of the table: the preparations of each, and its plugin.

use std::{env, path::PathBuf, process::Stdio, time::Duration};

use cairn_tests::{bench, client::Client, pod::Pod, until::poll_within};
use rustix::process::{Pid, Signal, kill_process};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    net::UnixStream,
    process::{Child, Command},
    task::JoinHandle,
    time,
};

use crate::{
    load::{Load, Period},
    plugin::{Attack, FLOODED, KEPT, SYNCHRONISED, VICTIM},
};

const CONTAINERS_FLOODED: usize = 8;
const PODS_KEPT: usize = 15;
/// Runs until it is killed: the first process of a PID namespace ignores SIGTERM.
const SLEEPS: [&str; 2] = ["sleep", "100000"];
/// Grace period of the container that is being stopped while a plugin joins.
const GRACE: Duration = Duration::from_secs(600);
/// Time from the synchronisation of a plugin to its SIGSTOP.
const STOPPED_AFTER: Duration = Duration::from_secs(1);
/// Load after a start of the runtime, which is not counted.
pub(crate) const WARM: Duration = Duration::from_secs(2);
/// Limit for the removal of a row's pods.
const CLEANED: Duration = Duration::from_secs(20);

pub(crate) struct Row {
    pub name: &'static str,
    pub scene: Scene,
    /// NRI's rules make events wait for the plugin, which subscribes to them: one wait of each
    /// client is excused.
    pub waits: bool,
}

/// The activity beside the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scene {
    Quiet,
    /// A plugin alone.
    Plugin(Attack),
    /// A container in its grace period, during which a plugin joins.
    Grace,
    /// A plugin that is stopped by a signal.
    Stopped,
    /// Containers that a plugin updates.
    Flood,
    /// A pod in which plugins fail at the creation of a container.
    Victim,
    /// A plugin whose events were kept.
    Kept,
}

const fn row(name: &'static str, scene: Scene, waits: bool) -> Row {
    Row { name, scene, waits }
}

#[rustfmt::skip]
pub(crate) const ROWS: [Row; 12] = [
    row("quiet", Scene::Quiet, false),
    row("a plugin joins in 600 s of grace", Scene::Grace, false),
    row("a plugin is stopped (SIGSTOP)", Scene::Stopped, true),
    row("64 half-open connections, renewed", Scene::Plugin(Attack::HalfOpen), false),
    row("20 connections that register and close, in a loop", Scene::Plugin(Attack::Leaves), false),
    row("60 UpdateContainers at a time, of 8 containers", Scene::Flood, false),
    row("2000 instances of one id", Scene::Plugin(Attack::Multiplies), false),
    row("a plugin hangs in Synchronize, in a loop", Scene::Plugin(Attack::SyncHangs), true),
    row("a plugin answers Synchronize with 10 MB, in a loop", Scene::Plugin(Attack::SyncIsLarge), true),
    row("a plugin hangs at RunPodSandbox, `keep_connected`", Scene::Plugin(Attack::RunHangs), true),
    row("two plugins fail at one container and come back (F1)", Scene::Victim, true),
    row("60 kept events of a slow `must_run` plugin (F2)", Scene::Kept, true),
];

impl Scene {
    /// The reason why a runtime has no such row.
    pub(crate) fn lacks(self, runtime: &str) -> Option<&'static str> {
        match self {
            _ if runtime == "cairn" => None,
            Self::Plugin(Attack::RunHangs) => Some("its NRI has no `keep_connected`"),
            Self::Kept => Some("`must_run` is cairn's"),
            _ => None,
        }
    }
}

/// A hostile plugin's process, killed when dropped.
struct Hostile(Child);

impl Hostile {
    fn start(attack: Attack, nri: &PathBuf) -> Self {
        let mut ours = Command::new(env::current_exe().expect("this program has a path"));
        ours.args(["plugin", attack.name()]).arg(nri);
        ours.stdin(Stdio::null()).stdout(Stdio::piped());
        Self(ours.kill_on_drop(true).spawn().expect("this program runs"))
    }

    /// Sends SIGSTOP a while after it was synchronized. SIGKILL still ends it.
    async fn stop(&mut self) {
        let output = self.0.stdout.take().expect("piped");
        let mut lines = BufReader::new(output).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            if line == SYNCHRONISED {
                break;
            }
        }
        time::sleep(STOPPED_AFTER).await;
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok());
        let pid = pid.and_then(Pid::from_raw).expect("it runs");
        kill_process(pid, Signal::STOP).expect("it is ours");
    }
}

/// The runtime under test.
pub(crate) struct Stage {
    pub socket: PathBuf,
    pub nri: PathBuf,
    pub image: String,
    /// The command that kills it and starts it again.
    pub restart: String,
}

impl Stage {
    pub(crate) async fn load(&self) -> Load {
        Load::new(bench::cri(&self.socket).await, &self.image)
    }

    /// Runs the load alone.
    pub(crate) async fn quiet(&self, length: Duration) -> Result<Period, String> {
        let (period, ended) = self.load().await.run(length, async {}).await;
        ended.map(|()| period)
    }

    /// Runs the load beside a scene, and removes all pods.
    pub(crate) async fn row(&self, scene: Scene, length: Duration) -> Result<Period, String> {
        if scene == Scene::Kept {
            self.restart(&[("PLUGIN", "40-must"), ("SETTINGS", "must_run = true")])
                .await?;
        }
        let load = self.load().await;
        let (period, ended) = self.beside(scene, load, length).await?;
        if let Err(why) = &ended {
            eprintln!("{why}: the runtime is started again");
        }
        if scene == Scene::Kept || ended.is_err() || self.clean().await.is_err() {
            self.restart(&[]).await?;
            self.clean().await?;
            self.quiet(WARM).await?;
        }
        Ok(period)
    }

    async fn beside(
        &self,
        scene: Scene,
        load: Load,
        length: Duration,
    ) -> Result<(Period, Result<(), String>), String> {
        let ours = load.clone();
        let failed = |what: &str, e: tonic::Status| format!("{what}: {}", e.message());
        let start = |attack| Hostile::start(attack, &self.nri);
        Ok(match scene {
            Scene::Quiet => load.run(length, async {}).await,
            Scene::Plugin(attack) => {
                let hostile = start(attack);
                load.run(length, async { drop(hostile) }).await
            }
            Scene::Stopped => {
                let mut hostile = start(Attack::Joins);
                let stopping = tokio::spawn(async move {
                    hostile.stop().await;
                    hostile
                });
                load.run(length, ended(stopping)).await
            }
            Scene::Grace => {
                let pod = ours.pod("grace").await;
                let pod = pod.map_err(|e| failed("the pod with a grace", e))?;
                let container = ours.container(&pod, "c", &SLEEPS).await;
                let container = container.map_err(|e| failed("its container", e))?;
                let pid = container
                    .pid()
                    .await
                    .and_then(|pid| i32::try_from(pid).ok());
                let pid = pid
                    .and_then(Pid::from_raw)
                    .ok_or("its container has no pid")?;
                let stopping = tokio::spawn(async move { container.stop(GRACE).await });
                // Time enough for the signal to be sent.
                time::sleep(Duration::from_millis(500)).await;
                let hostile = start(Attack::Joins);
                load.run(length, async {
                    drop(hostile);
                    // Killed by the kernel: a blocked runtime would not stop it.
                    let _gone = kill_process(pid, Signal::KILL);
                    let _stopped = time::timeout(CLEANED, stopping).await;
                })
                .await
            }
            Scene::Flood => {
                let pod = ours.pod(FLOODED).await;
                let pod = pod.map_err(|e| failed("the pod to be flooded", e))?;
                for n in 0..CONTAINERS_FLOODED {
                    let name = format!("{FLOODED}{n}");
                    let made = ours.container(&pod, &name, &SLEEPS).await;
                    made.map_err(|e| failed("a container in it", e))?;
                }
                let hostile = start(Attack::Floods);
                load.run(length, async { drop(hostile) }).await
            }
            Scene::Victim => {
                let pod = ours.pod(VICTIM).await;
                let pod = pod.map_err(|e| failed("the victim", e))?;
                let hostile = start(Attack::Fails);
                let creating = tokio::spawn(async move { creates_without_end(&ours, &pod).await });
                load.run(length, async {
                    drop(hostile);
                    ended(creating).await;
                })
                .await
            }
            Scene::Kept => {
                for n in 0..PODS_KEPT {
                    let pod = ours.pod(&format!("{KEPT}{n}")).await;
                    let pod = pod.map_err(|e| failed("a pod whose events are kept", e))?;
                    let container = ours.container(&pod, "c", &SLEEPS).await;
                    container.map_err(|e| failed("its container", e))?;
                    pod.stop().await.map_err(|e| failed("its stop", e))?;
                    pod.remove().await.map_err(|e| failed("its removal", e))?;
                }
                let hostile = start(Attack::SlowAtKept);
                load.run(length, async { drop(hostile) }).await
            }
        })
    }

    /// Removes all pods.
    async fn clean(&self) -> Result<(), String> {
        let cri = bench::cri(&self.socket).await;
        let all = async {
            for left in cri.client.pods([].into()).await? {
                cri.client.stop_pod(&left.id).await?;
                cri.client.remove_pod(&left.id).await?;
            }
            Ok::<_, tonic::Status>(())
        };
        match time::timeout(CLEANED, all).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(status)) => Err(format!("pods are left: {}", status.message())),
            Err(_) => Err(format!("pods are left after {} s", CLEANED.as_secs())),
        }
    }

    /// Kills the runtime and starts it again with these variables set.
    async fn restart(&self, with: &[(&str, &str)]) -> Result<(), String> {
        let mut command = Command::new(&self.restart);
        let status = command.envs(with.iter().copied()).status().await;
        let status = status.map_err(|e| format!("RESTART: {e}"))?;
        if !status.success() {
            return Err(format!("RESTART: {status}"));
        }
        let serves = || async {
            let client = Client::connect(&self.socket).await.ok()?;
            client.pods([].into()).await.ok()?;
            UnixStream::connect(&self.nri).await.ok().map(drop)
        };
        let served = poll_within(Duration::from_secs(60), serves).await;
        served.ok_or_else(|| "the runtime does not serve after its restart".to_owned())
    }
}

/// Aborts a task, and drops its result.
async fn ended<T>(task: JoinHandle<T>) {
    task.abort();
    let _aborted = task.await;
}

/// Creates and removes one container after the other.
async fn creates_without_end(load: &Load, pod: &Pod) {
    for n in 0_usize.. {
        let config = load.container_config(&format!("c{n}"), &SLEEPS);
        match pod.try_create(config).await {
            Ok(container) => drop(container.remove().await),
            Err(_) => time::sleep(Duration::from_millis(10)).await,
        }
    }
}
