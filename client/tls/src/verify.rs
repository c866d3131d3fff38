//! Checking the other side's certificate.
//!
//! What holds here: first the chain to a CA, the validity and the usage, by rustls; then the name.
//! A host name is never checked.

use crate::name::{CertificateName, Holder};
use crate::refusal::refuse_name;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    SignatureScheme,
};
use std::sync::Arc;

/// The one name in a certificate.
///
/// # Errors
/// Why there is none, or no single one.
pub(crate) fn name_in(certificate: &CertificateDer<'_>) -> Result<CertificateName, Error> {
    let mut names = uris(certificate)?.into_iter();
    let name = names.next().ok_or_else(|| {
        refuse_name("the other side's certificate has no name of the form cairn://…".into())
    })?;
    if names.next().is_some() {
        return Err(refuse_name(
            "the other side's certificate has more than one name of the form cairn://…".into(),
        ));
    }
    name.parse().map_err(|error| {
        refuse_name(format!("the other side's certificate has the name {name:?}: {error}"))
    })
}

/// The names of the form `cairn://…`.
pub(crate) fn uris(certificate: &CertificateDer<'_>) -> Result<Vec<String>, Error> {
    let parsed = webpki::EndEntityCert::try_from(certificate)
        .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
    Ok(parsed
        .valid_uri_names()
        .filter(|name| name.starts_with("cairn:"))
        .map(str::to_owned)
        .collect())
}

/// Who may connect to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admits {
    Members,
    MembersAndClients,
}

/// Checks those who connect to this process.
#[derive(Debug)]
pub(crate) struct ConnectingVerifier {
    pub(crate) chain: Arc<dyn ClientCertVerifier>,
    pub(crate) cluster: Arc<str>,
    pub(crate) admits: Admits,
}

impl ConnectingVerifier {
    fn check(&self, name: &CertificateName) -> Result<(), Error> {
        if name.cluster != self.cluster {
            return Err(refuse_name(format!(
                "the other side's certificate is {name}, and this is the cluster {}",
                self.cluster
            )));
        }
        match (self.admits, &name.holder) {
            (Admits::Members, Holder::Client(_)) => Err(refuse_name(format!(
                "the other side's certificate is {name}, and only members may connect here"
            ))),
            _ => Ok(()),
        }
    }
}

impl ClientCertVerifier for ConnectingVerifier {
    fn offer_client_auth(&self) -> bool {
        self.chain.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.chain.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chain.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.chain.verify_client_cert(certificate, intermediates, now)?;
        self.check(&name_in(certificate)?)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chain.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}

/// Checks the member that answers.
#[derive(Debug)]
pub(crate) struct AnsweringVerifier {
    pub(crate) roots: Arc<RootCertStore>,
    pub(crate) algorithms: WebPkiSupportedAlgorithms,
    pub(crate) cluster: Arc<str>,
    /// Only the member of this slot; `None`: any member.
    pub(crate) slot: Option<u16>,
}

impl AnsweringVerifier {
    fn check(&self, name: &CertificateName) -> Result<(), Error> {
        let expected = |slot: u16| self.slot.is_none_or(|expected| expected == slot);
        if name.cluster == self.cluster && name.slot().is_some_and(expected) {
            return Ok(());
        }
        let expected = match self.slot {
            Some(slot) => format!("member {slot} of cluster {}", self.cluster),
            None => format!("a member of cluster {}", self.cluster),
        };
        Err(refuse_name(format!("{expected} was expected there, and {name} answers")))
    }
}

impl ServerCertVerifier for AnsweringVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _host: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        let all = self.algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, all)?;
        self.check(&name_in(certificate)?)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
