//! How a node's connections are authenticated.

use super::{ConfigError, Layers, NodeConfig};
use cairn_tls::{CertificateName, Files, Tls};
use std::path::PathBuf;

/// How connections are authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// By the certificates of both sides.
    Tls(Files),
    /// Not at all, as the operator has decided.
    Insecure,
}

const UNDECIDED: &str = "neither certificates nor `insecure` are configured: make certificates with `cairn certs init` and give \
                         `tls.ca`, `tls.certificate` and `tls.key`; or set insecure = true, and then whoever reaches the ports can \
                         read, write, and act as a member";

impl Security {
    pub(super) fn read(layers: &Layers) -> Result<Option<Security>, ConfigError> {
        let file =
            |key| Ok(Some(layers.text(key)?).filter(|path| path != "none").map(PathBuf::from));
        let insecure = layers.text("insecure")? == "true";
        match (file("tls.ca")?, file("tls.certificate")?, file("tls.key")?) {
            (None, None, None) => Ok(insecure.then_some(Security::Insecure)),
            (Some(ca), Some(certificate), Some(key)) if !insecure => {
                Ok(Some(Security::Tls(Files { ca, certificate, key })))
            }
            (Some(_), Some(_), Some(_)) => Err(ConfigError::Conflict(
                "insecure = true and certificates (`tls.…`) exclude each other; remove one of them"
                    .into(),
            )),
            _ => Err(ConfigError::Conflict(
                "`tls.ca`, `tls.certificate` and `tls.key` are given together, or none of them"
                    .into(),
            )),
        }
    }
}

impl NodeConfig {
    /// The certificate files, if there are any.
    pub fn tls_files(&self) -> Option<Files> {
        match &self.security {
            Some(Security::Tls(files)) => Some(files.clone()),
            Some(Security::Insecure) | None => None,
        }
    }

    /// Reads the certificates; `None` for a node that is insecure.
    ///
    /// # Errors
    /// `Conflict`: nothing is configured; or a file cannot be used, or the certificate is not that
    /// of this member.
    pub fn tls(&self) -> Result<Option<Tls>, ConfigError> {
        let conflict = ConfigError::Conflict;
        let files = match &self.security {
            None => return Err(conflict(UNDECIDED.into())),
            Some(Security::Insecure) => return Ok(None),
            Some(Security::Tls(files)) => files.clone(),
        };
        let tls = Tls::load(files).map_err(|error| conflict(error.to_string()))?;
        let own = CertificateName::member(&self.cluster, self.slot);
        let own = own.map_err(|error| conflict(error.to_string()))?;
        match *tls.name() == own {
            true => Ok(Some(tls)),
            false => Err(conflict(format!(
                "{}: the certificate is {}, and this member is {own}; `cairn certs issue DIR --member {}` makes its \
                 certificate",
                tls.files().certificate.display(),
                tls.name(),
                self.slot
            ))),
        }
    }
}
