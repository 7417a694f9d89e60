//! `cairn look`: answers questions about paths for [`super::lookup`], one at a time. A frame is a
//! big-endian length of four bytes, and JSON. It ends with its socket, its standard input.

use std::{
    fs,
    io::{self, Read as _, Write as _},
    os::{fd::AsFd as _, unix::net::UnixStream},
    path::Path,
    process::ExitCode,
};

use cairn_monitor::log_path;
use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::facts::View;
use crate::oci::HostView as _;

/// Limit of a frame: a profile of 4 MiB, escaped.
const FRAME_MAX: usize = 32 << 20;
/// Limit of checked entries of a configuration directory.
const ENTRIES: usize = 1024;

/// Checked levels below a configuration directory.
pub(super) const DEPTH: u32 = 2;

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Question {
    BindSource(String),
    MadeSource(String),
    Devices(String),
    Namespace(String),
    /// The answer is `None` if it is longer than `most`.
    Text {
        path: String,
        most: u64,
    },
    MakeLogParents(String),
    /// A file, or a directory with two levels below it.
    Answers(String),
}

impl Question {
    pub(super) fn path(&self) -> &str {
        match self {
            Self::BindSource(path)
            | Self::MadeSource(path)
            | Self::Devices(path)
            | Self::Namespace(path)
            | Self::Text { path, .. }
            | Self::MakeLogParents(path)
            | Self::Answers(path) => path,
        }
    }

    fn answer(&self) -> serde_json::Result<Vec<u8>> {
        match self {
            Self::BindSource(path) => encode(Ok(View.bind_source(path))),
            Self::MadeSource(path) => encode(Ok(View.made_source(path))),
            Self::Devices(path) => encode(Ok(View.devices(path))),
            Self::Namespace(path) => encode(Ok(View.namespace(path))),
            Self::Text { path, most } => encode(text(Path::new(path), *most)),
            Self::MakeLogParents(path) => encode(log_path::make_parents(path)),
            Self::Answers(path) => {
                touch(Path::new(path), DEPTH);
                encode(Ok(()))
            }
        }
    }
}

/// A file system error in JSON.
#[derive(Debug, Serialize, Deserialize)]
struct Failure {
    code: Option<i32>,
    text: String,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self {
            code: error.raw_os_error(),
            text: error.to_string(),
        }
    }
}

impl From<Failure> for io::Error {
    fn from(failure: Failure) -> Self {
        match failure.code {
            Some(code) => Self::from_raw_os_error(code),
            None => Self::other(failure.text),
        }
    }
}

fn encode<T: Serialize>(answer: io::Result<T>) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&answer.map_err(Failure::from)).or_else(|error| {
        // A path that is not UTF-8.
        let failure = Failure::from(io::Error::other(error.to_string()));
        serde_json::to_vec(&Err::<(), _>(failure))
    })
}

/// Asks and waits for the answer of the file system.
///
/// # Errors
/// The process has ended, or the socket was shut.
pub(super) fn exchange<T: DeserializeOwned>(
    socket: &UnixStream,
    question: &Question,
) -> io::Result<io::Result<T>> {
    send(socket, &serde_json::to_vec(question)?)?;
    let answer: Result<T, Failure> = serde_json::from_slice(&receive(socket)?)?;
    Ok(answer.map_err(io::Error::from))
}

/// The process's main function. Succeeds at the end of its socket.
pub fn helper_main() -> ExitCode {
    match serve() {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => ExitCode::FAILURE,
        _ => ExitCode::SUCCESS,
    }
}

fn serve() -> io::Result<()> {
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    loop {
        let question: Question = serde_json::from_slice(&receive(&socket)?)?;
        send(&socket, &question.answer()?)?;
    }
}

fn send(mut socket: &UnixStream, bytes: &[u8]) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    socket.write_all(&length.to_be_bytes())?;
    socket.write_all(bytes)
}

fn receive(mut socket: &UnixStream) -> io::Result<Vec<u8>> {
    let mut length = [0; 4];
    socket.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(io::Error::other("frame too long"));
    }
    let mut bytes = vec![0; length];
    socket.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn text(path: &Path, most: u64) -> io::Result<Option<String>> {
    if !fs::metadata(path)?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    let read = fs::File::open(path)?
        .take(most + 1)
        .read_to_string(&mut text)?;
    Ok((read as u64 <= most).then_some(text))
}

/// Reads the path; an error is an answer, too.
fn touch(path: &Path, depth: u32) {
    let Ok(meta) = fs::metadata(path) else {
        return;
    };
    if meta.is_file() {
        let _ = fs::File::open(path).and_then(|mut file| file.read(&mut [0]));
    } else if meta.is_dir() && depth > 0 {
        let entries = fs::read_dir(path).into_iter().flatten().take(ENTRIES);
        for entry in entries.flatten() {
            touch(&entry.path(), depth - 1);
        }
    }
}
