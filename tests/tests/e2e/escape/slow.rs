//! Attempts of a slow host to delay the pulls of others.

use std::time::{Duration, Instant};

use cairn_tests::{
    Daemon, Setup,
    image::{Blobs, Image, Layer},
    registry::{Registry, Reply, Request, start as start_registry},
    until,
    until::PATIENCE,
};

use super::registry::pull;

const QUICK: &str = "127.0.0.1:5001";
const SLOW: &str = "127.0.0.2:5001";

/// Layers that no other image has, except the first.
fn image(own: &str, layers: usize) -> Blobs {
    let shared = Layer::default().file("shared", 0o644, b"shared");
    let mut image = Image::bare("unused").layer(shared);
    for n in 0..layers {
        let text = format!("{own}-{n}");
        image = image.layer(Layer::default().file(&text, 0o644, text.as_bytes()));
    }
    image.blobs()
}

fn is_layer(blobs: &Blobs, request: &Request) -> bool {
    let digest = request.path.rsplit('/').next().unwrap_or_default();
    request.path.contains("/blobs/") && digest != blobs.id
}

/// Serves images of `count` repositories, but sends no byte of a layer.
fn stuck(daemon: &Daemon, count: usize) -> Registry {
    let names: Vec<String> = (0..count).map(|n| format!("stuck{n}:1")).collect();
    let images: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), image(name, 2)))
        .collect();
    let configs: Vec<String> = images.iter().map(|(_, image)| image.id.clone()).collect();
    start_registry(&daemon.yard, SLOW, images, move |request| {
        let config = configs.iter().any(|id| request.path.ends_with(id));
        let layer = request.path.contains("/blobs/") && !config;
        layer.then(|| Reply::Stall(vec![0; 1000], 0))
    })
}

async fn pulled_in_time(daemon: &Daemon, reference: &str) {
    let pulled = tokio::time::timeout(PATIENCE, pull(daemon, reference, None)).await;
    let pulled = pulled.unwrap_or_else(|_| panic!("{reference} waits for others"));
    pulled.unwrap_or_else(|e| panic!("{reference}: {e}"));
}

#[tokio::test]
async fn layers_that_never_come_hold_up_no_pull_from_another_host() {
    let daemon = Daemon::start().await;
    let slow = stuck(&daemon, 6);
    let quick = start_registry(
        &daemon.yard,
        QUICK,
        vec![("quick:1", image("quick", 3))],
        |_| None,
    );
    let waiting = (0..6).map(|n| {
        let mut client = daemon.cri().client.image;
        let request = cairn_tests::cri::PullImageRequest {
            image: Some(cairn_tests::cri::ImageSpec {
                image: format!("{SLOW}/stuck{n}:1"),
                ..Default::default()
            }),
            ..Default::default()
        };
        tokio::spawn(async move { client.pull_image(request).await })
    });
    let waiting: Vec<_> = waiting.collect();
    let layers = |registry: &Registry| registry.count(|r| is_layer(&image("", 0), r)) - 6;
    until(
        "all manifests are there, and layers are asked for",
        || async {
            let manifests = slow.count(|r| r.method == "GET" && r.path.contains("/manifests/"));
            (manifests == 6 && slow.count(|r| r.path.contains("/blobs/")) >= 6 + 2).then_some(())
        },
    )
    .await;
    // This image shares a layer with the stuck ones.
    pulled_in_time(&daemon, &format!("{QUICK}/quick:1")).await;
    assert!(waiting.iter().all(|pull| !pull.is_finished()));
    assert!(
        layers(&slow) <= 4,
        "one host has four turns: {}",
        layers(&slow)
    );
    assert!(quick.count(|r| r.path.contains("/blobs/")) >= 5);
}

