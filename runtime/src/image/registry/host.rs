//! One host of a repository: its client, its address, and the meaning of its failures.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};
use reqwest::{Client, Response, Url};

use super::auth::{Credentials, Given, secret};
use super::hosts::{Endpoint, Tls};
use super::reach::{self, OutOfReach, Reach, Within};
use crate::image::pull_error::PullError;

const CLIENTS_MAX: usize = 32;

/// HTTP clients by their settings; each keeps its connections for the next pull.
#[derive(Default)]
pub(crate) struct Clients(Mutex<HashMap<Key, Client>>);

/// Of a client for a host itself, or for addresses that a registry of such a reach may name.
type Key = (Tls, Duration, bool, Option<Reach>);

impl Clients {
    fn get(&self, endpoint: &Endpoint, within: Option<Reach>) -> Result<Client, String> {
        let local = Reach::named(&endpoint.host) == Some(Reach::Machine);
        let key = (endpoint.tls.clone(), endpoint.dial_timeout, local, within);
        let mut clients = self.0.lock();
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        // A machine without system authorities can still trust configured ones.
        let build = |system| build(endpoint, local, within, system);
        let client = build(true).or_else(|_| build(false));
        let client = client.map_err(|e| e.to_string())?;
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn build(
    endpoint: &Endpoint,
    local: bool,
    within: Option<Reach>,
    system: bool,
) -> reqwest::Result<Client> {
    // Only the first call counts; the provider is the same each time.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(endpoint.dial_timeout)
        // One connection per transfer: in HTTP/2 a slowly unpacked layer blocks the others, and
        // windows of megabytes wait in memory.
        .http1_only()
        .pool_max_idle_per_host(4)
        // `Remote` follows redirects: not every header may go to another host.
        .redirect(reqwest::redirect::Policy::none())
        .tls_danger_accept_invalid_certs(endpoint.tls.skip_verify);
    if local {
        // A proxy cannot reach addresses of this machine.
        builder = builder.no_proxy();
    }
    if let Some(registry) = within {
        let proxies = reach::proxies();
        builder = builder.dns_resolver(Arc::new(Within { registry, proxies }));
    }
    let mut authorities = Vec::new();
    for pem in &endpoint.tls.authorities {
        authorities.extend(reqwest::Certificate::from_pem_bundle(pem)?);
    }
    builder = if !system {
        builder.tls_certs_only(authorities)
    } else if authorities.is_empty() {
        builder
    } else {
        builder.tls_certs_merge(authorities)
    };
    if let Some(pem) = endpoint.tls.client.first() {
        builder = builder.identity(reqwest::Identity::from_pem(pem)?);
    }
    builder.build()
}

/// A host in one pull.
pub(crate) struct Host {
    pub endpoint: Endpoint,
    clients: Arc<Clients>,
    pub http: Client,
    /// The credentials that this host may get.
    pub credentials: Credentials,
    /// The last working `Authorization`, or the next to try.
    pub authorization: Mutex<Option<HeaderValue>>,
    /// Set if https failed, so that plain http is used.
    pub plain: AtomicBool,
}

/// Failure of one host, and whether to retry.
pub(crate) enum Failure {
    /// May succeed in a moment: connection, 5xx, 429, stall.
    Transient(PullError),
    Final(PullError),
}

impl Host {
    pub(crate) fn new(
        clients: &Arc<Clients>,
        endpoint: Endpoint,
        given: &Given,
    ) -> Result<Self, PullError> {
        let http = clients.get(&endpoint, None);
        let http = http.map_err(|why| PullError::Registry {
            host: endpoint.host.clone(),
            why: format!("cannot make a client: {why}"),
        })?;
        let credentials = given.at(&endpoint.host);
        let first = match &credentials {
            Credentials::Bearer(token) => secret(&format!("Bearer {token}")),
            _ => None,
        };
        Ok(Self {
            endpoint,
            clients: clients.clone(),
            http,
            credentials,
            authorization: Mutex::new(first),
            plain: AtomicBool::new(false),
        })
    }

    pub(crate) fn url(&self, repository: &str, path: &str, registry: &str) -> Result<Url, Failure> {
        let api = self.api();
        let ns = if self.endpoint.mirror {
            format!("?ns={registry}")
        } else {
            String::new()
        };
        let url = format!("{api}/{repository}/{path}{ns}");
        url.parse()
            .map_err(|_| Failure::Final(self.error("invalid configured URL")))
    }

    fn api(&self) -> String {
        if self.plain.load(Ordering::Relaxed) {
            self.endpoint.api.replacen("https:", "http:", 1)
        } else {
            self.endpoint.api.clone()
        }
    }

    /// The reach of the host, by its name or by the address of `answer`. A proxy's address does not
    /// show it.
    pub(crate) fn reach(&self, answer: &Response) -> Reach {
        let named = Reach::named(&self.endpoint.host);
        named.unwrap_or_else(|| reach::of_answer(answer))
    }

    /// The client for an address that the host names and the user does not: the target of a
    /// redirect, a token service. `own`: the host's reach.
    pub(crate) fn client_for(&self, url: &Url, own: Reach) -> Result<Client, Failure> {
        let api = self.api().parse::<Url>();
        if api.is_ok_and(|api| api.origin() == url.origin()) {
            return Ok(self.http.clone());
        }
        let may = own.may_send_to(url);
        may.map_err(|e| Failure::Final(self.error(&e.to_string())))?;
        let client = self.clients.get(&self.endpoint, Some(own));
        client.map_err(|why| Failure::Final(self.error(&why)))
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.endpoint.api.starts_with("https:") && !self.plain.load(Ordering::Relaxed)
    }

    /// Switches to plain http, once, if that is allowed.
    pub(crate) fn may_go_plain(&self) -> bool {
        self.endpoint.plain_fallback && !self.plain.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn extra_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.endpoint.headers {
            let pair = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
            if let (Ok(name), Ok(value)) = pair {
                headers.append(name, value);
            }
        }
        headers
    }

    pub(crate) fn error(&self, why: &str) -> PullError {
        PullError::Registry {
            host: self.endpoint.host.clone(),
            why: why.to_owned(),
        }
    }

    pub(crate) fn stalled(&self) -> PullError {
        PullError::Stalled {
            host: self.endpoint.host.clone(),
        }
    }

    /// A failure below HTTP. The innermost cause is the most precise. The URL, which may contain a
    /// signature, is left out.
    pub(crate) fn failure(&self, e: &reqwest::Error) -> Failure {
        let mut cause: &dyn std::error::Error = e;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let (host, why) = (self.endpoint.host.clone(), cause.to_string());
        if cause.is::<OutOfReach>() {
            return Failure::Final(PullError::Registry { host, why });
        }
        if e.is_connect() {
            return Failure::Transient(PullError::Unavailable { host, why });
        }
        Failure::Transient(PullError::Registry { host, why })
    }
}

pub(crate) fn redirected(host: &Host, from: &Url, target: &str) -> Result<Url, Failure> {
    let to = from
        .join(target)
        .map_err(|_| Failure::Final(host.error("bad redirect")))?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => Ok(to),
        _ => Err(Failure::Final(
            host.error("redirects from https to an insecure URL"),
        )),
    }
}
