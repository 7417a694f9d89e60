//! Helpers of the image tests: stores in temporary directories, and images built in memory.

use std::collections::BTreeMap;
use std::io::{Cursor, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cairn::host::lookup::Lookups;
use cairn::image::{Digest, Images, Options, TreeBounds, TurnBounds};
use serde_json::{Value, json};

pub(crate) const HELPER: &str = env!("CARGO_BIN_EXE_cairn");

/// A store that is removed with the test.
pub(crate) struct Fixture {
    pub tmp: tempfile::TempDir,
    pub images: Images,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        let tmp = tempfile::tempdir().unwrap();
        let images = open(tmp.path(), |_| {});
        Self { tmp, images }
    }

    /// Reopens the store like a restarted daemon.
    pub(crate) fn reopen(self) -> Self {
        let Self { tmp, images } = self;
        drop(images);
        let images = open(tmp.path(), |_| {});
        Self { tmp, images }
    }

    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.tmp.path().join(path)
    }

    /// Returns the names below a directory of the store.
    pub(crate) fn names(&self, dir: &str) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(self.path("images").join(dir))
            .map(|d| {
                d.map(|e| e.unwrap().file_name().into_string().unwrap())
                    .collect()
            })
            .unwrap_or_default();
        names.sort();
        names
    }

    pub(crate) async fn import(&self, image: &Image) -> Result<Digest, cairn::image::Error> {
        let from = Cursor::new(image.layout());
        let done = self.images.import(from, None, &Default::default()).await?;
        Ok(done[0].id.clone())
    }
}

pub(crate) fn open(root: &Path, change: impl FnOnce(&mut Options)) -> Images {
    let mut options = Options {
        roots_dir: root.join("containers"),
        volumes_dir: root.join("volumes"),
        unpack_helper: vec![HELPER.into(), "unpack".into()],
        registry_config_dir: root.join("none"),
        lookups: Lookups::new(HELPER.into(), Duration::from_secs(30)),
        turns: TurnBounds {
            all: 32,
            host: 4,
            image: 2,
        },
        image: TreeBounds {
            bytes: 64 << 30,
            files: 2_000_000,
            depth: 512,
        },
        max_volume_bytes: 10 << 30,
        progress_timeout: Duration::from_secs(300),
        token_services: BTreeMap::new(),
        pinned: Vec::new(),
    };
    change(&mut options);
    Images::open(&root.join("images"), options).unwrap()
}

/// A layer under construction.
#[derive(Default)]
pub(crate) struct Layer(Vec<(tar::Header, Vec<u8>, Vec<u8>)>);

impl Layer {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    fn add(mut self, kind: tar::EntryType, path: &str, link: &str, data: &[u8], mode: u32) -> Self {
        let mut h = tar::Header::new_gnu();
        h.set_entry_type(kind);
        h.set_size(data.len() as u64);
        h.set_mode(mode);
        h.set_uid(0);
        h.set_gid(0);
        h.set_mtime(1_000_000);
        h.set_device_major(0).unwrap();
        h.set_device_minor(0).unwrap();
        // Written directly: the crate would reject the malicious names of some tests.
        let name = &mut h.as_mut_bytes()[..100];
        name[..path.len()].copy_from_slice(path.as_bytes());
        h.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        h.set_cksum();
        self.0.push((h, data.to_vec(), Vec::new()));
        self
    }

    pub(crate) fn file(self, path: &str, text: &str) -> Self {
        self.add(tar::EntryType::Regular, path, "", text.as_bytes(), 0o644)
    }

    pub(crate) fn bytes(self, path: &str, data: &[u8], mode: u32) -> Self {
        self.add(tar::EntryType::Regular, path, "", data, mode)
    }

    pub(crate) fn dir(self, path: &str, mode: u32) -> Self {
        self.add(tar::EntryType::Directory, path, "", b"", mode)
    }

    pub(crate) fn symlink(self, path: &str, target: &str) -> Self {
        self.add(tar::EntryType::Symlink, path, target, b"", 0o777)
    }

    pub(crate) fn hardlink(self, path: &str, target: &str) -> Self {
        self.add(tar::EntryType::Link, path, target, b"", 0o644)
    }

    pub(crate) fn special(self, kind: tar::EntryType, path: &str, major: u32, minor: u32) -> Self {
        self.add(kind, path, "", b"", 0o600).last(|h| {
            h.set_device_major(major).unwrap();
            h.set_device_minor(minor).unwrap();
        })
    }

    /// Changes the header of the last entry.
    pub(crate) fn last(mut self, change: impl FnOnce(&mut tar::Header)) -> Self {
        let (h, ..) = self.0.last_mut().unwrap();
        change(h);
        h.set_cksum();
        self
    }

    pub(crate) fn owner(self, uid: u64, gid: u64) -> Self {
        self.last(|h| {
            h.set_uid(uid);
            h.set_gid(gid);
        })
    }

