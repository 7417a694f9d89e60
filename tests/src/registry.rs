//! A registry with scripted answers, including dishonest ones. It records its requests.
//!
//! Its sockets are in a yard's network, for the daemon; the test provides the answers.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::{image::Blobs, yard::Yard};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A request to the registry.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Including the query.
    pub path: String,
    /// By lower-case name.
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Request {
    /// The header, or the empty string.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
    /// Whether it contains a secret: in a header, in the query, or in a form.
    pub fn shows(&self, secrets: &[&str]) -> bool {
        let all = format!("{:?} {} {}", self.headers, self.path, self.body);
        secrets.iter().any(|secret| all.contains(secret))
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub enum Reply {
    /// Status, additional header lines, body.
    Full(u16, Vec<String>, Vec<u8>),
    /// Announces the complete body, sends this many bytes, then nothing.
    Stall(Vec<u8>, usize),
    /// Announces the complete body, sends this many bytes, and closes.
    Cut(Vec<u8>, usize),
    /// Announces the complete body and sends it byte by byte with this delay.
    Trickle(Vec<u8>, Duration),
    /// Announces no length and sends spaces forever.
    Endless,
}

type Answer = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// Ends with the test.
pub struct Registry {
    /// Address and port, the first part of references.
    pub host: String,
    listener: TcpListener,
    requests: Arc<Mutex<Vec<Request>>>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Registry {
    /// Serves `images` by `repository:tag` and by digest at an address of the yard, such as
    /// `127.0.0.1:5001`; `first` may answer before that.
    ///
    /// # Panics
    /// If it cannot listen there.
    pub fn start(
        yard: &Yard,
        host: &str,
        images: Vec<(&str, Blobs)>,
        first: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = listen(yard.pid(), host).expect("a listener in the yard");
        let images: Vec<_> = images.into_iter().map(|(n, i)| (n.to_owned(), i)).collect();
        let answer: Arc<Answer> =
            Arc::new(move |request| first(request).or_else(|| serve(&images, request)));
        let registry = Self {
            host: host.to_owned(),
            listener: listener.try_clone().expect("a descriptor is left"),
            requests: Arc::default(),
            open: Arc::default(),
        };
        let (seen, open) = (registry.requests.clone(), registry.open.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (answer, seen, open) = (answer.clone(), seen.clone(), open.clone());
                // Clients often leave during an answer.
                thread::spawn(move || drop(connection(stream, &*answer, &seen, &open)));
            }
        });
        registry
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    /// The number of matching requests.
    pub fn count(&self, what: impl Fn(&Request) -> bool) -> usize {
        self.asked().iter().filter(|request| what(request)).count()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Ends the wait for the next client.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
        for stream in self.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Makes the socket in a thread that enters the yard's network, because a socket keeps its network.
///
/// # Errors
/// The kernel's.
///
/// # Panics
/// Never.
pub fn listen(yard: u32, host: &str) -> io::Result<TcpListener> {
    let network = File::open(format!("/proc/{yard}/ns/net"))?;
    let host = host.to_owned();
    let made = thread::spawn(move || {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        TcpListener::bind(host)
    });
    made.join().expect("no panic")
}

/// The answer of an honest registry.
fn serve(images: &[(String, Blobs)], request: &Request) -> Option<Reply> {
    let path = request.path.split('?').next()?.strip_prefix("/v2/")?;
    let missing = || {
        Reply::Full(
            404,
            Vec::new(),
            br#"{"errors":[{"code":"NOT_FOUND"}]}"#.into(),
        )
    };
    for (name, image) in images {
        let (repository, tag) = name.rsplit_once(':')?;
        let part = path
            .strip_prefix(repository)
            .and_then(|p| p.strip_prefix('/'));
        let Some((kind, which)) = part.and_then(|part| part.split_once('/')) else {
            continue;
        };
        let digest = if which == tag { &image.manifest } else { which };
        let Some((_, bytes)) = image.blobs.iter().find(|(of, _)| of == digest) else {
            continue;
        };
        let mut headers = vec![format!("Docker-Content-Digest: {digest}")];
        if kind == "manifests" {
            headers.push(format!("Content-Type: {MANIFEST}"));
        }
        let range = request.header("range").strip_prefix("bytes=");
        let from = range.and_then(|range| range.strip_suffix('-')?.parse::<usize>().ok());
        return Some(match from.and_then(|from| bytes.get(from..)) {
            Some(rest) => Reply::Full(206, headers, rest.to_vec()),
            None => Reply::Full(200, headers, bytes.clone()),
        });
    }
    Some(missing())
}

fn connection(
    mut stream: TcpStream,
    answer: &Answer,
    seen: &Mutex<Vec<Request>>,
    open: &Mutex<Vec<TcpStream>>,
) -> io::Result<()> {
    open.lock().push(stream.try_clone()?);
    let mut lines = BufReader::new(stream.try_clone()?);
    let Some(request) = read(&mut lines)? else {
        // Without a request, the answer is closing.
        return stream.shutdown(Shutdown::Both);
    };
    seen.lock().push(request.clone());
    let head = |status: u16, length: usize, more: &[String]| {
        let more: String = more.iter().map(|line| format!("{line}\r\n")).collect();
        format!(
            "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n"
        )
    };
    let Some(reply) = answer(&request) else {
        return stream.shutdown(Shutdown::Both);
    };
    match reply {
        Reply::Full(status, more, body) => {
            stream.write_all(head(status, body.len(), &more).as_bytes())?;
            if request.method != "HEAD" {
                stream.write_all(&body)?;
            }
        }
        Reply::Stall(body, sent) => {
            stream.write_all(head(200, body.len(), &[]).as_bytes())?;
            stream.write_all(&body[..sent])?;
            // Open until the client or the registry closes it.
            io::copy(&mut lines, &mut io::sink())?;
        }
        Reply::Cut(body, sent) => {
            let status = if request.header("range").is_empty() {
                200
            } else {
                206
            };
            stream.write_all(head(status, body.len(), &[]).as_bytes())?;
            stream.write_all(&body[..sent])?;
        }
        Reply::Trickle(body, pause) => {
            stream.write_all(head(200, body.len(), &[]).as_bytes())?;
            for byte in body {
                stream.write_all(&[byte])?;
                thread::sleep(pause);
            }
        }
        Reply::Endless => {
            stream.write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")?;
            loop {
                stream.write_all(&[b' '; 1 << 16])?;
            }
        }
    }
    stream.shutdown(Shutdown::Both)
}

fn read(lines: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
    // The first byte of TLS; no line may follow.
    if lines.fill_buf()?.first() == Some(&0x16) {
        return Ok(None);
    }
    let mut line = Vec::new();
    lines.by_ref().take(8192).read_until(b'\n', &mut line)?;
    let line = String::from_utf8_lossy(&line).into_owned();
    let mut words = line.split_whitespace();
    let (Some(method), Some(path), Some("HTTP/1.1")) = (words.next(), words.next(), words.next())
    else {
        return Ok(None);
    };
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        lines.read_line(&mut line)?;
        let Some((name, value)) = line.trim().split_once(": ") else {
            break;
        };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").and_then(|l| l.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    lines.read_exact(&mut body)?;
    Ok(Some(Request {
        method: method.to_owned(),
        path: path.to_owned(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
    }))
}
