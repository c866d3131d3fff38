//! From credentials to an identity, as the configuration is now. The entries can be replaced while
//! the node runs; a stream that is open then is judged by the new ones from its next call on.

use super::credentials::{CertificateName, Credentials};
use super::entries::Entries;
use super::identity::{Denied, Identity, Principal};
use super::roles::Roles;
use super::token::TokenHash;
use parking_lot::{Mutex, RwLock};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Who may do what on this node. Clones share it.
#[derive(Clone)]
pub(crate) struct AccessTable {
    shared: Arc<Shared>,
}

struct Shared {
    /// Connections prove names by certificates.
    certificates: bool,
    /// Of those to whom roles do not apply.
    no_roles: Arc<Roles>,
    /// Rises with each replacement.
    version: AtomicU64,
    known: RwLock<Known>,
}

#[derive(Default)]
struct Known {
    /// Neither certificates nor entries: everybody may do everything.
    insecure: bool,
    names: BTreeMap<Arc<str>, Arc<Roles>>,
    tokens: Vec<(TokenHash, Arc<str>)>,
    /// Of a name without an entry.
    others: Arc<Roles>,
}

impl Known {
    fn of(certificates: bool, entries: &Entries) -> Known {
        let insecure = !certificates && entries.is_empty();
        let mut known = Known { insecure, ..Known::default() };
        if entries.is_empty() {
            known.others = Arc::new(Roles::all());
        }
        for (name, entry) in entries.iter() {
            let name: Arc<str> = name.into();
            known.tokens.extend(entry.token.map(|hash| (hash, Arc::clone(&name))));
            known.names.insert(name, Arc::new(entry.roles.clone()));
        }
        known
    }

    fn named(&self, name: &Arc<str>, of: impl Fn(Arc<str>) -> Principal) -> Identity {
        let roles = Arc::clone(self.names.get(name).unwrap_or(&self.others));
        Identity { principal: of(Arc::clone(name)), roles, number: Some(number(name)) }
    }

    /// The name of a token. Compares it with every hash, so that the time tells nothing.
    fn token(&self, presented: &TokenHash) -> Option<&Arc<str>> {
        let tokens = self.tokens.iter();
        tokens.fold(None, |found, (hash, name)| if hash.is(presented) { Some(name) } else { found })
    }
}

