//! Logs every event with its objects, as YAML; or one line for each, to compare runtimes. On
//! CreateContainer it can set a mark: an annotation or a variable, added or overriding.
//!
//! Every event has the same handler, whatever its type: hence a table instead of a [`nri::Plugin`].
//!
//! It prints complete messages, values of variables included: a tool for debugging, not for a node.

use std::{collections::BTreeMap, sync::Arc};

use nri::{
    Error, EventMask, Handlers, HookRequest,
    adjust::{Adjust, Strip},
    proto::*,
};
use parking_lot::RwLock;
use serde::{Deserialize, Serialize};

use crate::{
    cli::{Args, Flag, Usage},
    dump,
    log::Log,
    plugin::Sample,
    yaml,
};

/// Its configuration: from flags, then from the runtime.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase", deny_unknown_fields)]
struct Config {
    log_file: String,
    events: Vec<String>,
    add_annotation: String,
    set_annotation: String,
    add_env: String,
    set_env: String,
}

/// See the module.
#[derive(Debug, Clone)]
pub struct Logger {
    config: Arc<RwLock<Config>>,
    events_only: bool,
    log: Log,
}

impl Sample for Logger {
    const NAME: &'static str = "logger";
    const USAGE: Usage = [
        "Logs every event with what it is about; can mark containers by an annotation or a variable.",
        "logger -idx 99  # or launched as 99-logger, with 99-logger.conf: {logFile: /run/logger.log, addEnv: SEEN_BY}",
        "logger -idx 99 -events-only -log-file /run/events -set-env SEEN_BY",
    ];
    const FLAGS: &'static [Flag] = &[
        Flag::value("events", "LIST", "events to subscribe to (default: all)"),
        Flag::switch(
            "events-only",
            "print one line per event: EVENT pod container",
        ),
        Flag::value("log-file", "PATH", "where to log (default: standard error)"),
        Flag::value("add-annotation", "KEY", "add this annotation to containers"),
        Flag::value(
            "set-annotation",
            "KEY",
            "the same, overriding other plugins",
        ),
        Flag::value("add-env", "NAME", "add this variable to containers"),
        Flag::value("set-env", "NAME", "the same, overriding other plugins"),
    ];

    fn new(args: &Args, log: Log) -> Result<Self, String> {
        let text = |flag| args.get(flag).unwrap_or_default().to_owned();
        let config = Config {
            log_file: text("log-file"),
            events: args.all("events").map(str::to_owned).collect(),
            add_annotation: text("add-annotation"),
            set_annotation: text("set-annotation"),
            add_env: text("add-env"),
            set_env: text("set-env"),
        };
        events(&config)?;
        let logger = Self {
            config: Arc::new(RwLock::new(config.clone())),
            events_only: args.is("events-only"),
            log,
        };
        logger.open_log(&config)?;
        Ok(logger)
    }
}

impl From<Logger> for Handlers {
    fn from(logger: Logger) -> Self {
        let handlers = logger.control_handlers(Handlers::new());
        let this = logger.clone();
        logger
            .event_handlers(handlers)
            .on(move |request: CreateContainerRequest| {
                this.report(&request);
                let adjust = this.mark();
                async move {
                    Ok(CreateContainerResponse {
                        adjust,
                        ..Default::default()
                    })
                }
            })
    }
}

impl Logger {
    fn control_handlers(&self, handlers: Handlers) -> Handlers {
        let (configure, synchronize, shutdown) = (self.clone(), self.clone(), self.clone());
        handlers
            .configure(move |request| {
                let events = configure.configure(&request);
                async move { events.map_err(Error::from) }
            })
            .synchronize(move |pods, containers| {
                synchronize.tell_all(&pods, &containers);
                async { Ok(Vec::new()) }
            })
            .shutdown(move || {
                shutdown.log.raw(format_args!("Shutdown"));
                async {}
            })
    }

