//! How a node's connections are authenticated.

use super::{ConfigError, Layers, NodeConfig, Source};
use cairn_tls::{CertificateName, Files, Tls};
use std::fs::Metadata;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// How connections are authenticated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Security {
    /// By the certificates of both sides.
    Tls {
        /// The files.
        files: Files,
        /// The key of each, and where it was given: for errors.
        origins: Origins,
    },
    /// Not at all, as the operator has decided.
    Insecure,
}

/// Keys with their sources, in the order of [`Files`].
pub type Origins = [String; 3];

const KEYS: [&str; 3] = ["tls.ca", "tls.certificate", "tls.key"];

/// The key that names this file, and where it was given.
fn origin<'a>(file: &Path, files: &Files, origins: &'a Origins) -> &'a str {
    let paths = [&files.ca, &files.certificate, &files.key];
    let mut found = paths.iter().zip(origins).filter(|(path, _)| path.as_path() == file);
    found.next().map_or("", |(_, origin)| origin)
}

/// A warning, if everybody on this machine can read this secret file. Of one that cannot be looked at there is
/// none: whoever reads it says why not.
pub fn exposed_secret(file: &Path) -> Option<String> {
    // A pipe or a device has no `chmod` that helps.
    let found = std::fs::metadata(file).ok().filter(Metadata::is_file)?;
    (found.permissions().mode() & 0o004 != 0).then(|| {
        let file = file.display();
        format!(
            "{file}: by its mode everybody on this machine may read this secret: `chmod 600 {file}`"
        )
    })
}

const UNDECIDED: &str = "neither certificates nor `insecure` are configured: make certificates with `cairn certs init` and give \
                         `tls.ca`, `tls.certificate` and `tls.key`; or set insecure = true, and then whoever reaches the ports can \
                         read, write, and act as a member";

/// What a member allows whose operator did not say who may do what.
const OPEN: &str = "`access` is not configured: every client with a certificate of this cluster may read, write, and give an operator's calls \
                    at this member, whatever the other members allow. Write a line `access.NAME = \"ROLES\"` for each client, such as \
                    access.app = \"read write\", into the configuration of every member, the same lines; or access = \"none\" if every \
                    client may do everything";

impl Security {
    pub(super) fn read(layers: &Layers) -> Result<Option<Security>, ConfigError> {
        let file =
            |key| Ok(Some(layers.text(key)?).filter(|path| path != "none").map(PathBuf::from));
        let insecure = layers.text("insecure")? == "true";
        let [ca, certificate, key] = KEYS;
        match (file(ca)?, file(certificate)?, file(key)?) {
            (None, None, None) => Ok(insecure.then_some(Security::Insecure)),
            (Some(ca), Some(certificate), Some(key)) if !insecure => {
                let origins = KEYS.map(|key| format!("`{key}` ({})", layers.source(key)));
                Ok(Some(Security::Tls { files: Files { ca, certificate, key }, origins }))
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
            Some(Security::Tls { files, .. }) => Some(files.clone()),
            Some(Security::Insecure) | None => None,
        }
    }

    /// A warning, if everybody on this machine can read `tls.key`, the one secret file that a configuration
    /// names.
    pub fn exposed_key(&self) -> Option<String> {
        let Some(Security::Tls { files, origins: [.., origin] }) = &self.security else {
            return None;
        };
        exposed_secret(&files.key).map(|warning| format!("{origin}: {warning}"))
    }

    /// A warning, if whoever has a certificate may do everything, and nobody wrote that: the lines may have been
    /// forgotten.
    pub fn open_access(&self, layers: &Layers) -> Option<&'static str> {
        let secured = matches!(self.security, Some(Security::Tls { .. }));
        let unsaid = layers.source("access") == Source::Default;
        (secured && unsaid && self.access.is_empty()).then_some(OPEN)
    }

    /// Reads the certificates; `None` for a node that is insecure.
    ///
    /// # Errors
    /// `Conflict`: nothing is configured; or a file cannot be used, or the certificate is not that
    /// of this member.
    pub fn tls(&self) -> Result<Option<Tls>, ConfigError> {
        let conflict = ConfigError::Conflict;
        let (files, origins) = match &self.security {
            None => return Err(conflict(UNDECIDED.into())),
            Some(Security::Insecure) => return Ok(None),
            Some(Security::Tls { files, origins }) => (files, origins),
        };
        let tls = Tls::load(files.clone()).map_err(|error| {
            let named = error.place.file().map_or("", |file| origin(file, files, origins));
            conflict(format!("{named}: {error}"))
        })?;
        let own = CertificateName::member(&self.cluster, self.slot);
        let own = own.map_err(|error| conflict(error.to_string()))?;
        match *tls.name() == own {
            true => Ok(Some(tls)),
            false => Err(conflict(format!(
                "{}: {}: the certificate is {}, and this member is {own}; `cairn certs issue DIR --member {}` makes its \
                 certificate",
                origin(&files.certificate, files, origins),
                files.certificate.display(),
                tls.name(),
                self.slot
            ))),
        }
    }
}
