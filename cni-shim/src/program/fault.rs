//! Why a call failed, with the code that the specification or we give it (CRI-519).

use serde_json::{Value, json};

use crate::bridge::BridgeError;
use crate::cni::NEWEST;
use crate::error::NetworkError;

const INCOMPATIBLE_VERSION: u32 = 1;
const UNSUPPORTED_FIELD: u32 = 2;
const UNKNOWN_CONTAINER: u32 = 3;
const INVALID_ENVIRONMENT: u32 = 4;
const IO: u32 = 5;
const DECODE: u32 = 6;
const INVALID_CONFIG: u32 = 7;
const NOT_AVAILABLE: u32 = 50;
// Ours, from 100 on.
const FAILED: u32 = 100;
const HOST_PORT: u32 = 101;
const NO_ADDRESS: u32 = 102;
const DIFFERS: u32 = 103;

/// One line, and its code.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub(super) struct Fault {
    code: u32,
    text: String,
}

impl Fault {
    fn new(code: u32, text: impl Into<String>) -> Self {
        let text = text.into().replace(['\n', '\r'], " ");
        Self { code, text }
    }

    pub(super) fn version(text: impl Into<String>) -> Self {
        Self::new(INCOMPATIBLE_VERSION, text)
    }
    pub(super) fn field(text: impl Into<String>) -> Self {
        Self::new(UNSUPPORTED_FIELD, text)
    }
    pub(super) fn unknown(text: impl Into<String>) -> Self {
        Self::new(UNKNOWN_CONTAINER, text)
    }
    pub(super) fn environment(text: impl Into<String>) -> Self {
        Self::new(INVALID_ENVIRONMENT, text)
    }
    pub(super) fn io(text: impl Into<String>) -> Self {
        Self::new(IO, text)
    }
    pub(super) fn decode(text: impl Into<String>) -> Self {
        Self::new(DECODE, text)
    }
    pub(super) fn config(text: impl Into<String>) -> Self {
        Self::new(INVALID_CONFIG, text)
    }
    pub(super) fn differs(text: impl Into<String>) -> Self {
        Self::new(DIFFERS, text)
    }

    /// Of STATUS, which has a code of its own.
    pub(super) fn not_available(error: impl std::fmt::Display) -> Self {
        Self::new(NOT_AVAILABLE, error.to_string())
    }

    pub(super) fn to_json(&self, version: Option<&str>) -> Value {
        json!({
            "cniVersion": version.unwrap_or(NEWEST),
            "code": self.code,
            "msg": self.text,
        })
    }
}

impl From<BridgeError> for Fault {
    fn from(error: BridgeError) -> Self {
        let code = match &error {
            BridgeError::NotReady(why) if why.reason == "InvalidBridgeConfiguration" => {
                INVALID_CONFIG
            }
            BridgeError::HostPortTaken(_) | BridgeError::Loopback6(_) => HOST_PORT,
            BridgeError::Pool(_) => NO_ADDRESS,
            BridgeError::Bandwidth(_) => INVALID_CONFIG,
            BridgeError::Differs(_) => DIFFERS,
            BridgeError::Io { .. } | BridgeError::Namespace(_) => IO,
            BridgeError::NotReady(_) | BridgeError::Netlink(_) => FAILED,
        };
        Self::new(code, error.to_string())
    }
}

impl From<NetworkError> for Fault {
    fn from(error: NetworkError) -> Self {
        match error {
            NetworkError::Bridge(error) => error.into(),
            NetworkError::NotReady(why) => BridgeError::NotReady(why).into(),
            NetworkError::Record(error) => Self::io(error.to_string()),
            other => Self::new(FAILED, other.to_string()),
        }
    }
}
