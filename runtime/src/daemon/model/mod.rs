//! A deterministic model of pods: the daemon's code (driver, admission, steps, hooks, NRI library,
//! records on disk) on a machine in memory. One seed generates everything random, and kills occur
//! between any two polls of its tasks. [`World::check`] and `plugins.rs` have the invariants.

mod clients;
mod clockwork;
mod memory;
mod monitors;
mod plugins;

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use cni_shim::Network;
use parking_lot::Mutex;

use self::{
    clockwork::Ran,
    memory::{Memory, drawn},
    plugins::{Plugin, Plugins},
};
use super::{
    from_config::{image_options, network_config, policies},
    open::make_dirs,
};
use crate::{
    cgroup, clock,
    config::{self, Config},
    host::lookup::Lookups,
    image::{Digest, Images},
    monitor::Launcher,
    oci::HostFacts,
    pod::{
        node::Node,
        pods::Pods,
        record::{ContainerPhase, Mark, PodPhase},
        recover,
        registry::Registry,
        spec::SpecStore,
    },
    seeded,
    store::{Store, Unsynced},
    trace::{self, EventLog},
};

/// Limit for any call, in the model's time.
const CALL: Duration = Duration::from_secs(600);

/// Limit for the start of the daemon, whatever others do.
const START: Duration = Duration::from_secs(1);

/// The parameters of a run.
#[derive(Clone)]
struct Plan {
    seed: u64,
    clients: usize,
    /// Per client.
    pods: usize,
    plugins: Vec<Plugin>,
    /// See [`memory::Inner::fails`].
    fails: u64,
}

/// The state that outlives the daemon.
#[derive(Clone)]
struct World {
    dir: Arc<tempfile::TempDir>,
    memory: Memory,
    plugins: Plugins,
    plan: Arc<Plan>,
    /// Lives of the daemon so far, and its answers to clients.
    notified: Arc<Mutex<Vec<String>>>,
}

const IMAGE: &str = "example.com/model:1";

