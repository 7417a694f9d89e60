//! An in-memory runtime: runs lives of pods as cairn does, with a daemon that dies and restarts.

use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use nri::{
    Adaptation, BoxFuture, PluginId, Settings, Snapshot, Source,
    proto::{
        Container, ContainerUpdate,
        Event::{self, *},
        LinuxResources, PodSandbox,
    },
    sim::{self, Group, Link, Memory, Rng},
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout},
};

use crate::{
    check::{Book, End, Fault, makes, takes_turn},
    instance,
    plan::{Action, HORIZON, Plan, PodPlan},
};

/// The runtime's record of a pod on disk.
struct Life {
    plan: PodPlan,
    pod: String,
    steps: Vec<(Event, String)>,
    next: usize,
    /// The step has begun, and its end is not recorded.
    begun: bool,
    rng: Rng,
}

#[derive(Default)]
pub(crate) struct Disk(Mutex<Snapshot>);

impl Source for Disk {
    fn snapshot(&self) -> Snapshot {
        self.0.lock().unwrap().clone()
    }

    fn update(
        &self,
        _: &nri::Requester,
        _: Vec<ContainerUpdate>,
    ) -> BoxFuture<'_, Vec<nri::FailedUpdate>> {
        Box::pin(async { Vec::new() })
    }

    fn evict(&self, _: &PluginId, _: String, _: String) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(async { Ok(()) })
    }
}

pub(crate) struct World {
    pub(crate) book: Arc<Book>,
    /// Signals all plugins to end.
    pub(crate) over: Notify,
    settings: Settings,
    disk: Arc<Disk>,
    daemon: Mutex<Option<(Group, Adaptation)>>,
    lives: Mutex<Vec<Arc<Mutex<Life>>>>,
    ending: AtomicBool,
}

impl World {
    pub(crate) fn connect(&self, link: Link) -> Option<Memory> {
        let daemon = self.daemon.lock().unwrap();
        let (group, nri) = daemon.as_ref().filter(|_| !self.ending.load(SeqCst))?;
        let (runtimes, plugins) = Memory::pair(link);
        sim::within(*group, || nri.connect(runtimes));
        Some(plugins)
    }

    /// Records that the runtime, or a cut, ended a plugin's connection.
    pub(crate) fn dismissed(&self, no: usize) {
        let daemon = self.daemon.lock().unwrap();
        if let Some((group, _)) = &*daemon {
            self.book.dismissed(no, *group);
        }
    }

    /// Starts a daemon from the records on disk; every pod continues at its step.
    async fn start(self: &Arc<Self>) {
        let group = {
            let mut state = self.book.state.lock().unwrap();
            state.daemon += 1;
            self.book.note(&mut state, format_args!("a daemon begins"));
            state.daemon
        };
        let nri = Adaptation::builder("sim", "1")
            .settings(self.settings.clone())
            .source(self.disk.clone())
            .observer(self.book.clone());
        let nri = nri.start().await.unwrap();
        *self.daemon.lock().unwrap() = Some((group, nri.clone()));
        let lives = self.lives.lock().unwrap().clone();
        for life in lives {
            sim::spawn_in(group, self.clone().lead(nri.clone(), life));
        }
    }

    fn kill(&self) {
        let daemon = self.daemon.lock().unwrap().take();
        if let Some((group, _)) = &daemon {
            sim::kill(*group);
        }
    }

    fn add(self: &Arc<Self>, no: usize, plan: PodPlan) {
        let pod = format!("p{no}");
        let mut steps = vec![(RunPodSandbox, pod.clone())];
        let mut rng = Rng::new(plan.seed);
        for n in 0..plan.containers {
            let id = format!("c{no}.{n}");
            for event in [
                CreateContainer,
                PostCreateContainer,
                StartContainer,
                PostStartContainer,
                UpdateContainer,
            ] {
                if event != UpdateContainer || rng.once_in(2) {
                    steps.push((event, id.clone()));
                }
            }
        }
        if !plan.stays {
            for n in 0..plan.containers {
                let id = format!("c{no}.{n}");
                steps.extend([(StopContainer, id.clone()), (RemoveContainer, id)]);
            }
            steps.extend([
                (StopPodSandbox, pod.clone()),
                (RemovePodSandbox, pod.clone()),
            ]);
        }
        let life = Life {
            plan,
            pod,
            steps,
            next: 0,
            begun: false,
            rng,
        };
        let life = Arc::new(Mutex::new(life));
        self.lives.lock().unwrap().push(life.clone());
        if let Some((group, nri)) = &*self.daemon.lock().unwrap() {
            sim::spawn_in(*group, self.clone().lead(nri.clone(), life));
        }
    }

