//! The certificates of a cluster under test, and others that it must refuse.

use super::run;
use cairn_tls::CertificateName;
use cairn_tls::issue::{Authority, Issued, Validity};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Where they are.
pub struct Certificates {
    folder: PathBuf,
}

/// A CA, and its certificate in PEM.
pub struct Ca {
    pub authority: Authority,
    pub pem: String,
}

impl Ca {
    pub fn of(cluster: &str) -> Ca {
        let made = Authority::create(cluster, Validity::days(30)).expect("a CA");
        Ca { authority: made.0, pem: made.1.certificate }
    }

    pub fn issue(&self, name: &str) -> Issued {
        self.issue_for(name, Validity::days(30))
    }

    /// `name`: `member/SLOT` or `client/NAME`.
    pub fn issue_for(&self, name: &str, validity: Validity) -> Issued {
        let name = format!("cairn://{}/{name}", self.authority.cluster());
        let name: CertificateName = name.parse().expect("a name");
        let addresses = ["127.0.0.1".to_owned()];
        let addresses = if name.slot().is_some() { &addresses[..] } else { &[] };
        self.authority.issue(&name, addresses, validity).expect("a certificate")
    }
}

impl Certificates {
    pub fn at(folder: &Path) -> Certificates {
        Certificates { folder: folder.join("tls") }
    }

    /// Makes those of a new cluster with the command line, and installs them.
    pub fn make(folder: &Path, size: usize) -> Certificates {
        let certificates = Certificates::at(folder);
        std::fs::create_dir(&certificates.folder).expect("a folder");
        let made = |arguments: &[&str]| {
            let ran = run(folder, arguments);
            assert_eq!(ran.code, 0, "{}", ran.stderr);
        };
        made(&["certs", "init", "pki", "--cluster", "tested"]);
        made(&["certs", "issue", "pki", "--client", "tester"]);
        let text =
            |name: &str| std::fs::read_to_string(folder.join("pki").join(name)).expect("a file");
        let install = |who: &str, name: &str| {
            let own = Issued {
                certificate: text(&format!("{name}.pem")),
                key: text(&format!("{name}-key.pem")),
            };
            certificates.install(who, &text("ca.pem"), &own);
        };
        install("client", "client-tester");
        for slot in 1..=size {
            let slot = slot.to_string();
            made(&["certs", "issue", "pki", "--member", &slot, "--address", "127.0.0.1"]);
            let name = format!("member-{slot}");
            install(&name, &name);
        }
        certificates
    }

    /// The CA that the command line made.
    pub fn ca(&self) -> Ca {
        let pki = self.folder.with_file_name("pki");
        let text = |name| std::fs::read_to_string(pki.join(name)).expect("a file");
        let ca = Issued { certificate: text("ca.pem"), key: text("ca-key.pem") };
        Ca { authority: Authority::read(&ca).expect("a CA"), pem: ca.certificate }
    }

    /// CA, certificate and key of `member-SLOT`, or of `client`.
    pub fn files(&self, who: &str) -> [PathBuf; 3] {
        ["ca", "own", "key"].map(|file| self.folder.join(format!("{who}-{file}.pem")))
    }

    pub fn install(&self, who: &str, ca: &str, own: &Issued) {
        let texts = [ca, &own.certificate, &own.key];
        for (file, text) in self.files(who).iter().zip(texts) {
            std::fs::write(file, text).expect("a file");
        }
        let [.., key] = self.files(who);
        std::fs::set_permissions(key, PermissionsExt::from_mode(0o600)).expect("ours");
    }

    /// The lines of a configuration that name the files.
    pub fn keys(&self, who: &str) -> String {
        let names = ["tls.ca", "tls.certificate", "tls.key"];
        let lines = names.iter().zip(self.files(who));
        lines.map(|(name, file)| format!("{name} = {file:?}\n")).collect()
    }
}
