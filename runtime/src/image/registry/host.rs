//! One host of a repository: its client, its address, and what its failures mean.

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

/// HTTP clients by what makes them differ; each keeps its connections for the next pull.
#[derive(Default)]
pub(crate) struct Clients(Mutex<HashMap<Key, Client>>);

/// Of a client of a host itself; or of addresses that a registry with such a reach may name.
type Key = (Tls, Duration, bool, Option<Reach>);

impl Clients {
    fn get(&self, endpoint: &Endpoint, within: Option<Reach>) -> Result<Client, String> {
        let local = Reach::named(&endpoint.host) == Some(Reach::Machine);
        let key = (endpoint.tls.clone(), endpoint.dial_timeout, local, within);
        let mut clients = self.0.lock();
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        // A machine without any authority of its own can still trust those configured.
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
        // A connection per transfer: in HTTP/2 one layer that is unpacked slowly holds up the others,
        // and windows of megabytes wait in memory.
        .http1_only()
        .pool_max_idle_per_host(4)
        // Redirects are followed by `Remote`: not every header may go to another host.
        .redirect(reqwest::redirect::Policy::none())
        .tls_danger_accept_invalid_certs(endpoint.tls.skip_verify);
    if local {
        // No proxy knows what is meant by this machine.
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
    builder = match system {
        true if authorities.is_empty() => builder,
        true => builder.tls_certs_merge(authorities),
        false => builder.tls_certs_only(authorities),
    };
    if let Some(pem) = endpoint.tls.client.first() {
        builder = builder.identity(reqwest::Identity::from_pem(pem)?);
    }
    builder.build()
}

/// A host as one pull speaks to it.
pub(crate) struct Host {
    pub endpoint: Endpoint,
    clients: Arc<Clients>,
    pub http: Client,
    /// What this host may be told.
    pub credentials: Credentials,
    /// `Authorization` that worked last, or is about to be tried.
    pub authorization: Mutex<Option<HeaderValue>>,
    /// https could not be spoken; plain http is.
    pub plain: AtomicBool,
}

/// Failure of one host, and whether to ask again.
pub(crate) enum Trouble {
    /// Perhaps better in a moment: connection, 5xx, 429, stall.
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

    pub(crate) fn url(&self, repository: &str, path: &str, registry: &str) -> Result<Url, Trouble> {
        let api = self.api();
        let ns = if self.endpoint.mirror {
            format!("?ns={registry}")
        } else {
            String::new()
        };
        let url = format!("{api}/{repository}/{path}{ns}");
        url.parse()
            .map_err(|_| Trouble::Final(self.error("invalid configured URL")))
    }

    fn api(&self) -> String {
        match self.plain.load(Ordering::Relaxed) {
            true => self.endpoint.api.replacen("https:", "http:", 1),
            false => self.endpoint.api.clone(),
        }
    }

    /// Where the host is, by its name or by the address that gave `answer`. A proxy's address says
    /// nothing of the host.
    pub(crate) fn reach(&self, answer: &Response) -> Reach {
        let named = Reach::named(&self.endpoint.host);
        named.unwrap_or_else(|| reach::of_answer(answer))
    }

    /// The client for an address that the host names and the user does not: the target of a redirect,
    /// a token service. `own` is the host's reach.
    pub(crate) fn client_for(&self, url: &Url, own: Reach) -> Result<Client, Trouble> {
        let api = self.api().parse::<Url>();
        if api.is_ok_and(|api| api.origin() == url.origin()) {
            return Ok(self.http.clone());
        }
        let may = own.may_send_to(url);
        may.map_err(|e| Trouble::Final(self.error(&e.to_string())))?;
        let client = self.clients.get(&self.endpoint, Some(own));
        client.map_err(|why| Trouble::Final(self.error(&why)))
    }

    pub(crate) fn is_secure(&self) -> bool {
        self.endpoint.api.starts_with("https:") && !self.plain.load(Ordering::Relaxed)
    }

    /// Turns to plain http, once, where that is allowed.
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

    /// A failure below HTTP. The innermost cause says most, and the URL, which may hold a signature,
    /// stays out of it.
    pub(crate) fn trouble(&self, e: &reqwest::Error) -> Trouble {
        let mut cause: &dyn std::error::Error = e;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let (host, why) = (self.endpoint.host.clone(), cause.to_string());
        if cause.is::<OutOfReach>() {
            return Trouble::Final(PullError::Registry { host, why });
        }
        if e.is_connect() {
            return Trouble::Transient(PullError::Unavailable { host, why });
        }
        Trouble::Transient(PullError::Registry { host, why })
    }
}

pub(crate) fn redirected(host: &Host, from: &Url, target: &str) -> Result<Url, Trouble> {
    let to = from
        .join(target)
        .map_err(|_| Trouble::Final(host.error("bad redirect")))?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => Ok(to),
        _ => Err(Trouble::Final(
            host.error("redirects from https to an insecure URL"),
        )),
    }
}