impl World {
    fn new(plan: Plan) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("cairn-model-")
            .tempdir_in(if PathBuf::from("/dev/shm").is_dir() {
                "/dev/shm"
            } else {
                "/tmp"
            })
            .expect("a directory");
        let at = |path: &str| dir.path().join(path);
        for made in [
            "proc/self",
            "sys/fs/cgroup",
            "state",
            "root/images/records",
            "conf",
        ] {
            fs::create_dir_all(at(made)).expect("a directory");
        }
        let table = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw\n";
        fs::write(at("proc/self/mountinfo"), table).expect("the mount table");
        let config = r#"{"architecture":"amd64","os":"linux","config":{"Cmd":["/x"]},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let id = Digest::of(config.as_bytes());
        let record = serde_json::json!({
            "schema": 1, "id": id.to_string(), "repo_tags": [IMAGE], "repo_digests": [], "manifests": [],
            "size": 1, "pinned": false, "config": config,
        });
        let path = at("root/images/records").join(format!("{}.json", id.hex()));
        fs::write(path, record.to_string()).expect("an image");
        let memory = Memory::default();
        memory.0.lock().fails = plan.fails;
        Self {
            plugins: Plugins {
                memory: memory.clone(),
                seen: Arc::default(),
            },
            dir: Arc::new(dir),
            memory,
            plan: Arc::new(plan),
            notified: Arc::default(),
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn config(&self) -> Config {
        let mut file = config::File {
            root: self.path("root"),
            state: self.path("state"),
            listen: format!("unix://{}", self.path("cairn.sock").display()),
            ..config::File::default()
        };
        file.nri.socket = self.path("nri.sock");
        file.nri.plugin_dir = self.path("conf");
        file.nri.plugin_config_dir = self.path("conf");
        file.network.cni_conf_dir = self.path("conf");
        file.network.cni_cache_dir = self.path("cni");
        file.network.bridge = String::new();
        for plugin in &self.plan.plugins {
            let policy = file.nri.plugin.entry(plugin.id.to_owned()).or_default();
            policy.required = plugin.required;
            policy.must_run = plugin.must_run;
        }
        Config::check(file).expect("a configuration")
    }

    /// As `open.rs`, on this machine.
    fn open(&self) -> Arc<Pods> {
        let config = self.config();
        let dirs = make_dirs(&config).expect("directories");
        let lookups = Lookups::new("/nowhere".into(), config.path_timeout);
        let options = image_options(&config, "/nowhere".as_ref(), &lookups).expect("options");
        let images = Images::open(&dirs.root.join("images"), options).expect("images");
        let network = network_config(&config, &lookups).expect("a network");
        let cgroups = cgroup::Host::detect_at(self.dir.path()).expect("cgroups");
        let log = EventLog::open(
            &dirs.root.join("trace"),
            &trace::Options::new(clock::now_ns),
        );
        let unsynced = Unsynced::default();
        let records = |name: &str| dirs.root.join(name);
        let node = Node {
            name: "model".into(),
            boot_id: "a boot".into(),
            host: HostFacts {
                capabilities: (1 << 41) - 1,
                ..HostFacts::default()
            },
            policies: policies(&config, &cgroups).expect("policies"),
            launcher: Launcher::of(dirs.state.join("monitor"), Arc::new(self.memory.clone())),
            machine: Arc::new(self.memory.clone()),
            network: Arc::new(Network::new(network).expect("a network")),
            pods: Store::open(records("pods"), unsynced.clone()).expect("records"),
            containers: Store::open(records("containers"), unsynced.clone()).expect("records"),
            specs: SpecStore::open(records("specs"), unsynced.clone()).expect("specs"),
            pause_root: self.path("pause-root"),
            wasm_host: "/nowhere".into(),
            config,
            dirs,
            lookups,
            cgroups,
            images,
            unsynced,
        };
        let in_process = self.plan.plugins.iter().filter(|plugin| plugin.in_process);
        let in_process = in_process.map(|plugin| self.plugins.in_process(plugin));
        Pods::new(node, log.expect("an event log"), in_process.collect())
    }

    /// One life of the daemon, from recovery on.
    fn life(&self, kill_after: Option<u64>, ends: bool) -> Ran<()> {
        let world = self.clone();
        let ran = clockwork::run(kill_after, async move {
            let pods = world.open();
            let running = world.memory.running();
            for dir in &running {
                world.memory.live(dir);
            }
            for plugin in world
                .plan
                .plugins
                .iter()
                .filter(|plugin| !plugin.in_process)
            {
                let socket = world.path("nri.sock");
                tokio::spawn(world.plugins.clone().connect(plugin.clone(), socket));
            }
            let Ok(recovered) = tokio::time::timeout(START, recover::run(&pods)).await else {
                return world.memory.fault("the start waits for others".into());
            };
            let recovery = recovered.expect("a recovery");
            if tokio::time::timeout(CALL, recovery.rest).await.is_err() {
                return world.memory.fault("recovery hangs".into());
            }
            world.check_made(&pods.registry);
            world.check_recovered(&pods.registry, &running);
            if !ends {
                world.work(&pods).await;
                world.check_made(&pods.registry);
            }
            world.finish(&pods).await;
        });
        self.plugins.disconnect();
        ran
    }

    /// All required plugins answered for every listed object.
    fn check_made(&self, registry: &Registry) {
        let seen = self.plugins.seen.lock();
        let required = || self.plan.plugins.iter().filter(|plugin| plugin.required);
        let check = |id: &str| {
            for plugin in required() {
                if !seen.answered.contains(&(plugin.id, id.to_owned())) {
                    self.memory
                        .fault(format!("made without {}: {id}", plugin.id));
                }
            }
        };
        for pod in registry.pods() {
            let record = pod.cell.get();
            if record.phase == PodPhase::Ready {
                check(&pod.id);
            }
            for container in pod.containers() {
                let record = container.cell.get();
                if record.phase != ContainerPhase::Creating {
                    check(&container.id);
                }
                let dir = self.path("state/containers").join(&container.id);
                if record.exit.reason == "MonitorLost" && !self.memory.0.lock().lost.contains(&dir)
                {
                    self.memory
                        .fault(format!("its exit was lost: {}", container.id));
                }
            }
        }
    }

    /// Recovery has completed and reported the last daemon's work (G-13 to G-19).
    fn check_recovered(&self, registry: &Registry, running: &[PathBuf]) {
        for pod in registry.all() {
            let record = pod.cell.get();
            let begun = |what: &str, mark: Mark| {
                if mark == Mark::Begun {
                    self.memory
                        .fault(format!("not resumed: the {what} of {}", pod.id));
                }
            };
            if record.failed_step.is_none() {
                begun("run", record.hooks.run);
                begun("stop", record.hooks.stop);
                begun("removal", record.hooks.remove);
            }
            for container in pod.containers() {
                let record = container.cell.get();
                let dir = self.path("state/containers").join(&container.id);
                // Others may have ended just now.
                let had_ended = record.phase == ContainerPhase::Exited && !running.contains(&dir);
                if had_ended && record.hooks.stop != Mark::Done {
                    self.memory
                        .fault(format!("an exit that was not reported: {}", container.id));
                }
            }
        }
    }

    /// Nothing is left, and no plugin expects anything.
    fn check(&self) -> Vec<String> {
        let mut faults = std::mem::take(&mut self.memory.0.lock().faults);
        faults.extend(self.memory.left());
        for dir in [
            "root/pods",
            "root/containers",
            "root/specs",
            "root/roots",
            "root/volumes",
            "state/pods",
            "state/containers",
            "state/pause",
            "state/ns",
            "state/image-volumes",
            "sys/fs/cgroup",
        ] {
            for entry in fs::read_dir(self.path(dir)).into_iter().flatten().flatten() {
                faults.push(format!(
                    "left: {dir}/{}",
                    entry.file_name().to_string_lossy()
                ));
            }
        }
        faults
    }

    /// Connected plugins got every end, and permanent plugins the end of every object.
    fn check_reported(&self) {
        for plugin in self.plan.plugins.iter().filter(|plugin| plugin.in_process) {
            for untold in self.plugins.untold(plugin) {
                self.memory.fault(untold);
            }
        }
        for instance in &self.plugins.seen.lock().instances {
            let instance = instance.lock();
            if instance.over {
                continue;
            }
            for id in instance.untold() {
                self.memory
                    .fault(format!("{}: no event of the end of {id}", instance.name));
            }
        }
    }
}

/// Runs a plan with kills after these polls. Returns polls and faults of the first life.
fn run(plan: Plan, kills: &[u64]) -> (u64, Vec<String>, World) {
    // Futures are large without optimisation.
    let builder = std::thread::Builder::new().stack_size(64 << 20);
    std::thread::scope(|scope| {
        let ran = builder.spawn_scoped(scope, || run_here(plan, kills));
        let ran = ran.expect("a thread").join();
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run_here(plan: Plan, kills: &[u64]) -> (u64, Vec<String>, World) {
    seeded::begin(Some(plan.seed));
    let world = World::new(plan);
    let mut first = None;
    for kill in kills {
        let ran = world.life(Some(*kill), first.is_some());
        first.get_or_insert(ran.polls);
        if ran.result.is_some() {
            break;
        }
        // While no daemon runs.
        for dir in world.memory.running() {
            if drawn(3) == 0 {
                match drawn(4) {
                    0 => world.memory.lose(&dir),
                    _ => world.memory.exit(&dir, 3),
                }
            }
        }
    }
    let last = world.life(None, first.is_some());
    let polls = first.unwrap_or(last.polls);
    let faults = world.check();
    (polls, faults, world)
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

fn plugin(id: &'static str) -> Plugin {
    Plugin {
        id,
        in_process: false,
        required: false,
        must_run: false,
        vetoes: 0,
        late: 0,
        lost: 0,
        evicts: 0,
    }
}

/// The plan of a seed.
fn drawn_plan(seed: u64) -> Plan {
    seeded::begin(Some(seed ^ 0x5eed));
    let some = |of: u64| [0, 0, of][drawn(3) as usize];
    let mut plugins = Vec::new();
    // A single plugin that reconnects: often none is connected.
    let alone = drawn(4) == 0;
    if alone {
        plugins.push(Plugin {
            vetoes: 2,
            lost: 4,
            ..plugin("20-outside")
        });
    } else if drawn(3) > 0 {
        plugins.push(Plugin {
            in_process: true,
            required: drawn(2) == 0,
            vetoes: some(8),
            evicts: some(6),
            ..plugin("05-within")
        });
    }
    if !alone && (drawn(3) > 0 || plugins.is_empty()) {
        plugins.push(Plugin {
            required: drawn(3) == 0,
            must_run: drawn(3) == 0,
            vetoes: [0, 3, 8][drawn(3) as usize],
            evicts: some(6),
            late: some(40),
            lost: [0, 6, 20][drawn(3) as usize],
            ..plugin("20-outside")
        });
    }
    if drawn(3) == 0 {
        plugins.push(Plugin {
            late: some(20),
            lost: some(10),
            ..plugin("80-last")
        });
    }
    Plan {
        seed,
        clients: 3,
        pods: 2,
        plugins,
        fails: [0, 0, 15][drawn(3) as usize],
    }
}

/// Counts of events, which show whether a changed plan still exercises them.
#[derive(Default)]
struct Tally(std::collections::BTreeMap<String, usize>);

impl Tally {
    fn add(&mut self, world: &World) {
        let mut count = |what: String| *self.0.entry(what).or_default() += 1;
        for event in &world.plugins.seen.lock().events {
            count(format!(
                "event {}",
                event.split(' ').nth(1).unwrap_or_default()
            ));
        }
        for line in &*world.notified.lock() {
            let (call, notified) = line.split_once(": ").unwrap_or((line, ""));
            let notified = match notified {
                "OK" | "given up" => notified,
                _ => "refused",
            };
            let call = call.split(' ').next().unwrap_or_default();
            count(format!("call {call}: {notified}"));
        }
    }
}

fn report(what: &str, faults: &[String], world: &World) {
    if faults.is_empty() {
        return;
    }
    if std::env::var_os("MODEL_LOG").is_some() {
        for event in &world.plugins.seen.lock().events {
            eprintln!("  {event}");
        }
        for line in &*world.notified.lock() {
            eprintln!("  {line}");
        }
    }
    panic!("{what}: {faults:#?}");
}

#[test]
fn a_life_killed_at_every_await_leaves_nothing_and_tells_every_end() {
    let plan = Plan {
        seed: number("MODEL_SEED", 1),
        clients: 1,
        pods: 1,
        plugins: vec![
            Plugin {
                in_process: true,
                required: true,
                ..plugin("05-within")
            },
            plugin("20-outside"),
        ],
        fails: 0,
    };
    let (polls, faults, world) = run(plan.clone(), &[]);
    report("not killed", &faults, &world);
    let stride = number("MODEL_STRIDE", 1);
    let mut kill = number("MODEL_FROM", 0);
    eprintln!("{polls} polls");
    while kill < polls {
        let (_, faults, world) = run(plan.clone(), &[kill]);
        report(
            &format!("seed {}, killed after poll {kill} of {polls}", plan.seed),
            &faults,
            &world,
        );
        kill += stride;
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let log = |world: &World| world.plugins.seen.lock().events.clone();
    for seed in 0..3 {
        let (polls, _, one) = run(drawn_plan(seed), &[]);
        let (again, _, two) = run(drawn_plan(seed), &[]);
        assert_eq!(log(&one), log(&two), "seed {seed}");
        assert_eq!(polls, again, "seed {seed}");
    }
}

#[test]
fn lives_side_by_side_killed_at_random_leave_nothing_and_tell_every_end() {
    let (from, seeds) = (number("MODEL_FROM", 0), number("MODEL_SEEDS", 20));
    let (mut tally, mut all_polls) = (Tally::default(), 0);
    for seed in from..from + seeds {
        let plan = drawn_plan(seed);
        let (polls, faults, world) = run(plan.clone(), &[]);
        report(&format!("seed {seed}, not killed"), &faults, &world);
        tally.add(&world);
        all_polls += polls;
        seeded::begin(Some(seed));
        let kills = [drawn(polls), drawn(polls / 4 + 1)];
        let (_, faults, world) = run(plan, &kills);
        report(
            &format!("seed {seed}, killed after polls {kills:?}"),
            &faults,
            &world,
        );
        tally.add(&world);
    }
    eprintln!("{seeds} seeds, {all_polls} polls: {:#?}", tally.0);
}
