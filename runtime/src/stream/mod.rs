//! Exec, Attach and PortForward for streaming clients: a separate HTTP server, to which CRI returns
//! one-time URLs.
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
//! A slow client blocks its own exec, but no container: the monitor drops an attached client that
//! does not read. Knows nothing of gRPC.

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
