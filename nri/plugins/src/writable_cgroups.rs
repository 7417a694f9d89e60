//! Mounts `/sys/fs/cgroup` writable in containers whose pods have the annotation
//! `writable-cgroups.noderesource.dev: "true"`, if the host delegates cgroups safely: its cgroup v2
//! mount must have `nsdelegate`. Otherwise requests are ignored with a warning.

use std::{fs, path::Path};

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::Adjust,
    annotation::effective_annotation,
    proto::{Container, Mount, PodSandbox},
};

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
};

const KEY: &str = "writable-cgroups.noderesource.dev";
const CGROUP: &str = "/sys/fs/cgroup";
const DEFAULT_MOUNTS: &str = "/host/proc/1/mountinfo";

/// See the module.
#[derive(Debug)]
pub struct WritableCgroups {
    delegates: bool,
    log: Log,
}

impl Sample for WritableCgroups {
    const NAME: &'static str = "writable-cgroups";
    const USAGE: Usage = [
        "Mounts /sys/fs/cgroup writable in containers that ask for it, where the host's cgroup2 mount has nsdelegate.",
        "writable-cgroups -idx 10 -host-mount-file /proc/1/mountinfo  # without the flag: /host/proc/1/mountinfo",
        r#""annotations": {"writable-cgroups.noderesource.dev/container.greeter": "true"}"#,
    ];
    const FLAGS: &'static [Flag] = &[Flag::value(
        "host-mount-file",
        "PATH",
        "mountinfo of the host (default: /host/proc/1/mountinfo)",
    )];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        let path = Path::new(args.get("host-mount-file").unwrap_or(DEFAULT_MOUNTS));
        let mounts = fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
        let delegates = delegates(&mounts);
        if !delegates {
            log.info("the host's cgroup2 mount lacks nsdelegate: requests will be ignored");
        }
        Ok(Self { delegates, log })
    }
}

impl Plugin for WritableCgroups {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        if effective_annotation(&pod, KEY, &container.name) != Some("true") {
            return Ok(CreateAnswer::default());
        }
        if !self.delegates {
            let container = display(&pod, &container);
            let line = format_args!("{container}: ignored, the host does not delegate cgroups");
            self.log.info(line);
            return Ok(CreateAnswer::default());
        }
        let mut mounts = container.mounts.iter();
        let mount = mounts
            .find(|mount| mount.destination == CGROUP)
            .ok_or_else(|| format!("the container has no mount at {CGROUP}"))?;
        let mut answer = CreateAnswer::default();
        if let Some(mount) = writable(mount) {
            answer.adjust.set_mount(mount);
        }
        Ok(answer)
    }
}

/// The same mount, writable; `None` if it is writable already.
fn writable(mount: &Mount) -> Option<Mount> {
    let has = |option: &str| mount.options.iter().any(|o| o == option);
    if has("rw") && !has("ro") {
        return None;
    }
    let mut options = mount.options.clone();
    options.retain(|option| option != "ro");
    if !has("rw") {
        options.push("rw".into());
    }
    Some(Mount {
        options,
        ..mount.clone()
    })
}

/// Whether a mountinfo has a cgroup2 mount at a usual place with `nsdelegate` among the options of
/// its superblock.
pub fn delegates(mountinfo: &str) -> bool {
    mountinfo.lines().any(|line| {
        let Some((left, right)) = line.split_once(" - ") else {
            return false;
        };
        let place = left.split_whitespace().nth(4);
        let mut right = right.split_whitespace();
        let (kind, _source, options) = (right.next(), right.next(), right.next());
        kind == Some("cgroup2")
            && matches!(place, Some("/sys/fs/cgroup" | "/sys/fs/cgroup/unified"))
            && options.is_some_and(|options| options.split(',').any(|o| o == "nsdelegate"))
    })
}
