//! Pulls from a real registry, and from registries that are down, slow, wrong, or require
//! credentials.

use std::fs;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn::image::{Auth, Digest, Images, Progress, PullError};
use serde_json::json;

use crate::registry::*;
use crate::support::*;

pub(crate) async fn pull(images: &Images, reference: &str) -> Result<Digest, PullError> {
    images.pull(reference, None, &Progress::default()).await
}

pub(crate) async fn pull_as(
    images: &Images,
    reference: &str,
    auth: Auth,
) -> Result<Digest, PullError> {
    images
        .pull(reference, Some(auth), &Progress::default())
        .await
}

pub(crate) fn user(password: &str) -> Auth {
    Auth {
        username: "user".into(),
        password: password.into(),
        ..Auth::default()
    }
}

pub(crate) fn image(text: &str) -> Image {
    Image::new(
        "unnamed:1",
        &[
            Layer::new().file("base", "base"),
            Layer::new().file("f", text),
        ],
    )
}

#[tokio::test]
async fn a_real_registry_gives_tags_digests_and_every_packing() {
    let registry = Registry::start();
    let f = Fixture::new();
    for (n, packing) in [Packing::Plain, Packing::Gzip, Packing::Zstd]
        .into_iter()
        .enumerate()
    {
        let layers = [
            Layer::new().file("base", "base"),
            Layer::new().file("n", &n.to_string()),
        ];
        let image = Image::build("x:1", &layers, packing, |_| {});
        registry.push(&image, "a/b", &n.to_string());
        let name = format!("{}/a/b", registry.host);
        let by_tag = format!("{name}:{n}");
        let progress = Progress::default();
        assert_eq!(
            f.images.pull(&by_tag, None, &progress).await.unwrap(),
            image.id
        );
        let (moved, expected) = progress.get();
        assert!(moved > 0 && moved == expected);
        let record = f.images.resolve(&by_tag).unwrap().unwrap();
        let by_digest = format!("{name}@{}", image.manifest);
        assert_eq!(record.repo_tags, [by_tag.as_str()]);
        assert_eq!(record.repo_digests, [by_digest.as_str()]);
        assert_eq!(pull(&f.images, &by_digest).await.unwrap(), image.id);
        assert_eq!(pull(&f.images, &by_tag).await.unwrap(), image.id);
        f.images.remove(image.id.as_str()).await.unwrap();
        assert_eq!(pull(&f.images, &by_digest).await.unwrap(), image.id);
        let record = f.images.resolve(&by_digest).unwrap().unwrap();
        assert!(
            record.repo_tags.is_empty(),
            "pulled by digest: no tag (CRI-172)"
        );
        assert_eq!(record.repo_digests, [by_digest.as_str()]);
    }
    let e = pull(&f.images, &format!("{}/a/b:absent", registry.host))
        .await
        .unwrap_err();
    assert!(matches!(e, PullError::NotFound { .. }), "{e}");
}

#[tokio::test]
async fn a_real_registry_with_passwords_lets_in_whom_it_knows() {
    let registry = Registry::with_password();
    let image = image("private");
    registry.push(&image, "p", "1");
    let f = Fixture::new();
    let name = format!("{}/p:1", registry.host);
    for e in [
        pull(&f.images, &name).await.unwrap_err(),
        pull_as(&f.images, &name, user("wrong")).await.unwrap_err(),
        pull_as(
            &f.images,
            &name,
            Auth {
                server_address: "other.example".into(),
                ..user("secret")
            },
        )
        .await
        .unwrap_err(),
    ] {
        assert!(matches!(e, PullError::Unauthenticated { .. }), "{e}");
        assert!(!e.to_string().contains("secret"));
    }
    let packed = Auth {
        auth: STANDARD.encode("user:secret"),
        ..Auth::default()
    };
    assert_eq!(pull_as(&f.images, &name, packed).await.unwrap(), image.id);
    f.images.remove(&name).await.unwrap();
    assert_eq!(
        pull_as(&f.images, &name, user("secret")).await.unwrap(),
        image.id
    );
}

#[tokio::test]
async fn certificates_are_checked_when_a_registry_is_configured() {
    let registry = Registry::with_tls();
    let image = image("tls");
    registry.push(&image, "t", "1");
    let f = Fixture::new();
    let name = format!("{}/t:1", registry.host);
    assert_eq!(
        pull(&f.images, &name).await.unwrap(),
        image.id,
        "loopback is not verified"
    );
    let configured = |ca: &str| {
        let dir = f.path("certs.d").join(&registry.host);
        fs::create_dir_all(&dir).unwrap();
        let text = format!("server = \"https://{}\"\n{ca}", registry.host);
        fs::write(dir.join("hosts.toml"), text).unwrap();
        open(&f.path("configured"), |o| {
            o.registry_config_dir = f.path("certs.d")
        })
    };
    let e = pull(&configured(""), &name).await.unwrap_err();
    assert!(matches!(e, PullError::Unavailable { .. }), "{e}");
    let ca = format!("ca = \"{}\"", registry.certificate().display());
    assert_eq!(pull(&configured(&ca), &name).await.unwrap(), image.id);
    let e = pull(&configured("skip_verify = \"yes\""), &name)
        .await
        .unwrap_err();
    assert!(e.to_string().contains("skip_verify"), "{e}");
}

