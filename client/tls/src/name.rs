//! The name in a certificate: one URI among its subject alternative names.
//!
//! ```text
//!  cairn://CLUSTER/member/SLOT     a member; SLOT is a number from 1 to 65535
//!  cairn://CLUSTER/client/NAME     a client
//!  cairn://CLUSTER/ca              the CA that `cairn certs` made; nobody speaks under this name
//! ```
//!
//! What holds here: a name has one form. In CLUSTER and NAME, each byte other than a letter, a
//! digit and `-._~` is written as `%` and two upper-case hexadecimal digits, and no other byte is.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

/// The longest cluster or client name, in bytes.
pub const PART_BYTES: usize = 64;

const SCHEME: &str = "cairn://";
const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// Who a certificate was issued to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CertificateName {
    /// The cluster.
    pub cluster: Arc<str>,
    /// Who it is in the cluster.
    pub holder: Holder,
}

/// Who a certificate names in its cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// The member of this slot.
    Member(u16),
    /// A client.
    Client(Arc<str>),
}

/// Why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NameError(&'static str);

impl CertificateName {
    /// The name of a member.
    ///
    /// # Errors
    /// If the cluster's name is empty or longer than [`PART_BYTES`], or the slot is 0.
    pub fn member(cluster: &str, slot: u16) -> Result<CertificateName, NameError> {
        if slot == 0 {
            return Err(NameError("a slot is a number from 1 to 65535"));
        }
        Ok(CertificateName { cluster: part(cluster)?, holder: Holder::Member(slot) })
    }

    /// The name of a client.
    ///
    /// # Errors
    /// If a name is empty or longer than [`PART_BYTES`].
    pub fn client(cluster: &str, name: &str) -> Result<CertificateName, NameError> {
        Ok(CertificateName { cluster: part(cluster)?, holder: Holder::Client(part(name)?) })
    }

    /// The slot, if it names a member.
    pub fn slot(&self) -> Option<u16> {
        match self.holder {
            Holder::Member(slot) => Some(slot),
            Holder::Client(_) => None,
        }
    }

    /// Whether it names a member of this cluster.
    pub fn is_member_of(&self, cluster: &str) -> bool {
        self.slot().is_some() && *self.cluster == *cluster
    }
}

impl fmt::Display for CertificateName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}/", Escaped(&self.cluster))?;
        match &self.holder {
            Holder::Member(slot) => write!(f, "member/{slot}"),
            Holder::Client(name) => write!(f, "client/{}", Escaped(name)),
        }
    }
}

impl FromStr for CertificateName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<CertificateName, NameError> {
        const FORM: NameError =
            NameError("expected cairn://CLUSTER/member/SLOT or cairn://CLUSTER/client/NAME");
        let (cluster, rest) =
            text.strip_prefix(SCHEME).and_then(|rest| rest.split_once('/')).ok_or(FORM)?;
        let cluster = unescaped(cluster)?;
        match rest.split_once('/').ok_or(FORM)? {
            ("member", slot) => {
                let number = slot.parse().map_err(|_| FORM)?;
                // No other way to write the same number.
                match u16::to_string(&number) == slot {
                    true => CertificateName::member(&cluster, number),
                    false => Err(FORM),
                }
            }
            ("client", name) => CertificateName::client(&cluster, &unescaped(name)?),
            _ => Err(FORM),
        }
    }
}

/// The name in the CA certificate that `cairn certs` makes.
#[cfg(feature = "issue")]
pub(crate) fn of_ca(cluster: &str) -> Result<String, NameError> {
    Ok(format!("{SCHEME}{}/ca", Escaped(&part(cluster)?)))
}

/// The cluster whose CA has this name.
#[cfg(feature = "issue")]
pub(crate) fn cluster_of_ca(name: &str) -> Option<String> {
    let cluster = name.strip_prefix(SCHEME)?.strip_suffix("/ca")?;
    unescaped(cluster).ok()
}

fn part(text: &str) -> Result<Arc<str>, NameError> {
    match text.len() {
        0 => Err(NameError("a cluster's or client's name is not empty")),
        1..=PART_BYTES => Ok(text.into()),
        _ => Err(NameError("a cluster's or client's name has at most 64 bytes")),
    }
}

struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.bytes().try_for_each(|byte| match is_plain(byte) {
            true => f.write_char(char::from(byte)),
            false => write!(f, "%{byte:02X}"),
        })
    }
}

fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

fn unescaped(text: &str) -> Result<String, NameError> {
    const FORM: NameError = NameError("a byte of the name is not escaped as it must be");
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                let digit = |c: &u8| HEX.iter().position(|hex| hex == c).ok_or(FORM);
                let byte = u8::try_from(digit(high)? * 16 + digit(low)?).map_err(|_| FORM)?;
                (Some(byte).filter(|byte| !is_plain(*byte)), after)
            }
            (plain, after) => (Some(*plain).filter(|byte| is_plain(*byte)), after),
        };
        bytes.push(byte.ok_or(FORM)?);
        rest = after;
    }
    String::from_utf8(bytes).map_err(|_| FORM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_as_it_is_written() {
        let names = [
            (CertificateName::member("blue", 2), "cairn://blue/member/2"),
            (CertificateName::member("blue", 65_535), "cairn://blue/member/65535"),
            (CertificateName::client("blue", "billing"), "cairn://blue/client/billing"),
            (CertificateName::client("a b/ü", "x%y"), "cairn://a%20b%2F%C3%BC/client/x%25y"),
        ];
        for (name, text) in names {
            let name = name.unwrap();
            assert_eq!(name.to_string(), text);
            assert_eq!(text.parse(), Ok(name));
        }
    }

    #[test]
    fn another_form_of_a_name_is_refused() {
        let long = "c".repeat(PART_BYTES + 1);
        for text in [
            "",
            "blue/member/2",
            "CAIRN://blue/member/2",
            "https://blue/member/2",
            "cairn://blue",
            "cairn://blue/",
            "cairn://blue/ca",
            "cairn:///member/2",
            "cairn://blue/member/",
            "cairn://blue/member/0",
            "cairn://blue/member/02",
            "cairn://blue/member/+2",
            "cairn://blue/member/65536",
            "cairn://blue/member/2/",
            "cairn://blue/Member/2",
            "cairn://blue/client/",
            "cairn://blue/client/a/b",
            "cairn://blue/client/a b",
            "cairn://blue/client/%61",
            "cairn://blue/client/%2f",
            "cairn://blue/client/%2",
            "cairn://blue/client/%FF",
            "cairn://bl%ue/client/a",
            &format!("cairn://{long}/member/2"),
            &format!("cairn://blue/client/{long}"),
        ] {
            assert!(text.parse::<CertificateName>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_name_of_a_ca_names_nobody_else() {
        let name = of_ca("a b").unwrap();
        assert_eq!(cluster_of_ca(&name).as_deref(), Some("a b"));
        assert!(name.parse::<CertificateName>().is_err());
        assert_eq!(cluster_of_ca("cairn://blue/member/2"), None);
    }

    #[test]
    fn any_bytes_are_a_name_with_one_form_or_are_refused() {
        cairn_fuzz::target!(
            "member" => "cairn://blue/member/2".as_bytes(),
            "client" => "cairn://a%20b/client/x%25y".as_bytes(),
        )
        .for_each(|bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let most = 16 * bytes.len() + 1024;
            let name = cairn_fuzz::within(most, || text.parse::<CertificateName>());
            let Ok(name) = name else { return };
            assert_eq!(name.to_string(), text);
            assert!(name.cluster.len() <= PART_BYTES);
            assert_ne!(name.slot(), Some(0));
        });
    }
}