    /// Runs a pod's life from its current step.
    async fn lead(self: Arc<Self>, nri: Adaptation, life: Arc<Mutex<Life>>) {
        loop {
            let (pod, (event, object), begun, pause, gives_up) = {
                let mut life = life.lock().unwrap();
                let Some(step) = life.steps.get(life.next).cloned() else {
                    return;
                };
                let (most, next, begun) = (life.plan.pause, life.next as u64, life.begun);
                let pause = life.rng.below(most + 1);
                let gives_up = life.plan.gives_up.filter(|(step, _)| *step == next);
                (
                    life.pod.clone(),
                    step,
                    begun,
                    pause,
                    gives_up.map(|(_, after)| after),
                )
            };
            let made = if begun && makes(event) {
                // A daemon that has died began the step.
                false
            } else {
                sleep(Duration::from_millis(pause)).await;
                life.lock().unwrap().begun = true;
                let step = self.step(&nri, event, &pod, &object);
                let limit = gives_up
                    .filter(|_| makes(event))
                    .map_or(Duration::MAX, Duration::from_millis);
                timeout(limit, step).await == Ok(End::Done)
            };
            if makes(event) && !made {
                let undo = match event {
                    RunPodSandbox => [StopPodSandbox, RemovePodSandbox],
                    _ => [StopContainer, RemoveContainer],
                };
                {
                    // Its remaining setup steps are skipped. The steps that undo it are taken, also
                    // by the next daemon.
                    let mut life = life.lock().unwrap();
                    let at = life.next + 1;
                    let rest = life.steps.split_off(at);
                    life.steps.extend(undo.map(|event| (event, object.clone())));
                    life.steps.extend(
                        rest.into_iter()
                            .filter(|(_, of)| event != RunPodSandbox && *of != object),
                    );
                }
            }
            let mut life = life.lock().unwrap();
            life.next += 1;
            life.begun = false;
        }
    }

    /// Takes one step: writes the runtime's record, and sends the event.
    async fn step(&self, nri: &Adaptation, event: Event, pod: &str, object: &str) -> End {
        let op = Running(self, self.book.begins(event, object));
        let (p, c) = (
            PodSandbox {
                id: pod.to_owned(),
                ..Default::default()
            },
            Container {
                id: object.to_owned(),
                pod_sandbox_id: pod.to_owned(),
                ..Default::default()
            },
        );
        let disk =
            |change: &dyn Fn(&mut Snapshot)| nri.cut(|| change(&mut self.disk.0.lock().unwrap()));
        match event {
            RunPodSandbox => disk(&|all| all.pods.push(p.clone())),
            CreateContainer => disk(&|all| all.containers.push(c.clone())),
            _ => {}
        }
        let turn = if takes_turn(event) {
            Some(nri.turn(event).await)
        } else {
            None
        };
        self.book.runs(op.1);
        let done = match (event, &turn) {
            (RunPodSandbox, _) => nri.run_pod_sandbox(p.clone()).await.is_ok(),
            (CreateContainer, Some(turn)) => nri.create_container(turn, p, c.clone()).await.is_ok(),
            (UpdateContainer, Some(turn)) => {
                let to = LinuxResources::default();
                nri.update_container(turn, p, c.clone(), to).await.is_ok()
            }
            (StopContainer, Some(turn)) => {
                nri.stop_container(turn, p, c.clone()).await;
                true
            }
            (PostCreateContainer, _) => {
                nri.post_create_container(p, c.clone()).await;
                true
            }
            (StartContainer, _) => nri.start_container(p, c.clone()).await.is_ok(),
            (PostStartContainer, _) => {
                nri.post_start_container(p, c.clone()).await;
                true
            }
            (RemoveContainer, _) => {
                nri.remove_container(p, c.clone()).await;
                disk(&|all| all.containers.retain(|one| one.id != c.id));
                true
            }
            (StopPodSandbox, _) => {
                nri.stop_pod_sandbox(p.clone()).await;
                true
            }
            (RemovePodSandbox, _) => {
                nri.remove_pod_sandbox(p.clone()).await;
                disk(&|all| all.pods.retain(|one| one.id != pod));
                true
            }
            (other, _) => unreachable!("{other:?}"),
        };
        let end = if done { End::Done } else { End::Refused };
        self.book.ends(op.1, end);
        end
    }

