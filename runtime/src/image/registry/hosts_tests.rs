use super::*;

fn parsed(registry: &str, text: &str) -> Result<Vec<Endpoint>, String> {
    parse(Path::new("/nowhere"), registry, text)
}

#[test]
fn an_unconfigured_registry_is_spoken_to_by_https_unless_it_is_this_machine() {
    for (registry, api, skip, plain) in [
        ("docker.io", "https://registry-1.docker.io/v2", false, false),
        ("r.example:5000", "https://r.example:5000/v2", false, false),
        ("localhost", "https://localhost/v2", true, false),
        ("127.0.0.1:80", "http://127.0.0.1:80/v2", false, false),
        ("127.0.0.1:5000", "https://127.0.0.1:5000/v2", true, true),
        ("[::1]:5000", "https://[::1]:5000/v2", true, true),
        ("[::1]", "https://[::1]/v2", true, false),
    ] {
        let e = endpoints(Path::new("/nowhere"), registry)
            .unwrap()
            .remove(0);
        assert_eq!(
            (&*e.api, e.tls.skip_verify, e.plain_fallback),
            (api, skip, plain)
        );
    }
}

#[test]
fn mirrors_come_in_the_files_order_and_the_server_last() {
    let text = r#"
            server = "https://registry.example"
            [host."http://z.example:5000"]
            capabilities = ["pull", "resolve"]
            [host."https://a.example/path"]
            capabilities = ["pull"]
            dial_timeout = "1m500ms"
            [host."https://a.example/path".header]
            x-one = "1"
            x-two = ["2", "3"]
            [host."https://b.example/cache/v2"]
            override_path = true
        "#;
    let all = parsed("registry.example", text).unwrap();
    let apis: Vec<_> = all.iter().map(|e| &*e.api).collect();
    assert_eq!(
        apis,
        [
            "http://z.example:5000/v2",
            "https://a.example/path/v2",
            "https://b.example/cache/v2",
            "https://registry.example/v2"
        ]
    );
    assert_eq!(
        all.iter().map(|e| e.mirror).collect::<Vec<_>>(),
        [true, true, true, false]
    );
    assert_eq!((all[1].resolve, all[1].pull), (false, true));
    assert_eq!(all[1].dial_timeout, Duration::from_millis(60_500));
    assert_eq!(all[1].headers.len(), 3);
}

#[test]
fn a_file_that_makes_no_sense_is_refused_with_the_reason() {
    for (text, word) in [
        ("host = 3", "table"),
        ("[host.\"ftp://x\"]", "http"),
        ("[host.\"https://\"]", "host"),
        ("[host.\"https://a\"]\ncapabilities = [\"fly\"]", "fly"),
        ("[host.\"https://a\".host.\"https://b\"]", "another"),
        ("[host.\"https://a\"]\nca = \"absent.pem\"", "absent.pem"),
        ("[host.\"https://a\"]\ndial_timeout = \"5\"", "dial_timeout"),
        ("capabilities = []", "no host"),
        ("server = [", "array"),
    ] {
        let e = parsed("r.example", text).unwrap_err();
        assert!(e.contains(word), "{text}: {e}");
    }
}

#[test]
fn directories_are_tried_with_port_then_without_colon_then_default() {
    let tmp = tempfile::tempdir().unwrap();
    let put = |name: &str, server: &str| {
        let dir = tmp.path().join(name);
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("hosts.toml"), format!("server = \"{server}\"")).unwrap();
    };
    let api = |registry: &str| {
        let found = endpoints(tmp.path(), registry).unwrap();
        found.last().unwrap().api.clone()
    };
    assert_eq!(api("r.example:5000"), "https://r.example:5000/v2");
    put("_default", "https://default.example");
    assert_eq!(api("r.example:5000"), "https://default.example/v2");
    put("r.example:5000", "https://colon.example");
    assert_eq!(api("r.example:5000"), "https://colon.example/v2");
    put("r.example_5000_", "https://port.example");
    assert_eq!(api("r.example:5000"), "https://port.example/v2");
}

#[test]
fn dockers_certificate_layout_serves_without_a_hosts_file() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path().join("r.example");
    fs::create_dir(&dir).unwrap();
    for (name, text) in [("a.crt", "CA"), ("me.cert", "CERT"), ("me.key", "KEY")] {
        fs::write(dir.join(name), text).unwrap();
    }
    let found = endpoints(tmp.path(), "r.example").unwrap();
    assert_eq!(found[0].tls.authorities, [b"CA"]);
    assert_eq!(found[0].tls.client, [b"CERT\nKEY"]);
}
