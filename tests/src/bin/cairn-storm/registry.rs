//! A registry stand-in: serves a directory by the distribution protocol, slowly, so that faults
//! occur during pulls. It runs in the yard in its own process.

use std::{
    fs,
    io::{self, BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use cairn_tests::{
    image::{Image, Layer},
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
    for stream in listener.incoming() {
        let (stream, dir) = (stream?, dir.to_owned());
        // Clients often leave during an answer.
        thread::spawn(move || drop(connection(stream, &dir)));
    }
    Ok(())
}

/// Requests of one connection, in sequence.
fn connection(mut stream: TcpStream, dir: &Path) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = String::new();
        if lines.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut from = 0;
        loop {
            let mut header = String::new();
            if lines.read_line(&mut header)? == 0 {
                return Ok(());
            }
            let header = header.trim().to_ascii_lowercase();
            if header.is_empty() {
                break;
            }
            if let Some(range) = header.strip_prefix("range: bytes=") {
                from = range.trim_end_matches('-').parse().unwrap_or(0);
            }
        }
        let mut words = request.split_whitespace();
        let (method, path) = (
            words.next().unwrap_or_default(),
            words.next().unwrap_or_default(),
        );
        answer(&mut stream, dir, method, path, from)?;
    }
}

fn answer(
    stream: &mut TcpStream,
    dir: &Path,
    method: &str,
    path: &str,
    from: usize,
) -> io::Result<()> {
    if path == "/v2/" {
        return stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}");
    }
    let Some((file, kind)) = find(dir, path) else {
        return stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
    };
    let bytes = fs::read(&file)?;
    let digest = file.file_name().unwrap_or_default().to_string_lossy();
    let part = bytes.get(from..).unwrap_or_default();
    let status = if from > 0 {
        "206 Partial Content"
    } else {
        "200 OK"
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nDocker-Content-Digest: {digest}\r\n",
        part.len()
    )?;
    if from > 0 {
        let last = bytes.len() - 1;
        write!(
            stream,
            "Content-Range: bytes {from}-{last}/{}\r\n",
            bytes.len()
        )?;
    }
    stream.write_all(b"\r\n")?;
    if method == "HEAD" {
        return Ok(());
    }
    for piece in part.chunks(64 << 10) {
        stream.write_all(piece)?;
        thread::sleep(Duration::from_millis(2));
    }
    Ok(())
}

/// The file that answers a path, and its media type.
fn find(dir: &Path, path: &str) -> Option<(PathBuf, &'static str)> {
    const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
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
