//! Sets RDT (cache and memory bandwidth control) of containers from annotations of their pods:
//! `closid`, `schemata` and `enablemonitoring`, each as
//! `<what>.rdt.noderesource.dev/container.<name>`.
//!
//! `schemata` is a comma-separated list of lines; a line with commas cannot be expressed.

use nri::{
    Context, CreateAnswer, Error, Plugin,
    adjust::Adjust,
    annotation::go_bool,
    proto::{Container, PodSandbox},
};

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
};

/// See the module.
#[derive(Debug)]
pub struct Rdt {
    log: Log,
}

impl Sample for Rdt {
    const NAME: &'static str = "rdt";
    const USAGE: Usage = [
        "Sets RDT class, schemata and monitoring of containers from annotations of their pods.",
        "rdt -idx 10  # or launched as 10-rdt; the host needs resctrl, elsewhere such containers are refused",
        r#""annotations": {"closid.rdt.noderesource.dev/container.greeter": "gold", "schemata.rdt.noderesource.dev/container.greeter": "L3:0=f"}"#,
    ];
    const FLAGS: &'static [Flag] = &[];

    fn new(_: &Args, log: Log) -> Result<Self, String> {
        Ok(Self { log })
    }
}

impl Plugin for Rdt {
    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        let suffix = format!(".rdt.noderesource.dev/container.{}", container.name);
        let mut answer = CreateAnswer::default();
        for (key, value) in &pod.annotations {
            match key.strip_suffix(&suffix) {
                None => {}
                Some("closid") => {
                    answer.adjust.rdt_clos_id(value);
                }
                Some("schemata") => {
                    answer.adjust.rdt_schemata(value.split(','));
                }
                Some("enablemonitoring") => {
                    let enable = go_bool(value)
                        .ok_or_else(|| format!("annotation {key}: {value:?} is not a boolean"))?;
                    answer.adjust.rdt_enable_monitoring(enable);
                }
                Some(other) => {
                    let container = display(&pod, &container);
                    self.log
                        .info(format_args!("{container}: {other}: not known"));
                }
            }
        }
        Ok(answer)
    }
}