#[tokio::test]
async fn a_host_that_trickles_or_stalls_is_given_up() {
    let toml = "[image]\nprogress_timeout = \"1s\"";
    let daemon = Daemon::with(Setup::default().toml(toml)).await;
    let held = image("x", 1);
    let layer = held.blobs[0].1.clone();
    let slow = start_registry(&daemon.yard, SLOW, vec![("x:1", held)], move |request| {
        let pause = Duration::from_millis(200);
        let (repository, rest) = request.path.strip_prefix("/v2/")?.split_once('/')?;
        let wanted = rest.starts_with("manifests/") == repository.starts_with("manifest");
        match repository {
            _ if request.method == "HEAD" || !wanted => None,
            "manifest-trickles" => Some(Reply::Trickle(vec![b' '; 1000], 1, pause)),
            "manifest-stalls" => Some(Reply::Stall(vec![b' '; 1000], 500)),
            _ => None,
        }
    });
    let layers = start_registry(&daemon.yard, QUICK, vec![("x:1", image("x", 1))], {
        let ids = [image("x", 1).id];
        move |request| {
            let layer_asked = request.path.contains("/blobs/")
                && !ids.iter().any(|id| request.path.ends_with(id));
            let reply = Reply::Trickle(layer.clone(), 1, Duration::from_millis(200));
            layer_asked.then_some(reply)
        }
    });
    for reference in [
        format!("{SLOW}/manifest-trickles:1"),
        format!("{SLOW}/manifest-stalls:1"),
        format!("{QUICK}/x:1"),
    ] {
        let start = Instant::now();
        let pulled = tokio::time::timeout(PATIENCE, pull(&daemon, &reference, None)).await;
        let error = pulled
            .unwrap_or_else(|_| panic!("{reference} is waited for without end"))
            .expect_err("it never comes");
        assert!(
            error.message().starts_with("RegistryUnavailable: "),
            "{reference} after {:?}: {error}",
            start.elapsed()
        );
    }
    assert!(!slow.asked().is_empty() && !layers.asked().is_empty());
}

/// Serves `image`, but only this many bytes of a layer per connection.
fn breaking(daemon: &Daemon, image: &Blobs, bytes: usize) -> Registry {
    let (held, id) = (image.blobs.clone(), image.id.clone());
    let served = Blobs {
        blobs: held.clone(),
        index: image.index.clone(),
        id: id.clone(),
        manifest: image.manifest.clone(),
    };
    start_registry(&daemon.yard, QUICK, vec![("x:1", served)], move |request| {
        let of_layer = |(digest, _): &&(String, Vec<u8>)| {
            request.path.contains("/blobs/") && *digest != id && request.path.ends_with(digest)
        };
        let (_, layer) = held.iter().find(of_layer)?;
        let range = request.header("range").strip_prefix("bytes=");
        let from = range.and_then(|range| range.strip_suffix('-')?.parse().ok());
        let rest = layer[from.unwrap_or(0)..].to_vec();
        let sent = bytes.min(rest.len());
        Some(Reply::Cut(rest, sent))
    })
}

/// An image with one incompressible layer.
fn one_layer(bytes: usize) -> Blobs {
    let layer = Layer::default().file("noise", 0o644, &super::bounds::noise(bytes));
    Image::bare("unused").layer(layer).blobs()
}

#[tokio::test]
async fn a_host_that_closes_each_connection_after_a_byte_is_given_up() {
    // The second run has the default timeout: the number of connections is limited, too.
    for toml in ["[image]\nprogress_timeout = \"1s\"", ""] {
        let daemon = Daemon::with(Setup::default().toml(toml)).await;
        let before = daemon.inventory().await;
        let registry = breaking(&daemon, &one_layer(1 << 20), 1);
        let reference = format!("{QUICK}/x:1");
        let pulled = tokio::time::timeout(PATIENCE, pull(&daemon, &reference, None)).await;
        let asked = registry.count(|r| r.path.contains("/blobs/"));
        let error = pulled
            .unwrap_or_else(|_| panic!("{toml:?}: {asked} connections, and it goes on"))
            .expect_err("it never comes");
        assert!(error.message().contains(QUICK), "{error}");
        daemon.leaves_only(&before).await;
    }
}

#[tokio::test]
async fn a_host_that_breaks_off_now_and_then_is_asked_for_the_rest() {
    let daemon = Daemon::start().await;
    let image = one_layer(2 << 20);
    let registry = breaking(&daemon, &image, 300_000);
    let pulled = pull(&daemon, &format!("{QUICK}/x:1"), None).await;
    assert_eq!(pulled.expect("all of it comes"), image.id);
    assert!(registry.count(|r| !r.header("range").is_empty()) >= 6);
}
