//! Why a connection was not made, in words for the side that reads them.
//!
//! TLS tells the other side no more than the number of an alert. So each side says what it knows:
//! the one that refuses knows the reason, the other one knows its own certificate.

use crate::name::CertificateName;
use rustls::{AlertDescription, CertificateError, Error as TlsError, OtherError};
use std::fmt;
use std::io;
use std::sync::Arc;

/// The kind of a refusal: one line is logged for each of them in a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Cause {
    /// The handshake was not completed in time.
    Silence,
    /// One side speaks plain text where the other speaks TLS.
    PlainText,
    /// No certificate was shown.
    NoCertificate,
    /// The certificate is signed by another CA.
    UnknownCa,
    /// The certificate has expired, or is not valid yet.
    Expired,
    /// The certificate is sound, and names another cluster, another slot, or no one who belongs
    /// here.
    Name,
    /// The other side refuses the certificate of this process.
    RefusedByOther,
    /// There were too many handshakes at once.
    Crowd,
    /// The connection was closed before it began.
    Closed,
    /// Anything else: a broken connection, a certificate that cannot be read.
    Other,
}

/// Why a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Its kind.
    pub cause: Cause,
    /// A sentence without a subject of its own, for a log line or an error.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Refusal {}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Refusal {
        Refusal::new(
            Cause::Other,
            format!("the connection ended during the TLS handshake: {error}"),
        )
    }
}

impl Refusal {
    pub(crate) fn new(cause: Cause, reason: impl Into<String>) -> Refusal {
        Refusal { cause, reason: reason.into() }
    }

    /// Of an I/O error in a handshake or on a stream. `own`: the name of this process.
    pub(crate) fn of_io(error: &io::Error, own: &CertificateName) -> Refusal {
        let inner = error.get_ref();
        if let Some(refusal) = inner.and_then(|inner| inner.downcast_ref::<Refusal>()) {
            return refusal.clone();
        }
        match inner.and_then(|inner| inner.downcast_ref::<TlsError>()) {
            Some(error) => Refusal::of(error, own),
            None => Refusal::new(
                Cause::Other,
                format!("the connection ended during the TLS handshake: {error}"),
            ),
        }
    }

    fn of(error: &TlsError, own: &CertificateName) -> Refusal {
        let (cause, reason) = match error {
            TlsError::InvalidMessage(rustls::InvalidMessage::InvalidContentType) => (
                Cause::PlainText,
                "the other side speaks plain text, not TLS: it is `insecure`, or no Cairn"
                    .to_owned(),
            ),
            TlsError::NoCertificatesPresented => {
                (Cause::NoCertificate, "the other side shows no certificate".to_owned())
            }
            TlsError::InvalidCertificate(error) => of_certificate(error),
            TlsError::AlertReceived(alert) => return of_alert(*alert, own),
            error => (Cause::Other, format!("the TLS handshake failed: {error}")),
        };
        Refusal { cause, reason }
    }
}

/// The other side's certificate is refused here.
fn of_certificate(error: &CertificateError) -> (Cause, String) {
    use CertificateError as E;
    match error {
        E::Expired | E::ExpiredContext { .. } => {
            (Cause::Expired, "the other side's certificate has expired".into())
        }
        E::NotValidYet | E::NotValidYetContext { .. } => {
            (Cause::Expired, "the other side's certificate is not valid yet: compare the clocks".into())
        }
        E::UnknownIssuer => {
            (Cause::UnknownCa, "the other side's certificate is signed by no CA in `tls.ca`".into())
        }
        E::BadSignature => {
            (Cause::UnknownCa, "the other side's certificate is signed by another CA of the same name as one in `tls.ca`".into())
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            (Cause::Name, "the other side's certificate is not for this use (extended key usage)".into())
        }
        E::Other(OtherError(inner)) => match inner.downcast_ref::<Refusal>() {
            Some(refusal) => (refusal.cause, refusal.reason.clone()),
            None => (Cause::Other, inner.to_string()),
        },
        other => (Cause::Other, format!("the other side's certificate cannot be used: {other}")),
    }
}

/// The other side refuses the certificate of this process.
fn of_alert(alert: AlertDescription, own: &CertificateName) -> Refusal {
    use AlertDescription as A;
    let why = match alert {
        A::CertificateRequired => "it wants a certificate, and got none".to_owned(),
        A::CertificateExpired => "it has expired, or is not valid yet by the other side's clock".to_owned(),
        A::UnknownCA | A::DecryptError => "the other side does not know its CA".to_owned(),
        A::CertificateUnknown | A::AccessDenied => {
            "its name is not for there: another cluster, another member than was meant, or a client where only members may connect".to_owned()
        }
        other => format!("TLS alert {other:?}"),
    };
    let reason = format!("the other side refuses the certificate {own}: {why}");
    Refusal { cause: Cause::RefusedByOther, reason }
}

/// For a verifier: refuses a certificate because of its name.
pub(crate) fn refuse_name(reason: String) -> TlsError {
    let refusal = Refusal { cause: Cause::Name, reason };
    TlsError::InvalidCertificate(CertificateError::Other(OtherError(Arc::new(refusal))))
}
