//! Client of the distribution protocol for the hosts of one repository (CRI-401, CRI-404, CRI-410).
//!
//! ```text
//! request ─► host 1 ─► 401? answer the challenge once, again
//!                  └─► 5xx, 429, reset, stall? wait, again ─► give up ─► host 2 …
//! ```
//!
//! Written upon `reqwest`, not `oci-client`, which lacks mirrors, path overrides, extra headers,
//! resumption, and bounds on a registry's answers.

use std::path::PathBuf;
use std::time::Duration;

use reqwest::header::{ACCEPT, AUTHORIZATION, HeaderMap, HeaderValue, LOCATION};
use reqwest::{Method, Response, StatusCode};
use serde::Deserialize;

use super::auth::{self, Challenge, Credentials, Given, secret};
use super::host::{Failure, Host, redirected};
use super::hosts::Endpoint;
use super::pace::{Pace, TRIES, chunks};
use super::reach::{self, Reach};
use crate::image::digest::Digest;
use crate::image::error::Error;
use crate::image::manifest::{self, MANIFEST_MAX};
use crate::image::pull_error::PullError;
use crate::image::spool::{Document, Spool};

const REDIRECTS_MAX: usize = 5;
const BACKOFF: Duration = Duration::from_millis(250);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// The most bytes read of an error's text.
const ERROR_MAX: u64 = 16 << 10;

/// One repository in one pull, with its credentials.
pub(crate) struct Remote {
    pub repository: String,
    pub registry: String,
    pub hosts: Vec<Host>,
    pub given: Given,
    /// The time without data after which a host has failed.
    pub stall: Duration,
    /// Directory for long documents in transfer.
    pub spool_dir: PathBuf,
}

impl Remote {
    /// The host that is tried first.
    pub(crate) fn first_host(&self) -> &str {
        let first = self.hosts.first();
        first.map_or(&self.registry, |host| &host.endpoint.host)
    }

    /// The current digest of a tag, if the registry sends it without the manifest.
    pub(crate) async fn head(&self, tag: &str) -> Result<Option<Digest>, PullError> {
        let (_, digest) = self.on_hosts(&Method::HEAD, tag).await?;
        Ok(digest)
    }

    /// A manifest or index by tag or digest: its exact bytes and their digest.
    pub(crate) async fn manifest(&self, name: &str) -> Result<(Document, Digest), PullError> {
        match self.on_hosts(&Method::GET, name).await? {
            (document, Some(digest)) => Ok((document, digest)),
            (_, None) => Err(PullError::CutShort),
        }
    }

    /// Asks the hosts in order, each again after transient failures. Returns the error of the last
    /// host that was reachable.
    async fn on_hosts(
        &self,
        method: &Method,
        name: &str,
    ) -> Result<(Document, Option<Digest>), PullError> {
        let mut last: Option<PullError> = None;
        for host in &self.hosts {
            if !may_ask(&host.endpoint, method, name) {
                continue;
            }
            let mut tries = 0;
            let error = loop {
                tries += 1;
                match self.ask(host, method, name).await {
                    Ok(answer) => return Ok(answer),
                    Err(Failure::Transient(e)) if tries < TRIES && !e.is_unreachable() => {
                        tracing::debug!(host = host.endpoint.host, "retrying: {e}");
                        tokio::time::sleep(backoff(tries)).await;
                    }
                    Err(Failure::Transient(e) | Failure::Final(e)) => break e,
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
            why: "no configured host has the required capability".into(),
        }))
    }

    /// A manifest's bytes and their digest, checked; for HEAD no bytes, and the host's own digest.
    async fn ask(
        &self,
        host: &Host,
        method: &Method,
        name: &str,
    ) -> Result<(Document, Option<Digest>), Failure> {
        let path = format!("manifests/{name}");
        let response = self.send(host, method, &path, &accept()).await?;
        let announced = response.headers().get("docker-content-digest");
        let announced: Option<Digest> = announced.and_then(|d| d.to_str().ok()?.parse().ok());
        if *method == Method::HEAD {
            return Ok((Document::of(Vec::new()), announced));
        }
        let (document, digest) = self.document(host, response, MANIFEST_MAX).await?;
        match name.parse().ok().or(announced) {
            Some(want) if want != digest => {
                let why = format!("manifest {name} has the digest {digest}, not {want}");
                Err(Failure::Final(host.error(&why)))
            }
            _ => Ok((document, Some(digest))),
        }
    }

