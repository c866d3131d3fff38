//! A folder with CAs and the certificates that they sign.

use cairn_tls::issue::{Authority, Issued, Validity};
use cairn_tls::{CertificateName, Files, Pem, Tls, Unusable};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub fn member(slot: u16) -> CertificateName {
    CertificateName::member("blue", slot).unwrap()
}

pub fn client(name: &str) -> CertificateName {
    CertificateName::client("blue", name).unwrap()
}

/// A CA of a cluster, and its certificate in PEM.
pub struct Ca {
    pub authority: Authority,
    pub pem: String,
}

impl Ca {
    pub fn of(cluster: &str) -> Ca {
        let (authority, issued) = Authority::create(cluster, Validity::days(30)).unwrap();
        Ca { authority, pem: issued.certificate }
    }

    pub fn issue(&self, name: &CertificateName) -> Issued {
        self.authority
            .issue(name, &["localhost".into(), "127.0.0.1".into()], Validity::days(30))
            .unwrap()
    }
}

/// Certificates of one process that are in no file.
pub fn in_memory(ca: &str, own: &Issued) -> Pem {
    Pem { ca: ca.into(), certificate: own.certificate.clone().into(), key: own.key.clone().into() }
}

/// Certificate files of one process.
pub struct Process {
    pub folder: TempDir,
}

impl Process {
    pub fn new(ca: &str, own: &Issued) -> Process {
        let process = Process { folder: tempfile::tempdir().unwrap() };
        process.write(ca, own);
        process
    }

    pub fn write(&self, ca: &str, own: &Issued) {
        std::fs::write(self.path("ca.pem"), ca).unwrap();
        std::fs::write(self.path("own.pem"), &own.certificate).unwrap();
        std::fs::write(self.path("own-key.pem"), &own.key).unwrap();
    }

    pub fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }

    pub fn load(&self) -> Result<Tls, Unusable> {
        let path = |name| self.path(name);
        Tls::load(Files {
            ca: path("ca.pem"),
            certificate: path("own.pem"),
            key: path("own-key.pem"),
        })
    }
}

/// The certificates of a process of this name.
pub fn tls(ca: &Ca, name: &CertificateName) -> Tls {
    Process::new(&ca.pem, &ca.issue(name)).load().unwrap()
}
