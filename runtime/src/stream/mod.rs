//! Exec, Attach and PortForward as clients stream them: an HTTP server of its own, to which CRI
//! answers one-time URLs.
//!
//! ```text
//!  cri/runtime/exec.rs ─ Job ─► Streams::url ─ token ─► kubelet, crictl
//!                                                          │ GET or POST /exec/<token>, Upgrade
//!  server.rs ◄─────────────────────────────────────────────┘
//!     │ wire/handshake.rs          SPDY/3.1, WebSocket, or SPDY in a WebSocket
//!     ▼
//!  spdy.rs, websocket.rs ─► link.rs ─► remote.rs ─► exec.rs, attach.rs
//!                                  └──────────────► port_forward.rs ─► dial.rs
//! ```
//! A slow client holds up its own exec, no container: an attached one that does not read is let
//! go by the monitor. Knows nothing of gRPC.

mod attach;
mod dial;
mod exec;
mod hang_up;
mod job;
mod limits;
mod link;
mod port_forward;
mod pump;
mod remote;
mod server;
mod sessions;
mod spdy;
mod tls;
mod tokens;
mod websocket;
pub mod wire;

pub use job::Job;
pub use remote::Wanted;
pub use server::{Listener, Streams};
