//! PullImage (CRI-170).

use proto_cri::v1 as cri;

use crate::{
    image::{Auth, Images, Progress, PullError},
    oci::Policies,
    pod::error::{Error, Kind, Result},
};

pub async fn pull_image(
    images: &Images,
    policies: &Policies,
    request: cri::PullImageRequest,
) -> Result<cri::PullImageResponse> {
    let image = request.image.unwrap_or_default();
    let wanted = image.image;
    if wanted.is_empty() {
        return Err(Error::invalid("PullImage: image is missing"));
    }
    // All handlers share one store, but the handler must exist.
    if policies.get(&image.runtime_handler).is_none() {
        let refusal = policies.refusal(&image.runtime_handler);
        return Err(Error::invalid(format!(
            "PullImage: image {wanted:?}: {refusal}"
        )));
    }
    let auth = request.auth.map(|auth| Auth {
        username: auth.username,
        password: auth.password,
        auth: auth.auth,
        server_address: auth.server_address,
        identity_token: auth.identity_token,
        registry_token: auth.registry_token,
    });
    let pulled = images.pull(&wanted, auth, &Progress::default()).await;
    match pulled {
        Ok(id) => Ok(cri::PullImageResponse {
            image_ref: id.to_string(),
        }),
        Err(error) => Err(refusal(&wanted, &error)),
    }
}

const UNAVAILABLE: &str = "RegistryUnavailable: ";

/// Kubelet reads the prefix of an unavailable registry from the first byte, and only under the code
/// UNKNOWN (CRI-007).
fn refusal(wanted: &str, error: &PullError) -> Error {
    let kind = match error {
        PullError::Reference(_) | PullError::Credentials(_) => Kind::Invalid,
        PullError::NotFound { .. } => Kind::NotFound,
        PullError::Unavailable { .. } | PullError::Stalled { .. } => {
            let text = error.to_string();
            let cause = text.strip_prefix(UNAVAILABLE).unwrap_or(&text);
            let text = format!("{UNAVAILABLE}image {wanted:?}: pull: {cause}");
            return Error::new(Kind::Verbatim, text);
        }
        PullError::Unauthenticated { .. } => Kind::Unauthenticated,
        PullError::Denied { .. } => Kind::Denied,
        PullError::Configuration(_) => Kind::TimedOut,
        PullError::Hosts(_)
        | PullError::Registry { .. }
        | PullError::Store(_)
        | PullError::CutShort => Kind::Failed,
    };
    Error::new(kind, format!("image {wanted:?}: pull: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_credentials_are_no_fault_of_the_daemons() {
        let (host, why) = ("r.example".to_owned(), "said so".to_owned());
        let kind = |error| refusal("r.example/x", &error).kind;
        let (at, because) = (host.clone(), why.clone());
        let unauthenticated = PullError::Unauthenticated {
            host: at,
            why: because,
        };
        assert_eq!(kind(unauthenticated), Kind::Unauthenticated);
        assert_eq!(kind(PullError::Denied { host, why }), Kind::Denied);
    }

    #[test]
    fn an_unavailable_registry_is_told_in_kubelets_words() {
        let error = PullError::Unavailable {
            host: "r.example".into(),
            why: "connection refused".into(),
        };
        let error = refusal("r.example/x", &error);
        assert_eq!(error.kind, Kind::Verbatim);
        assert!(
            error
                .text
                .starts_with("RegistryUnavailable: image \"r.example/x\"")
        );
    }
}