    /// Gives the last entry an extended attribute.
    pub(crate) fn xattr(mut self, name: &str, value: &[u8]) -> Self {
        let key = format!("SCHILY.xattr.{name}");
        let body = key.len() + value.len() + 3;
        let length = (1..6)
            .map(|d| body + d)
            .find(|n| n.to_string().len() + body == *n)
            .unwrap();
        let (.., ext) = self.0.last_mut().unwrap();
        ext.extend(format!("{length} {key}=").bytes());
        ext.extend(value);
        ext.push(b'\n');
        self
    }

    /// The archive.
    pub(crate) fn tar(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut put = |h: &tar::Header, data: &[u8]| {
            out.extend(h.as_bytes());
            out.extend(data);
            out.resize(out.len().next_multiple_of(512), 0);
        };
        for (h, data, ext) in &self.0 {
            if !ext.is_empty() {
                let mut x = tar::Header::new_ustar();
                x.set_path("pax").unwrap();
                x.set_entry_type(tar::EntryType::XHeader);
                x.set_size(ext.len() as u64);
                x.set_cksum();
                put(&x, ext);
            }
            put(h, data);
        }
        out.extend([0; 1024]);
        out
    }
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// An image: its blobs, and the digests that name it.
#[derive(Clone)]
pub(crate) struct Image {
    pub blobs: BTreeMap<Digest, Vec<u8>>,
    pub manifest: Digest,
    pub id: Digest,
    pub name: String,
}

pub(crate) const OCI_MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

impl Image {
    pub(crate) fn new(name: &str, layers: &[Layer]) -> Self {
        Self::build(name, layers, Packing::Gzip, |_| {})
    }

    /// Builds an image; `config` may change its config before the digests are computed.
    pub(crate) fn build(
        name: &str,
        layers: &[Layer],
        packing: Packing,
        config: impl FnOnce(&mut Value),
    ) -> Self {
        let mut blobs = BTreeMap::new();
        let mut put = |bytes: Vec<u8>| {
            let digest = Digest::of(&bytes);
            blobs.insert(digest.clone(), bytes);
            digest
        };
        let (mut diff_ids, mut described) = (Vec::new(), Vec::new());
        for layer in layers {
            let tar = layer.tar();
            diff_ids.push(Digest::of(&tar));
            let (suffix, packed) = pack(&tar, packing);
            let size = packed.len();
            let media = format!("application/vnd.oci.image.layer.v1.tar{suffix}");
            described.push(json!({"mediaType": media, "digest": put(packed), "size": size}));
        }
        let mut sealed = json!({
            "architecture": arch(), "os": "linux",
            "config": {"Cmd": ["sh"], "Env": ["PATH=/bin"]},
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        config(&mut sealed);
        let sealed = sealed.to_string().into_bytes();
        let size = sealed.len();
        let id = put(sealed);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST,
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": id, "size": size},
            "layers": described,
        });
        let manifest = put(manifest.to_string().into_bytes());
        Self {
            blobs,
            manifest,
            id,
            name: name.to_owned(),
        }
    }

    /// The digest of layer `n`'s blob.
    pub(crate) fn layer_blob(&self, n: usize) -> Digest {
        let manifest: Value = serde_json::from_slice(&self.blobs[&self.manifest]).unwrap();
        manifest["layers"][n]["digest"]
            .as_str()
            .unwrap()
            .parse()
            .unwrap()
    }

    pub(crate) fn index(&self) -> Vec<u8> {
        json!({"schemaVersion": 2, "manifests": [{
            "mediaType": OCI_MANIFEST,
            "digest": self.manifest, "size": self.blobs[&self.manifest].len(),
            "annotations": {"io.containerd.image.name": self.name},
        }]})
        .to_string()
        .into_bytes()
    }

    /// An OCI layout as a tar, the index last.
    pub(crate) fn layout(&self) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let mut put = |path: &str, bytes: &[u8]| {
            let mut h = tar::Header::new_gnu();
            h.set_size(bytes.len() as u64);
            h.set_mode(0o644);
            builder.append_data(&mut h, path, bytes).unwrap();
        };
        for (digest, bytes) in &self.blobs {
            put(&format!("blobs/sha256/{}", digest.hex()), bytes);
        }
        put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
        put("index.json", &self.index());
        builder.into_inner().unwrap()
    }
}

pub(crate) fn arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

pub(crate) fn pack(tar: &[u8], packing: Packing) -> (&'static str, Vec<u8>) {
    match packing {
        Packing::Plain => ("", tar.to_vec()),
        Packing::Gzip => {
            let level = flate2::Compression::fast();
            let mut gz = flate2::write::GzEncoder::new(Vec::new(), level);
            gz.write_all(tar).unwrap();
            ("+gzip", gz.finish().unwrap())
        }
        Packing::Zstd => ("+zstd", zstd::encode_all(tar, 1).unwrap()),
    }
}

/// A mount that is removed with the test.
pub(crate) struct Mounted(pub PathBuf);

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
