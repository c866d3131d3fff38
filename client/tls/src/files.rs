//! The CA, the certificate and the key of this process, and how they are replaced while it runs.
//!
//! What holds here: what is in use has passed every check: the key fits the certificate, the
//! certificate is signed by one of the CAs, is valid now, and has a name. What replaces it has
//! passed them too, and has the same name. Files that do not pass change nothing. What was given in memory
//! is never replaced.

use crate::expiry::{Ends, Left, end_of_validity, last_end};
use crate::name::CertificateName;
use crate::origin::{Origin, Pem, Place, Unusable, why_no_pem};
use crate::refusal::Refusal;
use crate::verify::{Admits, AnsweringVerifier, ConnectingVerifier, name_in};
use parking_lot::{Mutex, RwLock};
use real_tokio as tokio;
use rustls::client::Resumption;
use rustls::client::danger::ServerCertVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::version::TLS13;
use rustls::{CertificateError, ClientConfig, InconsistentKeys, RootCertStore, ServerConfig};
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How often the files are looked at again.
pub const RELOAD_INTERVAL: Duration = Duration::from_secs(2);
/// A certificate that ends within this time is named in the log.
const ENDS_SOON: Duration = Duration::from_secs(14 * 24 * 3600);
/// Between two log lines about that.
const ENDS_SOON_INTERVAL: Duration = Duration::from_secs(24 * 3600);

/// What is spoken on a connection, as both sides name it in the handshake. A server refuses another one.
pub(crate) const H2: &[u8] = b"h2";
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// The certificates of a process. Clones share them.
#[derive(Clone)]
pub struct Tls(Arc<Shared>);

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Tls").field(&self.0.name).finish()
    }
}

struct Shared {
    origin: Origin,
    name: CertificateName,
    current: RwLock<Arc<Pair>>,
    watched: Mutex<Watched>,
}

/// What the last look at the files saw.
struct Watched {
    at: Instant,
    /// A hash of the contents that are in use.
    used: u64,
    /// The contents that could not be used, and whether that was logged. While files are being
    /// replaced they may not fit each other, so only what is seen twice is logged.
    failed: Option<(u64, bool)>,
    ends_soon_logged: Option<Instant>,
}

/// What was read at one time: all of it belongs together.
pub(crate) struct Pair {
    roots: Arc<RootCertStore>,
    certified: Arc<SingleCertAndKey>,
    provider: Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    /// The certificates of `roots`.
    authorities: Vec<CertificateDer<'static>>,
    pub(crate) peers: Arc<ServerConfig>,
    pub(crate) clients: Arc<ServerConfig>,
    pub(crate) http: Arc<ServerConfig>,
    /// Found with the first look at the files after they were read.
    ends: OnceLock<Ends>,
}

impl Tls {
    /// From [`Files`](crate::Files), which are read, or from [`Pem`]. Blocks.
    ///
    /// # Errors
    /// The first of them that cannot be used.
    pub fn load(origin: impl Into<Origin>) -> Result<Tls, Unusable> {
        let origin = origin.into();
        let (used, (name, pair)) = {
            let contents = origin.read()?;
            (contents.hash(), pair(&contents, &origin)?)
        };
        let watched = Watched { at: Instant::now(), used, failed: None, ends_soon_logged: None };
        let current = RwLock::new(Arc::new(pair));
        Ok(Tls(Arc::new(Shared { origin, name, current, watched: Mutex::new(watched) })))
    }

    /// The name of this process.
    pub fn name(&self) -> &CertificateName {
        &self.0.name
    }

    /// When the first certificate of the own chain ends, since the epoch. `None`: it has no end, or nobody
    /// has looked at the files again since they were read.
    pub fn ends(&self) -> Option<Duration> {
        self.known_ends().chain
    }

    /// The same of the CA that signed the own chain; of several with one key, the last.
    pub fn ca_ends(&self) -> Option<Duration> {
        self.known_ends().ca
    }

    /// How much longer they are valid, by the clock of this machine.
    pub fn left(&self) -> Left {
        self.known_ends().left(unix_now())
    }

    fn known_ends(&self) -> Ends {
        self.pair().ends.get().copied().unwrap_or_default()
    }

    pub(crate) fn pair(&self) -> Arc<Pair> {
        Arc::clone(&self.0.current.read())
    }

    /// Looks at the files in [`RELOAD_INTERVAL`]. Never ends.
    pub async fn watch(self) {
        loop {
            tokio::time::sleep(RELOAD_INTERVAL).await;
            self.reload_if_due().await;
        }
    }

    /// Looks at the files, if nobody has done so for [`RELOAD_INTERVAL`], on a thread for blocking
    /// calls. May be cancelled.
    pub async fn reload_if_due(&self) {
        {
            let mut watched = self.0.watched.lock();
            if watched.at.elapsed() < RELOAD_INTERVAL {
                return;
            }
            watched.at = Instant::now();
        }
        let tls = self.clone();
        let looked = tokio::task::spawn_blocking(move || tls.reload());
        if let Err(error) = looked.await {
            tracing::warn!(%error, "cannot look at the certificates");
        }
    }

