//! A registry that serves images as scripted, also maliciously, and records its requests.

use std::{
    collections::HashMap,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::Duration,
};

use parking_lot::Mutex;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// A request to the registry.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// Path with query.
    pub path: String,
    /// By lower-case name.
    pub headers: HashMap<String, String>,
    pub body: String,
}

impl Request {
    /// The header's value; empty if it is missing.
    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }
    /// The first byte of the requested range.
    pub fn from(&self) -> Option<usize> {
        let range = self.header("range").strip_prefix("bytes=")?;
        range.strip_suffix('-')?.parse().ok()
    }
    /// Whether it contains one of the secrets in a header, in the query, or in a form.
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
    /// Announces the complete body, sends this many bytes of it, and then nothing.
    Stall(Vec<u8>, usize),
    /// Announces the complete body, sends this many bytes of it, and closes.
    Cut(Vec<u8>, usize),
    /// Announces the complete body and sends it in pieces of this length with this pause.
    Trickle(Vec<u8>, usize, Duration),
    /// Announces no length and sends spaces in an endless loop.
    Endless,
}

type Answer = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// A served image.
pub struct Served {
    /// `repository:tag`.
    pub name: String,
    /// Digest of its manifest.
    pub manifest: String,
    /// Digest and content of each of its blobs, the manifest among them.
    pub blobs: Vec<(String, Vec<u8>)>,
}

/// A running registry; it ends with the test.
pub struct Registry {
    /// Address and port, the prefix of references.
    pub host: String,
    listener: TcpListener,
    requests: Arc<Mutex<Vec<Request>>>,
    open: Arc<Open>,
}

/// Open connections, by the client's address.
type Open = Mutex<Vec<(SocketAddr, TcpStream)>>;

impl Registry {
    /// Serves `images` by name and by digest. `first` may answer a request before that.
    ///
    /// # Panics
    /// If no descriptor is available.
    pub fn start(
        listener: TcpListener,
        images: Vec<Served>,
        first: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let host = listener.local_addr().expect("it is bound").to_string();
        let answer: Arc<Answer> =
            Arc::new(move |request| first(request).or_else(|| serve(&images, request)));
        let registry = Self {
            host,
            listener: listener.try_clone().expect("a descriptor is left"),
            requests: Arc::default(),
            open: Arc::default(),
        };
        let (seen, open) = (registry.requests.clone(), registry.open.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(stream) = stream else { return };
                let (answer, seen, open) = (answer.clone(), seen.clone(), open.clone());
                thread::spawn(move || {
                    let Ok(client) = stream.peer_addr() else {
                        return;
                    };
                    // The client may close the connection early.
                    let _ended = connection(stream, client, &*answer, &seen, &open);
                    open.lock().retain(|(of, _)| *of != client);
                });
            }
        });
        registry
    }

    /// The requests so far.
    pub fn asked(&self) -> Vec<Request> {
        self.requests.lock().clone()
    }

    /// Counts requests.
    pub fn count(&self, what: impl Fn(&Request) -> bool) -> usize {
        self.asked().iter().filter(|request| what(request)).count()
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        // Wakes the thread that waits for a client.
        let _ = rustix::net::shutdown(self.listener.as_fd(), rustix::net::Shutdown::Both);
        for (_, stream) in self.open.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// The answer of a correct registry.
fn serve(images: &[Served], request: &Request) -> Option<Reply> {
    let path = request.path.split('?').next()?.strip_prefix("/v2/")?;
    for image in images {
        let (repository, tag) = image.name.rsplit_once(':')?;
        let part = path.strip_prefix(repository);
        let part = part.and_then(|p| p.strip_prefix('/')?.split_once('/'));
        let Some((kind, which)) = part else { continue };
        let digest = if which == tag { &image.manifest } else { which };
        let Some((_, bytes)) = image.blobs.iter().find(|(of, _)| of == digest) else {
            continue;
        };
        let mut headers = vec![format!("Docker-Content-Digest: {digest}")];
        if kind == "manifests" {
            headers.push(format!("Content-Type: {MANIFEST}"));
        }
        return Some(match request.from().and_then(|from| bytes.get(from..)) {
            Some(rest) => Reply::Full(206, headers, rest.to_vec()),
            None => Reply::Full(200, headers, bytes.clone()),
        });
    }
    let unknown = br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#;
    Some(Reply::Full(404, Vec::new(), unknown.into()))
}

fn connection(
    mut stream: TcpStream,
    client: SocketAddr,
    answer: &Answer,
    seen: &Mutex<Vec<Request>>,
    open: &Open,
) -> io::Result<()> {
    open.lock().push((client, stream.try_clone()?));
    let mut lines = BufReader::new(stream.try_clone()?);
    let Some(request) = read(&mut lines)? else {
        // Without a request, close the connection.
        return stream.shutdown(Shutdown::Both);
    };
    seen.lock().push(request.clone());
    let head = |status: u16, length: usize, more: &[String]| {
        let more: String = more.iter().map(|line| format!("{line}\r\n")).collect();
        format!(
            "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{more}\r\n"
        )
    };
    let status = if request.from().is_some() { 206 } else { 200 };
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
            // Stays open until the client or the registry closes it.
            io::copy(&mut lines, &mut io::sink())?;
        }
        Reply::Cut(body, sent) => {
            stream.write_all(head(status, body.len(), &[]).as_bytes())?;
            stream.write_all(&body[..sent])?;
        }
        Reply::Trickle(body, piece, pause) => {
            stream.write_all(head(status, body.len(), &[]).as_bytes())?;
            for piece in body.chunks(piece) {
                stream.write_all(piece)?;
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
    // The first byte of TLS; there may be no line end.
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
