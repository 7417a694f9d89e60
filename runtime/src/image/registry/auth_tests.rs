use proptest::prelude::*;

use super::*;

fn pair(user: &str, password: &str) -> Credentials {
    Credentials::Basic {
        user: user.into(),
        password: password.into(),
    }
}

#[test]
fn the_first_kind_of_credentials_that_applies_is_used() {
    let mut auth = Auth {
        registry_token: "t".into(),
        ..Auth::default()
    };
    let used = |auth: &Auth| auth.given("r.example", &[]).unwrap().at("r.example");
    assert!(used(&auth) == Credentials::Bearer("t".into()));
    auth.auth = STANDARD.encode("u:p:q\0\0");
    assert!(used(&auth) == pair("u", "p:q"));
    auth.identity_token = "i".into();
    assert!(used(&auth) == Credentials::Refresh("i".into()));
    auth.username = "n".into();
    assert!(used(&auth) == pair("n", ""));
    assert!(used(&Auth::default()) == Credentials::Anonymous);
    let odd = Auth {
        auth: "%".into(),
        ..Auth::default()
    };
    assert!(odd.given("r.example", &[]).is_err());
}

fn given(server: &str, registry: &str) -> Given {
    let auth = Auth {
        username: "u".into(),
        server_address: server.into(),
        ..Auth::default()
    };
    let services = ["login.example".to_owned(), "other.example:8443".to_owned()];
    auth.given(registry, &services).unwrap()
}

#[test]
fn credentials_are_sent_to_the_host_they_are_for_and_to_no_other() {
    for (server, registry, host, sent) in [
        ("", "r.example", "r.example", true),
        ("", "r.example", "R.Example:443", true),
        ("", "r.example", "mirror.example", false),
        ("", "r.example", "r.example:5000", false),
        ("", "r.example", "xr.example", false),
        ("", "docker.io", "registry-1.docker.io", true),
        (
            "https://index.docker.io/v1/",
            "docker.io",
            "registry-1.docker.io",
            true,
        ),
        ("r.example:5000", "r.example:5000", "r.example:5000", true),
        ("r.example", "evil.example", "evil.example", false),
        ("r.example", "r.example:5000", "r.example:5000", false),
        // Credentials for a mirror by name are for it alone.
        ("mirror.example", "r.example", "mirror.example", true),
        ("mirror.example", "r.example", "r.example", false),
    ] {
        let got = given(server, registry).at(host) != Credentials::Anonymous;
        assert_eq!(got, sent, "{server} {registry} {host}");
    }
}

#[test]
fn a_token_service_gets_credentials_if_it_is_the_registrys_own_or_configured() {
    for (registry, realm, may) in [
        ("r.example", "https://r.example/token", true),
        ("r.example:5000", "https://r.example:5000/token", true),
        ("r.example:5000", "https://r.example/token", true),
        ("r.example:5000", "https://r.example:5001/token", false),
        ("r.example", "https://r.example:8443/token", false),
        ("docker.io", "https://auth.docker.io/token", true),
        (
            "registry.gitlab.example",
            "https://gitlab.example/jwt/auth",
            true,
        ),
        (
            "registry.gitlab.example",
            "https://gitlab.example:8443/jwt/auth",
            false,
        ),
        ("registry.a.example", "https://token.a.example/", false),
        ("r.example", "https://evil.example/token", false),
        ("r.example", "https://r.example.evil.test/token", false),
        ("r.example", "https://evilr.example/token", false),
        ("r.example", "https://example/token", false),
        ("10.0.0.1:5000", "http://10.0.0.1:5000/token", true),
        ("10.0.0.1:5000", "http://10.0.0.2:5000/token", false),
        ("127.0.0.1:5000", "http://0.0.1/token", false),
        ("[::1]:5000", "http://[::1]:5000/token", true),
        ("[::1]:5000", "http://[::1]:5001/token", false),
        ("r.example", "https://login.example/token", true),
        ("r.example", "https://login.example:444/token", false),
        ("r.example", "https://other.example:8443/token", true),
        ("r.example", "https://other.example/token", false),
    ] {
        let got = given("", registry).may_go_to(&realm.parse().unwrap());
        assert_eq!(got, may, "{registry} {realm}");
    }
}

#[test]
fn no_secret_is_in_the_debug_output() {
    let auth = Auth {
        username: "USER".into(),
        password: "SECRET".into(),
        ..Auth::default()
    };
    let shown = format!("{auth:?}");
    assert!(
        !shown.contains("SECRET") && !shown.contains("USER"),
        "{shown}"
    );
}

#[test]
fn challenges_are_read_with_quotes_commas_and_several_schemes() {
    let header = r#"Basic realm="x", Bearer realm="https://a.example/token",service="r, s",scope="repository:a/b:pull,push""#;
    assert_eq!(
        challenge(header),
        Some(Challenge::Bearer {
            realm: "https://a.example/token".into(),
            service: Some("r, s".into()),
            scope: Some("repository:a/b:pull,push".into()),
        })
    );
    assert_eq!(challenge("Basic realm=\"x\""), Some(Challenge::Basic));
    assert_eq!(
        challenge("bearer realm=plain"),
        Some(Challenge::Bearer {
            realm: "plain".into(),
            service: None,
            scope: None
        })
    );
    assert_eq!(challenge("Negotiate"), None);
    assert_eq!(challenge("Bearer"), None);
}

proptest! {
    #[test]
    fn any_header_is_read_without_panic_and_ends(header in "\\PC{0,100}") {
        let _ = challenge(&header);
    }
}
