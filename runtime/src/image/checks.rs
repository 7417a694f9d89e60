//! Properties of parsers that hold for any bytes of an image, an archive, a registry or a setting.

use std::io::Read;
use std::path::Path;

use super::manifest::{self, Document};
use super::reference::Reference;
use super::registry::auth::{Auth, Challenge, challenge};
use super::registry::{hosts, remote, token};
use super::store::record::{self, ImageRecord, parse_config};
use super::unpack::archive::Listed;
use super::unpack::path::{CleanPath, Meaning, meaning};
use super::unpack::tarball::Reader;
use super::unpack::{self, decode};

/// A manifest or an index, and the choice from it.
pub fn manifest(data: &[u8]) {
    match manifest::parse("what", data) {
        Ok(Document::Image(image)) => {
            assert!(image.config.size <= Some(manifest::CONFIG_MAX));
            assert!(image.layers.len() <= record::LAYERS_MAX);
            assert!(image.layers.iter().all(|layer| layer.digest.is_some()));
        }
        Ok(Document::Index(entries)) => {
            if let Ok(chosen) = manifest::choose("what", &entries) {
                assert!(!chosen.artifact);
            }
        }
        Err(e) => assert!(!e.to_string().contains('\n')),
    }
}

/// An image's config, and its record written and read back.
pub fn config(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let Ok((run, diff_ids)) = parse_config(text) else {
        return;
    };
    let image = ImageRecord::new(text, 1).expect("it was parsed");
    assert_eq!((&image.run, image.layers.len()), (&run, diff_ids.len()));
    let file = image.to_json(text);
    let again = ImageRecord::from_json(&file).expect("we wrote it");
    assert_eq!((again.id, again.run), (image.id, image.run));
    assert_eq!(record::config_json(&file).expect("we wrote it"), text);
}

/// The file of an image's record.
pub fn record(data: &[u8]) {
    if let Ok(image) = ImageRecord::from_json(data) {
        let config = record::config_json(data).expect("it was read");
        let again = ImageRecord::from_json(&image.to_json(&config)).expect("we wrote it");
        assert_eq!(again.id, image.id);
    }
}

/// A layer, compressed or not, entry by entry with its data.
pub fn layer(data: &[u8]) {
    const BYTES_MAX: u64 = 1 << 20;
    let Ok(mut plain) = decode::bounded(data, BYTES_MAX, decode::LAYER) else {
        return;
    };
    let mut reader = Reader::new(&mut plain);
    let mut read = 0;
    while let Ok(Some(entry)) = reader.next_entry() {
        if let Ok(path) = CleanPath::new(&entry.path) {
            is_confined(&path);
            if let Some((_, name)) = path.split()
                && let Ok(Meaning::Whiteout(hidden)) = meaning(name)
            {
                assert!(!matches!(hidden, b"" | b"." | b"..") && !hidden.contains(&b'/'));
            }
        }
        let data = std::io::copy(&mut reader.by_ref().take(entry.size), &mut std::io::sink());
        let Ok(data) = data else {
            return;
        };
        assert!(data <= entry.size);
        read += data;
        assert!(read <= BYTES_MAX);
    }
    let _ = reader.finish();
}

fn is_confined(path: &CleanPath) {
    assert!(!path.as_bytes().contains(&0));
    for part in path.prefixes() {
        let (_, name) = part.split().expect("a prefix has a name");
        assert!(!matches!(name, b"" | b"." | b".."));
    }
}

/// The unpack helper's report, which a hostile layer may have written.
pub fn report(data: &[u8]) {
    for one in serde_json::from_slice::<Vec<Listed>>(data).unwrap_or_default() {
        if let Ok(path) = CleanPath::new(one.path.as_bytes()) {
            is_confined(&path);
        }
    }
    let Ok(report) = serde_json::from_slice::<unpack::Report>(data) else {
        return;
    };
    for list in [report.implied(), report.opaque(), report.whiteouts()] {
        list.unwrap_or_default().iter().for_each(is_confined);
    }
}

/// `WWW-Authenticate`, and whether its token service may get credentials.
pub fn asked(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Some(Challenge::Bearer { realm, .. }) = challenge(&text) else {
        return;
    };
    assert!(text.len() >= realm.len() / 3);
    let auth = Auth {
        username: "user".into(),
        ..Auth::default()
    };
    let given = auth.given("r.example:5000", &[]).expect("a user's name");
    if let Ok(url) = realm.parse::<reqwest::Url>()
        && given.may_go_to(&url)
    {
        let host = url.host_str().expect("it was compared");
        assert!(
            host == "r.example" || host.ends_with(".r.example"),
            "{host}"
        );
    }
}

/// A token service's answer, or a registry's error.
pub fn answer(data: &[u8]) {
    if let Some(token) = token::token_of(data) {
        assert!(token.is_sensitive());
    }
    assert!(!remote::first_error(data).contains('\n'));
}

/// A `hosts.toml`.
pub fn hosts_toml(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match hosts::parse(Path::new("/nowhere"), "r.example", &text) {
        Ok(endpoints) => {
            assert!(endpoints.iter().any(|e| e.pull || e.resolve));
            for endpoint in endpoints {
                let api = &endpoint.api;
                assert!(api.starts_with("http://") || api.starts_with("https://"));
            }
        }
        Err(why) => assert!(!why.is_empty()),
    }
}

/// A reference to an image, and its text form.
pub fn reference(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(reference) = text.parse::<Reference>() {
        let again: Reference = reference.to_string().parse().expect("we wrote it");
        assert_eq!(again, reference);
    }
}

#[cfg(test)]
pub mod tests {
    use std::io::Cursor;

    use super::*;

    /// With the seeds of `fuzz/seeds`, given by target and name.
    pub fn good_seeds_are_taken(seed: impl Fn(&str, &str) -> Vec<u8>) {
        assert!(manifest::parse("x", &seed("manifest", "good")).is_ok());
        let config = String::from_utf8(seed("config", "good")).unwrap();
        assert!(parse_config(&config).is_ok());
        assert!(ImageRecord::from_json(&seed("image_record", "good")).is_ok());
        let report = serde_json::from_slice::<unpack::Report>(&seed("unpack_report", "good"));
        assert!(report.is_ok());
        let header = String::from_utf8(seed("challenge", "good")).unwrap();
        assert!(matches!(challenge(&header), Some(Challenge::Bearer { .. })));
        assert!(token::token_of(&seed("registry_answer", "good")).is_some());
        assert!(!remote::first_error(&seed("registry_answer", "error")).is_empty());
        let hosts = String::from_utf8(seed("hosts_toml", "good")).unwrap();
        assert!(hosts::parse(Path::new("/nowhere"), "r.example", &hosts).is_ok());
        for packing in ["plain", "gzip", "zstd"] {
            let layer = seed("layer", packing);
            let plain = decode::decoder(Cursor::new(layer), decode::LAYER).unwrap();
            let mut reader = Reader::new(plain);
            let first = reader.next_entry().unwrap().expect("an entry");
            assert_eq!(first.path, b"etc/passwd", "{packing}");
        }
    }
}
