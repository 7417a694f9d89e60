//! The reasons for which a runtime closes a plugin. Only this file has the texts of `Shutdown`: a
//! token, then a colon and the details.

use std::fmt;

/// Reason for closing a plugin, given in `Shutdown` (NRI-1050).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloseReason {
    ConfigureFailed,
    ConnectionLost,
    InstanceReplaced,
    ProtocolError,
    RequestTimeout,
    RuntimeStopping,
    SynchronizeFailed,
}

impl CloseReason {
    #[cfg(feature = "stub")]
    const ALL: [Self; 7] = [
        Self::ConfigureFailed,
        Self::ConnectionLost,
        Self::InstanceReplaced,
        Self::ProtocolError,
        Self::RequestTimeout,
        Self::RuntimeStopping,
        Self::SynchronizeFailed,
    ];

    fn token(self) -> &'static str {
        match self {
            Self::ConfigureFailed => "configure-failed",
            Self::ConnectionLost => "connection-lost",
            Self::InstanceReplaced => "instance-replaced",
            Self::ProtocolError => "protocol-error",
            Self::RequestTimeout => "request-timeout",
            Self::RuntimeStopping => "runtime-stopping",
            Self::SynchronizeFailed => "synchronize-failed",
        }
    }

    /// The reason in a text of `Shutdown`; `None` in texts of other runtimes.
    #[cfg(feature = "stub")]
    pub(crate) fn of(text: &str) -> Option<Self> {
        let token = text.split(':').next();
        Self::ALL
            .into_iter()
            .find(|reason| Some(reason.token()) == token)
    }

    pub(crate) fn because(self, details: impl fmt::Display) -> Closing {
        let details = details.to_string();
        Closing {
            reason: self,
            details,
        }
    }
}

/// A reason with its details, as `Shutdown` has it.
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