    /// Returns the ids of the existing objects.
    fn there(&self) -> BTreeSet<String> {
        let all = self.disk.0.lock().unwrap();
        let pods = all.pods.iter().map(|pod| pod.id.clone());
        pods.chain(all.containers.iter().map(|c| c.id.clone()))
            .collect()
    }

    /// Waits until every pod's life has ended; returns false after the time limit.
    async fn quiet(&self) -> bool {
        let deadline = Instant::now() + Duration::from_millis(30 * HORIZON);
        loop {
            let lives = self.lives.lock().unwrap().clone();
            let led = lives.iter().all(|life| {
                let life = life.lock().unwrap();
                life.next >= life.steps.len()
            });
            if led || Instant::now() > deadline {
                return led;
            }
            sleep(Duration::from_secs(1)).await;
        }
    }
}

/// An operation that may be dropped.
struct Running<'a>(&'a World, usize);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.book.ends(self.1, End::Dropped);
    }
}

/// Settings without a socket: plugins connect only in memory.
pub(crate) fn without_files() -> Settings {
    Settings {
        socket: None,
        plugin_dir: None,
        plugin_config_dir: None,
        ..Settings::default()
    }
}

/// Runs a plan. Returns the faults and the log.
pub(crate) fn run(plan: &Plan) -> (Vec<Fault>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    sim::begin(plan.seed);
    let found = runtime.block_on(carry_out(plan));
    drop(runtime);
    found
}

async fn carry_out(plan: &Plan) -> (Vec<Fault>, Vec<String>) {
    let settings = Settings {
        timeouts: plan.timeouts,
        plugins: plan.plugins.clone(),
        ..without_files()
    };
    let world = Arc::new(World {
        book: Arc::new(Book::new(plan.clone())),
        over: Notify::new(),
        settings,
        disk: Arc::default(),
        daemon: Mutex::default(),
        lives: Mutex::default(),
        ending: AtomicBool::new(false),
    });
    world.start().await;
    let start = Instant::now();
    for (no, (at, action)) in plan.actions.iter().enumerate() {
        tokio::time::sleep_until(start + Duration::from_millis(*at)).await;
        match action {
            Action::Pod(pod) => world.add(no, pod.clone()),
            Action::Plugin(plugin) => {
                sim::spawn_in(0, instance::live(world.clone(), plugin.clone()))
            }
            Action::Restart(after) => {
                world.kill();
                sleep(Duration::from_millis(*after)).await;
                world.start().await;
            }
        }
    }
    // Longer than any late answer is awaited.
    if world.quiet().await {
        sleep(Duration::from_secs(180)).await;
    }
    world.book.at_the_end(&world.there());
    world.end().await;
    let state = &mut *world.book.state.lock().unwrap();
    if sim::is_stuck() {
        let text = "tasks go on without end while no time passes".to_owned();
        state.faults.insert(0, Fault { rule: 'f', text });
    }
    (
        std::mem::take(&mut state.faults),
        std::mem::take(&mut state.lines),
    )
}

impl World {
    /// Ends plugins and daemon, and checks that no state remains.
    async fn end(&self) {
        self.ending.store(true, SeqCst);
        let Some((group, nri)) = self.daemon.lock().unwrap().take() else {
            return;
        };
        self.over.notify_waiters();
        sleep(Duration::from_secs(5)).await;
        let turn = timeout(Duration::from_secs(1), nri.turn(CreateContainer))
            .await
            .is_ok();
        let plugins = nri
            .plugins()
            .iter()
            .filter(|p| p.kind.is_some() && p.state != nri::PluginState::Ended)
            .count();
        nri.shutdown("the end").await;
        drop(nri);
        sleep(Duration::from_secs(90)).await;
        let left = sim::live(group);
        let state = &mut *self.book.state.lock().unwrap();
        if !turn || plugins > 0 || left > 0 {
            let text = format!("at the end: turn free {turn}, plugins {plugins}, tasks {left}");
            self.book.fault(state, 'g', text);
        }
    }
}
