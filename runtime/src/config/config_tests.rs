use std::path::Path;

use super::{read::parse, *};

fn check(text: &str) -> String {
    match parse(Path::new("cairn.toml"), text).and_then(Config::check) {
        Ok(_) => "fine".into(),
        Err(error) => error.to_string(),
    }
}

#[test]
fn the_printed_default_is_the_default() {
    let parsed = parse(Path::new("default"), DEFAULT_TEXT).expect("parses");
    assert_eq!(parsed, File::default());
    Config::check(parsed).expect("is valid");
}

#[test]
fn every_key_of_the_default_is_printed() {
    let keys: toml::Table = toml::from_str(DEFAULT_TEXT).expect("parses");
    for (table, expected) in [
        ("container", 6),
        ("network", 11),
        ("nri", 16),
        ("image", 9),
        ("tracing", 2),
        ("stream", 5),
    ] {
        assert_eq!(
            keys[table].as_table().expect("a table").len(),
            expected,
            "{table}"
        );
    }
}

#[test]
fn the_manual_page_shows_every_line_of_the_default_as_text() {
    let page = manual();
    let shown = page.lines().filter_map(|line| line.strip_prefix("\\&"));
    let shown: Vec<_> = shown
        .map(|l| l.replace("\\-", "-").replace("\\e", "\\"))
        .collect();
    assert_eq!(shown, DEFAULT_TEXT.lines().collect::<Vec<_>>());
}

#[test]
fn an_unknown_key_is_refused_by_name_and_line() {
    assert_eq!(
        check("version = 1\nrooot = \"/x\"\n")
            .split(", expected")
            .next(),
        Some("cairn.toml: line 2: rooot: unknown field `rooot`")
    );
    assert!(check("[nri.plugin.\"10-x\"]\nfoo = 1\n").contains("unknown field `foo`"));
}

#[test]
fn a_bad_value_is_refused_by_key() {
    assert_eq!(
        check("version = 2"),
        "version: unsupported version (supported: 1)"
    );
    assert_eq!(check("root = \"x\""), "root: x is not an absolute path");
    assert!(check("listen = \"tcp://1\"").starts_with("listen: tcp://1: unsupported scheme"));
    assert!(check("[network]\nsubnet = \"10.0.0.0\"").starts_with("network.subnet: "));
    assert_eq!(
        check("[network]\nnri = \"add\"\n[nri]\nenable = false"),
        "network.nri: needs nri.enable = true"
    );
    assert_eq!(
        check("[network]\nnon_masquerade_cidrs = [\"fd88::/48\", \"10.88.0.0/33\"]"),
        "network.non_masquerade_cidrs: \"10.88.0.0/33\": must be a subnet, like \"10.88.0.0/16\""
    );
    assert!(check("[network]\nnri = \"all\"").contains("`off`, `add`, `only`"));
    assert!(check("[nri]\nrequest_timeout = \"2\"").contains("invalid duration"));
    assert!(check("[nri]\nrecord = \"r.jsonl\"").starts_with("nri.record: r.jsonl is not"));
    assert!(check("[nri]\nrequest_timeout = \"0s\"").starts_with("nri.request_timeout: "));
    assert!(check("[metrics]\nlisten = \"0.0.0.0:1\"").starts_with("metrics.listen: "));
    assert!(check("[nri.plugin.x]\n").starts_with("nri.plugin: \"x\""));
    for (key, value) in [
        ("max_parallel_layers", "5"),
        ("max_image_bytes", "\"1KiB\""),
        ("max_image_bytes", "\"1GB\""),
        ("max_image_files", "999"),
        ("max_image_depth", "15"),
        ("max_volume_bytes", "1"),
        ("progress_timeout", "\"0s\""),
    ] {
        let parsed = check(&format!("[image]\n{key} = {value}"));
        assert!(parsed.contains(&format!("image.{key}: ")), "{parsed}");
    }
    for bad in [
        "\"http://r.example\" = []",
        "\"r.example\" = [\"login.example/x\"]",
    ] {
        let parsed = check(&format!("[image.token_services]\n{bad}"));
        assert!(parsed.starts_with("image.token_services: "), "{parsed}");
    }
    assert!(check("[cgroup]\nparent = \"/a/../b\"").starts_with("cgroup.parent: "));
    assert!(check("[container]\nulimits = [\"nofile\"]").starts_with("container.ulimits: "));
    assert!(check("[image]\npinned = [\"Bad Name\"]").starts_with("image.pinned: \"Bad Name\""));
}

#[test]
fn a_handler_has_what_it_sets_and_the_rest_of_container() {
    let text = "[container]\nulimits = [\"nofile=1\"]\ndevice_ownership_from_security_context = true\n\
        [handlers.hard]\nulimits = [\"core=0\"]\nunset_seccomp_profile = \"runtime-default\"";
    let file = parse(Path::new("cairn.toml"), text).expect("parses");
    let own = file.handlers["hard"].over(&file.container);
    assert_eq!(own.ulimits, ["core=0"]);
    assert_eq!(own.unset_seccomp_profile, SeccompDefault::RuntimeDefault);
    assert!(own.device_ownership_from_security_context);
    assert_eq!(file.container.ulimits, ["nofile=1"]);
    assert_eq!(
        check("[handlers.hard]\nulimits = [\"cores=0\"]"),
        "handlers: hard: ulimits: \"cores=0\": unknown limit (see getrlimit(2))"
    );
    assert!(check("[handlers.Hard]").starts_with("handlers: \"Hard\": a handler's name has"));
    assert!(
        check("[handlers.hard]\ndevice_ownership_from_security_context = true")
            .contains("unknown field")
    );
}
