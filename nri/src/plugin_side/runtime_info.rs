//! Identity of the runtime that a plugin serves, and its timeouts.

use std::time::Duration;

use proto_nri::ConfigureRequest;

use crate::wire::version::runtime_nri_version;

/// Default limit of a runtime: to configure the plugin, and for an answer.
pub(crate) const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(5);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// Identity of the runtime, as received at Configure.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RuntimeInfo {
    pub name: String,
    pub version: String,
    /// Reported, or inferred from name and version (NRI-340); `None` if unknown.
    pub nri_version: Option<String>,
    pub registration_timeout: Duration,
    /// The runtime's time limit for an answer to an event.
    pub request_timeout: Duration,
}

impl Default for RuntimeInfo {
    /// Before Configure: no name, the usual limits.
    fn default() -> Self {
        Self {
            name: String::new(),
            version: String::new(),
            nri_version: None,
            registration_timeout: REGISTRATION_TIMEOUT,
            request_timeout: REQUEST_TIMEOUT,
        }
    }
}

impl RuntimeInfo {
    pub(crate) fn of(request: &ConfigureRequest) -> Self {
        let millis = |n: i64, default: Duration| match u64::try_from(n) {
            Ok(0) | Err(_) => default,
            Ok(n) => Duration::from_millis(n),
        };
        let nri_version = runtime_nri_version(
            &request.nri_version,
            &request.runtime_name,
            &request.runtime_version,
        );
        Self {
            name: request.runtime_name.clone(),
            version: request.runtime_version.clone(),
            nri_version,
            registration_timeout: millis(request.registration_timeout, REGISTRATION_TIMEOUT),
            request_timeout: millis(request.request_timeout, REQUEST_TIMEOUT),
        }
    }
}
