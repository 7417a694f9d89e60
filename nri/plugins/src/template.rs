//! A plugin to begin with: every handler is here and does nothing but say so. Copy it, drop the
//! handlers you do not need, and write the others.

use nri::{EventMask, Handlers};
use serde::Deserialize;

use crate::{
    cli::{Args, Flag, Usage},
    log::Log,
    plugin::{Plugin, display},
    yaml,
};

/// What the runtime may give us as configuration.
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

impl Plugin for Template {
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

    fn handlers(self) -> Handlers {
        let handlers = with_pods(Handlers::new(), &self.log);
        let handlers = with_containers(handlers, &self.log);
        with_control(handlers, &self.log)
    }
}

/// Configuration, what there is at the start, and the end.
fn with_control(handlers: Handlers, log: &Log) -> Handlers {
    let (configure, synchronize, shutdown) = (log.clone(), log.clone(), log.clone());
    handlers
        .configure(move |request| {
            let log = configure.clone();
            async move {
                let config: Config = match request.config.is_empty() {
                    true => Config::default(),
                    false => yaml::parse(&request.config)?,
                };
                log.info(format_args!(
                    "configured by {} {}: cfgParam1 = {:?}",
                    request.runtime_name, request.runtime_version, config.cfg_param1
                ));
                // The empty set: all events that have a handler.
                Ok(EventMask::NONE)
            }
        })
        .synchronize(move |pods, containers| {
            let (pods, containers) = (pods.len(), containers.len());
            synchronize.info(format_args!("{pods} pods, {containers} containers"));
            async { Ok(Vec::new()) }
        })
        .shutdown(move |reason| {
            shutdown.info(format_args!("shut down: {reason}"));
            async {}
        })
}

fn with_pods(handlers: Handlers, log: &Log) -> Handlers {
    let on = |event: &'static str| {
        let log = log.clone();
        move |pod: nri::proto::PodSandbox| {
            log.info(format_args!("{event} {}/{}", pod.namespace, pod.name));
            async { Ok(()) }
        }
    };
    let update = log.clone();
    handlers
        .run_pod_sandbox(on("RunPodSandbox"))
        .update_pod_sandbox(move |pod, _overhead, _resources| {
            update.info(format_args!(
                "UpdatePodSandbox {}/{}",
                pod.namespace, pod.name
            ));
            async { Ok(()) }
        })
        .post_update_pod_sandbox(on("PostUpdatePodSandbox"))
        .stop_pod_sandbox(on("StopPodSandbox"))
        .remove_pod_sandbox(on("RemovePodSandbox"))
}

fn with_containers(handlers: Handlers, log: &Log) -> Handlers {
    let on = |event: &'static str| {
        let log = log.clone();
        move |pod: nri::proto::PodSandbox, container: nri::proto::Container| {
            log.info(format_args!("{event} {}", display(&pod, &container)));
            async { Ok(()) }
        }
    };
    let (create, update, stop, validate) = (log.clone(), log.clone(), log.clone(), log.clone());
    handlers
        .create_container(move |pod, container| {
            create.info(format_args!(
                "CreateContainer {}",
                display(&pod, &container)
            ));
            // Write `nri::adjust::Adjust` on a ContainerAdjustment here.
            async { Ok((None, Vec::new())) }
        })
        .post_create_container(on("PostCreateContainer"))
        .start_container(on("StartContainer"))
        .post_start_container(on("PostStartContainer"))
        .update_container(move |pod, container, _resources| {
            update.info(format_args!(
                "UpdateContainer {}",
                display(&pod, &container)
            ));
            async { Ok(Vec::new()) }
        })
        .post_update_container(on("PostUpdateContainer"))
        .stop_container(move |pod, container| {
            stop.info(format_args!("StopContainer {}", display(&pod, &container)));
            async { Ok(Vec::new()) }
        })
        .remove_container(on("RemoveContainer"))
        .validate_container_adjustment(move |request| {
            let name = request.container.map(|c| c.name).unwrap_or_default();
            validate.info(format_args!("ValidateContainerAdjustment {name}"));
            async { Ok(()) }
        })
}