#[tokio::test]
async fn an_index_leads_to_the_image_for_this_machine_and_its_digest_is_the_images() {
    let ours = image("ours");
    let index = json!({"schemaVersion": 2, "manifests": [
        {"digest": Digest::of(b"?"), "size": 1, "platform": {"os": "linux", "architecture": "s390x"}},
        {"digest": ours.manifest, "size": 1, "platform": {"os": "linux", "architecture": arch()}},
        {"digest": Digest::of(b"!"), "size": 1, "platform": {"os": "unknown", "architecture": "unknown"}},
    ]})
    .to_string()
    .into_bytes();
    let digest = Digest::of(&index);
    let mut served = ours.clone();
    served.blobs.insert(digest.clone(), index);
    served.manifest = digest.clone();
    let fake = fake_registry(vec![("a:1", served)], |_| None);
    let f = Fixture::new();
    assert_eq!(
        pull(&f.images, &format!("{}/a:1", fake.host))
            .await
            .unwrap(),
        ours.id
    );
    let record = f.images.list().pop().unwrap();
    assert_eq!(record.repo_digests, [format!("{}/a@{digest}", fake.host)]);
    let before = fake.asked().len();
    for digest in [&digest, &ours.manifest] {
        pull(&f.images, &format!("{}/a@{digest}", fake.host))
            .await
            .unwrap();
    }
    let after: Vec<_> = fake.asked()[before..].to_vec();
    let methods: Vec<_> = after.iter().map(|r| &*r.method).collect();
    assert_eq!(
        methods,
        ["HEAD", "HEAD"],
        "both are known here; whether they may be had is asked"
    );
}

#[tokio::test]
async fn a_pull_of_a_present_image_asks_once_and_fetches_nothing() {
    let fake = fake_registry(vec![("a:1", image("x")), ("a:2", image("x"))], |_| None);
    let f = Fixture::new();
    let name = |tag| format!("{}/a:{tag}", fake.host);
    pull(&f.images, &name(1)).await.unwrap();
    let before = fake.asked().len();
    pull(&f.images, &name(1)).await.unwrap();
    pull(&f.images, &name(2)).await.unwrap();
    let requests = fake.asked();
    assert_eq!(
        requests[before..]
            .iter()
            .map(|r| &*r.method)
            .collect::<Vec<_>>(),
        ["HEAD", "HEAD"]
    );
    assert_eq!(f.images.list()[0].repo_tags, [name(1), name(2)]);
}

#[tokio::test]
async fn pulls_of_one_image_at_once_are_one_pull() {
    let fake = fake_registry(vec![("a:1", image("x"))], |_| None);
    let f = Fixture::new();
    let name = format!("{}/a:1", fake.host);
    let all = futures_util::future::join_all((0..20).map(|_| pull(&f.images, &name))).await;
    assert!(all.iter().all(Result::is_ok));
    assert_eq!(fake.count(|r| r.path.contains("/manifests/")), 1);
    assert_eq!(fake.count(|r| r.path.contains("/blobs/")), 3);
}

#[tokio::test]
async fn images_that_share_a_layer_fetch_it_once() {
    let fake = fake_registry(vec![("a:1", image("1")), ("b:1", image("2"))], |_| None);
    let f = Fixture::new();
    let (a, b) = (format!("{}/a:1", fake.host), format!("{}/b:1", fake.host));
    let (a, b) = tokio::join!(pull(&f.images, &a), pull(&f.images, &b));
    assert!(a.is_ok() && b.is_ok());
    let shared = image("1").layer_blob(0).to_string();
    assert_eq!(fake.count(|r| r.path.ends_with(&shared)), 1);
    assert_eq!(f.names("layers").len(), 3);
}