/// Equal for equal names. Two names that share a number share what they may hold.
fn number(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl AccessTable {
    /// A table of these entries. Where connections have no `certificates` and there is no entry,
    /// everybody may do everything.
    pub(crate) fn new(certificates: bool, entries: &Entries) -> AccessTable {
        let (version, known) = (AtomicU64::new(0), RwLock::new(Known::of(certificates, entries)));
        let no_roles = Arc::default();
        AccessTable { shared: Arc::new(Shared { certificates, no_roles, version, known }) }
    }

    /// Replaces all entries.
    pub(crate) fn replace(&self, entries: &Entries) {
        let mut known = self.shared.known.write();
        *known = Known::of(self.shared.certificates, entries);
        self.shared.version.fetch_add(1, Ordering::Release);
    }

    /// Who presents these credentials, and with what roles.
    ///
    /// # Errors
    /// Every one of [`Denied`] but `Lacks`: they prove no name.
    pub(crate) fn identify(&self, credentials: &Credentials) -> Result<Identity, Denied> {
        let alone = |principal| {
            let roles = Arc::clone(&self.shared.no_roles);
            Identity { principal, roles, number: None }
        };
        let known = self.shared.known.read();
        if known.insecure {
            return Ok(alone(Principal::Insecure));
        }
        match credentials {
            Credentials::None => Err(Denied::Nobody),
            Credentials::Malformed => Err(Denied::Malformed),
            // No name of a client has a space.
            Credentials::Certificate(CertificateName::Member(slot)) => {
                let principal = Principal::Member(*slot);
                let number = Some(number(&principal.to_string()));
                Ok(Identity { number, ..alone(principal) })
            }
            Credentials::Certificate(CertificateName::Client(name)) => {
                Ok(known.named(name, Principal::Certificate))
            }
            Credentials::Token(hash) => {
                let name = known.token(hash).ok_or(Denied::UnknownToken)?;
                Ok(known.named(name, Principal::Token))
            }
        }
    }
}

/// The identity behind a stream of calls.
pub(crate) struct Session {
    table: AccessTable,
    credentials: Credentials,
    /// With the version of the table that it comes from.
    latest: Mutex<(u64, Identity)>,
}

impl Session {
    /// The session of these credentials.
    ///
    /// # Errors
    /// As [`AccessTable::identify`].
    pub(crate) fn begin(table: &AccessTable, credentials: Credentials) -> Result<Session, Denied> {
        let version = table.shared.version.load(Ordering::Acquire);
        let identity = table.identify(&credentials)?;
        Ok(Session { table: table.clone(), credentials, latest: Mutex::new((version, identity)) })
    }

    /// The identity as the table is now.
    ///
    /// # Errors
    /// As [`AccessTable::identify`].
    pub(crate) fn identity(&self) -> Result<Identity, Denied> {
        let version = self.table.shared.version.load(Ordering::Acquire);
        let mut latest = self.latest.lock();
        if latest.0 != version {
            *latest = (version, self.table.identify(&self.credentials)?);
        }
        Ok(latest.1.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Need;

    fn entries(text: &str) -> Entries {
        Entries::parse(text).expect("entries")
    }

    fn token(secret: &str) -> Credentials {
        Credentials::Token(TokenHash::of(secret.as_bytes()))
    }

    fn client(name: &str) -> Credentials {
        Credentials::Certificate(CertificateName::Client(name.into()))
    }

    fn two_tokens() -> Entries {
        let (ada, ben) = (TokenHash::of(b"ada's"), TokenHash::of(b"ben's"));
        entries(&format!("ada=read token:{ada},ben=write:b/ token:{ben},ci=operator"))
    }

    #[test]
    fn credentials_are_the_name_that_they_prove_or_nobody() {
        let table = AccessTable::new(true, &two_tokens());
        let named = |credentials: Credentials| {
            table.identify(&credentials).map(|identity| identity.principal.to_string())
        };
        assert_eq!(named(token("ada's")), Ok("token ada".into()));
        assert_eq!(named(token("ben's")), Ok("token ben".into()));
        assert_eq!(named(client("ci")), Ok("certificate ci".into()));
        let member = Credentials::Certificate(CertificateName::Member(3));
        assert_eq!(named(member), Ok("member 3".into()));
        assert_eq!(named(token("ada")), Err(Denied::UnknownToken));
        assert_eq!(named(Credentials::None), Err(Denied::Nobody));
        assert_eq!(named(Credentials::Malformed), Err(Denied::Malformed));
        let stranger = table.identify(&client("stranger")).expect("a name");
        assert!(stranger.may(Need::AnyRole).is_err());
    }

    #[test]
    fn without_certificates_a_node_asks_for_nothing_while_it_has_no_entries() {
        let table = AccessTable::new(false, &Entries::default());
        let open = Session::begin(&table, Credentials::None).expect("anybody");
        for credentials in [Credentials::None, Credentials::Malformed, token("x"), client("x")] {
            let identity = table.identify(&credentials).expect("anybody");
            assert_eq!(identity.principal, Principal::Insecure);
            assert_eq!(identity.may(Need::Operator), Ok(()));
        }
        table.replace(&two_tokens());
        assert_eq!(open.identity().err(), Some(Denied::Nobody));
        assert_eq!(table.identify(&token("x")).err(), Some(Denied::UnknownToken));
        assert!(table.identify(&token("ada's")).is_ok());
        table.replace(&Entries::default());
        assert_eq!(open.identity().expect("anybody").principal, Principal::Insecure);
    }

    #[test]
    fn without_entries_every_certificate_of_the_cluster_may_do_everything_and_no_token_is_known() {
        let table = AccessTable::new(true, &Entries::default());
        let ada = table.identify(&client("ada")).expect("a certificate");
        assert_eq!(ada.principal.to_string(), "certificate ada");
        let all = Need::ReadRange { start: b"", end: None };
        for need in [Need::AnyRole, Need::Write(b"k"), all, Need::Operator] {
            assert_eq!(ada.may(need), Ok(()), "{need:?}");
        }
        let member = table.identify(&Credentials::Certificate(CertificateName::Member(3)));
        assert!(member.expect("a member").may(Need::Read(b"k")).is_err());
        assert_eq!(table.identify(&token("x")).err(), Some(Denied::UnknownToken));
        assert_eq!(table.identify(&Credentials::None).err(), Some(Denied::Nobody));
    }

    #[test]
    fn a_name_is_one_client_by_token_and_by_certificate() {
        let table = AccessTable::new(true, &two_tokens());
        let number = |credentials| table.identify(&credentials).expect("a name").number();
        assert_eq!(number(token("ada's")), number(client("ada")));
        assert_ne!(number(token("ada's")), number(token("ben's")));
        // The story: each connection of a member's certificate was an owner of its own.
        let member = |slot| number(Credentials::Certificate(CertificateName::Member(slot)));
        assert!(member(1).is_some() && member(1) == member(1) && member(1) != member(2));
    }

    #[test]
    fn a_stream_is_judged_by_the_entries_as_they_are_at_each_call() {
        let table = AccessTable::new(true, &two_tokens());
        let session = Session::begin(&table, token("ada's")).expect("known");
        let number = session.identity().expect("known").number();
        assert_eq!(session.identity().expect("known").may(Need::Write(b"k")), Err(Denied::Lacks {
            principal: Principal::Token("ada".into()),
            what: "write key `k`".into(),
            way_out: "it has `read`; add `write:k` to `access.ada` in the configuration of every member".into(),
        }));
        let ada = TokenHash::of(b"ada's");
        table.replace(&entries(&format!("aaa=read,ada=write token:{ada}")));
        let now = session.identity().expect("known");
        assert_eq!((now.may(Need::Write(b"k")), now.number()), (Ok(()), number));
        table.replace(&entries("ada=write"));
        assert_eq!(session.identity().err(), Some(Denied::UnknownToken), "its token is revoked");
        assert_eq!(Session::begin(&table, token("ada's")).err(), Some(Denied::UnknownToken));
    }
}
