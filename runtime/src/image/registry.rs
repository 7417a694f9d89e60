//! Speaks the distribution protocol to the hosts of one repository (CRI-401, CRI-404, CRI-410).
//!
//! ```text
//! request ─► host 1 ─► 401? answer the challenge once, again
//!                  └─► 5xx, 429, reset, stall? wait, again ─► give up ─► host 2 …
//! ```
//!
//! Hand-written upon `reqwest`, not `oci-client`: that one knows no mirrors, path overrides, extra
//! headers, resumption, or bounds on what a registry may answer.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode, Url};
use serde::Deserialize;

use super::auth::{self, Challenge, Credentials};
use super::digest::Digest;
use super::host::{Clients, Host, Trouble, redirected};
use super::hosts::Endpoint;
use super::manifest::{self, MANIFEST_MAX};
use super::pull::PullError;

const REDIRECTS_MAX: usize = 5;
/// Tries at one host before the next is asked.
pub const TRIES: u32 = 3;
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// Bytes of a token answer or an error text taken.
const ANSWER_MAX: usize = 256 * 1024;
const CLIENT_ID: &str = "cairn";
/// One repository, as one pull with its credentials sees it.
pub struct Remote {
    repository: String,
    pub(super) registry: String,
    pub(super) hosts: Vec<Host>,
    credentials: Credentials,
    /// A host that sends nothing for so long is given up.
    pub(super) stall: Duration,
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
    pub(super) async fn send(
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

pub fn backoff(tries: u32) -> Duration {
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
