//! The default validator as a stand-alone plugin: the rules of [`nri::validate::DefaultValidator`],
//! configured by the runtime (YAML or JSON), or by a file until then.

use std::fs;

use nri::{
    Context, Error, Plugin, proto::ValidateContainerAdjustmentRequest,
    validate::DefaultValidator as Rules,
};
use parking_lot::RwLock;

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::Sample,
    yaml,
};

/// See the module.
#[derive(Debug)]
pub struct DefaultValidator {
    rules: RwLock<Rules>,
    log: Log,
}

impl Sample for DefaultValidator {
    const NAME: &'static str = "default-validator";
    const USAGE: Usage = [
        "Rejects adjustments of containers that its rules forbid, and containers without required plugins.",
        "default-validator -idx 99  # or launched as 99-default-validator, with its rules in 99-default-validator.conf",
        "echo '{rejectOCIHookAdjustment: true, rejectSysctlAdjustment: true}' >/run/rules.yaml && default-validator -idx 99 -config /run/rules.yaml",
    ];
    const FLAGS: &'static [Flag] = &[Flag::value(
        "config",
        "PATH",
        "YAML file with rules; those that the runtime sends replace them",
    )];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        let rules = match args.get("config") {
            None => Rules::default(),
            Some(path) => {
                let text = fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
                yaml::parse(&text).map_err(|e| format!("{path}: {e}"))?
            }
        };
        Ok(Self {
            rules: RwLock::new(rules),
            log,
        })
    }
}

impl Plugin for DefaultValidator {
    async fn configure(&self, _: &Context, config: String) -> Result<(), Error> {
        if !config.is_empty() {
            let new: Rules = yaml::parse(&config)?;
            self.log.info(format_args!("{new:?}"));
            *self.rules.write() = new;
        }
        Ok(())
    }

    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), Error> {
        Ok(self.rules.read().check(&request)?)
    }
}
