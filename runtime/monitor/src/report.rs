//! Reports of `cairn-create` (and the processes it forks) to the monitor: one message each on a SEQPACKET socket.
//!
//! Pure. Descriptors of `cairn-create`: 0, 1, 2 null; 3, 4, 5 the container's stdin, stdout, stderr (none with a
//! terminal); 6 this socket; 7 the exec status pipe, which init keeps until execve: `E` and end of file is success,
//! `E` and text a failed execve, end of file alone a death before it; 9 the mount namespace to build in.

/// Descriptor of the report socket.
pub const REPORT_FD: i32 = 6;
/// Descriptor of the exec status pipe.
pub const STATUS_FD: i32 = 7;
/// Of the monitor itself: the directory of our programs, which the daemon gave it as stdout. Moved there first of all,
/// closed by every execve.
pub const PROGRAMS_FD: i32 = 8;
/// A mount namespace that holds little but `/proc`, `/sys` and `/dev`: containers are built in copies of it, however many
/// mounts the host has. The daemon gives it to the monitor as stderr, who hands it to the helper and keeps it no longer.
pub const MOUNTS_FD: i32 = 9;
/// Written to the status pipe when only our own tail and execve are left.
pub const REACHED: u8 = b'E';
/// The longest message.
pub const MAX: usize = 4096;
/// The console socket, in the container's directory.
pub const CONSOLE: &str = "console.sock";
/// libcontainer's root directory, in the container's directory.
pub const STATE: &str = "lc";

/// One message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// An ERROR line of libcontainer's log; the first tells most.
    Error(String),
    /// The container is made; init's pid in the helper's pid namespace.
    Created(i32),
    /// Before that, where init is born into a pid namespace that others live in: its pid, which libcontainer does not know.
    Born(i32),
    /// It is not; the error as returned, often shallow.
    Failed(String),
}

impl Report {
    pub fn encode(&self) -> Vec<u8> {
        let (kind, text) = match self {
            Report::Error(text) => (b'e', text.clone()),
            Report::Created(pid) => (b'c', pid.to_string()),
            Report::Born(pid) => (b'b', pid.to_string()),
            Report::Failed(text) => (b'f', text.clone()),
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
            _ => return None,
        })
    }
}