/// Services spawn these futures, so they must be `Send`.
#[tokio::test]
async fn every_future_may_move_between_threads() {
    fn send<T: Send>(future: T) -> T {
        future
    }
    let f = Fixture::new();
    f.import(&image("x")).await.unwrap();
    let record = f.images.list().pop().unwrap();
    let progress = Progress::default();
    let from = std::io::Cursor::new(b"no archive");
    assert!(send(f.images.import(from, None, &progress)).await.is_err());
    assert!(send(f.images.pull("!", None, &progress)).await.is_err());
    let rootfs = send(f.images.prepare_rootfs("c", &record, None))
        .await
        .unwrap();
    send(f.images.rootfs_usage("c")).await.unwrap();
    send(f.images.rootfs_text(&rootfs, "/x")).await.unwrap();
    send(f.images.fill_volumes(&rootfs, &Default::default()))
        .await
        .unwrap();
    send(f.images.release_rootfs("c")).await.unwrap();
    assert!(
        send(
            f.images
                .mount_image_volume("p", &record, "absent", None, None)
        )
        .await
        .is_err()
    );
    send(f.images.release_image_volumes("p")).await.unwrap();
    send(f.images.remove("x")).await.unwrap();
}

#[tokio::test]
async fn a_registry_that_lies_is_not_believed_and_leaves_nothing() {
    let good = image("x");
    let other = image("y");
    let layer = good.layer_blob(1);
    let swapped = other.blobs[&other.layer_blob(1)].clone();
    let long = [good.blobs[&layer].clone(), vec![0; 100]].concat();
    let config = good.id.clone();
    type Lie = (
        &'static str,
        Box<dyn Fn(&Request) -> Option<Reply> + Send + Sync>,
    );
    let lies: Vec<Lie> = vec![
        ("digest", {
            let layer = layer.clone();
            Box::new(move |r| {
                r.path
                    .contains(layer.as_str())
                    .then(|| Reply::Full(200, vec![], swapped.clone()))
            })
        }),
        ("longer", {
            let layer = layer.clone();
            Box::new(move |r| {
                r.path
                    .contains(layer.as_str())
                    .then(|| Reply::Full(200, vec![], long.clone()))
            })
        }),
        ("digest", {
            let text = vec![b' '; good.blobs[&good.id].len()];
            Box::new(move |r| {
                r.path
                    .contains(config.as_str())
                    .then(|| Reply::Full(200, vec![], text.clone()))
            })
        }),
        ("digest", {
            let manifest = good.blobs[&good.manifest].clone();
            let header = format!("Docker-Content-Digest: {}", Digest::of(b"?"));
            Box::new(move |r| {
                r.path
                    .ends_with("/manifests/1")
                    .then(|| Reply::Full(200, vec![header.clone()], manifest.clone()))
            })
        }),
        (
            "exceeds the limit",
            Box::new(|r| r.path.contains("/manifests/").then_some(Reply::Endless)),
        ),
        (
            "500",
            Box::new(|r| {
                r.path
                    .contains("/manifests/")
                    .then(|| Reply::Full(500, vec![], vec![]))
            }),
        ),
        (
            "redirects",
            Box::new(|r| {
                Some(Reply::Full(
                    302,
                    vec![format!("Location: {}", r.path)],
                    vec![],
                ))
            }),
        ),
    ];
    for (word, lie) in lies {
        let fake = fake_registry(vec![("a:1", good.clone())], lie);
        let f = Fixture::new();
        let e = pull(&f.images, &format!("{}/a:1", fake.host))
            .await
            .unwrap_err()
            .to_string();
        assert!(e.contains(word) && !e.contains('\n'), "{word}: {e}");
        assert!(f.images.list().is_empty());
        let f = f.reopen();
        assert_eq!(
            (f.names("layers").len(), f.names("tmp").len()),
            (0, 0),
            "{word}"
        );
    }
}

#[tokio::test]
async fn a_pull_nobody_waits_for_ends_and_leaves_nothing() {
    let held = Image::build(
        "x:1",
        &[Layer::new().bytes("f", &noise(300_000), 0o644)],
        Packing::Plain,
        |_| {},
    );
    let blob = held.layer_blob(0);
    let bytes = held.blobs[&blob].clone();
    let slow = fake_registry(vec![("a:1", held.clone())], move |r| {
        r.path
            .contains(blob.as_str())
            .then(|| Reply::Stall(bytes.clone(), 1000))
    });
    let f = Fixture::new();
    let name = format!("{}/a:1", slow.host);
    let gone = tokio::time::timeout(Duration::from_millis(1), pull(&f.images, &name)).await;
    assert!(gone.is_err(), "a deadline of the caller's is the caller's");
    {
        let pulling = pull(&f.images, &name);
        tokio::pin!(pulling);
        // Until the helper has its layer.
        while f.names("tmp").is_empty() {
            let step = tokio::time::timeout(Duration::from_millis(10), &mut pulling).await;
            assert!(step.is_err(), "{step:?}");
        }
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !f.names("tmp").is_empty() || !f.names("trash").is_empty() {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?} {:?}",
            f.names("tmp"),
            f.names("trash")
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(f.images.list().is_empty());
}

/// Incompressible bytes without a page of zeros.
pub(crate) fn noise(n: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[1]
    };
    (0..n).map(|_| next()).collect()
}
