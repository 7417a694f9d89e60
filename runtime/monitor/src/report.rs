//! Reports of `cairn-create` and its forks to the monitor: one message each on a SEQPACKET socket.
//!
//! Pure. Descriptors of `cairn-create`: 0, 1, 2 null; 3, 4, 5 the container's stdin, stdout, stderr
//! (absent with a terminal); 6 this socket; 7 the exec status pipe, which init keeps until execve:
//! `E` and end of file is success, `E` and text a failed execve, end of file alone an earlier
//! death; 9 the mount namespace to build in.

/// Descriptor of the report socket.
pub const REPORT_FD: i32 = 6;
/// Descriptor of the exec status pipe.
pub const STATUS_FD: i32 = 7;
/// The monitor's directory of our programs: received as stdout, moved here first. Every execve
/// closes it.
pub const PROGRAMS_FD: i32 = 8;
/// A mount namespace with little but `/proc`, `/sys` and `/dev`: containers are built in copies of
/// it, regardless of the host's mounts. It comes from the daemon as the monitor's stderr.
pub const MOUNTS_FD: i32 = 9;
/// Written to the status pipe when only the tail and execve remain.
pub const REACHED: u8 = b'E';
pub const MAX: usize = 4096;
/// The console socket, in the container's directory.
pub const CONSOLE: &str = "console.sock";
/// libcontainer's root directory, in the container's directory.
pub const STATE: &str = "lc";

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// An ERROR line of libcontainer's log. The first one is the most specific.
    Error(String),
    /// The container exists; init's pid in the helper's pid namespace.
    Created(i32),
    /// Precedes `Created` for an init in a joined pid namespace: its pid, unknown to libcontainer.
    Born(i32),
    /// Creation failed; the returned error, often shallow.
    Failed(String),
    /// The OCI hooks after the start have run. Processes that they started may still run.
    Hooked,
}

impl Report {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Report::Error(text) => (b'e', text.clone()),
            Report::Created(pid) => (b'c', pid.to_string()),
            Report::Born(pid) => (b'b', pid.to_string()),
            Report::Failed(text) => (b'f', text.clone()),
            Report::Hooked => (b'h', String::new()),
        };
        let mut end = text.len().min(MAX - 1);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut out = vec![kind];
        out.extend_from_slice(&text.as_bytes()[..end]);
        out
    }

    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let (kind, text) = bytes.split_first()?;
        let text = String::from_utf8_lossy(text).into_owned();
        Some(match kind {
            b'e' => Report::Error(text),
            b'c' => Report::Created(text.parse().ok()?),
            b'b' => Report::Born(text.parse().ok()?),
            b'f' => Report::Failed(text),
            b'h' => Report::Hooked,
            _ => return None,
        })
    }
}
