//! The table `[tracing]`: the destination of spans.

use serde::Deserialize;
use tonic::codegen::http::Uri;

use super::error::Error;

const MILLION: u32 = 1_000_000;

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tracing {
    /// Of a collector that takes OTLP by gRPC; empty: no tracing.
    pub endpoint: String,
    /// For calls without a trace of their caller.
    pub sampling_per_million: u32,
}

impl Tracing {
    pub(super) fn check(&self) -> Result<(), Error> {
        let refuse = |key, message: String| Err(Error::value(key, message));
        if self.sampling_per_million > MILLION {
            return refuse(
                "tracing.sampling_per_million",
                format!("{} must be from 0 to {MILLION}", self.sampling_per_million),
            );
        }
        let uri = self.endpoint.parse::<Uri>();
        let is_good = uri.is_ok_and(|uri| {
            let is_scheme = matches!(uri.scheme_str(), Some("http" | "https"));
            let is_bare = matches!(uri.path(), "" | "/") && uri.query().is_none();
            let host = uri.host().unwrap_or_default();
            let has_user = uri.authority().is_some_and(|a| a.as_str().contains('@'));
            is_scheme && is_bare && !host.is_empty() && !has_user
        });
        if !self.endpoint.is_empty() && !is_good {
            return refuse(
                "tracing.endpoint",
                format!(
                    "\"{}\": must be http://HOST:PORT or https://HOST:PORT of a collector that takes OTLP by gRPC, without a path",
                    self.endpoint
                ),
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_a_bare_url_and_an_error_names_the_key() {
        let check = |endpoint: &str, sampling_per_million| {
            let endpoint = endpoint.to_owned();
            let table = Tracing {
                endpoint,
                sampling_per_million,
            };
            table.check().map_err(|error| error.to_string())
        };
        for good in [
            "",
            "http://127.0.0.1:4317",
            "https://otel.example",
            "http://[::1]:4317/",
        ] {
            assert_eq!(check(good, 1_000_000), Ok(()), "{good}");
        }
        for bad in [
            "127.0.0.1:4317",
            "localhost:4317",
            "unix:///run/otel.sock",
            "http://",
            "http://h:4318/v1/traces",
            "grpc://h:4317",
            "http://user:secret@h:4317",
        ] {
            let parsed = check(bad, 0).expect_err(bad);
            assert!(parsed.starts_with("tracing.endpoint: "), "{parsed}");
        }
        let parsed = check("", 1_000_001).expect_err("too many");
        assert_eq!(
            parsed,
            "tracing.sampling_per_million: 1000001 must be from 0 to 1000000"
        );
    }
}