    /// One request, including the answer to a challenge and redirects, within one stall timeout.
    pub(super) async fn send(
        &self,
        host: &Host,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response, Failure> {
        let answered = self.answered(host, method, path, headers);
        let answered = tokio::time::timeout(self.stall, answered).await;
        answered.unwrap_or_else(|_| Err(Failure::Transient(host.stalled())))
    }

    async fn answered(
        &self,
        host: &Host,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<Response, Failure> {
        let mut challenged = false;
        loop {
            let (response, own) = self.send_once(host, method, path, headers).await?;
            let status = response.status();
            // The target of a redirect may not ask for credentials in the host's name.
            if status != StatusCode::UNAUTHORIZED || challenged || !own {
                return self.check(host, path, response).await;
            }
            challenged = true;
            let header = response.headers().get(reqwest::header::WWW_AUTHENTICATE);
            let asked = header.and_then(|h| auth::challenge(h.to_str().ok()?));
            let authorization = match (asked, &host.credentials) {
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
                    let reach = host.reach(&response);
                    Some(self.token(host, reach, &realm, service, scope).await?)
                }
                _ => return self.check(host, path, response).await,
            };
            *host.authorization.lock() = authorization;
        }
    }

    /// The response, and whether it is the host's own, not that of a redirect's target.
    async fn send_once(
        &self,
        host: &Host,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
    ) -> Result<(Response, bool), Failure> {
        let authorization = host.authorization.lock().clone();
        let mut url = host.url(&self.repository, path, &self.registry)?;
        let mut origin = url.origin();
        let mut http = host.http.clone();
        // Neither credentials nor configured headers go to another host (CRI-401), nor to the hosts
        // that it redirects to, even back: it would choose the request that they authorise.
        let (mut own, mut reach) = (true, Reach::Network);
        for _ in 0..REDIRECTS_MAX {
            let mut request = http
                .request(method.clone(), url.clone())
                .headers(headers.clone());
            if own {
                request = request.headers(host.extra_headers());
                if let Some(authorization) = &authorization {
                    request = request.header(AUTHORIZATION, authorization.clone());
                }
            }
            let response = match request.send().await {
                Err(e) if own && e.is_connect() && host.may_go_plain() => {
                    url = host.url(&self.repository, path, &self.registry)?;
                    origin = url.origin();
                    continue;
                }
                Err(e) => return Err(host.failure(&e)),
                Ok(response) => response,
            };
            let target = response.headers().get(LOCATION);
            match target.and_then(|l| l.to_str().ok()) {
                Some(target) if response.status().is_redirection() => {
                    url = redirected(host, &url, target)?;
                    if !own {
                        // The host's reach ends at the first target that is elsewhere.
                        reach = reach.behind(reach::of_answer(&response));
                    } else if url.origin() != origin {
                        own = false;
                        reach = host.reach(&response);
                    }
                    if !own {
                        http = host.client_for(&url, reach)?;
                    }
                }
                _ => return Ok((response, own)),
            }
        }
        Err(Failure::Final(host.error("too many redirects")))
    }

    /// Maps a status to success or to an error kind (CRI-407).
    pub(super) async fn check(
        &self,
        host: &Host,
        path: &str,
        response: Response,
    ) -> Result<Response, Failure> {
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let name = host.endpoint.host.clone();
        let what = format!("{}/{} {path}", self.registry, self.repository);
        let transient = status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS;
        let detail = match self.document(host, response, ERROR_MAX).await {
            Ok((body, _)) => body.read(first_error).unwrap_or_default(),
            Err(_) => String::new(),
        };
        let why = format!("{what}: {status}{detail}");
        Err(match status {
            _ if transient => Failure::Transient(PullError::Registry { host: name, why }),
            StatusCode::NOT_FOUND => Failure::Final(PullError::NotFound { host: name, what }),
            StatusCode::UNAUTHORIZED => {
                Failure::Final(PullError::Unauthenticated { host: name, why })
            }
            StatusCode::FORBIDDEN => Failure::Final(PullError::Denied { host: name, why }),
            _ => Failure::Final(PullError::Registry { host: name, why }),
        })
    }

    /// The body of a response, at most `max` bytes, and its digest.
    pub(super) async fn document(
        &self,
        host: &Host,
        response: Response,
        max: u64,
    ) -> Result<(Document, Digest), Failure> {
        let mut spool = Spool::new(&self.spool_dir);
        let (mut pace, mut chunks) = (Pace::new(self.stall), chunks(response));
        while let Some(chunk) = pace.next(&mut chunks, host).await? {
            if spool.bytes() + chunk.len() as u64 > max {
                let why = format!("the response exceeds the limit of {max} bytes");
                return Err(Failure::Final(host.error(&why)));
            }
            let kept = spool.push(&chunk);
            let failed = Error::io("image store", "spool a document", &self.spool_dir);
            kept.map_err(|e| Failure::Final(failed(e).into()))?;
        }
        Ok(spool.finish())
    }
}

/// Whether a host may be asked: tags require the resolve capability (CRI-410).
fn may_ask(endpoint: &Endpoint, method: &Method, name: &str) -> bool {
    let by_digest = name.parse::<Digest>().is_ok();
    (endpoint.resolve || by_digest) && (endpoint.pull || *method == Method::HEAD)
}

fn accept() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(manifest::ACCEPT))])
}

pub(crate) fn backoff(tries: u32) -> Duration {
    BACKOFF.saturating_mul(1 << tries.min(6)).min(BACKOFF_MAX)
}

/// The first error in a registry's answer, as readable text, or nothing.
pub(crate) fn first_error(body: &[u8]) -> String {
    #[derive(Deserialize)]
    struct Answer {
        errors: Vec<ErrorEntry>,
    }
    #[derive(Deserialize)]
    struct ErrorEntry {
        code: Option<String>,
        message: Option<String>,
    }
    let answer: Option<Answer> = serde_json::from_slice(body).ok();
    let first = answer.and_then(|answer| answer.errors.into_iter().next());
    let text = first.and_then(|entry| entry.message.filter(|m| !m.is_empty()).or(entry.code));
    let shown = text.map(|text| {
        let plain = text.chars().filter(|c| !c.is_control());
        format!(" ({})", plain.take(200).collect::<String>())
    });
    shown.unwrap_or_default()
}
