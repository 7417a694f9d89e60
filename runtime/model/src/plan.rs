//! The plan of a run, which its seed generates.

use cairn::seeded;

use crate::{memory::drawn, plugins::Plugin};

/// The parameters of a run.
#[derive(Debug, Clone)]
pub struct Plan {
    pub seed: u64,
    pub clients: usize,
    /// Per client.
    pub pods: usize,
    pub plugins: Vec<Plugin>,
    /// One of this many operations of the machine fails; 0: none.
    pub fails: u64,
    /// The lives of the daemon end after this many polls; after them one is not killed.
    pub kills: Vec<u64>,
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
            fails: 0,
            kills: Vec::new(),
        }
    }

    /// The plan of a seed, without kills.
    pub fn drawn(seed: u64) -> Self {
        seeded::begin(Some(seed ^ 0x5eed));
        Self {
            seed,
            clients: 3,
            pods: 2,
            plugins: drawn_plugins(),
            fails: [0, 0, 15][drawn(3) as usize],
            kills: Vec::new(),
        }
    }

    /// The same plan with two kills, by the polls of its life without one.
    pub fn killed(self, polls: u64) -> Self {
        seeded::begin(Some(self.seed));
        Self {
            kills: vec![drawn(polls), drawn(polls / 4 + 1)],
            ..self
        }
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
    plugins
}
