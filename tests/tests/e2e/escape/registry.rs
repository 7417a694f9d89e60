//! Attacks by a registry, a mirror or the target of a redirect: on credentials, and on images of
//! others.

use std::fs;

use cairn_tests::{
    Daemon, Setup, cri,
    image::{Image, Layer},
    registry::{Registry, Reply, Request, start as start_registry},
};

const OWN: &str = "127.0.0.1:5001";
const FOREIGN: &str = "127.0.0.2:5001";
/// `user:opensesame` as in basic authentication.
const BASIC: &str = "Basic dXNlcjpvcGVuc2VzYW1l";
/// The secrets that no other host may see, in every encoding.
const SECRETS: [&str; 3] = ["opensesame", "dXNlcjpvcGVuc2VzYW1l", "refresh-me"];

fn password() -> cri::AuthConfig {
    cri::AuthConfig {
        username: "user".into(),
        password: "opensesame".into(),
        ..Default::default()
    }
}

/// Every kind of credentials that a client can send.
fn every_kind() -> [cri::AuthConfig; 3] {
    let token = cri::AuthConfig {
        registry_token: "opensesame".into(),
        ..Default::default()
    };
    let refresh = cri::AuthConfig {
        identity_token: "refresh-me".into(),
        ..Default::default()
    };
    [password(), token, refresh]
}

pub(crate) async fn pull(
    daemon: &Daemon,
    reference: &str,
    auth: Option<cri::AuthConfig>,
) -> Result<String, tonic::Status> {
    let request = cri::PullImageRequest {
        image: Some(cri::ImageSpec {
            image: reference.to_owned(),
            ..Default::default()
        }),
        auth,
        ..Default::default()
    };
    let mut client = daemon.cri().client.image;
    Ok(client.pull_image(request).await?.into_inner().image_ref)
}

fn image(text: &str) -> Image {
    Image::bare("unused").layer(Layer::default().file("own", 0o644, text.as_bytes()))
}

/// Accepts requests with the password.
fn guarded(request: &Request) -> Option<Reply> {
    let ask = "WWW-Authenticate: Basic realm=\"test\"".to_owned();
    (request.header("authorization") != BASIC).then(|| Reply::Full(401, vec![ask], vec![]))
}

fn bearer(realm: &str) -> Reply {
    let ask = format!("WWW-Authenticate: Bearer realm=\"{realm}\",service=\"s\"");
    Reply::Full(401, vec![ask], vec![])
}

#[tokio::test]
async fn an_image_that_is_here_is_given_to_nobody_whom_its_registry_refuses() {
    let daemon = Daemon::start().await;
    let held = image("private").blobs();
    let manifest = held.manifest.clone();
    let registry = start_registry(&daemon.yard, OWN, vec![("private:1", held)], guarded);
    let by_tag = format!("{OWN}/private:1");
    let by_digest = format!("{OWN}/private@{manifest}");
    let id = pull(&daemon, &by_tag, Some(password())).await;
    let id = id.expect("the password opens it");
    let wrong = cri::AuthConfig {
        password: "guess".into(),
        ..password()
    };
    for reference in [&by_tag, &by_digest] {
        for auth in [None, Some(wrong.clone())] {
            let refused = pull(&daemon, reference, auth.clone()).await;
            let refused = refused.expect_err("it is not theirs");
            // Not INTERNAL: the caller can correct it (CRI-407).
            assert_eq!(refused.code(), tonic::Code::Unauthenticated, "{refused}");
            assert!(refused.message().contains(OWN), "{refused}");
        }
    }
    let is_blob = |r: &Request| r.path.contains("/blobs/");
    let fetched = registry.count(is_blob);
    let again = pull(&daemon, &by_digest, Some(password())).await;
    assert_eq!(again.expect("the password still opens it"), id);
    assert_eq!(registry.count(is_blob), fetched, "nothing is fetched anew");
}

