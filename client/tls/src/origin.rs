//! Where the certificates of a process come from: from files, or from its memory.
//!
//! What holds here: a file is read whole, and has at most 1 MiB. Neither `Debug` nor a reason shows a key.

use crate::regular_file::read_file;
use rustls::pki_types::pem;
use std::borrow::Cow;
use std::fmt;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// The most bytes of one file.
const FILE_BYTES: u64 = 1 << 20;

/// Where the certificates of a process are, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The CAs of the cluster, one or more.
    pub ca: PathBuf,
    /// The certificate, and what lies between it and the CA.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

/// The certificates of a process themselves, in PEM. `Debug` shows none of them.
#[derive(Clone)]
pub struct Pem {
    /// The CAs of the cluster, one or more.
    pub ca: Vec<u8>,
    /// The certificate, and what lies between it and the CA.
    pub certificate: Vec<u8>,
    /// Its key.
    pub key: Vec<u8>,
}

impl fmt::Debug for Pem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pem").finish_non_exhaustive()
    }
}

/// Where they come from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Origin {
    /// From files, which are read again when they change.
    Files(Files),
    /// From memory: they stay as they are.
    Pem(Pem),
}

impl From<Files> for Origin {
    fn from(files: Files) -> Origin {
        Origin::Files(files)
    }
}

impl From<Pem> for Origin {
    fn from(pem: Pem) -> Origin {
        Origin::Pem(pem)
    }
}

/// Where one of the three is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In this file.
    File(PathBuf),
    /// In memory; what it is.
    Memory(&'static str),
}

impl Place {
    /// The file, if it is in one.
    pub fn file(&self) -> Option<&Path> {
        match self {
            Place::File(file) => Some(file),
            Place::Memory(_) => None,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File(file) => file.display().fmt(f),
            Place::Memory(what) => write!(f, "the {what} in memory"),
        }
    }
}

/// One of the three, which cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {reason}")]
pub struct Unusable {
    /// Where it is.
    pub place: Place,
    /// Why, and what to do.
    pub reason: String,
}

impl Unusable {
    pub(crate) fn new(place: Place, reason: impl Into<String>) -> Unusable {
        Unusable { place, reason: reason.into() }
    }
}

impl Origin {
    /// The three. Blocks if they are in files.
    pub(crate) fn read(&self) -> Result<Cow<'_, Pem>, Unusable> {
        match self {
            Origin::Files(files) => files.read().map(Cow::Owned),
            Origin::Pem(pem) => Ok(Cow::Borrowed(pem)),
        }
    }

    pub(crate) fn ca(&self) -> Place {
        self.place(|files| &files.ca, "CA")
    }

    pub(crate) fn certificate(&self) -> Place {
        self.place(|files| &files.certificate, "certificate")
    }

    pub(crate) fn key(&self) -> Place {
        self.place(|files| &files.key, "key")
    }

    fn place(&self, file: impl FnOnce(&Files) -> &PathBuf, what: &'static str) -> Place {
        match self {
            Origin::Files(files) => Place::File(file(files).clone()),
            Origin::Pem(_) => Place::Memory(what),
        }
    }
}

impl Files {
    fn read(&self) -> Result<Pem, Unusable> {
        let read = |file: &Path| {
            read_file(file, FILE_BYTES)
                .map_err(|error| Unusable::new(Place::File(file.into()), error.to_string()))
        };
        Ok(Pem {
            ca: read(&self.ca)?,
            certificate: read(&self.certificate)?,
            key: read(&self.key)?,
        })
    }
}

impl Pem {
    /// Changes with the contents.
    pub(crate) fn hash(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        for bytes in [&self.ca, &self.certificate, &self.key] {
            hasher.write_usize(bytes.len());
            hasher.write(bytes);
        }
        hasher.finish()
    }
}

/// Why these bytes are no PEM. The library's own words hold the line that it could not read: the whole key, where the
/// ends of its lines were lost on the way.
pub(crate) fn why_no_pem(error: &pem::Error) -> &'static str {
    match error {
        pem::Error::IllegalSectionStart { .. } | pem::Error::MissingSectionEnd { .. } => {
            "no line of its own begins or ends it; are the ends of its lines kept?"
        }
        pem::Error::NoItemsFound => "no items found",
        pem::Error::Base64Decode(_) => "its base64 is damaged",
        _ => "it cannot be read",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_memory_is_named_and_its_key_is_never_shown() {
        let pem = || Pem { ca: b"ca".into(), certificate: b"own".into(), key: b"secret".into() };
        let origin = Origin::from(pem());
        let shown = format!("{origin:?}");
        assert!(!shown.contains("secret") && !shown.contains("115, 101"), "{shown}");
        assert_eq!(origin.key().to_string(), "the key in memory");
        assert_eq!(
            (origin.ca().file(), origin.certificate().to_string()),
            (None, "the certificate in memory".to_owned())
        );
        assert_eq!(origin.read().unwrap().hash(), pem().hash());
        assert_ne!(Pem { key: b"other".into(), ..pem() }.hash(), pem().hash());
    }
}
