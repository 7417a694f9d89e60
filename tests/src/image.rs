//! Small OCI images, made here from the system's static busybox: no registry, no public image.
//!
//! The applets are hard links, as in the real busybox image: a mask over `/bin/ls` must not mask
//! `/bin/busybox`. Everything is deterministic, so equal images have equal digests.

use std::{fs, io::Write, path::Path, process::Command, sync::OnceLock};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::bins;

/// The name of the plain busybox image in [`crate::Daemon`].
pub const BUSYBOX: &str = "localhost/cairn-test/busybox:1";

const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\n\
    app:x:1000:1000:app:/home/app:/bin/sh\n\
    nobody:x:65534:65534:nobody:/:/bin/false\n";
const GROUP: &str = "root:x:0:\napp:x:1000:\nextra:x:2000:app\nnogroup:x:65534:\n";

/// `sha256:<hex>` of some bytes.
pub fn digest(bytes: &[u8]) -> String {
    let hex: String = Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    format!("sha256:{hex}")
}

/// A layer as an uncompressed tar.
pub struct Layer(Builder<Vec<u8>>);

impl Default for Layer {
    fn default() -> Self {
        Self(Builder::new(Vec::new()))
    }
}

impl Layer {
    /// A raw entry: unsafe names stay as they are.
    #[must_use]
    pub fn raw(self, kind: EntryType, name: &str, link: &str, mode: u32, data: &[u8]) -> Self {
        self.entry(kind, name, link, mode, 0, data)
    }
    fn entry(
        mut self,
        kind: EntryType,
        name: &str,
        link: &str,
        mode: u32,
        owner: u64,
        data: &[u8],
    ) -> Self {
        let mut header = Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_uid(owner);
        header.set_gid(owner);
        header.set_mtime(0);
        header.set_size(data.len() as u64);
        let put = |field: &mut [u8], text: &str| {
            assert!(text.len() < field.len(), "{text} fits a header");
            field[..text.len()].copy_from_slice(text.as_bytes());
        };
        let old = header.as_old_mut();
        put(&mut old.name, name);
        put(&mut old.linkname, link);
        header.set_cksum();
        self.0.append(&header, data).expect("memory takes all");
        self
    }
    #[must_use]
    pub fn dir(self, name: &str, mode: u32) -> Self {
        self.raw(EntryType::Directory, name, "", mode, b"")
    }
    #[must_use]
    pub fn owned_dir(self, name: &str, mode: u32, owner: u64) -> Self {
        self.entry(EntryType::Directory, name, "", mode, owner, b"")
    }
    #[must_use]
    pub fn file(self, name: &str, mode: u32, data: &[u8]) -> Self {
        self.raw(EntryType::Regular, name, "", mode, data)
    }
    #[must_use]
    pub fn hard_link(self, name: &str, to: &str) -> Self {
        self.raw(EntryType::Link, name, to, 0o755, b"")
    }
    #[must_use]
    pub fn symlink(self, name: &str, to: &str) -> Self {
        self.raw(EntryType::Symlink, name, to, 0o777, b"")
    }
    /// The tar.
    pub fn bytes(self) -> Vec<u8> {
        self.0.into_inner().expect("memory takes all")
    }
}

/// The first layer of every test image.
fn busybox_layer() -> &'static [u8] {
    static LAYER: OnceLock<Vec<u8>> = OnceLock::new();
    LAYER.get_or_init(|| {
        layer_of(&bins::system("busybox").expect("busybox-static is installed: hack/setup"))
    })
}

/// The layer of an image with a static busybox.
fn layer_of(program: &Path) -> Vec<u8> {
    let listed = Command::new(program)
        .arg("--list")
        .output()
        .expect("busybox runs");
    let applets = String::from_utf8(listed.stdout).expect("applet names are text");
    let mut layer = Layer::default();
    for dir in [
        "bin", "dev", "etc", "home", "home/app", "proc", "sys", "run", "usr", "usr/bin", "var",
        "mnt",
    ] {
        layer = layer.dir(dir, 0o755);
    }
    layer = layer
        .dir("root", 0o700)
        .dir("tmp", 0o1777)
        .file("etc/passwd", 0o644, PASSWD.as_bytes())
        .file("etc/group", 0o644, GROUP.as_bytes())
        .file(
            "bin/busybox",
            0o755,
            &fs::read(program).expect("busybox can be read"),
        );
    for applet in applets.lines().filter(|a| *a != "busybox") {
        layer = layer.hard_link(&format!("bin/{applet}"), "bin/busybox");
    }
    layer.bytes()
}

