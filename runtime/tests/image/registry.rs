//! Registries for the tests: Debian's docker-registry with skopeo, and one that misbehaves.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};

use testkit::registry::{Registry as Fake, Served};
pub(crate) use testkit::registry::{Reply, Request};

use crate::support::Image;

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

    /// Accepts the user `user` with the password `secret`.
    pub(crate) fn with_password() -> Self {
        Self::with("auth: {htpasswd: {realm: test, path: DIR/htpasswd}}\n", "")
    }

    /// Serves https with a certificate that only `certificate` verifies.
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

    /// Pushes with skopeo, without changing digests.
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

/// Writes the image with skopeo as `<kind>:<file>:<name>`.
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

/// A loopback port that no other process is assigned while this exists: bound, but not listening. A
/// program that requests it by number may listen there.
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

/// An address where no process listens.
pub(crate) fn nobody() -> String {
    static NOBODYS: LazyLock<Port> = LazyLock::new(Port::take);
    NOBODYS.host()
}

/// Serves images by `repository:tag` and digest; `first` may answer a request before that.
pub(crate) fn fake_registry(
    images: Vec<(&str, Image)>,
    first: impl Fn(&Request) -> Option<Reply> + Send + Sync + 'static,
) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let served = images.into_iter().map(|(name, image)| Served {
        name: name.to_owned(),
        manifest: image.manifest.to_string(),
        blobs: image
            .blobs
            .into_iter()
            .map(|(digest, bytes)| (digest.to_string(), bytes))
            .collect(),
    });
    Fake::start(listener, served.collect(), first)
}
