//! The server's certificate.

use std::{fs, io, path::Path, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _},
};
use tokio_rustls::TlsAcceptor;

/// # Errors
/// A file is unreadable, or its content is invalid.
#[expect(
    clippy::disallowed_methods,
    reason = "at start, before any client is served"
)]
pub(super) fn acceptor(cert: &Path, key: &Path) -> io::Result<TlsAcceptor> {
    let bad = |path: &Path, why: &dyn std::fmt::Display| {
        io::Error::other(format!("{}: {why}", path.display()))
    };
    let read = |path: &Path| fs::read(path).map_err(|error| bad(path, &error));
    let chain = CertificateDer::pem_slice_iter(&read(cert)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| bad(cert, &error))?;
    let private = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(|error| bad(key, &error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| bad(cert, &error))?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .map_err(|error| bad(cert, &error))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
