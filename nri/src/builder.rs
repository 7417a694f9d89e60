//! Builds and starts an [`Adaptation`].

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use crate::{
    adaptation::{Adaptation, Handle},
    launch::StartError,
    observe::Observer,
    plugin_id::PluginId,
    plugin_side::{builtin, handlers::Handlers},
    rt,
    settings::{PluginSettings, Settings},
    shared::{Runtime, Shared},
    source::{BoxFuture, Source},
    validate::DefaultValidator,
    wire::{mux::Watch, transport},
};

/// Collects the parts of an [`Adaptation`].
#[derive(Default)]
pub struct Builder {
    runtime: Runtime,
    settings: Settings,
    source: Option<Arc<dyn Source>>,
    observer: Option<Arc<dyn Observer>>,
    in_process: Vec<(PluginId, Handlers)>,
}

impl Builder {
    /// Replaces all settings; the methods below change single ones.
    pub fn settings(mut self, settings: Settings) -> Self {
        self.settings = settings;
        self
    }

    /// Socket for plugins to connect to.
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.settings.socket = Some(path.into());
        self
    }

    /// No socket: launched and in-process plugins only (NRI-210).
    pub fn no_external_plugins(mut self) -> Self {
        self.settings.socket = None;
        self
    }

    pub fn plugin_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.plugin_dir = Some(dir.into());
        self
    }

    pub fn plugin_config_dir(mut self, dir: impl Into<PathBuf>) -> Self {
        self.settings.plugin_config_dir = Some(dir.into());
        self
    }

    pub fn registration_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.registration = limit;
        self
    }

    pub fn request_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.request = limit;
        self
    }

    /// For one setup event at all plugins together: 2 minutes by default.
    pub fn operation_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.operation = Some(limit);
        self
    }

    pub fn sync_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.sync = limit;
        self
    }

    /// Settings of single plugins, by id.
    pub fn plugins(mut self, plugins: BTreeMap<PluginId, PluginSettings>) -> Self {
        self.settings.plugins = plugins;
        self
    }

    /// For all parts of Synchronize together; three times the limit of one part by default.
    pub fn sync_total_timeout(mut self, limit: Duration) -> Self {
        self.settings.timeouts.sync_total = Some(limit);
        self
    }

    /// Whether the newer of two plugins with one id is called alone
    /// ([`Settings::replace_same_name`]).
    pub fn replace_same_name(mut self, newer_alone: bool) -> Self {
        self.settings.replace_same_name = newer_alone;
        self
    }

    /// Experimental: whether answers to RunPodSandbox may give the pod addresses
    /// ([`Settings::pod_ips`]).
    pub fn pod_ips(mut self, taken: bool) -> Self {
        self.settings.pod_ips = taken;
        self
    }

    /// The runtime. Mandatory (NRI-213).
    pub fn source(mut self, source: Arc<dyn Source>) -> Self {
        self.source = Some(source);
        self
    }

    /// Gives each plugin connection its own [`Watch`], which sees the connection's bytes, such as a
    /// connection of a recording (the package nri-record).
    pub fn watch<W: Watch + 'static>(
        mut self,
        watch: impl Fn() -> W + Send + Sync + 'static,
    ) -> Self {
        self.runtime.watches = Some(Arc::new(move || Box::new(watch())));
        self
    }

    /// Observer of every outcome.
    pub fn observer(mut self, observer: Arc<dyn Observer>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// A plugin of this process: a [`Plugin`](crate::Plugin), or a table of handlers. Several start
    /// in the order of these calls.
    pub fn in_process(mut self, id: PluginId, plugin: impl Into<Handlers>) -> Self {
        self.in_process.push((id, plugin.into()));
        self
    }

    /// The default validator as a plugin of this process, before all others (NRI-206). Has no
    /// effect unless it is enabled.
    pub fn default_validator(mut self, validator: DefaultValidator) -> Self {
        if validator.enable {
            self.in_process
                .insert(0, builtin::default_validator(validator));
        }
        self
    }

    /// Starts: launches, configures and synchronises the pre-installed plugins, then listens.
    ///
    /// # Errors
    ///
    /// Another server answers at the socket, its path is not a socket, the plugin directory cannot
    /// be read, or an in-process plugin fails. A launched plugin that fails is reported and left
    /// out.
    pub fn start(self) -> BoxFuture<'static, Result<Adaptation, StartError>> {
        Box::pin(self.start_all())
    }

    async fn start_all(self) -> Result<Adaptation, StartError> {
        let source = self.source.ok_or(StartError::NoSource)?;
        if self.runtime.name.is_empty() || self.runtime.version.is_empty() {
            return Err(StartError::NoName);
        }
        let shared = Arc::new(Shared::new(
            self.runtime,
            self.settings,
            source,
            self.observer,
        ));
        // Releases everything if a later step fails.
        let handle = Arc::new(Handle(shared.clone()));
        if let Some(path) = &shared.settings.socket {
            transport::ensure_free(path).await?;
        }
        let in_process = shared.clone().start_in_process(self.in_process).await?;
        let launched = shared.clone().launch_all().await?;
        shared.clone().join_preinstalled(in_process, launched).await;
        if let Some(path) = &shared.settings.socket {
            let Settings {
                socket_mode,
                socket_group,
                ..
            } = shared.settings;
            let listener = transport::listen(path, socket_mode, socket_group).await?;
            rt::spawn(shared.clone().accept(listener));
        }
        Ok(Adaptation { shared: handle })
    }
}

impl Adaptation {
    /// Begins with the runtime's name and version, which are sent to plugins.
    pub fn builder(name: impl Into<String>, version: impl Into<String>) -> Builder {
        Builder {
            runtime: Runtime {
                name: name.into(),
                version: version.into(),
                ..Runtime::default()
            },
            ..Builder::default()
        }
    }
}
