//! A principal with its roles, and the one rule that decides what it may do.

use super::roles::{Roles, escaped};
use cairn_engine::prefix_end;
use std::fmt;
use std::sync::Arc;

/// Who calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Anybody: the node runs without certificates, and everybody may do everything.
    Insecure,
    /// The member of this slot, by its certificate.
    Member(u16),
    /// A client, by its certificate's name.
    Certificate(Arc<str>),
    /// A client, by its token's name.
    Token(Arc<str>),
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Insecure => write!(f, "anybody (insecure)"),
            Principal::Member(slot) => write!(f, "member {slot}"),
            Principal::Certificate(name) => write!(f, "certificate {name}"),
            Principal::Token(name) => write!(f, "token {name}"),
        }
    }
}

/// What a request needs to be allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need<'a> {
    /// Any role: hello and status.
    AnyRole,
    /// The value of a key.
    Read(&'a [u8]),
    /// The keys of a range.
    ReadRange {
        /// The first key that may be among them.
        start: &'a [u8],
        /// Behind them; `None`: to the last key.
        end: Option<&'a [u8]>,
    },
    /// To change a key.
    Write(&'a [u8]),
    /// To change the keys of a range.
    WriteRange {
        /// The first key that may be among them.
        start: &'a [u8],
        /// Behind them; `None`: to the last key.
        end: Option<&'a [u8]>,
    },
    /// To send a write at all: each one is an entry of the log, even if it only checks keys.
    Propose,
    /// The operator's call for an unsafe recovery, which members make as well.
    UnsafeRecovery,
    /// The operator's call for the state of the cluster, which members make as well.
    Backup,
    /// All keys with their values, for a backup. A member has them.
    State,
    /// Any other call of the operator's service.
    Operator,
}

/// Why a request is not allowed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// It proves no name.
    #[error(
        "the request has neither a client certificate nor a token: connect with a certificate that has a role, or with a token, \
         which `cairn access token NAME` makes"
    )]
    Nobody,
    /// Its `authorization` is not a token.
    #[error(
        "the request's `authorization` is not `Bearer TOKEN`; `cairn access token NAME` makes a token"
    )]
    Malformed,
    /// Its token is not known.
    #[error(
        "this node does not know the request's token: add the line that `cairn access token NAME` printed with it to the \
         configuration of every member, or use a token of this cluster"
    )]
    UnknownToken,
    /// No role of the principal allows it.
    #[error("{principal} may not {what}: {way_out}")]
    Lacks {
        /// Who asked.
        principal: Principal,
        /// What is not allowed.
        what: String,
        /// What would allow it.
        way_out: String,
    },
}

/// Who calls, and what it may do. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pub(super) principal: Principal,
    pub(super) roles: Arc<Roles>,
    /// The number of the name, under which everything that it holds is counted together.
    pub(super) number: Option<u64>,
}

impl Identity {
    pub(crate) fn principal(&self) -> &Principal {
        &self.principal
    }

    /// The number of its name; `None` if only its connection tells it from others.
    pub(crate) fn number(&self) -> Option<u64> {
        self.number
    }

    /// Whether it may do what the request needs.
    ///
    /// # Errors
    /// `Lacks`.
    pub(crate) fn may(&self, need: Need<'_>) -> Result<(), Denied> {
        let roles = &self.roles;
        let may = match (&self.principal, need) {
            (Principal::Insecure, _) => true,
            (Principal::Member(_), need) => {
                matches!(need, Need::AnyRole | Need::UnsafeRecovery | Need::Backup | Need::State)
            }
            (_, Need::AnyRole) => !roles.is_empty(),
            (_, Need::Read(key)) => roles.reads(key),
            (_, Need::ReadRange { start, end }) => roles.reads_range(start, end),
            (_, Need::State) => roles.reads(b""),
            (_, Need::Write(key)) => roles.writes(key),
            (_, Need::WriteRange { start, end }) => roles.writes_range(start, end),
            (_, Need::Propose) => roles.writes_any(),
            (_, Need::UnsafeRecovery | Need::Backup | Need::Operator) => roles.operates(),
        };
        if may { Ok(()) } else { Err(self.lacks(need)) }
    }

