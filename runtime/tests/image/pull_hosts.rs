//! The hosts of a pull, their credentials, and the handling of failed hosts.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use cairn::image::{Auth, Images, PullError};
use serde_json::json;

use crate::pull::{image, noise, pull, pull_as, user};
use crate::registry::*;
use crate::support::*;

/// Configures mirrors for `registry.example` in this order; the registry itself does not exist.
fn mirrored(f: &Fixture, mirrors: &[&str]) -> Images {
    let dir = f.path("certs.d/registry.example");
    fs::create_dir_all(&dir).unwrap();
    let mut text = format!("server = \"http://{}\"\n", nobody());
    for mirror in mirrors {
        text += &format!("[host.\"http://{mirror}\"]\ncapabilities = [\"pull\", \"resolve\"]\n");
    }
    fs::write(dir.join("hosts.toml"), text).unwrap();
    open(&f.path("mirrored"), |o| {
        o.registry_config_dir = f.path("certs.d");
        o.progress_timeout = Duration::from_secs(2);
    })
}

#[tokio::test]
async fn a_bearer_challenge_is_answered_with_what_the_caller_has() {
    let token_of = |r: &Request| {
        let given = r.headers.get("authorization").cloned().unwrap_or_default();
        let basic = format!("Basic {}", STANDARD.encode("user:secret"));
        match (&*r.method, given) {
            ("POST", _) if r.body.contains("refresh_token=refresh") => "by-refresh",
            ("GET", given) if given == basic => "by-password",
            ("GET", given) if given.is_empty() => "anonymous",
            _ => "",
        }
    };
    let fake = fake_registry(vec![("a:1", image("x"))], move |r| {
        let host = r.headers.get("host")?.clone();
        if r.path.starts_with("/token") {
            assert!(
                r.method == "POST" || r.path.contains("scope=repository%3Aa%3Apull"),
                "{}",
                r.path
            );
            return Some(Reply::Full(
                200,
                vec![],
                json!({"token": token_of(r)}).to_string().into(),
            ));
        }
        let given = r.headers.get("authorization").cloned().unwrap_or_default();
        if ["by-refresh", "by-password", "anonymous", "ready-made"]
            .contains(&given.strip_prefix("Bearer ").unwrap_or(""))
        {
            return None;
        }
        let ask = format!(
            "WWW-Authenticate: Bearer realm=\"http://{host}/token\",service=\"s\",scope=\"repository:a:pull\""
        );
        Some(Reply::Full(401, vec![ask], vec![]))
    });
    let name = format!("{}/a:1", fake.host);
    for (auth, token) in [
        (Auth::default(), "anonymous"),
        (user("secret"), "by-password"),
        (
            Auth {
                identity_token: "refresh".into(),
                ..Auth::default()
            },
            "by-refresh",
        ),
        (
            Auth {
                registry_token: "ready-made".into(),
                ..Auth::default()
            },
            "ready-made",
        ),
    ] {
        let f = Fixture::new();
        pull_as(&f.images, &name, auth).await.unwrap();
        let bearer = format!("Bearer {token}");
        assert!(
            fake.count(|r| r.headers.get("authorization") == Some(&bearer)) > 3,
            "{token}"
        );
        assert!(
            fake.count(|r| r.path.starts_with("/token")) <= 3,
            "one token a pull"
        );
    }
    let f = Fixture::new();
    let e = pull_as(&f.images, &name, user("wrong")).await.unwrap_err();
    assert!(e.to_string().contains("no token"), "{e}");
}

#[tokio::test]
async fn credentials_do_not_follow_a_redirect_to_another_host() {
    let held = image("x");
    let store = fake_registry(vec![("a:1", held.clone())], |_| None);
    let elsewhere = store.host.clone();
    let fake = fake_registry(vec![("a:1", held)], move |r| {
        if !r.headers.contains_key("authorization") {
            return Some(Reply::Full(
                401,
                vec!["WWW-Authenticate: Basic realm=\"x\"".into()],
                vec![],
            ));
        }
        let to = format!("Location: http://{elsewhere}{}", r.path);
        r.path
            .contains("/blobs/")
            .then(|| Reply::Full(307, vec![to], vec![]))
    });
    let f = Fixture::new();
    pull_as(&f.images, &format!("{}/a:1", fake.host), user("secret"))
        .await
        .unwrap();
    assert_eq!(store.count(|r| r.path.contains("/blobs/")), 3);
    assert_eq!(store.count(|r| r.headers.contains_key("authorization")), 0);
}

