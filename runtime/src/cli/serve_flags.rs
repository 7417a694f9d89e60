//! The flags of `cairn serve`. They only override keys of `cairn.toml`.

use std::path::PathBuf;

use clap::Args;

use crate::config::{self, File, Format, Level};

/// Each flag overrides the key of the same meaning in the configuration file.
#[derive(Debug, Default, Args)]
pub struct Serve {
    /// The configuration file; default: the keys of `cairn config default`.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Records, images and layers.
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Sockets, namespaces and monitors.
    #[arg(long, value_name = "DIR")]
    pub state: Option<PathBuf>,
    /// The CRI endpoint, unix:///path.
    #[arg(long, value_name = "ENDPOINT")]
    pub listen: Option<String>,
    /// The NRI socket.
    #[arg(long, value_name = "PATH")]
    pub nri_socket: Option<PathBuf>,
    /// Directory of the plugins to launch.
    #[arg(long, value_name = "DIR")]
    pub nri_plugin_dir: Option<PathBuf>,
    /// Directory of their configurations.
    #[arg(long, value_name = "DIR")]
    pub nri_plugin_config_dir: Option<PathBuf>,
    /// Record NRI traffic to this file, as JSON lines without values of environment variables.
    #[arg(long, value_name = "FILE")]
    pub nri_record: Option<PathBuf>,
    /// CNI configurations.
    #[arg(long, value_name = "DIR")]
    pub cni_conf_dir: Option<PathBuf>,
    /// CNI programs.
    #[arg(long, value_name = "DIR")]
    pub cni_bin_dir: Option<PathBuf>,
    /// Results of CNI programs.
    #[arg(long, value_name = "DIR")]
    pub cni_cache_dir: Option<PathBuf>,
    /// hosts.toml files by registry.
    #[arg(long, value_name = "DIR")]
    pub registry_config_dir: Option<PathBuf>,
    /// The lowest level to log.
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<Level>,
    /// The format of log lines.
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<Format>,
}

impl Serve {
    /// The configuration file, if any, overridden by these flags.
    ///
    /// # Errors
    /// See [`config::read`].
    pub fn over_file(self) -> Result<File, config::Error> {
        let mut file = match &self.config {
            Some(path) => config::read(path)?,
            None => File::default(),
        };
        fn set<T>(target: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *target = value;
            }
        }
        set(&mut file.root, self.root);
        set(&mut file.state, self.state);
        set(&mut file.listen, self.listen);
        set(&mut file.nri.socket, self.nri_socket);
        set(&mut file.nri.plugin_dir, self.nri_plugin_dir);
        set(&mut file.nri.plugin_config_dir, self.nri_plugin_config_dir);
        set(&mut file.nri.record, self.nri_record);
        set(&mut file.network.cni_conf_dir, self.cni_conf_dir);
        set(&mut file.network.cni_cache_dir, self.cni_cache_dir);
        set(
            &mut file.network.cni_bin_dirs,
            self.cni_bin_dir.map(|dir| vec![dir]),
        );
        set(
            &mut file.image.registry_config_dir,
            self.registry_config_dir,
        );
        set(&mut file.log.level, self.log_level);
        set(&mut file.log.format, self.log_format);
        Ok(file)
    }
}
