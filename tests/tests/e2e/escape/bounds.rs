//! Resources that an image may try to exhaust: the disk, its inodes, the kernel's limit of paths,
//! the daemon's memory.

use std::fmt::Write as _;

use cairn_tests::{
    Daemon, Setup, cri,
    image::{Image, Layer},
    look,
    output::shown,
    registry::{Reply, start as start_registry},
    until,
};
use serde_json::json;

const OWN: &str = "127.0.0.1:5001";

/// Incompressible bytes.
pub(crate) fn noise(n: usize) -> Vec<u8> {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..n).map(|_| next()).collect()
}

/// Forty nested directories.
const WAY: &str =
    "d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/";

/// This many nested directories, more than forty. Deeper ones are made through a link, because a
/// name in an old header cannot be as long.
fn deep(depth: usize) -> Layer {
    Layer::default()
        .dir(WAY, 0o755)
        .symlink("link", WAY.trim_end_matches('/'))
        .file(&format!("link/{}f", "e/".repeat(depth - 40)), 0o644, b"")
}

/// Imports the image; expects an error that names the setting, and no leftovers.
async fn is_refused(daemon: &Daemon, case: &str, layers: Vec<Layer>, setting: &str) {
    let before = daemon.inventory().await;
    let file = daemon.path("bounds.tar");
    let mut image = Image::bare(&format!("localhost/cairn-test/{case}:1"));
    for layer in layers {
        image = image.layer(layer);
    }
    image.write(&file);
    let done = daemon.import_file(&file).await;
    assert!(!done.status.success(), "{case} was taken");
    let printed = shown(&done);
    assert!(printed.contains(setting), "{case}: {printed}");
    daemon.leaves_only(&before).await;
}

#[tokio::test]
async fn an_image_beyond_its_bytes_files_or_depth_is_refused_by_the_settings_name() {
    let toml = "[image]\nmax_image_bytes = \"8MiB\"\nmax_image_files = 1000\nmax_image_depth = 64";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let big = |name: &str, n| Layer::default().file(name, 0o644, &noise(n));
    let one = vec![big("a", 9 << 20)];
    is_refused(&daemon, "one-big-layer", one, "max_image_bytes").await;
    let two = vec![big("a", 5 << 20), big("b", 5 << 20)];
    is_refused(&daemon, "two-layers", two, "max_image_bytes").await;

    let many = |layer: &str, n: usize| {
        let all = Layer::default();
        (0..n).fold(all, |all, at| all.file(&format!("{layer}{at}"), 0o644, b""))
    };
    is_refused(
        &daemon,
        "many-files",
        vec![many("f", 1001)],
        "max_image_files",
    )
    .await;
    let two = vec![many("a", 600), many("b", 600)];
    is_refused(&daemon, "files-of-two", two, "max_image_files").await;
    // Thirty entries, each of which implies forty directories.
    let implied = (0..30).fold(Layer::default(), |layer, n| {
        let path = format!("{n}{}", "/d".repeat(40));
        layer.file(&path, 0o644, b"")
    });
    is_refused(&daemon, "implied", vec![implied], "max_image_files").await;

    is_refused(&daemon, "deep", vec![deep(65)], "max_image_depth").await;
    let empty = deep(64).dir(&format!("link/{}e", "e/".repeat(24)), 0o755);
    is_refused(&daemon, "deep-and-empty", vec![empty], "max_image_depth").await;
    let fits = deep(64).file("big", 0o644, &noise(5 << 20));
    let fits = Image::bare("localhost/cairn-test/fits:1").layer(fits);
    daemon.import(&fits).await;
}

/// Makes a container of an image with these VOLUMEs.
async fn with_volumes(
    daemon: &Daemon,
    name: &str,
    layer: Layer,
    volumes: &[&str],
) -> Result<cairn_tests::container::Container, tonic::Status> {
    let reference = format!("localhost/cairn-test/{name}:1");
    let declared: serde_json::Map<_, _> = volumes
        .iter()
        .map(|v| ((*v).to_owned(), json!({})))
        .collect();
    let image = Image::busybox(&reference)
        .layer(layer)
        .config("Volumes", declared.into());
    daemon.import(&image).await;
    let pod = daemon.cri().pod(name).await;
    let mut config = pod.cri.container_config("c", &["sleep", "1000"]);
    config.image = Some(cri::ImageSpec {
        image: reference,
        ..Default::default()
    });
    pod.try_create(config).await
}

#[tokio::test]
async fn volumes_beyond_their_bound_fail_the_container_by_the_settings_name() {
    let toml = "[image]\nmax_volume_bytes = \"1MiB\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let data = |n| {
        let layer = Layer::default().file("data/a/bulk", 0o644, &noise(n));
        layer.file("data/b/bulk", 0o644, &noise(n))
    };
    for (name, bytes, volumes) in [
        ("one", 2 << 20, &["/data/a"][..]),
        ("two", 600 << 10, &["/data/a", "/data/b"][..]),
    ] {
        let made = with_volumes(&daemon, name, data(bytes), volumes).await;
        let error = made
            .err()
            .unwrap_or_else(|| panic!("{name}: it was filled"));
        assert!(
            error.message().contains("max_volume_bytes"),
            "{name}: {error}"
        );
        let left = look::tree(&daemon.path("root/volumes"));
        assert!(left.is_empty(), "{name}: {left:?}");
    }
    let made = with_volumes(&daemon, "fits", data(600 << 10), &["/data/a"]).await;
    made.expect("it is within the bound");
}

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const DOCUMENT: usize = 4 << 20;

