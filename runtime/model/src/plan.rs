//! The plan of a run, which its seed generates.

use std::collections::BTreeMap;

use cairn::seeded;

use crate::drawn::drawn;

/// The parameters of one plugin.
#[derive(Debug, Clone)]
pub struct Plugin {
    pub id: &'static str,
    /// It joins with the daemon, and is never lost.
    pub in_process: bool,
    pub required: bool,
    pub must_run: bool,
    pub fail_request: bool,
    /// One of this many setup events is rejected, and one of this many others fails; 0: never.
    pub vetoes: u64,
    pub fails: u64,
    /// One of this many events is late, and one breaks the connection.
    pub late: u64,
    pub lost: u64,
    /// One of this many answers requests updates, and one evicts a container.
    pub asks: u64,
    pub evicts: u64,
    /// It requests updates and evictions of its own, with pauses of at most this many times 100 ms.
    pub unsolicited: u64,
}

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    /// Per client.
    pub pods: usize,
    pub plugins: Vec<Plugin>,
    /// Each happens once in this many times.
    pub hazards: BTreeMap<Hazard, u64>,
    /// The lives of the daemon end after this many polls; after them one is not killed.
    pub kills: Vec<u64>,
}

/// What may happen to the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hazard {
    /// An operation of the machine fails.
    Fails,
    /// A record cannot be written.
    Disk,
    /// The kernel applies a limit slowly.
    Writes,
    /// A DEL waits for its agent, and an ADD leaves something to collect.
    Dels,
    /// An OCI hook hangs.
    Hooks,
    /// A monitor does not run for a while.
    Stuck,
    /// Few requests may wait for a pod: the limit, and not a chance.
    Waiting,
    /// A power cut instead of a kill.
    Cut,
    /// Blocking work runs after its caller has left.
    Outlives,
    /// A pod shares its PID namespace.
    Pause,
    /// A client leaves its pod.
    Stays,
    /// Clients import and remove images.
    Images,
}

const HAZARDS: [(Hazard, &[u64]); 12] = [
    (Hazard::Fails, &[15]),
    (Hazard::Disk, &[40]),
    (Hazard::Writes, &[1, 2, 6]),
    (Hazard::Dels, &[3, 10]),
    (Hazard::Hooks, &[6, 20]),
    (Hazard::Stuck, &[6, 20]),
    (Hazard::Waiting, &[1, 2, 4]),
    (Hazard::Cut, &[1, 2]),
    (Hazard::Outlives, &[1]),
    (Hazard::Pause, &[1, 3]),
    (Hazard::Stays, &[1, 2]),
    (Hazard::Images, &[1]),
];

impl Plan {
    /// One client with one pod, on a machine without faults.
    pub fn quiet(seed: u64) -> Self {
        let within = Plugin {
            in_process: true,
            required: true,
            ..plugin("05-within")
        };
        Self {
            seed,
            clients: 1,
            pods: 1,
            plugins: vec![within, plugin("20-outside")],
            hazards: BTreeMap::new(),
            kills: Vec::new(),
        }
    }

    /// The plan of a seed, without kills.
    pub fn drawn(seed: u64) -> Self {
        seeded::begin(Some(seed ^ 0x5eed));
        let plugins = drawn_plugins();
        let mut hazards = BTreeMap::new();
        for (hazard, chances) in HAZARDS {
            if drawn(3) == 0 {
                hazards.insert(hazard, one(chances));
            }
        }
        Self {
            seed,
            clients: 3,
            pods: 2,
            plugins,
            hazards,
            kills: Vec::new(),
        }
    }

    /// The same plan with kills, by the polls of its life without one.
    pub fn killed(self, polls: u64) -> Self {
        seeded::begin(Some(self.seed));
        Self {
            kills: vec![drawn(polls), drawn(polls / 4 + 1)],
            ..self
        }
    }

    pub(crate) fn has(&self, hazard: Hazard) -> bool {
        self.hazards.contains_key(&hazard)
    }
}

fn one(of: &[u64]) -> u64 {
    of[drawn(of.len() as u64) as usize]
}

fn plugin(id: &'static str) -> Plugin {
    Plugin {
        id,
        in_process: false,
        required: false,
        must_run: false,
        fail_request: false,
        vetoes: 0,
        fails: 0,
        late: 0,
        lost: 0,
        asks: 0,
        evicts: 0,
        unsolicited: 0,
    }
}

fn drawn_plugins() -> Vec<Plugin> {
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
            evicts: some(12),
            asks: some(2),
            ..plugin("05-within")
        });
    }
    if !alone && (drawn(3) > 0 || plugins.is_empty()) {
        plugins.push(Plugin {
            required: drawn(3) == 0,
            must_run: drawn(3) == 0,
            vetoes: one(&[0, 3, 8]),
            evicts: some(12),
            asks: some(4),
            unsolicited: some(5),
            late: some(40),
            lost: one(&[0, 6, 20]),
            ..plugin("20-outside")
        });
    }
    if drawn(3) == 0 {
        let fails = some(4);
        plugins.push(Plugin {
            fail_request: fails > 0,
            fails,
            late: some(20),
            lost: some(10),
            unsolicited: some(20),
            ..plugin("80-last")
        });
    }
    plugins
}
