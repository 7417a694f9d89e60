//! The reasons for which a runtime closes a plugin. Only this file has their texts: a token, then a
//! colon and the details.

use std::fmt;

/// Reason for closing a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    ConnectionLost,
    InstanceReplaced,
    ProtocolError,
    RequestTimeout,
    RuntimeStopping,
    SynchronizeFailed,
}

impl CloseReason {
    fn token(self) -> &'static str {
        match self {
            Self::ConnectionLost => "connection-lost",
            Self::InstanceReplaced => "instance-replaced",
            Self::ProtocolError => "protocol-error",
            Self::RequestTimeout => "request-timeout",
            Self::RuntimeStopping => "runtime-stopping",
            Self::SynchronizeFailed => "synchronize-failed",
        }
    }

    pub(crate) fn because(self, details: impl fmt::Display) -> Closing {
        let details = details.to_string();
        Closing {
            reason: self,
            details,
        }
    }
}

/// A reason with its details.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Closing {
    pub(crate) reason: CloseReason,
    details: String,
}

impl fmt::Display for Closing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.reason.token(), self.details)
    }
}