/// A manifest without layers for a config of this digest and size.
fn manifest(config: &str, size: usize) -> Vec<u8> {
    let config = json!({"mediaType": CONFIG, "digest": config, "size": size});
    json!({"schemaVersion": 2, "config": config, "layers": []})
        .to_string()
        .into_bytes()
}

/// JSON of nearly `DOCUMENT` bytes: `before`, then `element` repeated, then `after`.
fn bloated(before: &str, element: impl Fn(usize) -> String, after: &str) -> Vec<u8> {
    let mut text = before.to_owned();
    for n in 0.. {
        let next = element(n);
        if text.len() + next.len() + after.len() + 1 > DOCUMENT {
            break;
        }
        let comma = if n > 0 { "," } else { "" };
        write!(text, "{comma}{next}").expect("memory takes all");
    }
    (text + after).into_bytes()
}

/// Manifest and config of the largest permitted size that need many times as much memory in a
/// careless parser.
fn greedy() -> Vec<(Vec<u8>, Vec<u8>)> {
    let head = format!(
        r#"{{"architecture":"{}","os":"linux","#,
        cairn_tests::image::architecture()
    );
    let rootfs = r#""rootfs":{"type":"layers","diff_ids":[]}"#;
    let history = bloated(
        &format!("{head}{rootfs},\"history\":["),
        |_| "{}".into(),
        "]}",
    );
    let env = bloated(
        &format!("{head}{rootfs},\"config\":{{\"Env\":["),
        |_| "\"\"".into(),
        "]}}",
    );
    let labels = bloated(
        &format!("{head}{rootfs},\"config\":{{\"Labels\":{{"),
        |n| format!("\"{n}\":\"\""),
        "}}}",
    );
    let annotations = bloated(
        r#"{"schemaVersion":2,"layers":[],"annotations":{"#,
        |n| format!("\"{n}\":\"\""),
        "}}",
    );
    let digest = cairn_tests::image::digest(b"");
    let index = bloated(
        &format!(
            r#"{{"schemaVersion":2,"manifests":[{{"digest":"{digest}","size":1,"annotations":{{"#
        ),
        |n| format!("\"{n}\":\"\""),
        "}}]}",
    );
    let mut all: Vec<_> = [history, env, labels]
        .into_iter()
        .map(|config| {
            (
                manifest(&cairn_tests::image::digest(&config), config.len()),
                config,
            )
        })
        .collect();
    all.extend([annotations, index].map(|document| (document, Vec::new())));
    all
}

#[tokio::test]
async fn fifty_hostile_pulls_at_once_leave_the_daemon_small() {
    let daemon = Daemon::start().await;
    let documents = greedy();
    let kinds = documents.len();
    // Alternates: the complete document; all but the last byte, without an end; an endless one; an
    // error of the same length.
    let registry = start_registry(&daemon.yard, OWN, vec![], move |request| {
        let rest = request.path.strip_prefix("/v2/hostile")?;
        let (n, what) = rest.split_once('/')?;
        let n: usize = n.parse().ok()?;
        let (manifest, config) = &documents[n % kinds];
        let wanted = if what.starts_with("manifests/") {
            manifest
        } else {
            config
        };
        if request.method == "HEAD" {
            return Some(Reply::Full(404, vec![], vec![]));
        }
        // Different for each: equal configs would be one image.
        let wanted = wanted.clone();
        Some(match n / kinds % 5 {
            0 | 1 => Reply::Full(200, vec![], wanted),
            2 if what.starts_with("blobs/") || config.is_empty() => {
                let sent = wanted.len() - 1;
                Reply::Stall(wanted, sent)
            }
            3 => Reply::Endless,
            4 => Reply::Full(503, vec![], wanted),
            _ => Reply::Full(200, vec![], wanted),
        })
    });
    let pulls: Vec<_> = (0..50)
        .map(|n| {
            let mut client = daemon.cri().client.image;
            let request = cri::PullImageRequest {
                image: Some(cri::ImageSpec {
                    image: format!("{OWN}/hostile{n}:1"),
                    ..Default::default()
                }),
                ..Default::default()
            };
            tokio::spawn(async move { client.pull_image(request).await })
        })
        .collect();
    let endless_or_over = |n: usize| n / kinds % 5 != 2;
    until::until_within(
        "all but those that never end have ended",
        std::time::Duration::from_secs(120),
        || async {
            let mut pulls = pulls
                .iter()
                .enumerate()
                .filter(|(n, _)| endless_or_over(*n));
            pulls.all(|(_, pull)| pull.is_finished()).then_some(())
        },
    )
    .await;
    assert!(registry.asked().len() >= 50, "all have asked");
    let process = daemon.yard.inside(format!("/proc/{}", daemon.pid()));
    let peak = look::status_field(&process, "VmHWM").expect("the daemon runs");
    let kilobytes: u64 = peak
        .split_whitespace()
        .next()
        .and_then(|n| n.parse().ok())
        .expect("a number of kB");
    assert!(kilobytes <= 100_000, "at its peak the daemon had {peak}");
    assert!(daemon.cri().pods().await.is_empty(), "it still answers");
}