#[tokio::test]
async fn a_mirror_is_not_shown_the_registrys_credentials() {
    let daemon = Daemon::start().await;
    let mirror = start_registry(&daemon.yard, FOREIGN, vec![], |request| {
        // Alternately requires the password itself, and a token of its own service.
        Some(match request.path.contains("basic") {
            _ if request.path.starts_with("/token") => {
                Reply::Full(200, vec![], br#"{"token":"t"}"#.into())
            }
            true => guarded(request).unwrap_or(Reply::Full(404, vec![], vec![])),
            false => bearer(&format!("http://{FOREIGN}/token")),
        })
    });
    let names = ["basic:1", "token:1"];
    let images = names.map(|name| (name, image("mirrored").blobs()));
    let registry = start_registry(&daemon.yard, OWN, images.into(), |request| {
        (request.header("authorization").is_empty() && !request.path.starts_with("/token"))
            .then(|| bearer(&format!("http://{OWN}/token")))
            .or_else(|| {
                request
                    .path
                    .starts_with("/token")
                    .then(|| Reply::Full(200, vec![], br#"{"token":"t"}"#.into()))
            })
    });
    let dir = daemon.path("certs/127.0.0.1_5001_");
    fs::create_dir_all(&dir).expect("a directory");
    let hosts = format!("server = \"http://{OWN}\"\n[host.\"http://{FOREIGN}\"]\n");
    fs::write(dir.join("hosts.toml"), hosts).expect("a file");
    for name in names {
        for auth in every_kind() {
            let pulled = pull(&daemon, &format!("{OWN}/{name}"), Some(auth)).await;
            pulled.expect("the registry itself has it");
        }
    }
    assert!(!mirror.asked().is_empty(), "the mirror is asked first");
    let shown: Vec<_> = mirror
        .asked()
        .into_iter()
        .filter(|r| r.shows(&SECRETS))
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
    assert!(
        registry.count(|r| r.shows(&SECRETS)) > 0,
        "the registry is shown what was given for it"
    );
}

#[tokio::test]
async fn a_mirror_is_shown_credentials_that_were_given_for_it() {
    let daemon = Daemon::start().await;
    let held = vec![("mirrored:1", image("mirrored").blobs())];
    let mirror = start_registry(&daemon.yard, FOREIGN, held, guarded);
    let registry = start_registry(&daemon.yard, OWN, vec![], |_| None);
    let dir = daemon.path("certs/127.0.0.1_5001_");
    fs::create_dir_all(&dir).expect("a directory");
    let hosts = format!("server = \"http://{OWN}\"\n[host.\"http://{FOREIGN}\"]\n");
    fs::write(dir.join("hosts.toml"), hosts).expect("a file");
    let auth = cri::AuthConfig {
        server_address: FOREIGN.into(),
        ..password()
    };
    let pulled = pull(&daemon, &format!("{OWN}/mirrored:1"), Some(auth)).await;
    pulled.expect("the mirror lets them in");
    assert!(mirror.count(|r| r.header("authorization") == BASIC) > 0);
    assert_eq!(registry.count(|r| r.shows(&SECRETS)), 0);
}

#[tokio::test]
async fn who_is_behind_a_redirect_cannot_ask_for_credentials() {
    let daemon = Daemon::start().await;
    let thief = start_registry(&daemon.yard, FOREIGN, vec![], |request| {
        Some(if request.path.starts_with("/token") {
            Reply::Full(200, vec![], br#"{"token":"t"}"#.into())
        } else {
            bearer(&format!("http://{FOREIGN}/token"))
        })
    });
    let held = image("redirected").blobs();
    let registry = start_registry(&daemon.yard, OWN, vec![("r:1", held)], |request| {
        let to = format!("Location: http://{FOREIGN}{}", request.path);
        let blob = request.path.contains("/blobs/");
        blob.then(|| Reply::Full(307, vec![to], vec![]))
    });
    for auth in every_kind() {
        let pulled = pull(&daemon, &format!("{OWN}/r:1"), Some(auth)).await;
        let error = pulled.expect_err("no blob is ever sent");
        assert!(!error.message().contains('\n'), "{error}");
    }
    assert!(thief.count(|r| r.path.contains("/blobs/")) > 0);
    let shown: Vec<_> = thief
        .asked()
        .into_iter()
        .filter(|r| r.shows(&SECRETS))
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
    drop(registry);
}

/// A registry that redirects to a token service at `FOREIGN`, and that service.
fn with_foreign_tokens(daemon: &Daemon) -> (Registry, Registry) {
    let held = image("tokens").blobs();
    let registry = start_registry(&daemon.yard, OWN, vec![("t:1", held)], |request| {
        (request.header("authorization") != "Bearer good")
            .then(|| bearer(&format!("http://{FOREIGN}/token")))
    });
    let service = start_registry(&daemon.yard, FOREIGN, vec![], |request| {
        let token = if request.shows(&SECRETS) {
            "good"
        } else {
            "bad"
        };
        Some(Reply::Full(
            200,
            vec![],
            format!("{{\"token\":\"{token}\"}}").into(),
        ))
    });
    (registry, service)
}

#[tokio::test]
async fn a_token_service_elsewhere_gets_no_credentials_unless_it_is_configured() {
    let daemon = Daemon::start().await;
    let (_registry, service) = with_foreign_tokens(&daemon);
    for auth in [&every_kind()[0], &every_kind()[2]] {
        let pulled = pull(&daemon, &format!("{OWN}/t:1"), Some(auth.clone())).await;
        let error = pulled.expect_err("the service may not have them");
        let text = error.message();
        assert!(
            text.contains(FOREIGN) && text.contains("image.token_services") && !text.contains('\n'),
            "{text}"
        );
    }
    let shown: Vec<_> = service
        .asked()
        .into_iter()
        .filter(|r| r.shows(&SECRETS))
        .collect();
    assert!(shown.is_empty(), "{shown:#?}");
    // Without credentials, there is no secret to protect.
    let anonymous = pull(&daemon, &format!("{OWN}/t:1"), None).await;
    anonymous.expect_err("its token opens nothing");
    assert!(service.count(|r| r.path.starts_with("/token")) > 0);
    drop(daemon);

    let toml = format!("[image.token_services]\n\"{OWN}\" = [\"{FOREIGN}\"]");
    let daemon = Daemon::with(Setup::default().toml(&toml)).await;
    let (_registry, service) = with_foreign_tokens(&daemon);
    for auth in [&every_kind()[0], &every_kind()[2]] {
        let pulled = pull(&daemon, &format!("{OWN}/t:1"), Some(auth.clone())).await;
        pulled.expect("the configuration names the service");
    }
    assert!(service.count(|r| r.shows(&SECRETS)) > 0);
}

#[tokio::test]
async fn credentials_do_not_come_back_after_a_redirect_has_led_away() {
    let daemon = Daemon::start().await;
    let away = start_registry(&daemon.yard, FOREIGN, vec![], |request| {
        let back = format!("Location: http://{OWN}/chosen{}", request.path);
        Some(Reply::Full(307, vec![back], vec![]))
    });
    let held = image("back").blobs();
    let blobs = held.blobs.clone();
    let registry = start_registry(&daemon.yard, OWN, vec![("r:1", held)], move |request| {
        if request.path.starts_with("/chosen") {
            let blob = blobs
                .iter()
                .find(|(digest, _)| request.path.ends_with(digest));
            return blob.map(|(_, bytes)| Reply::Full(200, vec![], bytes.clone()));
        }
        let to = format!("Location: http://{FOREIGN}{}", request.path);
        let blob = request.path.contains("/blobs/");
        guarded(request).or_else(|| blob.then(|| Reply::Full(307, vec![to], vec![])))
    });
    let pulled = pull(&daemon, &format!("{OWN}/r:1"), Some(password())).await;
    pulled.expect("the blobs are where the redirects lead");
    assert!(away.count(|r| r.path.contains("/blobs/")) > 0);
    let chosen = |r: &Request| r.path.starts_with("/chosen");
    assert!(registry.count(chosen) > 0);
    assert_eq!(registry.count(|r| chosen(r) && r.shows(&SECRETS)), 0);
}

/// A registry that is, by its address, not on this machine.
const ELSEWHERE: &str = "198.51.100.7:5001";

/// Sets these addresses in the yard, and the name inside.example for a local address. Configures
/// the registry `ELSEWHERE`, which uses http.
async fn elsewhere(daemon: &Daemon, addresses: &[&str]) {
    daemon.lines(&["ip", "link", "set", "lo", "up"]).await;
    for address in addresses {
        daemon
            .lines(&["ip", "address", "add", address, "dev", "lo"])
            .await;
    }
    let names = daemon.path("names");
    fs::write(&names, "127.0.0.1 localhost inside.example\n").expect("a file");
    let names = names.display().to_string();
    let mount = ["mount", "--bind", &names, "/etc/hosts"];
    daemon.lines(&mount).await;
    let dir = daemon.path("certs/198.51.100.7_5001_");
    fs::create_dir_all(&dir).expect("a directory");
    let hosts = format!("server = \"http://{ELSEWHERE}\"\n");
    fs::write(dir.join("hosts.toml"), hosts).expect("a file");
}

/// Addresses of this machine and its link, as in a URL, and as in an error.
const HERE: [(&str, &str); 6] = [
    ("127.0.0.1", "127.0.0.1"),
    ("localhost", "localhost"),
    ("inside.example", "inside.example"),
    ("0.0.0.0", "0.0.0.0"),
    ("[::ffff:127.0.0.1]", "::ffff:7f00:1"),
    ("169.254.169.254", "169.254.169.254"),
];

#[tokio::test]
async fn a_registry_elsewhere_cannot_have_the_daemon_ask_this_machine_or_its_link() {
    let daemon = Daemon::start().await;
    let addresses = ["198.51.100.7/32", "198.51.100.8/32", "169.254.169.254/32"];
    elsewhere(&daemon, &addresses).await;
    let inside = start_registry(&daemon.yard, "0.0.0.0:7000", vec![], |_| {
        Some(Reply::Full(200, vec![], br#"{"token":"secret"}"#.into()))
    });
    let targets = || HERE.iter().map(|(target, _)| *target).enumerate();
    let names: Vec<_> = targets()
        .flat_map(|(n, _)| [format!("token{n}:1"), format!("redirect{n}:1")])
        .collect();
    let mut images: Vec<_> = names
        .iter()
        .map(|name| (name.as_str(), image("x").blobs()))
        .collect();
    images.push(("fine:1", image("x").blobs()));
    let led = image("led").blobs();
    let registry = start_registry(&daemon.yard, ELSEWHERE, images, move |request| {
        if request.path.starts_with("/v2/fine/") {
            let anonymous = request.header("authorization").is_empty();
            return anonymous.then(|| bearer("http://198.51.100.8:7000/token"));
        }
        for (n, target) in targets() {
            if request.path.starts_with(&format!("/v2/token{n}/")) {
                return Some(bearer(&format!("http://{target}:7000/token")));
            }
            if request.path.starts_with(&format!("/v2/redirect{n}/blobs/")) {
                let to = format!("Location: http://{target}:7000{}", request.path);
                return Some(Reply::Full(307, vec![to], vec![]));
            }
        }
        None
    });
    for (n, (_, shown)) in HERE.iter().enumerate() {
        for kind in ["token", "redirect"] {
            let pulled = pull(&daemon, &format!("{ELSEWHERE}/{kind}{n}:1"), None).await;
            let error = pulled.expect_err("nothing is to be had there");
            assert_eq!(inside.asked().len(), 0, "{kind} {shown}: it was asked");
            let text = error.message();
            let names = text.contains(ELSEWHERE) && text.contains(shown);
            assert!(names && !text.contains('\n'), "{kind} {shown}: {text}");
        }
    }
    let pulled = pull(&daemon, &format!("{ELSEWHERE}/fine:1"), None).await;
    pulled.expect("a token service of the network is asked");
    assert!(inside.count(|r| r.path.starts_with("/token")) > 0);
    drop(registry);

    // A local registry may redirect to local addresses, but does not pass this permission on to its
    // redirect targets.
    let near = start_registry(&daemon.yard, OWN, vec![("led:1", led)], |request| {
        let to = format!("Location: http://198.51.100.8:7001{}", request.path);
        let blob = request.path.contains("/blobs/");
        blob.then(|| Reply::Full(307, vec![to], vec![]))
    });
    let away = start_registry(&daemon.yard, "198.51.100.8:7001", vec![], |request| {
        let to = format!("Location: http://127.0.0.1:7000{}", request.path);
        Some(Reply::Full(307, vec![to], vec![]))
    });
    let asked = inside.asked().len();
    let pulled = pull(&daemon, &format!("{OWN}/led:1"), None).await;
    let error = pulled.expect_err("who is elsewhere names nothing here");
    assert!(away.count(|r| r.path.contains("/blobs/")) > 0);
    assert_eq!(inside.asked().len(), asked, "it was asked: {error}");
    drop(near);
}
