//! The daemon on the machine in memory: opened, living, killed.

use std::{fs, path::PathBuf, sync::Arc, time::Duration};

use cairn::{
    cgroup, clock,
    config::{self, Config},
    daemon::{
        from_config::{image_options, network_config, policies},
        open::make_dirs,
    },
    host::lookup::Lookups,
    image::{Digest, Images},
    monitor::Launcher,
    oci::HostFacts,
    pod::{node::Node, pods::Pods, recover, spec::SpecStore},
    seeded::{self, Fate},
    store::{Store, Unsynced},
    trace::{self, EventLog},
};
use cni_shim::Network;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use crate::{
    bounds::{CALL, RECOVERY},
    clockwork::{self, Ran},
    drawn::drawn,
    events::Subscriber,
    memory::{Attached, Memory},
    plan::{Hazard, Plan},
    plugins::Plugins,
    rule::{Fault, Rule},
};

/// The state that outlives the daemon.
#[derive(Clone)]
pub struct World {
    dir: Arc<tempfile::TempDir>,
    pub(crate) memory: Memory,
    pub(crate) plugins: Plugins,
    pub(crate) plan: Arc<Plan>,
    /// The daemon's answers to clients.
    pub(crate) notified: Arc<Mutex<Vec<String>>>,
}

/// A run of a plan.
pub struct Outcome {
    /// Of the first life.
    pub polls: u64,
    pub faults: Vec<Fault>,
    pub world: World,
}

