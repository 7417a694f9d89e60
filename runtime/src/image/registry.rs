//! Speaks the distribution protocol to the hosts of one repository (CRI-401, CRI-404, CRI-410).
//!
//! ```text
//! request ─► host 1 ─► 401? answer the challenge once, again
//!                  └─► 5xx, 429, reset, stall? wait, again ─► give up ─► host 2 …
//! ```
//!
//! Hand-written upon `reqwest`, not `oci-client`: that one knows no mirrors, path overrides, extra
//! headers, resumption, or bounds on what a registry may answer.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderName, HeaderValue, LOCATION, RANGE};
use reqwest::{Client, Method, Response, StatusCode, Url};
use serde::Deserialize;

use super::auth::{self, Challenge, Credentials};
use super::digest::Digest;
use super::hosts::{Endpoint, Tls};
use super::ingest::{Opened, Source};
use super::manifest::{self, Descriptor, MANIFEST_MAX};
use super::pull::PullError;

const REDIRECTS_MAX: usize = 5;
/// Tries at one host before the next is asked.
const TRIES: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Bytes of a token answer or an error text taken.
const ANSWER_MAX: usize = 256 * 1024;
const CLIENTS_MAX: usize = 32;
const CLIENT_ID: &str = "cairn";

/// HTTP clients by what makes them differ; each keeps its connections for the next pull.
#[derive(Default)]
pub struct Clients(Mutex<HashMap<(Tls, Duration, bool), Client>>);

/// One repository, as one pull with its credentials sees it.
pub struct Remote {
    repository: String,
    registry: String,
    hosts: Vec<Host>,
    credentials: Credentials,
    /// A host that sends nothing for so long is given up.
    stall: Duration,
}

struct Host {
    endpoint: Endpoint,
    http: Client,
    /// `Authorization` that worked last, or is about to be tried.
    authorization: Mutex<Option<HeaderValue>>,
    /// https could not be spoken; plain http is.
    plain: AtomicBool,
}

/// A request for a manifest by tag or digest.
struct Ask<'a> {
    method: Method,
    name: &'a str,
}

impl Ask<'_> {
    fn digest(&self) -> Option<Digest> {
        self.name.parse().ok()
    }

    /// What a tag means is asked only where that is allowed (CRI-410).
    fn may_go_to(&self, endpoint: &Endpoint) -> bool {
        let by_digest = self.digest().is_some();
        (endpoint.resolve || by_digest) && (endpoint.pull || self.method == Method::HEAD)
    }
}

/// Why one host did not answer, and whether to ask again.
enum Trouble {
    /// Perhaps better in a moment: connection, 5xx, 429, stall.
    Transient(PullError),
    Final(PullError),
}

impl Clients {
    fn get(&self, endpoint: &Endpoint) -> Result<Client, String> {
        let secure = endpoint.api.starts_with("https:");
        let key = (endpoint.tls.clone(), endpoint.dial_timeout, secure);
        let mut clients = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = clients.get(&key) {
            return Ok(client.clone());
        }
        let client = build(endpoint, secure).map_err(|e| e.to_string())?;
        if clients.len() >= CLIENTS_MAX {
            clients.clear();
        }
        clients.insert(key, client.clone());
        Ok(client)
    }
}