    /// Handlers of all events except CreateContainer.
    fn event_handlers(&self, handlers: Handlers) -> Handlers {
        handlers
            .on(self.teller::<RunPodSandboxRequest>())
            .on(self.teller::<UpdatePodSandboxRequest>())
            .on(self.teller::<PostUpdatePodSandboxRequest>())
            .on(self.teller::<StopPodSandboxRequest>())
            .on(self.teller::<RemovePodSandboxRequest>())
            .on(self.teller::<PostCreateContainerRequest>())
            .on(self.teller::<StartContainerRequest>())
            .on(self.teller::<PostStartContainerRequest>())
            .on(self.teller::<UpdateContainerRequest>())
            .on(self.teller::<PostUpdateContainerRequest>())
            .on(self.teller::<StopContainerRequest>())
            .on(self.teller::<RemoveContainerRequest>())
            .on(self.teller::<ValidateContainerAdjustmentRequest>())
    }

    /// A handler that logs the request and returns an empty answer.
    fn teller<R: HookRequest + Serialize>(
        &self,
    ) -> impl Fn(R) -> std::future::Ready<nri::Result<R::Reply>> + Send + Sync + 'static {
        let this = self.clone();
        move |request| {
            this.report(&request);
            std::future::ready(Ok(R::Reply::default()))
        }
    }

    fn configure(&self, request: &ConfigureRequest) -> Result<EventMask, String> {
        let mut config = self.config.write();
        if !request.config.is_empty() {
            *config = yaml::parse(&request.config).map_err(|e| format!("configuration: {e}"))?;
            self.open_log(&config)?;
        }
        events(&config)
    }

    fn open_log(&self, config: &Config) -> Result<(), String> {
        match config.log_file.as_str() {
            "" => Ok(()),
            path => self.log.to_file(path),
        }
    }

    fn report<R: HookRequest + Serialize>(&self, request: &R) {
        let event = nri::mask::event_name(R::EVENT);
        if !self.events_only {
            return self.dump(event, request);
        }
        let pod = request.pod().map_or("", |pod| &pod.name);
        match request.container() {
            Some(container) => self
                .log
                .raw(format_args!("{event} {pod} {}", container.name)),
            None => self.log.raw(format_args!("{event} {pod}")),
        }
    }

    fn tell_all(&self, pods: &[PodSandbox], containers: &[Container]) {
        if !self.events_only {
            for pod in pods {
                self.dump("Synchronize", &BTreeMap::from([("pod", pod)]));
            }
            for container in containers {
                self.dump("Synchronize", &BTreeMap::from([("container", container)]));
            }
            return;
        }
        let (pods, containers) = (pods.len(), containers.len());
        let line = format_args!("Synchronize {pods} pods {containers} containers");
        self.log.raw(line);
    }

    fn dump(&self, event: &str, message: &impl Serialize) {
        for line in dump::yaml(message).lines() {
            self.log.raw(format_args!("{event}: {line}"));
        }
    }

    /// The adjustment of a container being created.
    fn mark(&self) -> Option<ContainerAdjustment> {
        let config = self.config.read();
        let value = format!("logger-pid-{}", std::process::id());
        let mut adjust = ContainerAdjustment::default();
        if !config.add_annotation.is_empty() {
            adjust.add_annotation(&config.add_annotation, &value);
        }
        if !config.set_annotation.is_empty() {
            adjust.set_annotation(&config.set_annotation, &value);
        }
        if !config.add_env.is_empty() {
            adjust.add_env(&config.add_env, &value);
        }
        if !config.set_env.is_empty() {
            adjust.set_env(&config.set_env, &value);
        }
        adjust.strip()
    }
}

/// An empty list, or only empty names, means all events.
fn events(config: &Config) -> Result<EventMask, String> {
    let named: Vec<&String> = config
        .events
        .iter()
        .filter(|e| !e.trim().is_empty())
        .collect();
    if named.is_empty() {
        Ok(EventMask::ALL)
    } else {
        EventMask::parse(named).map_err(|e| format!("events: {e}"))
    }
}
