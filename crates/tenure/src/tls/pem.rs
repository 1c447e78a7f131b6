//! The files that a URL names for TLS, read and checked.

use std::error::Error as StdError;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use tenure_core::error::{Error, ErrorKind};

use super::files::Files;
use super::provider::provider;

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
