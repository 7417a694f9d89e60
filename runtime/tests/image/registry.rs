//! Registries for the tests: Debian's docker-registry with skopeo, and one that misbehaves.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant};

use cairn::image::Digest;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use crate::support::{Image, OCI_MANIFEST};

/// A real registry; ends with the test.
pub(crate) struct Registry {
    child: Child,
    tmp: tempfile::TempDir,
    pub host: String,
    _port: Port,
}

impl Registry {
    pub(crate) fn start() -> Self {
        Self::with("", "")
    }

    /// Knows the user `user` with the password `secret`.
    pub(crate) fn with_password() -> Self {
        Self::with("auth: {htpasswd: {realm: test, path: DIR/htpasswd}}\n", "")
    }

    /// Speaks https with a certificate that only `certificate` vouches for.
    pub(crate) fn with_tls() -> Self {
        Self::with("", ", tls: {certificate: DIR/cert.pem, key: DIR/key.pem}")
    }

    pub(crate) fn certificate(&self) -> PathBuf {
        self.tmp.path().join("cert.pem")
    }

    fn with(extra: &str, http: &str) -> Self {
        let tmp = tempfile::tempdir().unwrap();
        if !http.is_empty() {
            make_certificate(tmp.path());
        }
        let filled = |text: &str| text.replace("DIR", tmp.path().to_str().unwrap());
        let hash = "$2b$05$abcdefghijklmnopqrstuuOQiyCxlgf/oeuTqixKmWdcYUh4Hjl0a";
        let htpasswd = tmp.path().join("htpasswd");
        std::fs::write(&htpasswd, format!("user:{hash}\n")).unwrap();
        let port = Port::take();
        let host = port.host();
        let config = format!(
            "version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"{host}\"{}}}\n{}",
            tmp.path().join("data").display(),
            filled(http),
            filled(extra),
        );
        let file = tmp.path().join("config.yml");
        std::fs::write(&file, config).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(&file)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut registry = Self {
            child,
            tmp,
            host,
            _port: port,
        };
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(&registry.host).is_err() {
            let ended = registry.child.try_wait().unwrap();
            assert!(ended.is_none(), "docker-registry ended: {ended:?}");
            assert!(Instant::now() < deadline, "docker-registry does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        registry
    }

    /// Pushes with skopeo, digests unchanged.
    pub(crate) fn push(&self, image: &Image, repository: &str, tag: &str) {
        let layout = self.tmp.path().join("push");
        let _ = std::fs::remove_dir_all(&layout);
        write_layout(&layout, image);
        let done = Command::new("skopeo")
            .args(["copy", "-q", "--insecure-policy", "--preserve-digests"])
            .args(["--dest-tls-verify=false", "--dest-creds", "user:secret"])
            .arg(format!("oci:{}:pushed", layout.display()))
            .arg(format!("docker://{}/{repository}:{tag}", self.host))
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stderr)
        );
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Has skopeo write the image as `<kind>:<file>:<name>`.
pub(crate) fn archive(dir: &Path, image: &Image, kind: &str, name: &str) -> PathBuf {
    let layout = dir.join(format!("{kind}-layout"));
    write_layout(&layout, image);
    let file = dir.join(format!("{kind}.tar"));
    let done = Command::new("skopeo")
        .args(["copy", "-q", "--insecure-policy"])
        .arg(format!("oci:{}:pushed", layout.display()))
        .arg(format!("{kind}:{}:{name}", file.display()))
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
    file
}

fn write_layout(dir: &Path, image: &Image) {
    let blobs = dir.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    for (digest, bytes) in &image.blobs {
        std::fs::write(blobs.join(digest.hex()), bytes).unwrap();
    }
    let mut index: serde_json::Value = serde_json::from_slice(&image.index()).unwrap();
    let names = serde_json::json!({"org.opencontainers.image.ref.name": "pushed"});
    index["manifests"][0]["annotations"] = names;
    std::fs::write(dir.join("index.json"), index.to_string()).unwrap();
    std::fs::write(dir.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

fn make_certificate(dir: &Path) {
    let done = Command::new("openssl")
        .current_dir(dir)
        .args([
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
        ])
        .args([
            "-keyout", "key.pem", "-out", "cert.pem", "-days", "2", "-subj", "/CN=test",
        ])
        .args(["-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .output()
        .unwrap();
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// A port of the loopback that nobody else is given while this lives: bound, and not listening. A
/// program that asks for it by number may listen there.
struct Port(OwnedFd);

impl Port {
    fn take() -> Self {
        let (family, kind) = (AddressFamily::INET, SocketType::STREAM);
        let socket = socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
        sockopt::set_socket_reuseaddr(&socket, true).unwrap();
        bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
        Self(socket)
    }

    fn host(&self) -> String {
        let address: SocketAddrV4 = getsockname(&self.0).unwrap().try_into().unwrap();
        address.to_string()
    }
}

/// An address where nobody listens.
pub(crate) fn nobody() -> String {
    static NOBODYS: LazyLock<Port> = LazyLock::new(Port::take);
    NOBODYS.host()
}

#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub method: String,
    /// With the query.
    pub path: String,
    pub headers: HashMap<String, String>,
    pub body: String,
}

#[derive(Debug, Clone)]
pub(crate) enum Reply {
    /// Status, extra header lines, body.
    Full(u16, Vec<String>, Vec<u8>),
    /// Announces all of the body and sends so many bytes of it, then closes.
    Cut(Vec<u8>, usize),
    /// The same, then keeps silent until the server goes.
    Stall(Vec<u8>, usize),
    /// Announces nothing and sends for ever.
    Endless,
    /// Announces all of the body and sends a byte now and then.
    Trickle(Vec<u8>),
}

type Answer = dyn Fn(&Request) -> Option<Reply> + Send + Sync;

/// A registry that serves images as it is told to, and remembers what it was asked.
pub(crate) struct Fake {
    pub host: String,
    pub requests: Arc<Mutex<Vec<Request>>>,
    /// Sockets kept silent; they close with the server.
    _silent: Arc<Mutex<Vec<TcpStream>>>,
}

impl Fake {
    /// Serves `images` by `repo:tag` and digest; `first` may answer before that.
    pub(crate) fn start(
        images: Vec<(&str, Image)>,
        first: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let silent: Arc<Mutex<Vec<TcpStream>>> = Arc::default();
        let images: Vec<(String, Image)> = images
            .into_iter()
            .map(|(name, image)| (name.to_owned(), image))
            .collect();
        let answer: Arc<Answer> =
            Arc::new(move |request| first(request).or_else(|| serve(&images, request)));
        let (seen, kept) = (requests.clone(), silent.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, seen, kept) = (answer.clone(), seen.clone(), kept.clone());
                std::thread::spawn(move || handle(stream, &*answer, &seen, &kept));
            }
        });
        Self {
            host,
            requests,
            _silent: silent,
        }
    }

    pub(crate) fn count(&self, what: impl Fn(&Request) -> bool) -> usize {
        self.requests
            .lock()
            .unwrap()
            .iter()
            .filter(|r| what(r))
            .count()
    }
}

/// What an honest registry would say.
fn serve(images: &[(String, Image)], request: &Request) -> Option<Reply> {
    let path = request.path.split('?').next()?.strip_prefix("/v2/")?;
    for (name, image) in images {
        let (repository, tag) = name.rsplit_once(':')?;
        let Some(rest) = path.strip_prefix(repository) else {
            continue;
        };
        let (kind, which) = rest.strip_prefix('/')?.split_once('/')?;
        let digest: Option<Digest> = which.parse().ok();
        let digest = if which == tag {
            Some(image.manifest.clone())
        } else {
            digest
        };
        let Some(bytes) = digest.as_ref().and_then(|d| image.blobs.get(d)) else {
            continue;
        };
        let mut headers = vec![format!("Docker-Content-Digest: {}", digest?)];
        if kind == "manifests" {
            headers.push(format!("Content-Type: {OCI_MANIFEST}"));
        }
        let from = request.headers.get("range").and_then(|r| {
            r.strip_prefix("bytes=")?
                .strip_suffix('-')?
                .parse::<usize>()
                .ok()
        });
        return Some(match from {
            Some(from) => Reply::Full(206, headers, bytes[from..].to_vec()),
            None => Reply::Full(200, headers, bytes.clone()),
        });
    }
    Some(Reply::Full(
        404,
        vec![],
        br#"{"errors":[{"code":"MANIFEST_UNKNOWN"}]}"#.to_vec(),
    ))
}

fn handle(
    mut stream: TcpStream,
    answer: &Answer,
    seen: &Mutex<Vec<Request>>,
    silent: &Mutex<Vec<TcpStream>>,
) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let mut line = Vec::new();
    // A TLS hello is no line of text; closing is the answer to it.
    (&mut reader).take(8192).read_until(b'\n', &mut line).ok()?;
    let line = String::from_utf8(line).ok()?;
    let mut words = line.split_whitespace();
    let (method, path) = (words.next()?.to_owned(), words.next()?.to_owned());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((key, value)) = line.trim().split_once(": ") else {
            break;
        };
        headers.insert(key.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers
        .get("content-length")
        .and_then(|l| l.parse().ok())
        .unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let body = String::from_utf8_lossy(&body).into_owned();
    let request = Request {
        method,
        path,
        headers,
        body,
    };
    seen.lock().unwrap().push(request.clone());
    let head = |status: u16, length: usize, extra: &[String]| {
        let extra: String = extra.iter().map(|h| format!("{h}\r\n")).collect();
        format!(
            "HTTP/1.1 {status} X\r\nConnection: close\r\nContent-Length: {length}\r\n{extra}\r\n"
        )
    };
    match answer(&request)? {
        Reply::Full(status, extra, body) => {
            stream
                .write_all(head(status, body.len(), &extra).as_bytes())
                .ok()?;
            if request.method != "HEAD" {
                stream.write_all(&body).ok()?;
            }
        }
        Reply::Cut(body, n) => {
            stream
                .write_all(head(200, body.len(), &[]).as_bytes())
                .ok()?;
            stream.write_all(&body[..n]).ok()?;
        }
        Reply::Stall(body, n) => {
            stream
                .write_all(head(200, body.len(), &[]).as_bytes())
                .ok()?;
            stream.write_all(&body[..n]).ok()?;
            silent.lock().unwrap().push(stream);
        }
        Reply::Trickle(body) => {
            stream
                .write_all(head(200, body.len(), &[]).as_bytes())
                .ok()?;
            for byte in body {
                stream.write_all(&[byte]).ok()?;
                std::thread::sleep(Duration::from_millis(50));
            }
        }
        Reply::Endless => {
            stream
                .write_all(b"HTTP/1.1 200 X\r\nConnection: close\r\n\r\n")
                .ok()?;
            while stream.write_all(&[b' '; 65536]).is_ok() {}
        }
    }
    Some(())
}