    #[cold]
    fn lacks(&self, need: Need<'_>) -> Denied {
        let (what, role) = need.words();
        let way_out = match &self.principal {
            Principal::Certificate(name) | Principal::Token(name) => {
                let has = match self.roles.is_empty() {
                    true => "it has no role on this node".to_string(),
                    false => format!("it has `{}`", self.roles),
                };
                format!(
                    "{has}; add `{role}` to `access.{name}` in the configuration of every member"
                )
            }
            Principal::Member(_) | Principal::Insecure => {
                "a member's certificate is for members; use a client's".to_string()
            }
        };
        Denied::Lacks { principal: self.principal.clone(), what, way_out }
    }
}

impl Need<'_> {
    /// What it is, and a role that allows it.
    fn words(self) -> (String, String) {
        let role = |role: &str, prefix: &[u8]| match prefix {
            [] => role.to_string(),
            prefix => format!("{role}:{}", shown(prefix)),
        };
        match self {
            Need::AnyRole => ("use this cluster".into(), "read".into()),
            Need::Read(key) => (format!("read key `{}`", shown(key)), role("read", key)),
            Need::State => ("list all keys".into(), "read".into()),
            Need::ReadRange { start, end } => {
                (format!("list {}", keys_of(start, end)), role("read", prefix_of(start, end)))
            }
            Need::Write(key) => (format!("write key `{}`", shown(key)), role("write", key)),
            Need::WriteRange { start, end } => {
                (format!("write {}", keys_of(start, end)), role("write", prefix_of(start, end)))
            }
            Need::Propose => ("write".into(), "write:PREFIX".into()),
            Need::UnsafeRecovery | Need::Backup | Need::Operator => {
                ("call the operator's service".into(), "operator".into())
            }
        }
    }
}

/// A key as a refusal shows it.
fn shown(key: &[u8]) -> String {
    let start = escaped(key.get(..SHOWN_BYTES).unwrap_or(key));
    if key.len() > SHOWN_BYTES { format!("{start}…") } else { start }
}

/// The keys of a range, in words.
fn keys_of(start: &[u8], end: Option<&[u8]>) -> String {
    match (start, end) {
        ([], None) => "all keys".to_string(),
        (start, end) if prefix_end(start).as_deref() == end => {
            format!("the keys that begin with `{}`", shown(start))
        }
        (start, Some(end)) => format!("the keys from `{}` until `{}`", shown(start), shown(end)),
        (start, None) => format!("the keys from `{}` on", shown(start)),
    }
}

/// A prefix of all keys of a range, as long as a refusal shows one.
fn prefix_of<'a>(start: &'a [u8], end: Option<&[u8]>) -> &'a [u8] {
    let is_of_all = |prefix: &&[u8]| match (prefix_end(prefix), end) {
        (None, _) => true,
        (Some(own), end) => end.is_some_and(|end| end <= &own[..]),
    };
    let lengths = (0..=start.len().min(SHOWN_BYTES)).rev();
    let shown = lengths.filter_map(|length| start.get(..length));
    // The whole start first: that is the prefix where a prefix was asked for.
    std::iter::once(start).chain(shown).find(is_of_all).unwrap_or_default()
}

