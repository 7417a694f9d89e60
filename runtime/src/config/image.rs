//! The table `[image]`: sources and limits of images.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::error::Error;
use super::units::{duration, size};
use crate::image::{BadReference, LAYERS_PER_HOST, Reference};

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Image {
    pub registry_config_dir: PathBuf,
    pub max_parallel_layers: usize,
    #[serde(deserialize_with = "duration")]
    pub progress_timeout: Duration,
    /// For an unpacked image, all its layers together.
    #[serde(deserialize_with = "size")]
    pub max_image_bytes: u64,
    pub max_image_files: u64,
    /// Nested directories.
    pub max_image_depth: u32,
    /// For the initial content of one container's VOLUMEs.
    #[serde(deserialize_with = "size")]
    pub max_volume_bytes: u64,
    /// References of images that garbage collection keeps (CRI-178).
    pub pinned: Vec<String>,
    /// By registry: additional token services that may receive its credentials.
    pub token_services: BTreeMap<String, Vec<String>>,
}

impl Default for Image {
    fn default() -> Self {
        Self {
            registry_config_dir: "/etc/cairn/certs.d".into(),
            max_parallel_layers: 2,
            max_image_bytes: 64 << 30,
            max_image_files: 2_000_000,
            max_image_depth: 512,
            max_volume_bytes: 10 << 30,
            progress_timeout: Duration::from_secs(300),
            pinned: Vec::new(),
            token_services: BTreeMap::new(),
        }
    }
}

impl Image {
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |key, message: String| Err(Error::value(key, message));
        let layers = self.max_parallel_layers;
        if !(1..=LAYERS_PER_HOST).contains(&layers) {
            let message = format!("{layers} must be from 1 to {LAYERS_PER_HOST}");
            return refuse("image.max_parallel_layers", message);
        }
        if self.max_image_bytes < 1 << 20 {
            return refuse("image.max_image_bytes", "must be 1MiB or more".into());
        }
        if self.max_image_files < 1000 {
            return refuse("image.max_image_files", "must be 1000 or more".into());
        }
        // The kernel does not accept longer paths.
        if !(16..=2048).contains(&self.max_image_depth) {
            let message = format!("{} is not from 16 to 2048", self.max_image_depth);
            return refuse("image.max_image_depth", message);
        }
        if self.progress_timeout.is_zero() {
            return refuse("image.progress_timeout", "must be longer than zero".into());
        }
        self.pinned().map(drop)?;
        let hosts = self.token_services.iter().flat_map(|(registry, services)| {
            let services = services.iter().map(String::as_str);
            std::iter::once(registry.as_str()).chain(services)
        });
        match hosts.into_iter().find(|host| !is_host(host)) {
            Some(odd) => refuse(
                "image.token_services",
                format!("\"{odd}\" is not a host, or a host and its port"),
            ),
            None => Ok(()),
        }
    }

    /// The references in [`Self::pinned`].
    ///
    /// # Errors
    /// The first invalid reference.
    pub fn pinned(&self) -> Result<Vec<Reference>, Error> {
        let parsed = self.pinned.iter().map(|text| {
            text.parse().map_err(|why: BadReference| {
                Error::value("image.pinned", format!("\"{text}\": {why}"))
            })
        });
        parsed.collect()
    }
}

/// `host` or `host:port`, the name of a registry: no scheme, no path.
fn is_host(text: &str) -> bool {
    !text.is_empty() && !text.contains(['/', '@', '?', '#', ' ']) && !text.ends_with(':')
}