pub(crate) const IMAGE: &str = "example.com/model:1";

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
        for list in ["cgroup.controllers", "cgroup.subtree_control"] {
            fs::write(at("sys/fs/cgroup").join(list), "cpu memory\n").expect("controllers");
        }
        let config = r#"{"architecture":"amd64","os":"linux","config":{"Cmd":["/x"]},"rootfs":{"type":"layers","diff_ids":[]}}"#;
        let id = Digest::of(config.as_bytes());
        let record = serde_json::json!({
            "schema": 1, "id": id.to_string(), "repo_tags": [IMAGE], "repo_digests": [], "manifests": [],
            "size": 1, "pinned": false, "config": config,
        });
        let path = at("root/images/records").join(format!("{}.json", id.hex()));
        fs::write(path, record.to_string()).expect("an image");
        let memory = Memory::default();
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

    pub fn log(&self) -> Vec<String> {
        self.memory.0.lock().log.clone()
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
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
            policy.fail_request = plugin.fail_request.then_some(true);
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
            boot_id: format!("boot {}", self.memory.0.lock().power_cuts),
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

    /// One life of the daemon, from recovery on. It ends the run, or begins with clients.
    fn life(&self, kill_after: Option<u64>, ends: bool) -> Ran<()> {
        let world = self.clone();
        let ran = clockwork::run(kill_after, async move {
            world.begin();
            let pods = world.open();
            let running = world.memory.running();
            for dir in &running {
                world.memory.live(dir);
            }
            let outside = world.plan.plugins.iter();
            for plugin in outside.filter(|plugin| !plugin.in_process) {
                let socket = world.path("nri.sock");
                tokio::spawn(world.plugins.clone().connect(plugin.clone(), socket));
            }
            tokio::spawn(world.clone().watch(Arc::clone(&pods)));
            let begun = Instant::now();
            let Ok(recovered) = timeout(CALL, recover::run(&pods)).await else {
                return world.memory.fault(Rule::Recovery, "hangs".into());
            };
            let recovery = recovered.expect("a recovery");
            let took = begun.elapsed();
            if took > RECOVERY {
                let text = format!("serves after {:.1} s", took.as_secs_f64());
                world.memory.fault(Rule::Recovery, text);
            }
            world.memory.log("serves".into());
            let mut events = Subscriber::of(world.memory.clone(), &pods);
            if timeout(CALL, recovery.rest).await.is_err() {
                let text = "the work beside the service hangs".into();
                return world.memory.fault(Rule::Recovery, text);
            }
            world.check_made(&pods.registry);
            if ends {
                world.memory.check_acknowledged(&pods.registry);
            } else {
                world.work(&pods).await;
                world.check_made(&pods.registry);
            }
            world.finish(&pods).await;
            events.check_all();
        });
        self.memory.0.lock().begun = None;
        self.plugins.disconnect();
        ran
    }

    fn begin(&self) {
        {
            let mut inner = self.memory.0.lock();
            inner.begun = Some(Instant::now());
            inner.hazards = self.plan.hazards.clone();
            inner.is_over = false;
            inner.pods.clear();
            let exits = inner.exits.values_mut();
            exits.for_each(|(_, ended)| *ended = None);
            inner.lost.values_mut().for_each(|ended| *ended = None);
        }
        self.memory.log("the daemon starts".into());
        self.memory.stop_some();
        if let Some(most) = self.plan.hazards.get(&Hazard::Waiting) {
            seeded::set_limit("waiting requests", *most as usize);
        }
        if self.plan.has(Hazard::Outlives) || self.plan.has(Hazard::Images) {
            seeded::outlive();
        }
        let memory = self.memory.clone();
        seeded::govern(move |place| match place {
            "container.update.cgroup" if memory.happens(Hazard::Writes) => {
                let seconds = [2, 9, 9][drawn(3) as usize];
                Some(Fate::Waits(Duration::from_secs(seconds)))
            }
            "store.container" | "store.pod" if memory.happens(Hazard::Disk) => Some(Fate::Fails),
            _ => None,
        });
    }

    /// While no daemon runs.
    fn between(&self) {
        if self.plan.has(Hazard::Cut) && drawn(2) == 0 {
            return self.cut_power();
        }
        for dir in self.memory.running() {
            if drawn(3) == 0 {
                match drawn(4) {
                    0 => self.memory.lose(&dir),
                    _ => self.memory.exit(&dir, 3),
                }
            }
        }
    }

    /// Everything in memory is gone: processes, mounts, namespaces, cgroups and `/run`.
    fn cut_power(&self) {
        self.memory.log("power cut".into());
        self.memory.lose_all();
        // The plugins' processes are gone, too, with what they knew.
        self.plugins.seen.lock().notified.clear();
        {
            let mut inner = self.memory.0.lock();
            inner.power_cuts += 1;
            inner.pins.clear();
            inner.mounts.clear();
            // Its records may be newer than ours.
            let networks = inner.networks.values_mut();
            networks.for_each(|attached| *attached = Attached::Left);
        }
        // Plugins start again, too.
        self.plugins.seen.lock().notified.clear();
        seeded::forget_kernel();
        seeded::cut_power(|| drawn(2) == 0);
        let dirs = fs::read_dir(self.path("sys/fs/cgroup")).expect("cgroups");
        let dirs = dirs.flatten().map(|entry| entry.path());
        for dir in dirs.filter(|dir| dir.is_dir()) {
            fs::remove_dir_all(dir).expect("a cgroup");
        }
        fs::remove_dir_all(self.path("state")).expect("the state");
        fs::create_dir(self.path("state")).expect("the state");
    }
}

/// Runs a plan in a thread of its own.
pub fn run(plan: &Plan) -> Outcome {
    // Futures are large without optimisation.
    let builder = std::thread::Builder::new().stack_size(64 << 20);
    std::thread::scope(|scope| {
        let ran = builder.spawn_scoped(scope, || run_here(plan));
        let ran = ran.expect("a thread").join();
        ran.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn run_here(plan: &Plan) -> Outcome {
    seeded::begin(Some(plan.seed));
    let world = World::new(plan.clone());
    let mut first = None;
    for kill in &plan.kills {
        let ran = world.life(Some(*kill), first.is_some());
        first.get_or_insert(ran.polls);
        if ran.result.is_some() {
            break;
        }
        world.between();
    }
    let last = world.life(None, first.is_some());
    let polls = first.unwrap_or(last.polls);
    Outcome {
        polls,
        faults: world.check(),
        world,
    }
}
