//! A bearer token from the service in a registry's challenge (CRI-404).

use reqwest::Url;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use serde::Deserialize;

use super::auth::{self, Credentials, secret};
use super::host::{Failure, Host};
use super::reach::Reach;
use super::remote::Remote;

/// The most bytes read of a token service's answer.
const TOKEN_MAX: u64 = 256 << 10;
const CLIENT_ID: &str = "cairn";

impl Remote {
    /// Asks the token service in a challenge of `host`; `reach` is the host's.
    pub(super) async fn token(
        &self,
        host: &Host,
        reach: Reach,
        realm: &str,
        service: Option<String>,
        scope: Option<String>,
    ) -> Result<HeaderValue, Failure> {
        let url: Url = realm
            .parse()
            .map_err(|_| Failure::Final(host.error("bad token realm")))?;
        let secret_sent = host.credentials != Credentials::Anonymous;
        if secret_sent && url.scheme() != "https" && host.is_secure() {
            return Err(Failure::Final(
                host.error("asks for credentials over an unencrypted connection"),
            ));
        }
        if secret_sent && !self.given.may_go_to(&url) {
            let to = url.host_str().unwrap_or_default();
            let port = url.port().map(|port| format!(":{port}"));
            let why = format!(
                "wants its credentials sent to {to}{}, which image.token_services does not name for {}",
                port.unwrap_or_default(),
                self.registry
            );
            return Err(Failure::Final(host.error(&why)));
        }
        let http = host.client_for(&url, reach)?;
        let scope = scope.unwrap_or_else(|| format!("repository:{}:pull", self.repository));
        let mut query = vec![("scope", scope)];
        query.extend(service.map(|service| ("service", service)));
        let request = match &host.credentials {
            Credentials::Refresh(token) => {
                query.push(("grant_type", "refresh_token".into()));
                query.push(("client_id", CLIENT_ID.into()));
                query.push(("refresh_token", token.clone()));
                let mut form =
                    Url::parse("form:").map_err(|_| Failure::Final(host.error("form")))?;
                form.query_pairs_mut().extend_pairs(&query);
                let body = form.query().unwrap_or_default().to_owned();
                let kind = "application/x-www-form-urlencoded";
                http.post(url).header(CONTENT_TYPE, kind).body(body)
            }
            credentials => {
                let mut authorization = HeaderMap::new();
                if let Credentials::Basic { user, password } = credentials {
                    query.push(("account", user.clone()));
                    let basic = secret(&auth::basic(user, password));
                    let empty = HeaderValue::from_static("");
                    authorization.insert(AUTHORIZATION, basic.unwrap_or(empty));
                }
                let mut url = url;
                url.query_pairs_mut().extend_pairs(&query);
                http.get(url).headers(authorization)
            }
        };
        let response = request.send().await.map_err(|e| host.failure(&e))?;
        let response = self.check(host, "token", response).await?;
        let (body, _) = self.document(host, response, TOKEN_MAX).await?;
        let token = body.read(token_of).ok().flatten();
        token.ok_or_else(|| Failure::Final(host.error("the token service sent no token")))
    }
}

/// `Authorization` from a token service's answer.
pub(crate) fn token_of(answer: &[u8]) -> Option<HeaderValue> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let token = answer.token.or(answer.access_token);
    let token = token.filter(|token| !token.is_empty())?;
    secret(&format!("Bearer {token}"))
}