fn build(endpoint: &Endpoint, secure: bool) -> reqwest::Result<Client> {
    // Only the first call counts; the provider is the same each time.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut builder = Client::builder()
        .user_agent(concat!("cairn/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(endpoint.dial_timeout)
        // Redirects are followed here: not every header may go to another host.
        .redirect(reqwest::redirect::Policy::none())
        .tls_danger_accept_invalid_certs(endpoint.tls.skip_verify);
    if !secure {
        // The system's authorities are not read for hosts that need none.
        builder = builder.tls_certs_only([]);
    }
    for pem in &endpoint.tls.authorities {
        builder = builder.tls_certs_merge(reqwest::Certificate::from_pem_bundle(pem)?);
    }
    if let Some(pem) = endpoint.tls.client.first() {
        builder = builder.identity(reqwest::Identity::from_pem(pem)?);
    }
    builder.build()
}

impl Remote {
    pub fn new(
        clients: &Clients,
        endpoints: Vec<Endpoint>,
        registry: &str,
        repository: &str,
        credentials: Credentials,
        stall: Duration,
    ) -> Result<Self, PullError> {
        let host = |endpoint: Endpoint| {
            let http = clients.get(&endpoint).map_err(|why| PullError::Registry {
                host: endpoint.host.clone(),
                why: format!("cannot make a client: {why}"),
            })?;
            let first = match &credentials {
                Credentials::Bearer(token) => secret(&format!("Bearer {token}")),
                _ => None,
            };
            let authorization = Mutex::new(first);
            Ok(Host {
                endpoint,
                http,
                authorization,
                plain: AtomicBool::new(false),
            })
        };
        Ok(Self {
            repository: repository.to_owned(),
            registry: registry.to_owned(),
            hosts: endpoints
                .into_iter()
                .map(host)
                .collect::<Result<_, PullError>>()?,
            credentials,
            stall,
        })
    }

    /// The digest a tag has now, if the registry says so without sending the manifest.
    pub async fn head(&self, tag: &str) -> Result<Option<Digest>, PullError> {
        Ok(self
            .on_hosts(&Ask {
                method: Method::HEAD,
                name: tag,
            })
            .await?
            .1)
    }

    /// A manifest or index by tag or digest: its exact bytes and their digest.
    pub async fn manifest(&self, name: &str) -> Result<(Bytes, Digest), PullError> {
        let (bytes, _) = self
            .on_hosts(&Ask {
                method: Method::GET,
                name,
            })
            .await?;
        let digest = Digest::of(&bytes);
        Ok((bytes, digest))
    }

    /// Asks hosts in order; on each as often as trouble is transient. The last word is that of the
    /// last host that could be reached at all.
    async fn on_hosts(&self, ask: &Ask<'_>) -> Result<(Bytes, Option<Digest>), PullError> {
        let mut last: Option<PullError> = None;
        for host in self
            .hosts
            .iter()
            .filter(|host| ask.may_go_to(&host.endpoint))
        {
            let mut tries = 0;
            let error = loop {
                tries += 1;
                match self.ask(host, ask).await {
                    Ok(answer) => return Ok(answer),
                    Err(Trouble::Transient(e)) if tries < TRIES && !e.is_unreachable() => {
                        tracing::debug!(host = host.endpoint.host, "trying again: {e}");
                        tokio::time::sleep(backoff(tries)).await;
                    }
                    Err(Trouble::Transient(e) | Trouble::Final(e)) => break e,
                }
            };
            if last
                .as_ref()
                .is_none_or(|l| l.is_unreachable() || !error.is_unreachable())
            {
                last = Some(error);
            }
        }
        Err(last.unwrap_or_else(|| PullError::Registry {
            host: self.registry.clone(),
            why: "no configured host may be asked for this".into(),
        }))
    }

    /// A manifest's bytes, checked, and the digest the host says it has.
    async fn ask(&self, host: &Host, ask: &Ask<'_>) -> Result<(Bytes, Option<Digest>), Trouble> {
        let path = format!("manifests/{}", ask.name);
        let response = self
            .send(host, ask.method.clone(), &path, &accept())
            .await?;
        let said = response
            .headers()
            .get("docker-content-digest")
            .and_then(|d| d.to_str().ok());
        let said: Option<Digest> = said.and_then(|d| d.parse().ok());
        if ask.method == Method::HEAD {
            return Ok((Bytes::new(), said));
        }
        let bytes = self.body(host, response, MANIFEST_MAX).await?;
        let digest = Digest::of(&bytes);
        match ask.digest().or(said.clone()) {
            Some(want) if want != digest => {
                let why = format!("manifest {} has the digest {digest}, not {want}", ask.name);
                Err(Trouble::Final(host.error(&why)))
            }
            _ => Ok((bytes, said)),
        }
    }

    /// One request, with the challenge answered and redirects followed.
    async fn send(
        &self,
        host: &Host,
        method: Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response, Trouble> {
        let mut answered = false;
        loop {
            let response = self.send_once(host, method.clone(), path, headers).await?;
            let status = response.status();
            if status != StatusCode::UNAUTHORIZED || answered {
                return self.check(host, path, response).await;
            }
            answered = true;
            let header = response.headers().get(reqwest::header::WWW_AUTHENTICATE);
            let asked = header
                .and_then(|h| h.to_str().ok())
                .and_then(auth::challenge);
            let authorization = match (asked, &self.credentials) {
                (Some(Challenge::Basic), Credentials::Basic { user, password }) => {
                    secret(&auth::basic(user, password))
                }
                (
                    Some(Challenge::Bearer {
                        realm,
                        service,
                        scope,
                    }),
                    credentials,
                ) if !matches!(credentials, Credentials::Bearer(_)) => {
                    Some(self.token(host, &realm, service, scope).await?)
                }
                _ => return self.check(host, path, response).await,
            };
            *host
                .authorization
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = authorization;
        }
    }

    async fn send_once(
        &self,
        host: &Host,
        method: Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response, Trouble> {
        let authorization = host
            .authorization
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut url = host.url(&self.repository, path, &self.registry)?;
        let mut origin = url.origin();
        for _ in 0..REDIRECTS_MAX {
            let mut request = host
                .http
                .request(method.clone(), url.clone())
                .headers(headers.clone());
            // Neither credentials nor configured headers go to another host (CRI-401).
            if url.origin() == origin {
                request = request.headers(host.extra_headers());
                if let Some(authorization) = &authorization {
                    request = request.header(AUTHORIZATION, authorization.clone());
                }
            }
            let response = match tokio::time::timeout(self.stall, request.send()).await {
                Err(_) => return Err(Trouble::Transient(host.stalled())),
                Ok(Err(e)) if e.is_connect() && host.may_go_plain() => {
                    url = host.url(&self.repository, path, &self.registry)?;
                    origin = url.origin();
                    continue;
                }
                Ok(Err(e)) => return Err(host.trouble(&e)),
                Ok(Ok(response)) => response,
            };
            let target = response
                .headers()
                .get(LOCATION)
                .and_then(|l| l.to_str().ok());
            match target.filter(|_| response.status().is_redirection()) {
                None => return Ok(response),
                Some(target) => url = redirected(host, &url, target)?,
            }
        }
        Err(Trouble::Final(host.error("too many redirects")))
    }

    /// Turns a status into success or the kind of error it is (CRI-407).
    async fn check(
        &self,
        host: &Host,
        path: &str,
        response: Response,
    ) -> Result<Response, Trouble> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let name = host.endpoint.host.clone();
        let what = format!("{}/{} {path}", self.registry, self.repository);
        let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let said = match self.body(host, response, ANSWER_MAX).await {
            Ok(body) => first_error(&body),
            Err(_) => String::new(),
        };
        let why = format!("{what}: {status}{said}");
        Err(match status {
            _ if transient => Trouble::Transient(PullError::Registry { host: name, why }),
            StatusCode::NOT_FOUND => Trouble::Final(PullError::NotFound { host: name, what }),
            StatusCode::UNAUTHORIZED => {
                Trouble::Final(PullError::Unauthenticated { host: name, why })
            }
            StatusCode::FORBIDDEN => Trouble::Final(PullError::Denied { host: name, why }),
            _ => Trouble::Final(PullError::Registry { host: name, why }),
        })
    }

    async fn body(&self, host: &Host, response: Response, max: usize) -> Result<Bytes, Trouble> {
        let mut bytes = BytesMut::new();
        let mut chunks = response.bytes_stream();
        loop {
            match tokio::time::timeout(self.stall, chunks.next()).await {
                Err(_) => return Err(Trouble::Transient(host.stalled())),
                Ok(None) => return Ok(bytes.freeze()),
                Ok(Some(Err(e))) => return Err(host.trouble(&e)),
                Ok(Some(Ok(chunk))) if bytes.len() + chunk.len() > max => {
                    let why = format!("sends {} bytes or more where {max} are taken", bytes.len());
                    return Err(Trouble::Final(host.error(&why)));
                }
                Ok(Some(Ok(chunk))) => bytes.extend_from_slice(&chunk),
            }
        }
    }

    /// Asks the token service a challenge names.
    async fn token(
        &self,
        host: &Host,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<HeaderValue, Trouble> {
        let url: Url = realm
            .parse()
            .map_err(|_| Trouble::Final(host.error("bad token realm")))?;
        let secret_sent = self.credentials != Credentials::Anonymous;
        if secret_sent && url.scheme() != "https" && host.is_secure() {
            return Err(Trouble::Final(
                host.error("wants credentials sent in the clear"),
            ));
        }
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mut query = vec![("scope", scope)];
        query.extend(service.map(|service| ("service", service)));
        let request = match &self.credentials {
            Credentials::Refresh(token) => {
                query.push(("grant_type", "refresh_token".into()));
                query.push(("client_id", CLIENT_ID.into()));
                query.push(("refresh_token", token.clone()));
                let mut form =
                    Url::parse("form:").map_err(|_| Trouble::Final(host.error("form")))?;
                form.query_pairs_mut().extend_pairs(&query);
                let body = form.query().unwrap_or_default().to_owned();
                let kind = "application/x-www-form-urlencoded";
                host.http
                    .post(url)
                    .header(reqwest::header::CONTENT_TYPE, kind)
                    .body(body)
            }
            credentials => {
                let mut url = url;
                url.query_pairs_mut().extend_pairs(&query);
                let mut request = host.http.get(url.clone());
                if let Credentials::Basic { user, password } = credentials {
                    url.query_pairs_mut().append_pair("account", user);
                    let authorization = secret(&auth::basic(user, password));
                    request = host.http.get(url);
                    request = request.header(AUTHORIZATION, authorization.unwrap_or(empty()));
                }
                request
            }
        };
        let response = match tokio::time::timeout(self.stall, request.send()).await {
            Err(_) => return Err(Trouble::Transient(host.stalled())),
            Ok(Err(e)) => return Err(host.trouble(&e)),
            Ok(Ok(response)) => self.check(host, "token", response).await?,
        };
        #[derive(Deserialize)]
        struct Answer {
            token: Option<String>,
            access_token: Option<String>,
        }
        let body = self.body(host, response, ANSWER_MAX).await?;
        let answer: Option<Answer> = serde_json::from_slice(&body).ok();
        answer
            .and_then(|a| a.token.or(a.access_token))
            .filter(|token| !token.is_empty())
            .and_then(|token| secret(&format!("Bearer {token}")))
            .ok_or_else(|| Trouble::Final(host.error("the token service sent no token")))
    }

    /// Opens a blob at `offset`; a host that does not know ranges sends all, and the beginning is
    /// passed over.
    async fn open_at(&self, host: &Host, digest: &Digest, offset: u64) -> Result<Body, Trouble> {
        let mut headers = HeaderMap::new();
        if offset > 0 {
            headers.insert(RANGE, number_header(&format!("bytes={offset}-")));
        }
        let path = format!("blobs/{digest}");
        let response = self.send(host, Method::GET, &path, &headers).await?;
        let skip = if response.status() == StatusCode::PARTIAL_CONTENT {
            0
        } else {
            offset
        };
        Ok(Body {
            chunks: response.bytes_stream().boxed(),
            skip,
        })
    }
}

struct Body {
    chunks: BoxStream<'static, reqwest::Result<Bytes>>,
    /// Bytes had already.
    skip: u64,
}

/// A blob on its way, over as many connections and hosts as it takes.
struct Transfer {
    remote: Arc<Remote>,
    digest: Digest,
    size: Option<u64>,
    offset: u64,
    /// Index of the host in use, and tries at it without a byte.
    host: usize,
    tries: u32,
    body: Option<Body>,
}

impl Transfer {
    async fn next(&mut self) -> Result<Option<Bytes>, PullError> {
        loop {
            if self.size.is_some_and(|size| self.offset >= size) {
                return Ok(None);
            }
            let remote = self.remote.clone();
            let Some(host) = remote.hosts.get(self.host) else {
                return Err(PullError::Registry {
                    host: remote.registry.clone(),
                    why: format!("no host sends blob {}", self.digest),
                });
            };
            match self.read(&remote, host).await {
                Ok(chunk) => {
                    self.tries = 0;
                    self.offset += chunk.as_ref().map_or(0, |c| c.len() as u64);
                    return Ok(chunk);
                }
                Err(trouble) => self.recover(host, trouble).await?,
            }
        }
    }

    async fn read(&mut self, remote: &Remote, host: &Host) -> Result<Option<Bytes>, Trouble> {
        if !host.endpoint.pull {
            return Err(Trouble::Final(host.error("may not be pulled from")));
        }
        if self.body.is_none() {
            self.body = Some(remote.open_at(host, &self.digest, self.offset).await?);
        }
        let Some(body) = &mut self.body else {
            return Ok(None);
        };
        loop {
            let mut chunk = match tokio::time::timeout(remote.stall, body.chunks.next()).await {
                Err(_) => return Err(Trouble::Transient(host.stalled())),
                Ok(Some(Err(e))) => return Err(host.trouble(&e)),
                Ok(Some(Ok(chunk))) => chunk,
                Ok(None) if self.size.is_none() => return Ok(None),
                Ok(None) => return Err(Trouble::Transient(host.error("ended the blob early"))),
            };
            let skip = body.skip.min(chunk.len() as u64);
            body.skip -= skip;
            let _ = chunk.split_to(usize::try_from(skip).unwrap_or(usize::MAX));
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
        }
    }

    /// Waits and tries again, or goes to the next host; the last host's trouble is the answer.
    async fn recover(&mut self, host: &Host, trouble: Trouble) -> Result<(), PullError> {
        self.body = None;
        self.tries += 1;
        let (again, error) = match trouble {
            Trouble::Transient(e) => (self.tries < TRIES && !e.is_unreachable(), e),
            Trouble::Final(e) => (false, e),
        };
        tracing::debug!(host = host.endpoint.host, blob = %self.digest, again, "trouble: {error}");
        if again {
            tokio::time::sleep(backoff(self.tries)).await;
            return Ok(());
        }
        self.host += 1;
        self.tries = 0;
        if self.host < self.remote.hosts.len() {
            Ok(())
        } else {
            Err(error)
        }
    }
}

/// A remote as a source of blobs.
pub struct RemoteBlobs(pub Arc<Remote>);

impl Source for RemoteBlobs {
    type Error = PullError;

    async fn open(&self, blob: &Descriptor) -> Opened<PullError> {
        let digest = blob
            .digest
            .clone()
            .ok_or_else(|| blob.fault("has no digest"))?;
        let transfer = Transfer {
            remote: self.0.clone(),
            digest,
            size: blob.size,
            offset: 0,
            host: 0,
            tries: 0,
            body: None,
        };
        let chunks = stream::try_unfold(transfer, async |mut transfer| {
            Ok(transfer.next().await?.map(|chunk| (chunk, transfer)))
        });
        Ok(chunks.boxed())
    }
}

impl Host {
    fn url(&self, repository: &str, path: &str, registry: &str) -> Result<Url, Trouble> {
        let api = match self.plain.load(Ordering::Relaxed) {
            true => self.endpoint.api.replacen("https:", "http:", 1),
            false => self.endpoint.api.clone(),
        };
        let ns = if self.endpoint.mirror {
            format!("?ns={registry}")
        } else {
            String::new()
        };
        let url = format!("{api}/{repository}/{path}{ns}");
        url.parse()
            .map_err(|_| Trouble::Final(self.error("its configured URL is none")))
    }

    fn is_secure(&self) -> bool {
        self.endpoint.api.starts_with("https:") && !self.plain.load(Ordering::Relaxed)
    }

    /// Turns to plain http, once, where that is allowed.
    fn may_go_plain(&self) -> bool {
        self.endpoint.plain_fallback && !self.plain.swap(true, Ordering::Relaxed)
    }

    fn extra_headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.endpoint.headers {
            let pair = (name.parse::<HeaderName>(), HeaderValue::from_str(value));
            if let (Ok(name), Ok(value)) = pair {
                headers.append(name, value);
            }
        }
        headers
    }

    fn error(&self, why: &str) -> PullError {
        PullError::Registry {
            host: self.endpoint.host.clone(),
            why: why.to_owned(),
        }
    }

    fn stalled(&self) -> PullError {
        PullError::Stalled {
            host: self.endpoint.host.clone(),
        }
    }

    /// A failure below HTTP. The innermost cause says most, and the URL, which may hold a signature,
    /// stays out of it.
    fn trouble(&self, e: &reqwest::Error) -> Trouble {
        let mut cause: &dyn std::error::Error = e;
        while let Some(inner) = cause.source() {
            cause = inner;
        }
        let (host, why) = (self.endpoint.host.clone(), cause.to_string());
        if e.is_connect() {
            return Trouble::Transient(PullError::Unavailable { host, why });
        }
        Trouble::Transient(PullError::Registry { host, why })
    }
}

fn redirected(host: &Host, from: &Url, target: &str) -> Result<Url, Trouble> {
    let to = from
        .join(target)
        .map_err(|_| Trouble::Final(host.error("bad redirect")))?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") => Ok(to),
        _ => Err(Trouble::Final(
            host.error("redirects from https to something less"),
        )),
    }
}

fn accept() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(manifest::ACCEPT))])
}

fn secret(text: &str) -> Option<HeaderValue> {
    let mut value = HeaderValue::from_str(text).ok()?;
    value.set_sensitive(true);
    Some(value)
}

fn empty() -> HeaderValue {
    HeaderValue::from_static("")
}

fn number_header(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(empty())
}

fn backoff(tries: u32) -> Duration {
    BACKOFF.saturating_mul(1 << tries.min(6)).min(BACKOFF_MAX)
}

/// The first error of a registry's answer, for a person, or nothing.
fn first_error(body: &[u8]) -> String {
    let answer: Option<serde_json::Value> = serde_json::from_slice(body).ok();
    let error = answer.as_ref().and_then(|a| a["errors"][0].as_object());
    let field = |name| error.and_then(|e| e.get(name)).and_then(|f| f.as_str());
    match field("message").filter(|m| !m.is_empty()).or(field("code")) {
        Some(text) => {
            let plain = |c: &char| !c.is_control();
            format!(
                " ({})",
                text.chars().filter(plain).take(200).collect::<String>()
            )
        }
        None => String::new(),
    }
}
