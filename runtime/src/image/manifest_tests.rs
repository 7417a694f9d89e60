use super::*;

fn platform(text: &str) -> Platform {
    let mut parts = text.split('/').map(str::to_owned);
    let mut next = || parts.next().unwrap_or_default();
    Platform {
        os: next(),
        architecture: next(),
        variant: next(),
    }
}

fn entries(platforms: &[&str]) -> Vec<IndexEntry> {
    let entry = |(n, p): (usize, &&str)| IndexEntry {
        digest: Digest::of(&[u8::try_from(n).unwrap()]),
        size: 1,
        platform: (!p.is_empty()).then(|| platform(p)),
        artifact: false,
        name: None,
    };
    platforms.iter().enumerate().map(entry).collect()
}

fn chosen(host: &str, offered: &[&str]) -> Option<usize> {
    let entries = entries(offered);
    let best = choose_for("x", &entries, &platform(host))
        .ok()?
        .digest
        .clone();
    entries.iter().position(|e| e.digest == best)
}

#[test]
fn the_best_variant_the_host_can_run_is_chosen() {
    assert_eq!(
        chosen("linux/arm64/v8", &["linux/amd64", "linux/arm64/v8"]),
        Some(1)
    );
    assert_eq!(chosen("linux/arm64/v8", &["linux/arm64"]), Some(0));
    assert_eq!(
        chosen("linux/arm/v7", &["linux/arm/v5", "linux/arm/v6"]),
        Some(1)
    );
    assert_eq!(
        chosen(
            "linux/amd64/v3",
            &["linux/amd64", "linux/amd64/v2", "linux/amd64/v4"]
        ),
        Some(1)
    );
    assert_eq!(
        chosen("linux/amd64/v3", &["unknown/unknown", "linux/amd64"]),
        Some(1)
    );
    assert_eq!(chosen("linux/amd64/v3", &[""]), Some(0));
    assert_eq!(chosen("linux/amd64/v3", &["", ""]), None);
    assert_eq!(
        chosen("linux/amd64/v1", &["linux/amd64/v2", "windows/amd64"]),
        None
    );
}

#[test]
fn without_a_match_the_error_says_what_is_offered() {
    let e = choose_for("x", &entries(&["linux/s390x"]), &platform("linux/amd64")).unwrap_err();
    assert!(e.to_string().contains("linux/s390x"), "{e}");
}

#[test]
fn old_schemas_artifacts_and_encrypted_layers_are_refused_by_name() {
    let d = Digest::of(b"");
    let manifest = |config: &str, layer: &str| {
        format!(
            r#"{{"schemaVersion":2,"config":{{"mediaType":"{config}","digest":"{d}","size":1}},
                "layers":[{{"mediaType":"{layer}","digest":"{d}","size":1}}]}}"#
        )
    };
    let image = "application/vnd.oci.image.config.v1+json";
    let layer = "application/vnd.oci.image.layer.v1.tar+gzip";
    assert!(matches!(
        parse("x", manifest(image, layer).as_bytes()),
        Ok(Document::Image(_))
    ));
    for (bytes, word) in [
        (r#"{"schemaVersion":1}"#.to_owned(), "schema 1"),
        (
            manifest("application/vnd.cncf.helm.config.v1+json", layer),
            "artifact",
        ),
        (
            manifest(
                image,
                "application/vnd.oci.image.layer.v1.tar+gzip+encrypted",
            ),
            "encrypted",
        ),
        (r#"{"schemaVersion":2}"#.to_owned(), "neither"),
        ("<html>".to_owned(), "expected"),
    ] {
        let e = parse("x", bytes.as_bytes()).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    }
}
