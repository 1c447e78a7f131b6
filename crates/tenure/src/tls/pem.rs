//! The files that a URL names for TLS, read and checked.

use std::error::Error as StdError;
use std::path::Path;

use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

use super::files::Files;
use super::provider::provider;

/// A certificate and its key.
type PemPair = (Vec<u8>, Vec<u8>);

/// The content of the files, in PEM form and known to be usable: for client libraries that take no more.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper-tls"))]
pub(crate) struct Pem {
    pub(crate) ca: Option<Vec<u8>>,
    pub(crate) client: Option<PemPair>,
}

// The files are checked here, because client libraries name none in their errors, and take an empty one for an
// authority that signed nothing.
impl Files {
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "zookeeper-tls"))]
    pub(crate) fn read(&self) -> Result<Pem, Error> {
        Ok(Pem {
            ca: self.load_authorities()?.map(|(pem, _)| pem),
            client: self.load_identity()?.map(|(pem, _)| pem),
        })
    }

    /// The file `ca` and what is in it.
    pub(super) fn load_authorities(&self) -> Result<Option<(Vec<u8>, RootCertStore)>, Error> {
        let Some(path) = &self.ca else {
            return Ok(None);
        };
        let pem = read(path)?;
        let mut authorities = RootCertStore::empty();
        for authority in certificates("ca", path, &pem)? {
            let added = authorities.add(authority);
            added.map_err(|err| wrong("ca", path, "a certificate that can be used", err))?;
        }
        Ok(Some((pem, authorities)))
    }

    /// The files `cert` and `key` and what is in them.
    pub(super) fn load_identity(&self) -> Result<Option<(PemPair, CertifiedKey)>, Error> {
        let (Some(cert_path), Some(key_path)) = (&self.cert, &self.key) else {
            return Ok(None);
        };
        let (cert, key) = (read(cert_path)?, read(key_path)?);
        let chain = certificates("cert", cert_path, &cert)?;
        if is_encrypted(&key) {
            return Err(encrypted(key_path));
        }
        let parsed = PrivateKeyDer::from_pem_slice(&key)
            .map_err(|err| wrong("key", key_path, "a private key in PEM form", err))?;
        let provider = provider()?;
        let identity = CertifiedKey::from_der(chain, parsed, &provider).map_err(|err| {
            let what = "the key of the certificate that `cert` names";
            wrong("key", key_path, what, err)
        })?;
        Ok(Some(((cert, key), identity)))
    }
}

/// Whether the text is a private key with a password, in PKCS #8 form or in the older form of OpenSSL.
fn is_encrypted(pem: &[u8]) -> bool {
    let marks = ["BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED"];
    let text = String::from_utf8_lossy(pem);
    marks.iter().any(|mark| text.contains(mark))
}

fn encrypted(path: &Path) -> Error {
    let path = path.display();
    Error::new(
        ErrorKind::Invalid,
        format!(
            "the private key in the file {path} that `key` names is encrypted, and there is no option for its password; write the key without one: `openssl pkey -in {path} -out FILE`"
        ),
    )
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
