//! The files that a URL names for TLS, read and checked, and what a failed handshake means.

use std::error::Error as StdError;
use std::path::Path;
use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription as Alert, CertificateError, RootCertStore};

use tenure_core::error::{Error, ErrorKind};

use super::Files;

/// What is in them, in PEM form and known to be usable.
pub(crate) struct Pem {
    pub(crate) ca: Option<Vec<u8>>,
    /// Certificate and key.
    pub(crate) client: Option<(Vec<u8>, Vec<u8>)>,
}

impl Files {
    /// What is in the files. They are looked at here, because client libraries name none in their errors,
    /// and take an empty one for an authority that signed nothing.
    pub(crate) fn read(&self) -> Result<Pem, Error> {
        let provider = provider();
        let ca = self.ca.as_deref().map(read).transpose()?;
        if let (Some(path), Some(pem)) = (&self.ca, &ca) {
            let mut store = RootCertStore::empty();
            for authority in certificates("ca", path, pem)? {
                let added = store.add(authority);
                added.map_err(|err| wrong("ca", path, "a certificate that can be used", err))?;
            }
        }
        let client = match (&self.cert, &self.key) {
            (Some(cert_path), Some(key_path)) => {
                let (cert, key) = (read(cert_path)?, read(key_path)?);
                let chain = certificates("cert", cert_path, &cert)?;
                let parsed = PrivateKeyDer::from_pem_slice(&key)
                    .map_err(|err| wrong("key", key_path, "a private key in PEM form", err))?;
                CertifiedKey::from_der(chain, parsed, &provider).map_err(|err| {
                    let what = "the key of the certificate that `cert` names";
                    wrong("key", key_path, what, err)
                })?;
                Some((cert, key))
            }
            _ => None,
        };
        Ok(Pem { ca, client })
    }
}

/// The one of the whole program.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    if CryptoProvider::get_default().is_none() {
        // Lost to another thread that installs one: then there is one.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
    let installed = CryptoProvider::get_default().cloned();
    installed.unwrap_or_else(|| Arc::new(rustls::crypto::ring::default_provider()))
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|err| {
        Error::new(
            ErrorKind::Invalid,
            format!("the file {} cannot be read", path.display()),
        )
        .with_source(err)
    })
}

fn certificates(
    option: &str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, Error> {
    let what = "a certificate in PEM form";
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if found.is_empty() => Err(lacks(option, path, what)),
        Ok(found) => Ok(found),
        Err(err) => Err(wrong(option, path, what, err)),
    }
}

fn lacks(option: &str, path: &Path, what: &str) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Invalid,
        format!("the file {path} that `{option}` names has not {what}"),
    )
}

fn wrong(
    option: &str,
    path: &Path,
    what: &str,
    err: impl StdError + Send + Sync + 'static,
) -> Error {
    lacks(option, path, what).with_source(err)
}

/// What a handshake with `host` failed of. `plain` is how to ask for a connection without TLS.
pub(crate) fn explain(found: &rustls::Error, host: &impl std::fmt::Display, plain: &str) -> Error {
    let (kind, what) = match found {
        rustls::Error::InvalidCertificate(why) => (ErrorKind::Unreachable, advice(why, host)),
        // What it sends is no TLS.
        rustls::Error::InvalidMessage(_) => {
            return Error::new(
                ErrorKind::Unreachable,
                format!(
                    "{host} does not speak TLS; name the port on which it does, or write {plain}"
                ),
            );
        }
        rustls::Error::AlertReceived(
            alert @ (Alert::CertificateRequired
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied),
        ) => {
            return Error::new(
                ErrorKind::Denied,
                format!(
                    "{host} wants a certificate of ours that it trusts ({alert:?}); name it with cert=FILE and key=FILE"
                ),
            );
        }
        _ => (
            ErrorKind::Unreachable,
            format!("{host} and we found no common TLS"),
        ),
    };
    Error::new(kind, what).with_source(found.clone())
}

/// What to change when a server's certificate is not accepted. It may be replaced while we retry, so it
/// counts as one that cannot be reached.
fn advice(why: &CertificateError, host: &impl std::fmt::Display) -> String {
    match why {
        CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
            "the certificate of {host} is signed by an authority that is not trusted here; name its authority with ca=FILE"
        ),
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            format!(
                "the certificate of {host} is for another name; write a name in the URL that it is for"
            )
        }
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => format!(
            "the certificate of {host} has expired; renew it, or set the clock of this machine"
        ),
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            format!(
                "the certificate of {host} is not valid yet; is the clock of this machine right?"
            )
        }
        _ => format!("the certificate of {host} cannot be accepted"),
    }
}