    /// Looks at the files, and uses what they hold if it is new and passes. Blocks.
    pub fn reload(&self) {
        self.0.reload();
    }
}

impl Shared {
    fn reload(&self) {
        let contents = self.origin.read();
        let mut watched = self.watched.lock();
        let seen = contents.as_ref().map_or(0, |contents| contents.hash());
        if seen == watched.used {
            watched.failed = None;
            return self.note_end(&mut watched);
        }
        let read = contents.and_then(|contents| pair(&contents, &self.origin));
        let read = read.and_then(|(name, pair)| match name == self.name {
            true => Ok(pair),
            false => {
                let reason =
                    format!("the certificate is {name}, and this process is {}", self.name);
                Err(Unusable::new(self.origin.certificate(), reason))
            }
        });
        match read {
            Ok(pair) => {
                *self.current.write() = Arc::new(pair);
                watched.used = seen;
                watched.failed = None;
                watched.ends_soon_logged = None;
                tracing::info!(name = %self.name, "the certificates were read again, and are used for new connections");
                self.note_end(&mut watched);
            }
            Err(error) => match watched.failed {
                Some((failed, false)) if failed == seen => {
                    watched.failed = Some((seen, true));
                    tracing::warn!(name = %self.name, %error, "the changed certificates cannot be used; those before remain in use");
                }
                Some((failed, true)) if failed == seen => {}
                _ => watched.failed = Some((seen, false)),
            },
        }
    }

    /// Logs that the certificate ends soon, or has ended.
    fn note_end(&self, watched: &mut Watched) {
        let pair = Arc::clone(&self.current.read());
        pair.ends.get_or_init(|| {
            let now = unix_now();
            let valid = |at| pair.check(&self.name, UnixTime::since_unix_epoch(at)).is_ok();
            let signs = |ca: &&CertificateDer<'static>| pair.is_signed_by(ca, now);
            let ca = last_end(pair.authorities.iter().filter(signs));
            Ends { chain: end_of_validity(now, valid), ca }
        });
        let due = watched.ends_soon_logged.is_none_or(|at| at.elapsed() >= ENDS_SOON_INTERVAL);
        let then = UnixTime::since_unix_epoch(unix_now() + ENDS_SOON);
        if due && is_expired(&self.current.read().check(&self.name, then)) {
            watched.ends_soon_logged = Some(Instant::now());
            let file = self.origin.certificate();
            let way_out = match file {
                Place::File(_) => "replace the file, no restart is needed",
                Place::Memory(_) => "give another one to a new client",
            };
            tracing::warn!(name = %self.name, %file, "the certificate has expired or expires within 14 days; {way_out}");
        }
    }
}

fn unix_now() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

fn is_expired(checked: &Result<(), rustls::Error>) -> bool {
    use CertificateError::{Expired, ExpiredContext};
    matches!(checked, Err(rustls::Error::InvalidCertificate(Expired | ExpiredContext { .. })))
}

fn certificates(place: Place, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match read {
        Err(error) => {
            Err(Unusable::new(place, format!("not a certificate in PEM: {}", why_no_pem(&error))))
        }
        Ok(read) if read.is_empty() => Err(Unusable::new(place, "no certificate in PEM is in it")),
        Ok(read) => Ok(read),
    }
}

/// What was read, after every check. `origin` is where it was read, for errors.
fn pair(contents: &Pem, origin: &Origin) -> Result<(CertificateName, Pair), Unusable> {
    let in_ca = |reason: String| Unusable::new(origin.ca(), reason);
    let in_certificate = |reason: String| Unusable::new(origin.certificate(), reason);
    let in_key = |reason: String| Unusable::new(origin.key(), reason);
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    let authorities = certificates(origin.ca(), &contents.ca)?;
    for certificate in &authorities {
        let added = roots.add(certificate.clone());
        added.map_err(|error| in_ca(format!("not a CA: {error}")))?;
    }
    let roots = Arc::new(roots);
    let chain = certificates(origin.certificate(), &contents.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(&contents.key)
        .map_err(|error| in_key(format!("not a private key in PEM: {}", why_no_pem(&error))))?;
    let certified = CertifiedKey::from_der(chain.clone(), key, &provider);
    let certified = certified.map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            let certificate = match origin.certificate() {
                Place::File(file) => format!("the certificate in {}", file.display()),
                given => given.to_string(),
            };
            in_key(format!("it is not the key of {certificate}"))
        }
        error => in_key(error.to_string()),
    })?;
    let end_entity =
        certified.end_entity_cert().map_err(|error| in_certificate(error.to_string()))?;
    let name = name_in(end_entity).map_err(|error| in_certificate(own_reason(&error, origin)))?;
    let certified = Arc::new(SingleCertAndKey::from(certified));
    let server = |admits, required, protocol: &[u8]| {
        server_config(&provider, &roots, &certified, &name, (admits, required), protocol)
            .map_err(in_ca)
    };
    let pair = Pair {
        peers: server(Admits::Members, true, H2)?,
        clients: server(Admits::MembersAndClients, true, H2)?,
        http: server(Admits::MembersAndClients, false, HTTP1)?,
        roots,
        certified,
        provider,
        chain,
        authorities,
        ends: OnceLock::new(),
    };
    let checked = pair.check(&name, UnixTime::since_unix_epoch(unix_now()));
    checked.map_err(|error| in_certificate(own_reason(&error, origin)))?;
    Ok((name, pair))
}

