//! A registry stand-in: serves a directory by the distribution protocol, slowly, so that faults
//! occur during pulls. It runs in the yard in its own process.

use std::{
    fs, io,
    net::TcpListener,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use cairn_tests::{
    image::{Image, Layer},
    registry::{Registry, Reply, Request},
    rng::Rng,
};

/// Its address in the yard.
pub(crate) const ADDRESS: &str = "127.0.0.1:5077";
/// Images per client.
pub(crate) const EACH: u32 = 3;

/// The name of a client's image.
pub(crate) fn image(client: u32, n: u32) -> String {
    format!("{ADDRESS}/{}:1", repository(client, n))
}
fn repository(client: u32, n: u32) -> String {
    format!("storm/c{client}-{n}")
}
/// The content of its `/whose`.
pub(crate) fn whose(client: u32, n: u32) -> String {
    format!("c{client}-{n}\n")
}

/// Writes each client's images. They share busybox; images of one number share another layer.
///
/// # Errors
/// As the file system reports.
pub(crate) fn furnish(dir: &Path, clients: u32, seed: u64) -> io::Result<()> {
    let mut rng = Rng::new(seed, "images");
    let blobs = dir.join("blobs");
    fs::create_dir_all(&blobs)?;
    for n in 0..EACH {
        let shared = rng.bytes(1 << 20);
        for client in 0..clients {
            let layers = [
                Layer::default().file("shared", 0o644, &shared),
                Layer::default()
                    .file("whose", 0o644, whose(client, n).as_bytes())
                    .file("bulk", 0o644, &rng.bytes(1 << 19)),
            ];
            let mut image = Image::busybox("unused");
            for layer in layers {
                image = image.layer(layer);
            }
            let made = image.blobs();
            for (digest, bytes) in &made.blobs {
                fs::write(blobs.join(digest), bytes)?;
            }
            let tags = dir.join("manifests").join(repository(client, n));
            fs::create_dir_all(&tags)?;
            fs::write(tags.join("1"), &made.manifest)?;
        }
    }
    Ok(())
}

/// Serves until it is ended.
///
/// # Errors
/// When it cannot listen.
pub(crate) fn serve(dir: &Path) -> io::Result<()> {
    let listener = TcpListener::bind(ADDRESS)?;
    let dir = dir.to_owned();
    let _registry = Registry::start(listener, Vec::new(), move |asked| Some(answer(&dir, asked)));
    loop {
        thread::park();
    }
}

fn answer(dir: &Path, asked: &Request) -> Reply {
    let found =
        find(dir, &asked.path).and_then(|(file, kind)| Some((fs::read(&file).ok()?, file, kind)));
    match found {
        None if asked.path == "/v2/" => Reply::Full(200, Vec::new(), b"{}".into()),
        None => Reply::Full(404, Vec::new(), Vec::new()),
        Some((bytes, file, MANIFEST)) => {
            let digest = file.file_name().unwrap_or_default().to_string_lossy();
            let digest = format!("Docker-Content-Digest: {digest}");
            Reply::Full(
                200,
                vec![format!("Content-Type: {MANIFEST}"), digest],
                bytes,
            )
        }
        Some((bytes, ..)) => {
            let rest = bytes.get(asked.from().unwrap_or(0)..).unwrap_or_default();
            Reply::Trickle(rest.to_vec(), 64 << 10, Duration::from_millis(2))
        }
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";

/// The file that answers a path, and its media type.
fn find(dir: &Path, path: &str) -> Option<(PathBuf, &'static str)> {
    let blob = |digest: &str| Some(dir.join("blobs").join(digest)).filter(|file| file.is_file());
    let rest = path.strip_prefix("/v2/")?;
    if rest.contains("..") {
        return None;
    }
    if let Some((_, digest)) = rest.split_once("/blobs/") {
        return Some((blob(digest)?, "application/octet-stream"));
    }
    let (name, reference) = rest.split_once("/manifests/")?;
    if reference.starts_with("sha256:") {
        return Some((blob(reference)?, MANIFEST));
    }
    let tag = dir.join("manifests").join(name).join(reference);
    Some((blob(fs::read_to_string(tag).ok()?.trim())?, MANIFEST))
}
