//! Credentials and challenges (CRI-404). Pure; the requests are made in `registry`.
//!
//! Secrets are in no `Debug` output and in no error.

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What a CRI client sends along with a pull. Empty strings are absent.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    pub username: String,
    pub password: String,
    /// base64 of `user:password`.
    pub auth: String,
    /// If set, the credentials are for this registry only.
    pub server_address: String,
    /// OAuth2 refresh token.
    pub identity_token: String,
    /// Bearer token, used as it is.
    pub registry_token: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

/// What is used of it.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Anonymous,
    Basic { user: String, password: String },
    Refresh(String),
    Bearer(String),
}

impl Auth {
    /// The first kind that applies, for images of `registry`. An `auth` that is not base64 of
    /// `user:password` is an error, lest a pull go out anonymously by mistake.
    pub fn credentials(&self, registry: &str) -> Result<Credentials, &'static str> {
        if !self.server_address.is_empty() && host_of(&self.server_address) != host_of(registry) {
            return Ok(Credentials::Anonymous);
        }
        if !self.username.is_empty() {
            let (user, password) = (self.username.clone(), self.password.clone());
            return Ok(Credentials::Basic { user, password });
        }
        if !self.identity_token.is_empty() {
            return Ok(Credentials::Refresh(self.identity_token.clone()));
        }
        if !self.auth.is_empty() {
            let bytes = STANDARD
                .decode(self.auth.trim())
                .map_err(|_| "auth is not base64")?;
            let text = String::from_utf8(bytes).map_err(|_| "auth is not text")?;
            let text = text.trim_end_matches('\0');
            let (user, password) = text.split_once(':').ok_or("auth is not user:password")?;
            return Ok(Credentials::Basic {
                user: user.into(),
                password: password.into(),
            });
        }
        if !self.registry_token.is_empty() {
            return Ok(Credentials::Bearer(self.registry_token.clone()));
        }
        Ok(Credentials::Anonymous)
    }
}

/// The host of an address as docker's configuration writes it, with its names for one registry
/// taken as one.
fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    match host {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

/// What a registry asks for in `WWW-Authenticate`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The challenge to answer among those of a header: bearer before basic.
pub fn challenge(header: &str) -> Option<Challenge> {
    let mut basic = None;
    for (scheme, params) in challenges(header) {
        let param = |key: &str| {
            params
                .iter()
                .find(|(k, _)| k.eq_ignore_ascii_case(key))
                .map(|(_, v)| v.clone())
        };
        if scheme.eq_ignore_ascii_case("bearer") {
            if let Some(realm) = param("realm") {
                return Some(Challenge::Bearer {
                    realm,
                    service: param("service"),
                    scope: param("scope"),
                });
            }
        } else if scheme.eq_ignore_ascii_case("basic") {
            basic = Some(Challenge::Basic);
        }
    }
    basic
}

/// Schemes with their parameters. Lenient: what is not understood is passed over.
fn challenges(header: &str) -> Vec<(String, Vec<(String, String)>)> {
    let mut found: Vec<(String, Vec<(String, String)>)> = Vec::new();
    let mut rest = header.trim_start();
    while !rest.is_empty() {
        let end = rest.find([' ', '=', ',']).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if let Some(value) = after.strip_prefix('=') {
            let (value, after) = quoted(value);
            if let Some((_, params)) = found.last_mut() {
                params.push((word.to_owned(), value));
            }
            rest = after;
        } else {
            if !word.is_empty() {
                found.push((word.to_owned(), Vec::new()));
            }
            rest = after;
        }
        rest = rest.trim_start_matches([' ', ',', '\t']);
    }
    found
}

/// A token or quoted string, and what stands behind it.
fn quoted(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        let end = text.find([',', ' ']).unwrap_or(text.len());
        return (text[..end].to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut chars = inner.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return (value, &inner[at + 1..]),
            '\\' => value.extend(chars.next().map(|(_, c)| c)),
            c => value.push(c),
        }
    }
    (value, "")
}

/// `Authorization` for basic credentials.
pub fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
mod tests {
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
        let used = |auth: &Auth| auth.credentials("r.example").unwrap();
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
        assert!(odd.credentials("r.example").is_err());
    }

    #[test]
    fn credentials_for_another_registry_are_not_sent() {
        let auth = |server: &str| Auth {
            username: "u".into(),
            server_address: server.into(),
            ..Auth::default()
        };
        let sent = |server, registry| {
            auth(server).credentials(registry).unwrap() != Credentials::Anonymous
        };
        assert!(sent("https://index.docker.io/v1/", "docker.io"));
        assert!(sent("r.example:5000", "r.example:5000"));
        assert!(!sent("r.example", "evil.example"));
        assert!(!sent("r.example", "r.example:5000"));
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
}
