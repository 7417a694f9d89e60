//! The cgroup hierarchies of this machine, read once from `/proc/self/mountinfo`.

use super::error::{Error, Result};
use super::io;
use super::systemd::Systemd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Layout of the hierarchies. The names of a controller's files depend on its tree
/// ([`Host::place`]), not on the layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Only v1 hierarchies.
    V1,
    /// v1 hierarchies, and beside them a unified tree with the remaining controllers, if any.
    Hybrid,
    /// Only the unified tree.
    V2,
}

/// One mounted tree and its controllers: a v1 tree, which may have a name alone (`name=systemd`),
/// or the unified one, with the controllers that its root offers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    pub controllers: Vec<String>,
    pub mount: PathBuf,
}

impl Hierarchy {
    pub fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|c| c == controller)
    }
}

/// The kind of tree that has a controller, and its mount point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place<'a> {
    V1(&'a Path),
    V2(&'a Path),
}

/// The cgroup hierarchies of this machine. Cheap to clone; never changes after detection.
#[derive(Debug, Clone)]
pub struct Host {
    trees: Arc<Trees>,
    /// With the systemd driver.
    systemd: Option<Systemd>,
}

#[derive(Debug)]
struct Trees {
    mode: Mode,
    v1: Vec<Hierarchy>,
    unified: Option<Hierarchy>,
}

impl Host {
    /// Reads the machine's mount table.
    ///
    /// # Errors
    /// `NoHierarchy` if no cgroup filesystem is mounted, `Io` if the table cannot be read.
    pub fn detect() -> Result<Self> {
        Self::detect_at(Path::new("/"))
    }

    /// The same below another root, for recorded trees: reads `root/proc/self/mountinfo` and takes
    /// each mount point relative to `root`.
    pub fn detect_at(root: &Path) -> Result<Self> {
        let table = root.join("proc/self/mountinfo");
        let text =
            io::read(&table).map_err(|source| Error::io(table, "read the mount table", source))?;
        let (v1, unified) = parse_mountinfo(&text);
        let v1: Vec<Hierarchy> = v1
            .into_iter()
            .map(|h| Hierarchy {
                mount: reroot(root, &h.mount),
                ..h
            })
            .collect();
        let unified = unified
            .map(|mount| reroot(root, &mount))
            .map(|mount| -> Result<Hierarchy> {
                let offered = io::read_if_there(&mount.join("cgroup.controllers"))?;
                Ok(Hierarchy {
                    controllers: words(&offered.unwrap_or_default()),
                    mount,
                })
            })
            .transpose()?;
        let mode = match (v1.is_empty(), &unified) {
            (true, None) => return Err(Error::NoHierarchy),
            (true, Some(_)) => Mode::V2,
            (false, None) => Mode::V1,
            (false, Some(_)) => Mode::Hybrid,
        };
        Ok(Self {
            trees: Arc::new(Trees { mode, v1, unified }),
            systemd: None,
        })
    }

    /// The same with the systemd driver.
    #[must_use]
    pub fn driven_by(self, systemd: Systemd) -> Self {
        Self {
            systemd: Some(systemd),
            ..self
        }
    }

    /// `None` with the cgroupfs driver.
    pub fn systemd(&self) -> Option<&Systemd> {
        self.systemd.as_ref()
    }

    pub fn mode(&self) -> Mode {
        self.trees.mode
    }

    /// The v1 hierarchies, in the order of the mount table.
    pub fn v1(&self) -> &[Hierarchy] {
        &self.trees.v1
    }

    pub fn unified(&self) -> Option<&Hierarchy> {
        self.trees.unified.as_ref()
    }

    /// The tree of `controller`; `None` if this host does not have it.
    pub fn place(&self, controller: &str) -> Option<Place<'_>> {
        let has = |tree: &&Hierarchy| tree.has(controller);
        let v1 = self.v1().iter().find(has);
        let v2 = || self.unified().filter(has);
        v1.map(|tree| Place::V1(&tree.mount))
            .or_else(|| v2().map(|tree| Place::V2(&tree.mount)))
    }

    pub fn has(&self, controller: &str) -> bool {
        self.place(controller).is_some()
    }

    /// Whether this kernel counts swap per cgroup, so that a swap limit has an effect. A v2 root
    /// has no limits: the first cgroup below it with a memory controller decides.
    pub fn counts_swap(&self) -> bool {
        match self.place("memory") {
            None => false,
            Some(Place::V1(mount)) => mount.join("memory.memsw.limit_in_bytes").exists(),
            Some(Place::V2(mount)) => std::fs::read_dir(mount)
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.path())
                .find(|dir| dir.join("memory.max").exists())
                .is_none_or(|dir| dir.join("memory.swap.max").exists()),
        }
    }

    /// Whether the cpu controller assigns real-time per cgroup.
    pub fn schedules_realtime(&self) -> bool {
        match self.place("cpu") {
            Some(Place::V1(mount)) => mount.join("cpu.rt_runtime_us").exists(),
            _ => false,
        }
    }
}

