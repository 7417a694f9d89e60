//! Credentials of one image in a docker `config.json`, as docker and podman write it. Pure.
//!
//! No error shows what is in the file.

use std::collections::BTreeMap;

use proto_cri::v1::AuthConfig;
use serde::Deserialize;

use crate::image::Reference;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    auths: BTreeMap<String, Entry>,
    #[serde(default, rename = "credHelpers")]
    helpers: BTreeMap<String, String>,
    #[serde(default, rename = "credsStore")]
    store: String,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Entry {
    auth: String,
    username: String,
    password: String,
    identitytoken: String,
    registrytoken: String,
}

/// The most specific entry for this image; none if there is none.
///
/// # Errors
/// The file is none of docker's, or keeps the credentials in a program that cairn does not run.
pub(super) fn find(text: &str, image: &Reference) -> Result<Option<AuthConfig>, String> {
    let file: File = serde_json::from_str(text).map_err(|error| {
        // Its own text may show a value.
        let (line, column) = (error.line(), error.column());
        format!("is no docker config.json: line {line}, column {column}")
    })?;
    let fitting = file.auths.iter().filter_map(|(key, entry)| {
        let depth = fits(key, image)?;
        let secrets = [
            &entry.auth,
            &entry.password,
            &entry.identitytoken,
            &entry.registrytoken,
        ];
        // What is kept in a helper leaves an empty entry.
        let has_secret = secrets.iter().any(|secret| !secret.is_empty());
        has_secret.then_some((depth, entry))
    });
    let Some((_, entry)) = fitting.max_by_key(|(depth, _)| *depth) else {
        let mut helpers = file.helpers.iter();
        let helper = helpers.find(|(key, _)| fits(key, image).is_some());
        let left_empty = file.auths.keys().any(|key| fits(key, image).is_some());
        return match helper.map(|(_, program)| program) {
            Some(program) => Err(elsewhere(program, image)),
            None if left_empty && !file.store.is_empty() => Err(elsewhere(&file.store, image)),
            None => Ok(None),
        };
    };
    Ok(Some(AuthConfig {
        username: entry.username.clone(),
        password: entry.password.clone(),
        auth: entry.auth.clone(),
        server_address: String::new(),
        identity_token: entry.identitytoken.clone(),
        registry_token: entry.registrytoken.clone(),
    }))
}

fn elsewhere(program: &str, image: &Reference) -> String {
    format!(
        "keeps the credentials of {} in docker-credential-{program}, which cairn does not run: give --creds",
        image.registry
    )
}

/// How much of the repository's path a key names, if it is one for this image: `quay.io/org` goes
/// before `quay.io`.
fn fits(key: &str, image: &Reference) -> Option<usize> {
    let key = key
        .strip_prefix("https://")
        .or_else(|| key.strip_prefix("http://"))
        .unwrap_or(key)
        .trim_end_matches('/');
    let (host, path) = key.split_once('/').unwrap_or((key, ""));
    let path = match path {
        "v1" | "v2" => "",
        path => path,
    };
    let same_host = match image.registry.as_str() {
        "docker.io" => ["docker.io", "index.docker.io", "registry-1.docker.io"].contains(&host),
        registry => registry.eq_ignore_ascii_case(host),
    };
    let below = path.is_empty()
        || image
            .repository
            .strip_prefix(path)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    (same_host && below).then_some(path.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, image: &str) -> Result<Option<String>, String> {
        let image: Reference = image.parse().expect("a reference");
        find(text, &image).map(|found| found.map(|auth| auth.auth))
    }

    #[test]
    fn the_most_specific_entry_wins_and_a_neighbours_is_not_taken() {
        let file = r#"{"auths": {
            "https://index.docker.io/v1/": {"auth": "hub"},
            "quay.io": {"auth": "quay"},
            "quay.io/org": {"auth": "org"},
            "localhost:5000": {"auth": "local"}
        }}"#;
        for (image, auth) in [
            ("busybox", Some("hub")),
            ("quay.io/org/app:1", Some("org")),
            ("quay.io/organisation/app", Some("quay")),
            ("localhost:5000/x", Some("local")),
            ("localhost:5001/x", None),
            ("evil-quay.io/x", None),
        ] {
            assert_eq!(found(file, image), Ok(auth.map(str::to_owned)), "{image}");
        }
    }

    #[test]
    fn credentials_in_a_helper_are_refused_by_its_name() {
        let helper = r#"{"credHelpers": {"r.example": "ecr"}}"#;
        let error = found(helper, "r.example/x").expect_err("it is not run");
        assert!(error.contains("docker-credential-ecr"), "{error}");
        let store = r#"{"auths": {"r.example": {}}, "credsStore": "pass"}"#;
        let error = found(store, "r.example/x").expect_err("it is not run");
        assert!(error.contains("docker-credential-pass"), "{error}");
        assert_eq!(found(store, "other.example/x"), Ok(None));
    }

    #[test]
    fn an_error_shows_nothing_of_the_file() {
        for bad in [
            r#"{"auths": "hunter2"}"#,
            r#"{"auths": {"r": {"auth": {"x": "hunter2"}}}}"#,
            "hunter2",
        ] {
            let error = found(bad, "r.example/x").expect_err("it is none");
            assert!(error.contains("line 1"), "{error}");
            assert!(!error.contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn tokens_and_plain_passwords_are_taken_too() {
        let file =
            r#"{"auths": {"r.example": {"identitytoken": "t", "username": "u", "password": "p"}}}"#;
        let image = "r.example/x".parse().expect("a reference");
        let auth = find(file, &image).expect("docker's").expect("an entry");
        assert_eq!(
            (auth.identity_token, auth.username, auth.password),
            ("t".into(), "u".into(), "p".into())
        );
    }
}
