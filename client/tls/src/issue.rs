//! Makes a cluster's CA, and certificates that it signs.
//!
//! What holds here: the CA's certificate names its cluster, so a CA signs for that cluster alone. A
//! member's certificate is for both sides of a connection, a client's only for the side that
//! connects.

use crate::name::{self, CertificateName};
use crate::origin::why_no_pem;
use crate::verify::uris;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PublicKeyData, SanType,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};
use time::OffsetDateTime;

/// Certificates are valid from this long before they are made, for clocks that are behind.
const CLOCKS_BEHIND: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A certificate with its key, in PEM.
#[derive(Clone)]
pub struct Issued {
    /// The certificate.
    pub certificate: String,
    /// The key.
    pub key: String,
}

/// From when until when a certificate is valid.
#[derive(Clone, Copy, Debug)]
pub struct Validity {
    /// The first moment.
    pub from: SystemTime,
    /// The last moment.
    pub until: SystemTime,
}

/// Why no certificate was made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct IssueError(String);

impl Validity {
    /// From now on, for so many days.
    pub fn days(days: u32) -> Validity {
        let now = SystemTime::now();
        Validity { from: now - CLOCKS_BEHIND, until: now + DAY * days }
    }
}

/// A CA with its key.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    cluster: String,
}

impl From<rcgen::Error> for IssueError {
    fn from(error: rcgen::Error) -> IssueError {
        IssueError(error.to_string())
    }
}

impl Authority {
    /// Makes a CA for this cluster.
    ///
    /// # Errors
    /// If the cluster's name cannot be in a certificate, or the system has no randomness.
    pub fn create(cluster: &str, validity: Validity) -> Result<(Authority, Issued), IssueError> {
        let key = KeyPair::generate()?;
        let certificate = ca_params(cluster, validity)?.self_signed(&key)?.pem();
        let issued = Issued { certificate, key: key.serialize_pem() };
        let issuer = Issuer::new(ca_params(cluster, validity)?, key);
        Ok((Authority { issuer, cluster: cluster.into() }, issued))
    }

    /// A CA that was made by [`Authority::create`].
    ///
    /// # Errors
    /// If it was not, or the key is not its key.
    pub fn read(ca: &Issued) -> Result<Authority, IssueError> {
        let bad =
            |reason: &dyn std::fmt::Display| IssueError(format!("the CA cannot be used: {reason}"));
        let certificate = CertificateDer::from_pem_slice(ca.certificate.as_bytes())
            .map_err(|error| bad(&why_no_pem(&error)))?;
        let names = uris(&certificate).map_err(|error| bad(&error))?;
        let cluster = names.iter().find_map(|name| name::cluster_of_ca(name));
        let cluster = cluster.ok_or_else(|| bad(&"it was not made by `cairn certs init`"))?;
        // The library's own words may hold a part of the key.
        let key =
            KeyPair::from_pem(&ca.key).map_err(|_| bad(&"its key is no private key in PEM"))?;
        // Only name and key of the CA are used below, and they do not depend on its validity.
        let issuer = Issuer::new(ca_params(&cluster, Validity::days(1))?, key);
        let authority = Authority { issuer, cluster };
        authority.owns(&certificate).map_err(|error| bad(&error))?;
        Ok(authority)
    }

    /// The cluster for which it signs.
    pub fn cluster(&self) -> &str {
        &self.cluster
    }

    /// Whether what this CA signs is signed by the certificate.
    fn owns(&self, certificate: &CertificateDer<'_>) -> Result<(), String> {
        let parsed =
            webpki::EndEntityCert::try_from(certificate).map_err(|error| error.to_string())?;
        let own = self.issuer.key().subject_public_key_info();
        match parsed.subject_public_key_info().as_ref() == own {
            true => Ok(()),
            false => Err("its key is another CA's".into()),
        }
    }

    /// Makes a certificate of this name. `addresses`: host names and IP addresses of a member, for
    /// programs that check them; Cairn does not.
    ///
    /// # Errors
    /// If the name is of another cluster, or an address is neither a host name nor an IP address.
    pub fn issue(
        &self,
        name: &CertificateName,
        addresses: &[String],
        validity: Validity,
    ) -> Result<Issued, IssueError> {
        if *name.cluster != *self.cluster {
            return Err(IssueError(format!(
                "the CA is of cluster {}, not of {}",
                self.cluster, name.cluster
            )));
        }
        let mut params = params(&name.to_string(), validity)?;
        for address in addresses {
            params.subject_alt_names.push(match address.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) if ServerName::try_from(address.as_str()).is_ok() => {
                    SanType::DnsName(address.as_str().try_into()?)
                }
                Err(_) => {
                    let reason = format!("`{address}` is neither a host name nor an IP address");
                    return Err(IssueError(reason));
                }
            });
        }
        params.distinguished_name.push(DnType::CommonName, name.to_string());
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if name.slot().is_some() {
            params.extended_key_usages.push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Issued { certificate, key: key.serialize_pem() })
    }
}

fn params(uri: &str, Validity { from, until }: Validity) -> Result<CertificateParams, IssueError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names.push(SanType::URI(uri.try_into()?));
    params.not_before = OffsetDateTime::from(from);
    params.not_after = OffsetDateTime::from(until);
    Ok(params)
}

fn ca_params(cluster: &str, validity: Validity) -> Result<CertificateParams, IssueError> {
    let uri = name::of_ca(cluster).map_err(|error| IssueError(error.to_string()))?;
    let mut params = params(&uri, validity)?;
    params.distinguished_name.push(DnType::CommonName, format!("Cairn CA of {cluster}"));
    // It signs members and clients, and no further CA.
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}