fn reroot(root: &Path, mount: &Path) -> PathBuf {
    root.join(mount.strip_prefix("/").unwrap_or(mount))
}

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// A cgroup filesystem in the mount table.
struct CgroupMount {
    root: String,
    mount: PathBuf,
    /// `None` for cgroup2, else the controllers in the super block's options.
    controllers: Option<Vec<String>>,
}

/// The v1 hierarchies and the mount point of the unified one. Of several mounts of one hierarchy
/// (bind mounts in containers) the first that shows its root counts.
fn parse_mountinfo(text: &str) -> (Vec<Hierarchy>, Option<PathBuf>) {
    let mut mounts: Vec<CgroupMount> = text.lines().filter_map(parse_line).collect();
    // Stable: otherwise equal mounts keep the order of the table.
    mounts.sort_by_key(|m| m.root != "/");
    let mut v1: Vec<Hierarchy> = Vec::new();
    let mut unified = None;
    for CgroupMount {
        mount, controllers, ..
    } in mounts
    {
        match controllers {
            None => unified = unified.or(Some(mount)),
            Some(controllers) => {
                let known = |h: &Hierarchy| controllers.iter().any(|c| h.controllers.contains(c));
                if !controllers.is_empty() && !v1.iter().any(known) {
                    v1.push(Hierarchy { controllers, mount });
                }
            }
        }
    }
    (v1, unified)
}

/// `id parent major:minor root mount options [optional…] - type source super-options`
fn parse_line(line: &str) -> Option<CgroupMount> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(3);
    let (root, mount) = (unescape_mount(left.next()?), unescape_mount(left.next()?));
    let mut right = right.split(' ');
    let kind = right.next()?;
    let options = right.nth(1)?;
    let controllers = match kind {
        "cgroup2" => None,
        "cgroup" => Some(
            options
                .split(',')
                .filter(|option| !MOUNT_OPTIONS.contains(option))
                .filter(|option| !option.contains('=') || option.starts_with("name="))
                .map(str::to_owned)
                .collect(),
        ),
        _ => return None,
    };
    Some(CgroupMount {
        root,
        mount: PathBuf::from(mount),
        controllers,
    })
}

/// Super block options of a v1 mount that are not controllers.
const MOUNT_OPTIONS: [&str; 9] = [
    "rw",
    "ro",
    "none",
    "clone_children",
    "noprefix",
    "xattr",
    "cpuset_v2_mode",
    "seclabel",
    "favordynmods",
];

/// Decodes space, tab, newline and backslash, which the table writes as `\` and three octal digits.
pub fn unescape_mount(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail.get(..3).and_then(|d| std::str::from_utf8(d).ok());
        let octal = digits.and_then(|d| u8::from_str_radix(d, 8).ok());
        match (first, octal) {
            (b'\\', Some(byte)) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            _ => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