/// Why the own certificate cannot be used.
fn own_reason(error: &rustls::Error, origin: &Origin) -> String {
    use CertificateError as E;
    let rustls::Error::InvalidCertificate(error) = error else { return error.to_string() };
    match error {
        E::Expired | E::ExpiredContext { .. } => "the certificate has expired; issue another one".into(),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            "the certificate is not valid yet: check this machine's clock".into()
        }
        E::UnknownIssuer | E::BadSignature => {
            match origin.ca() {
                Place::File(file) => format!("the certificate is signed by no CA in {}", file.display()),
                Place::Memory(_) => "the certificate is signed by no CA that was given".to_owned(),
            }
        }
        E::InvalidPurpose | E::InvalidPurposeContext { .. } => {
            "the certificate's extended key usage does not allow this: a member needs clientAuth and serverAuth, a client clientAuth".into()
        }
        E::Other(inner) => match inner.0.downcast_ref::<Refusal>() {
            Some(refusal) => refusal.reason.replace("the other side's certificate", "the certificate"),
            None => inner.0.to_string(),
        },
        other => other.to_string(),
    }
}

fn server_config(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    certified: &Arc<SingleCertAndKey>,
    name: &CertificateName,
    (admits, required): (Admits, bool),
    protocol: &[u8],
) -> Result<Arc<ServerConfig>, String> {
    let chain = client_chain(provider, roots, required)?;
    let verifier = ConnectingVerifier { chain, cluster: name.cluster.clone(), admits };
    let config = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?;
    let mut config =
        config.with_client_cert_verifier(Arc::new(verifier)).with_cert_resolver(certified.clone());
    config.alpn_protocols = vec![protocol.to_vec()];
    // No session is resumed: a certificate that is no longer accepted opens no new connection.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// Checks chain, validity and usage of those who connect.
fn client_chain(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    required: bool,
) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let builder = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    builder.build().map_err(|error| error.to_string())
}

impl Pair {
    fn answering(&self, name: &CertificateName, slot: Option<u16>) -> AnsweringVerifier {
        AnsweringVerifier {
            roots: self.roots.clone(),
            algorithms: self.provider.signature_verification_algorithms,
            cluster: name.cluster.clone(),
            slot,
        }
    }

    /// For a connection to the member of `slot`, or to any member.
    pub(crate) fn client_config(
        &self,
        own: &CertificateName,
        slot: Option<u16>,
        protocol: &[u8],
    ) -> Result<Arc<ClientConfig>, rustls::Error> {
        let mut config = ClientConfig::builder_with_provider(self.provider.clone())
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(self.answering(own, slot)))
            .with_client_cert_resolver(self.certified.clone());
        config.alpn_protocols = vec![protocol.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Arc::new(config))
    }

    /// Whether the own chain leads to this CA.
    fn is_signed_by(&self, ca: &CertificateDer<'static>, now: Duration) -> bool {
        let Some((own, intermediates)) = self.chain.split_first() else { return false };
        let mut roots = RootCertStore::empty();
        if roots.add(ca.clone()).is_err() {
            return false;
        }
        let now = UnixTime::since_unix_epoch(now);
        client_chain(&self.provider, &Arc::new(roots), true)
            .is_ok_and(|chain| chain.verify_client_cert(own, intermediates, now).is_ok())
    }

    /// Checks the own certificate as the others will at `now`.
    fn check(&self, name: &CertificateName, now: UnixTime) -> Result<(), rustls::Error> {
        let Some((own, intermediates)) = self.chain.split_first() else { return Ok(()) };
        let chain =
            client_chain(&self.provider, &self.roots, true).map_err(rustls::Error::General)?;
        chain.verify_client_cert(own, intermediates, now)?;
        if name.slot().is_some() {
            let nowhere = ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into());
            self.answering(name, name.slot()).verify_server_cert(
                own,
                intermediates,
                &nowhere,
                &[],
                now,
            )?;
        }
        Ok(())
    }
}