/// Bytes of a key that a refusal shows.
const SHOWN_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kind of need, for keys inside and outside of `app/`.
    const NEEDS: [Need<'_>; 14] = [
        Need::AnyRole,
        Need::Read(b"app/1"),
        Need::Read(b"other"),
        Need::ReadRange { start: b"app/", end: Some(b"app0") },
        Need::ReadRange { start: b"", end: None },
        Need::Write(b"app/1"),
        Need::Write(b"other"),
        Need::WriteRange { start: b"app/", end: Some(b"app0") },
        Need::WriteRange { start: b"", end: None },
        Need::Propose,
        Need::UnsafeRecovery,
        Need::Operator,
        Need::Backup,
        Need::State,
    ];

    fn allowed(principal: Principal, roles: &str) -> String {
        let roles = Arc::new(Roles::parse(roles.split_whitespace()).expect("roles"));
        let identity = Identity { principal, roles, number: None };
        NEEDS.map(|need| if identity.may(need).is_ok() { '+' } else { '-' }).iter().collect()
    }

    /// Principal and roles against needs: `+` is allowed.
    #[test]
    fn each_role_allows_what_it_says_and_nothing_else() {
        let ada = || Principal::Token("ada".into());
        for (principal, roles, expected) in [
            // any, read in and out, list in and all, write in and out, a range of them in and all,
            // propose, recovery, operator, backup, its state
            (ada(), "", "--------------"),
            (ada(), "read", "+++++--------+"),
            (ada(), "read:app/", "++-+----------"),
            (ada(), "write", "++++++++++---+"),
            (ada(), "write:app/", "++-+-+-+-+----"),
            (ada(), "operator", "+---------+++-"),
            (ada(), "read operator", "+++++-----++++"),
            (ada(), "read write:app/", "++++++-+-+---+"),
            (ada(), "read write:app/ operator", "++++++-+-+++++"),
            (Principal::Certificate("ada".into()), "write:app/", "++-+-+-+-+----"),
            (Principal::Certificate("ada".into()), "", "--------------"),
            // Neither of these has roles. They would not count if it had. A member has the state anyway.
            (Principal::Member(1), "", "+---------+-++"),
            (Principal::Member(1), "read write operator", "+---------+-++"),
            (Principal::Insecure, "", "++++++++++++++"),
        ] {
            assert_eq!(allowed(principal.clone(), roles), expected, "{principal} with `{roles}`");
        }
    }

    #[test]
    fn the_refusal_of_a_range_names_it_and_a_role_for_all_of_its_keys() {
        let roles = Arc::new(Roles::parse(["write:other/"]).expect("roles"));
        let identity = Identity { principal: Principal::Token("ada".into()), roles, number: None };
        type Case<'a> = (&'a [u8], Option<&'a [u8]>, &'a str, &'a str);
        let ranges: [Case<'_>; 5] = [
            (b"", None, "write all keys:", "`write`"),
            (b"app/", Some(b"app0"), "write the keys that begin with `app/`:", "`write:app/`"),
            (b"app/1", Some(b"app/25"), "the keys from `app/1` until `app/25`:", "`write:app/`"),
            (b"app/", None, "the keys from `app/` on:", "`write`"),
            (b"a", Some(b"c"), "the keys from `a` until `c`:", "`write`"),
        ];
        for (start, end, what, role) in ranges {
            let need = Need::WriteRange { start, end };
            let told = identity.may(need).expect_err("outside").to_string();
            assert!(told.contains(what) && told.contains(&format!("add {role} ")), "{told}");
        }
        let own = Need::WriteRange { start: b"other/1", end: Some(b"other/2") };
        assert!(identity.may(own).is_ok());
        let member = Identity { principal: Principal::Member(1), ..identity };
        assert!(member.may(own).is_err());
    }

    #[test]
    fn a_refusal_names_who_asked_what_it_lacks_and_what_would_allow_it() {
        let roles = Arc::new(Roles::parse(["write:app/"]).expect("roles"));
        let identity = Identity { principal: Principal::Token("ada".into()), roles, number: None };
        let told = identity.may(Need::Write(b"other key")).expect_err("outside").to_string();
        assert_eq!(
            told,
            "token ada may not write key `other%20key`: it has `write:app/`; add `write:other%20key` to `access.ada` in the \
             configuration of every member"
        );
        let long = vec![b'k'; 2000];
        assert!(identity.may(Need::Read(&long)).expect_err("outside").to_string().len() < 400);
        type Case<'a> = (&'a [u8], Option<&'a [u8]>, &'a str);
        let ranges: [Case<'_>; 5] = [
            (b"", None, "list all keys: it has `write:app/`; add `read` to"),
            (
                b"b/",
                Some(b"b0"),
                "list the keys that begin with `b/`: it has `write:app/`; add `read:b/` to",
            ),
            (
                b"b/1",
                Some(b"b/1x"),
                "list the keys from `b/1` until `b/1x`: it has `write:app/`; add `read:b/1` to",
            ),
            (
                b"b/1",
                Some(b"b/3"),
                "list the keys from `b/1` until `b/3`: it has `write:app/`; add `read:b/` to",
            ),
            (b"app/1", None, "list the keys from `app/1` on: it has `write:app/`; add `read` to"),
        ];
        for (start, end, said) in ranges {
            let told = identity.may(Need::ReadRange { start, end }).expect_err("outside");
            assert!(told.to_string().contains(said), "{told}");
        }
        let nobody = Identity {
            principal: Principal::Certificate("ben".into()),
            roles: Arc::default(),
            number: None,
        };
        let told = nobody.may(Need::AnyRole).expect_err("no role").to_string();
        assert!(
            told.contains("certificate ben") && told.contains("no role on this node"),
            "{told}"
        );
    }
}
