//! Sets rlimits by annotations of pods.
//!
//! Annotation `ulimits.noderesource.dev/container.<name>`, or the older
//! `ulimits.nri.containerd.io/container.<name>`: a list of {type, hard, soft}. The type is `NOFILE`
//! or `RLIMIT_NOFILE`, in any case. An unknown type, or a hard limit below the soft one, fails the
//! creation.

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::{Adjust, RLIMITS},
    proto::{Container, PodSandbox},
};
use serde::Deserialize;

use crate::{
    annotations,
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
};

const KEYS: [&str; 2] = ["ulimits.noderesource.dev", "ulimits.nri.containerd.io"];

#[derive(Debug, Deserialize)]
struct Ulimit {
    r#type: String,
    hard: u64,
    soft: u64,
}

/// See the module.
#[derive(Debug)]
pub struct UlimitAdjuster {
    log: Log,
}

impl Sample for UlimitAdjuster {
    const NAME: &'static str = "ulimit-adjuster";
    const USAGE: Usage = [
        "Sets rlimits of containers from annotations of their pods.",
        "ulimit-adjuster -idx 10  # or launched as 10-ulimit-adjuster; -verbose logs what it sets",
        r#""annotations": {"ulimits.noderesource.dev/container.greeter": "[{type: nofile, hard: 4096, soft: 1024}]"}"#,
    ];
    const FLAGS: &'static [Flag] = &[];

    fn new(_: &Args, log: Log) -> Result<Self, String> {
        Ok(Self { log })
    }
}

impl Plugin for UlimitAdjuster {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        let Some(found) = annotations::of_container(&pod, &KEYS, &container.name) else {
            return Ok(CreateAnswer::default());
        };
        let mut answer = CreateAnswer::default();
        for ulimit in annotations::read::<Vec<Ulimit>>(found)? {
            let kind = canonical(&ulimit.r#type)
                .ok_or_else(|| format!("ulimit type {:?} is not known", ulimit.r#type))?;
            if ulimit.hard < ulimit.soft {
                let Ulimit { hard, soft, .. } = ulimit;
                return Err(format!("ulimit {kind}: hard {hard} is below soft {soft}").into());
            }
            self.log
                .debug(format_args!("{}: {kind}", display(&pod, &container)));
            answer.adjust.add_rlimit(kind, ulimit.hard, ulimit.soft);
        }
        Ok(answer)
    }
}

/// `RLIMIT_NOFILE` for each of `nofile`, `Rlimit_NoFile`, `RLIMIT_NOFILE`.
fn canonical(kind: &str) -> Option<String> {
    let upper = kind.to_ascii_uppercase();
    let bare = upper.strip_prefix("RLIMIT_").unwrap_or(&upper);
    RLIMITS.contains(&bare).then(|| format!("RLIMIT_{bare}"))
}