#[tokio::test]
async fn mirrors_are_asked_in_order_for_the_registry_they_stand_in_for() {
    let empty = fake_registry(vec![], |_| None);
    let full = fake_registry(vec![("a/b:1", image("x"))], |_| None);
    let f = Fixture::new();
    let images = mirrored(&f, &[&nobody(), &empty.host, &full.host]);
    let id = pull(&images, "registry.example/a/b:1").await.unwrap();
    let record = images.resolve(id.as_str()).unwrap().unwrap();
    assert_eq!(record.repo_tags, ["registry.example/a/b:1"]);
    assert!(empty.count(|_| true) > 0);
    assert_eq!(full.count(|r| !r.path.ends_with("?ns=registry.example")), 0);
    let e = pull(&images, "registry.example/a/b:2").await.unwrap_err();
    assert!(
        matches!(e, PullError::NotFound { .. }),
        "what is known beats what is unreachable: {e}"
    );
}

#[tokio::test]
async fn nobody_there_is_said_with_the_prefix_clients_look_for() {
    let f = Fixture::new();
    let e = pull(&f.images, &format!("{}/a:1", nobody()))
        .await
        .unwrap_err();
    assert!(e.to_string().starts_with("RegistryUnavailable: "), "{e}");
}

#[tokio::test]
async fn a_blob_cut_off_goes_on_where_it_stopped() {
    let held = Image::build(
        "x:1",
        &[Layer::new().bytes("f", &noise(300_000), 0o644)],
        Packing::Plain,
        |_| {},
    );
    let blob = held.layer_blob(0);
    let bytes = held.blobs[&blob].clone();
    let cuts = AtomicUsize::new(0);
    let fake = fake_registry(vec![("a:1", held.clone())], move |r| {
        let whole = r.path.contains(blob.as_str()) && !r.headers.contains_key("range");
        (whole && cuts.fetch_add(1, Ordering::SeqCst) == 0)
            .then(|| Reply::Cut(bytes.clone(), 100_000))
    });
    let f = Fixture::new();
    assert_eq!(
        pull(&f.images, &format!("{}/a:1", fake.host))
            .await
            .unwrap(),
        held.id
    );
    assert_eq!(
        fake.count(|r| r.headers.get("range").is_some_and(|r| r == "bytes=100000-")),
        1
    );
}

#[tokio::test]
async fn a_mirror_that_stalls_or_trickles_is_left_for_the_next() {
    let layers = [Layer::new().bytes("f", &noise(300_000), 0o644)];
    let held = Image::build("x:1", &layers, Packing::Plain, |_| {});
    let quick = fake_registry(vec![("a:1", held.clone())], |_| None);
    for trickle in [false, true] {
        let blob = held.layer_blob(0);
        let bytes = held.blobs[&blob].clone();
        let slow = fake_registry(vec![("a:1", held.clone())], move |r| {
            let bytes = bytes.clone();
            let reply = if trickle {
                Reply::Trickle(bytes, 1, Duration::from_millis(50))
            } else {
                Reply::Stall(bytes, 1000)
            };
            r.path.contains(blob.as_str()).then_some(reply)
        });
        let f = Fixture::new();
        let images = mirrored(&f, &[&slow.host, &quick.host]);
        assert_eq!(
            pull(&images, "registry.example/a:1").await.unwrap(),
            held.id
        );
        let images = mirrored(&f, &[&slow.host]);
        images.remove(held.id.as_str()).await.unwrap();
        let e = pull(&images, "registry.example/a:1").await.unwrap_err();
        assert!(e.to_string().starts_with("RegistryUnavailable: "), "{e}");
    }
}
