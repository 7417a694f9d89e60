//! The table `[stream]`: the server of exec, attach and port-forward.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;

use super::error::Error;
use super::units::duration;

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Stream {
    pub address: IpAddr,
    /// 0: a free port, which differs at each start.
    pub port: u16,
    /// PEM files; both empty: plain HTTP.
    pub tls_cert: PathBuf,
    pub tls_key: PathBuf,
    #[serde(deserialize_with = "duration")]
    pub idle_timeout: Duration,
}

impl Default for Stream {
    fn default() -> Self {
        Self {
            address: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            tls_cert: PathBuf::new(),
            tls_key: PathBuf::new(),
            idle_timeout: Duration::from_secs(4 * 3600),
        }
    }
}

impl Stream {
    pub fn address(&self) -> SocketAddr {
        (self.address, self.port).into()
    }

    /// Certificate and key, if configured.
    pub fn tls(&self) -> Option<(&Path, &Path)> {
        let some = !self.tls_cert.as_os_str().is_empty();
        some.then_some((&self.tls_cert, &self.tls_key))
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        for (key, path, other) in [
            ("stream.tls_cert", &self.tls_cert, &self.tls_key),
            ("stream.tls_key", &self.tls_key, &self.tls_cert),
        ] {
            let message = if path.as_os_str().is_empty() {
                if other.as_os_str().is_empty() {
                    continue;
                }
                "tls_cert and tls_key must be set together".to_owned()
            } else if path.is_absolute() {
                continue;
            } else {
                format!("{} is not an absolute path", path.display())
            };
            return Err(Error::value(key, message));
        }
        Ok(())
    }
}
