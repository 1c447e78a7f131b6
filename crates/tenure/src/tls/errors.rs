//! What a failed handshake means.

use rustls::{AlertDescription as Alert, CertificateError};

use tenure_core::error::{Error, ErrorKind, ErrorParts as _};

/// Why a handshake with `host` failed. `plain` is how to ask for a connection without TLS.
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
        CertificateError::Other(other) => advice_by_text(&format!("{other:?}"), host),
        _ => format!("the certificate of {host} cannot be accepted"),
    }
}

/// The same for faults that rustls knows by the text of another crate only.
fn advice_by_text(fault: &str, host: &impl std::fmt::Display) -> String {
    if fault.contains("CaUsedAsEndEntity") {
        return format!(
            "the certificate of {host} is that of an authority (CA:TRUE), which a server must not use for itself; make a certificate for the server with basicConstraints=CA:FALSE and its name in subjectAltName"
        );
    }
    if fault.contains("UnsupportedCertVersion") {
        return format!(
            "the certificate of {host} has version 1, which names no hosts; make one of version 3, with the name of the server in subjectAltName (`openssl x509 -req` does so with -extfile)"
        );
    }
    format!("the certificate of {host} cannot be accepted")
}
