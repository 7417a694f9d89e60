//! A plugin with every method, which only logs its calls. nri/README.md shows how to begin a
//! plugin; copy the signatures from here. This file belongs to its package and compiles only there.

use std::fmt::Display;

use nri::{
    Context, CreateAnswer, Error, Plugin, UpdateAnswer,
    proto::{
        Container, ContainerUpdate, LinuxResources, PodSandbox, ValidateContainerAdjustmentRequest,
    },
    read::ReadPod,
};
use serde::Deserialize;

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Sample, display},
    yaml,
};

/// Configuration that the runtime may send.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Config {
    cfg_param1: String,
}

/// See the module.
#[derive(Debug)]
pub struct Template {
    log: Log,
}

impl Sample for Template {
    const NAME: &'static str = "template";
    const USAGE: Usage = [
        "Handles every event and does nothing: a plugin to begin with.",
        "template -idx 10  # or launched as 10-template, with 10-template.conf: {cfgParam1: value}",
        "template -idx 10 -name my-plugin -reconnect",
    ];
    const FLAGS: &'static [Flag] = &[];

    fn new(_: &Args, log: Log) -> Result<Self, String> {
        Ok(Self { log })
    }
}

/// The plugin subscribes to the events whose methods exist here: delete those you do not need.
impl Plugin for Template {
    async fn configure(&self, cx: &Context, config: String) -> Result<(), Error> {
        let config: Config = if config.is_empty() {
            Config::default()
        } else {
            yaml::parse(&config)?
        };
        let runtime = cx.runtime_info();
        self.log.info(format_args!(
            "configured by {} {}: cfgParam1 = {:?}",
            runtime.name, runtime.version, config.cfg_param1
        ));
        Ok(())
    }

    async fn synchronize(
        &self,
        _: &Context,
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    ) -> Result<Vec<ContainerUpdate>, Error> {
        let (pods, containers) = (pods.len(), containers.len());
        self.log
            .info(format_args!("{pods} pods, {containers} containers"));
        Ok(Vec::new())
    }

    async fn shutdown(&self, _: &Context) {
        self.log.info(format_args!("shut down"));
    }

    async fn run_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("RunPodSandbox", pod.full_name());
        Ok(())
    }

    async fn update_pod_sandbox(
        &self,
        _: &Context,
        pod: PodSandbox,
        _overhead: LinuxResources,
        _resources: LinuxResources,
    ) -> Result<(), Error> {
        self.report("UpdatePodSandbox", pod.full_name());
        Ok(())
    }

    async fn post_update_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("PostUpdatePodSandbox", pod.full_name());
        Ok(())
    }

    async fn stop_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("StopPodSandbox", pod.full_name());
        Ok(())
    }

    async fn remove_pod_sandbox(&self, _: &Context, pod: PodSandbox) -> Result<(), Error> {
        self.report("RemovePodSandbox", pod.full_name());
        Ok(())
    }

    async fn create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<CreateAnswer, Error> {
        self.report("CreateContainer", display(&pod, &container));
        // Use `nri::adjust::Adjust` on `answer.adjust`; `answer.update(…)` and `answer.evict(…)`
        // for others.
        let answer = CreateAnswer::default();
        Ok(answer)
    }

    async fn post_create_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        self.report("PostCreateContainer", display(&pod, &container));
        Ok(())
    }

    async fn start_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        self.report("StartContainer", display(&pod, &container));
        Ok(())
    }

    async fn post_start_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        self.report("PostStartContainer", display(&pod, &container));
        Ok(())
    }

    async fn update_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
        _resources: LinuxResources,
    ) -> Result<UpdateAnswer, Error> {
        self.report("UpdateContainer", display(&pod, &container));
        Ok(UpdateAnswer::default())
    }

    async fn post_update_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        self.report("PostUpdateContainer", display(&pod, &container));
        Ok(())
    }

    async fn stop_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<Vec<ContainerUpdate>, Error> {
        self.report("StopContainer", display(&pod, &container));
        Ok(Vec::new())
    }

    async fn remove_container(
        &self,
        _: &Context,
        pod: PodSandbox,
        container: Container,
    ) -> Result<(), Error> {
        self.report("RemoveContainer", display(&pod, &container));
        Ok(())
    }

    async fn validate_container_adjustment(
        &self,
        _: &Context,
        request: ValidateContainerAdjustmentRequest,
    ) -> Result<(), Error> {
        let name = request.container.map(|c| c.name).unwrap_or_default();
        self.log
            .info(format_args!("ValidateContainerAdjustment {name}"));
        Ok(())
    }
}

impl Template {
    fn report(&self, event: &str, of: impl Display) {
        self.log.info(format_args!("{event} {of}"));
    }
}