/// A builder of an image.
#[derive(Clone)]
pub struct Image {
    name: String,
    layers: Vec<Vec<u8>>,
    config: Value,
}

impl Image {
    /// Busybox under a name, with `sh` as its command.
    pub fn busybox(name: &str) -> Self {
        Self {
            layers: vec![busybox_layer().to_vec()],
            ..Self::bare(name)
        }
    }
    /// An image of only the added layers.
    pub fn bare(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            layers: Vec::new(),
            config: json!({
                "Env": ["PATH=/bin:/usr/bin", "FROM_IMAGE=yes"],
                "Cmd": ["sh"],
            }),
        }
    }
    /// The same with another busybox than the system's.
    pub fn of_busybox(name: &str, program: &Path) -> Self {
        Self {
            layers: vec![layer_of(program)],
            ..Self::bare(name)
        }
    }
    /// The same under another name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            ..self
        }
    }
    /// Sets a field of the image's config, such as `User` or `Entrypoint`.
    #[must_use]
    pub fn config(mut self, field: &str, value: Value) -> Self {
        self.config[field] = value;
        self
    }
    /// Adds a layer on top.
    #[must_use]
    pub fn layer(mut self, layer: Layer) -> Self {
        self.layers.push(layer.bytes());
        self
    }

    /// The blobs of the image, and its index.
    pub fn blobs(&self) -> Blobs {
        let mut blobs = Blobs::default();
        let layers: Vec<Value> = self
            .layers
            .iter()
            .map(|tar| blobs.put("application/vnd.oci.image.layer.v1.tar+gzip", gzip(tar)))
            .collect();
        let diff_ids: Vec<String> = self.layers.iter().map(|tar| digest(tar)).collect();
        let config = blobs.put(
            "application/vnd.oci.image.config.v1+json",
            to_vec(&json!({
                "created": "1970-01-01T00:00:00Z",
                "architecture": architecture(),
                "os": "linux",
                "config": self.config,
                "rootfs": { "type": "layers", "diff_ids": diff_ids },
            })),
        );
        blobs.id = config["digest"].as_str().unwrap_or_default().to_owned();
        let mut manifest = blobs.put(
            "application/vnd.oci.image.manifest.v1+json",
            to_vec(&json!({
                "schemaVersion": 2,
                "mediaType": "application/vnd.oci.image.manifest.v1+json",
                "config": config,
                "layers": layers,
            })),
        );
        blobs.manifest = manifest["digest"].as_str().unwrap_or_default().to_owned();
        manifest["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.name,
            "io.containerd.image.name": self.name,
        });
        blobs.index = to_vec(&json!({ "schemaVersion": 2, "manifests": [manifest] }));
        blobs
    }

    /// Writes the image as an OCI layout tar.
    pub fn write(&self, to: &Path) -> Blobs {
        let blobs = self.blobs();
        fs::write(to, blobs.archive()).expect("the archive can be written");
        blobs
    }
}

/// An image in parts, so that tests can damage one of them.
#[derive(Default)]
pub struct Blobs {
    /// (digest, content)
    pub blobs: Vec<(String, Vec<u8>)>,
    pub index: Vec<u8>,
    /// Digest of the config: the image id.
    pub id: String,
    /// Digest of the manifest.
    pub manifest: String,
}

impl Blobs {
    fn put(&mut self, media_type: &str, content: Vec<u8>) -> Value {
        let digest = digest(&content);
        let descriptor =
            json!({ "mediaType": media_type, "digest": digest, "size": content.len() });
        self.blobs.push((digest, content));
        descriptor
    }

    /// The OCI layout as one tar.
    pub fn archive(&self) -> Vec<u8> {
        let mut tar = Layer::default()
            .file("oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#)
            .file("index.json", 0o644, &self.index)
            .dir("blobs", 0o755)
            .dir("blobs/sha256", 0o755);
        let mut written = Vec::new();
        for (digest, content) in &self.blobs {
            if !written.contains(&digest) {
                written.push(digest);
                let name = format!("blobs/{}", digest.replace(':', "/"));
                tar = tar.file(&name, 0o644, content);
            }
        }
        tar.bytes()
    }
}

/// Gzip with the header fields fixed.
fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

fn to_vec(value: &Value) -> Vec<u8> {
    serde_json::to_vec(value).expect("a value is JSON")
}

/// The machine's architecture, with OCI's name.
pub fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}
