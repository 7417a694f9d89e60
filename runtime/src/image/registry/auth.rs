//! Credentials and challenges (CRI-404). Pure: `remote` and `token` make the requests.
//!
//! No `Debug` output and no error contains a secret.

use std::fmt;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reqwest::Url;
use reqwest::header::HeaderValue;

/// Credentials that a CRI client sends with a pull. Empty strings are absent.
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct Auth {
    pub username: String,
    pub password: String,
    /// base64 of `user:password`.
    pub auth: String,
    /// The host of the credentials; empty means the image's registry.
    pub server_address: String,
    /// OAuth2 refresh token.
    pub identity_token: String,
    /// Bearer token, used unchanged.
    pub registry_token: String,
}

impl fmt::Debug for Auth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Auth")
            .field("server_address", &self.server_address)
            .finish_non_exhaustive()
    }
}

/// The credentials in use.
#[derive(Clone, PartialEq, Eq)]
pub enum Credentials {
    Anonymous,
    Basic { user: String, password: String },
    Refresh(String),
    Bearer(String),
}

/// Credentials with the one host that they are for. No other host gets them: no mirror, no target
/// of a redirect, and only that host's token services.
#[derive(Clone)]
pub struct Given {
    credentials: Credentials,
    host: String,
    /// Further token services that may have them.
    services: Vec<String>,
}

impl Given {
    /// The credentials for `host`.
    pub fn at(&self, host: &str) -> Credentials {
        if host_of(host).eq_ignore_ascii_case(&self.host) {
            self.credentials.clone()
        } else {
            Credentials::Anonymous
        }
    }

    /// Whether a token service may have them: one on the same host, in a domain above or below it
    /// (both have one operator: `auth.docker.io`, `gitlab.com` for `registry.gitlab.com`), or a
    /// configured one.
    pub fn may_go_to(&self, service: &Url) -> bool {
        let (Some(host), Some(port)) = (service.host_str(), service.port_or_known_default()) else {
            return false;
        };
        let named = |text: &String| match split_port(text) {
            (name, Some(named)) => name.eq_ignore_ascii_case(host) && named == port,
            (name, None) => name.eq_ignore_ascii_case(host) && service.port().is_none(),
        };
        if self.services.iter().any(named) {
            return true;
        }
        let (own, own_port) = split_port(&self.host);
        if own.eq_ignore_ascii_case(host) {
            return service.port().is_none() || Some(port) == own_port;
        }
        let own = own.to_ascii_lowercase();
        service.port().is_none()
            && !is_address(host)
            && !is_address(&own)
            && (is_below(host, &own) || (is_below(&own, host) && host.contains('.')))
    }
}

/// `a.b.example` is below `b.example`.
fn is_below(name: &str, domain: &str) -> bool {
    name.strip_suffix(domain)
        .is_some_and(|rest| rest.ends_with('.'))
}

fn is_address(host: &str) -> bool {
    host.starts_with('[') || host.parse::<IpAddr>().is_ok()
}

/// Name and port of `host[:port]`.
fn split_port(host: &str) -> (&str, Option<u16>) {
    match host.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') => match port.parse() {
            Ok(port) => (name, Some(port)),
            Err(_) => (host, None),
        },
        _ => (host, None),
    }
}

impl Auth {
    /// The credentials and their host: the one that they name, else `registry`. `services`:
    /// configured token services besides the host's own.
    pub fn given(&self, registry: &str, services: &[String]) -> Result<Given, &'static str> {
        let host = match &*self.server_address {
            "" => registry,
            named => named,
        };
        Ok(Given {
            credentials: self.credentials()?,
            host: host_of(host).to_owned(),
            services: services.to_vec(),
        })
    }

    /// The first kind that applies. An `auth` that is not base64 of `user:password` is an error, so
    /// that a pull is never anonymous by mistake.
    fn credentials(&self) -> Result<Credentials, &'static str> {
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

/// The host of an address in Docker's configuration, with one name per registry and without the
/// default port of https.
fn host_of(address: &str) -> &str {
    let rest = address.split_once("://").map_or(address, |(_, rest)| rest);
    let host = rest.split('/').next().unwrap_or_default();
    match host.strip_suffix(":443").unwrap_or(host) {
        "index.docker.io" | "registry-1.docker.io" => "docker.io",
        host => host,
    }
}

/// Challenge of a registry (`WWW-Authenticate`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Challenge {
    Basic,
    Bearer {
        realm: String,
        service: Option<String>,
        scope: Option<String>,
    },
}

/// The challenge to answer in a header: bearer before basic.
pub(crate) fn challenge(header: &str) -> Option<Challenge> {
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

/// Schemes with their parameters. Lenient: unknown text is skipped.
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

/// A token or quoted string, and the text after it.
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

/// An `Authorization` that logs hide.
pub(crate) fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// `Authorization` for basic credentials.
pub(crate) fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

#[cfg(test)]
#[path = "auth_tests.rs"]
mod tests;
