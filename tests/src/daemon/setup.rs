//! The setup of a daemon.

use std::path::PathBuf;

/// The setup of a daemon. The default has the built-in bridge and no plugin, and gives plugins a
/// minute to answer.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Keys of `cairn.toml` before its tables.
    pub toml_first: String,
    /// More tables of `cairn.toml`, such as `[nri]\nrequest_timeout = "500ms"`.
    pub toml: String,
    /// Plugins to launch: file name, program or script, configuration.
    pub plugins: Vec<(String, PathBuf, Option<String>)>,
    /// A CNI conflist; the CNI programs come from `hack/peers`.
    pub cni: Option<String>,
    /// Directory of the CNI programs, if not that of `hack/peers`.
    pub cni_programs: Option<PathBuf>,
    /// Environment of the daemon, such as `CAIRN_FAULT`.
    pub env: Vec<(String, String)>,
    /// System calls that `cairn-refuse` denies to the daemon and its children.
    pub refused: Vec<String>,
    /// Its initial limits of open files, soft and hard.
    pub open_files: Option<(u64, u64)>,
    /// Destination of its standard error, if not its log.
    pub stderr: Option<PathBuf>,
    /// The daemon's log level; default `debug`.
    pub log_level: Option<&'static str>,
}

impl Setup {
    #[must_use]
    pub fn toml(mut self, more: &str) -> Self {
        self.toml.push_str(more);
        self.toml.push('\n');
        self
    }
    #[must_use]
    pub fn toml_first(mut self, more: &str) -> Self {
        self.toml_first.push_str(more);
        self.toml_first.push('\n');
        self
    }
    #[must_use]
    pub fn plugin(mut self, file: &str, program: impl Into<PathBuf>) -> Self {
        self.plugins.push((file.to_owned(), program.into(), None));
        self
    }
    #[must_use]
    pub fn plugin_with(mut self, file: &str, program: impl Into<PathBuf>, conf: &str) -> Self {
        let plugin = (file.to_owned(), program.into(), Some(conf.to_owned()));
        self.plugins.push(plugin);
        self
    }
    #[must_use]
    pub fn cni(mut self, conflist: &str) -> Self {
        self.cni = Some(conflist.to_owned());
        self
    }
    #[must_use]
    pub fn refused(mut self, calls: &[&str]) -> Self {
        self.refused
            .extend(calls.iter().map(|call| (*call).to_owned()));
        self
    }
    #[must_use]
    pub fn open_files(mut self, soft: u64, hard: u64) -> Self {
        self.open_files = Some((soft, hard));
        self
    }
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }
}
