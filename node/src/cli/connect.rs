//! Finds the cluster. The order is: `--endpoints`, `CAIRN_ENDPOINTS`, the file `.cairn/endpoints`
//! that `cairn dev` writes into the folder where it was started (the current folder or any above
//! it), and last the default address of a server.

use super::DEFAULT_ENDPOINT;
use super::exit::UsageError;
use super::http::HttpReader;
use cairn_client::{Client, Error, Options, ReadFrom};
use cairn_tls::{Files, Tls};
use clap::Args;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A length of time, such as `10s`; a number alone means seconds.
///
/// # Errors
/// A sentence that says what was expected.
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    if let Ok(seconds) = text.trim().parse::<f64>() {
        let time = Duration::try_from_secs_f64(seconds);
        return time.map_err(|_| "expected a number of seconds that is not negative".into());
    }
    humantime::parse_duration(text).map_err(|error| {
        format!("{error}; expected seconds, or a length of time such as 500ms or 2m")
    })
}

/// Written by `cairn dev`.
pub(crate) const ENDPOINTS_FILE: &str = ".cairn/endpoints";
/// Written beside it: the HTTP port of each node.
pub(crate) const HTTP_FILE: &str = ".cairn/http";

/// The environment variable with the nodes to ask.
const ENDPOINTS_VARIABLE: &str = "CAIRN_ENDPOINTS";

/// The environment variable with the client's token.
const TOKEN_VARIABLE: &str = "CAIRN_TOKEN";

/// Options of every command that talks to a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectOptions {
    #[command(flatten)]
    cluster: ClusterOptions,

    /// How long to try, all retries together [default: 10s]
    #[arg(long, default_value = "10s", env = "CAIRN_TIMEOUT", value_parser = time)]
    #[arg(hide_env = true, hide_default_value = true)]
    timeout: Duration,
}

/// Where the cluster is, and what this client proves its name with.
#[derive(Args, Clone, Debug)]
pub(crate) struct ClusterOptions {
    /// Nodes to ask, host:port each, separated by commas; one that answers is enough
    #[arg(short, long, value_delimiter = ',', env = ENDPOINTS_VARIABLE, hide_env = true)]
    endpoints: Vec<String>,

    /// File with the token that names this client to the servers. Default: the token in CAIRN_TOKEN, if
    /// there is one
    #[arg(long, value_name = "FILE", env = "CAIRN_TOKEN_FILE", hide_env = true)]
    token_file: Option<PathBuf>,

    /// CAs of the cluster, in PEM. With this and the next two the connection is TLS, and only a
    /// member of the cluster that the certificate names may answer
    #[arg(long, value_name = "FILE", env = "CAIRN_CLIENT_TLS_CA", hide_env = true, requires_all = ["tls_certificate", "tls_key"])]
    tls_ca: Option<PathBuf>,

    /// Own certificate, in PEM; `cairn certs issue DIR --client NAME` makes one
    #[arg(long, value_name = "FILE", env = "CAIRN_CLIENT_TLS_CERTIFICATE", hide_env = true, requires_all = ["tls_ca", "tls_key"])]
    tls_certificate: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "CAIRN_CLIENT_TLS_KEY", hide_env = true, requires_all = ["tls_ca", "tls_certificate"])]
    tls_key: Option<PathBuf>,
}

impl ConnectOptions {
    /// Endpoints as given, or as found.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>, UsageError> {
        self.cluster.endpoints()
    }

    /// The HTTP ports of the cluster of `cairn dev` that is found here. None, if endpoints are given: they may be of
    /// another one.
    pub(crate) fn http_found(&self) -> Vec<String> {
        let here = std::env::current_dir().ok().filter(|_| self.cluster.given().is_empty());
        here.and_then(|here| remembered(&here, HTTP_FILE)).unwrap_or_default()
    }

    /// A client with so many connections to each node, connected.
    pub(crate) async fn connected(
        &self,
        connections: usize,
        read_from: ReadFrom,
    ) -> anyhow::Result<Client> {
        let options = self.cluster.options(self.timeout)?.connections_per_node(connections);
        let options = options.read_from(read_from);
        options.connect().await.map_err(|error| self.cluster.with_origin(error))
    }

    /// How long to try.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// A client like that, but for requests that take at most this long each.
    pub(crate) fn client_within(&self, limit: Duration) -> anyhow::Result<Client> {
        self.cluster.client(self.timeout.min(limit))
    }

    /// A client that connects with its first request.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.cluster.client(self.timeout)
    }

    /// The same. Where no endpoint is given it asks this one, and without certificates it proves its name with
    /// these.
    pub(crate) fn client_or(
        &self,
        endpoint: Option<String>,
        files: Option<Files>,
    ) -> anyhow::Result<Client> {
        let cluster = &self.cluster;
        let endpoints = match endpoint.filter(|_| cluster.given().is_empty()) {
            Some(endpoint) => vec![endpoint],
            None => cluster.endpoints()?,
        };
        let files = cluster.tls_files().or(files);
        let options = cluster.options_to(endpoints, files, self.timeout)?;
        options.build().map_err(|error| cluster.with_origin(error))
    }

    /// The token that names this client, if there is one.
    pub(crate) fn token(&self) -> Result<Option<String>, UsageError> {
        self.cluster.token()
    }

    /// A reader of HTTP ports, for answers that take at most this long each, with the certificates and the
    /// token of the client port; without certificates, with these.
    pub(crate) fn http_within(
        &self,
        limit: Duration,
        otherwise: Option<Files>,
    ) -> Result<HttpReader, UsageError> {
        let files = self.cluster.tls_files().or(otherwise);
        let load = |files| Tls::load(files).map_err(|error| UsageError(error.to_string()));
        let tls = files.map(load).transpose()?;
        HttpReader::new(tls, self.cluster.token()?.as_deref(), self.timeout.min(limit))
    }
}

impl ClusterOptions {
    /// Endpoints as given, or as found.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>, UsageError> {
        let given = self.given();
        if !given.is_empty() {
            return Ok(given);
        }
        let here = std::env::current_dir()
            .map_err(|error| UsageError(format!("cannot read the current folder: {error}")))?;
        Ok(remembered(&here, ENDPOINTS_FILE).unwrap_or_else(|| vec![DEFAULT_ENDPOINT.to_string()]))
    }

    /// Endpoints as given.
    fn given(&self) -> Vec<String> {
        self.endpoints.iter().filter(|endpoint| !endpoint.is_empty()).cloned().collect()
    }

    /// A client that connects with its first request. Each takes at most this long.
    pub(crate) fn client(&self, timeout: Duration) -> anyhow::Result<Client> {
        self.options(timeout)?.build().map_err(|error| self.with_origin(error))
    }

    /// An endpoint that is none, with the variable that gave it.
    fn with_origin(&self, error: Error) -> anyhow::Error {
        let given =
            std::env::var(ENDPOINTS_VARIABLE).is_ok_and(|text| text == self.endpoints.join(","));
        match &error {
            Error::InvalidOptions(why) if given && why.starts_with("endpoint") => {
                anyhow::Error::new(error).context(ENDPOINTS_VARIABLE)
            }
            _ => error.into(),
        }
    }

    /// Options for a client whose requests take at most this long each.
    fn options(&self, timeout: Duration) -> Result<Options, UsageError> {
        self.options_to(self.endpoints()?, self.tls_files(), timeout)
    }

    /// The same to these endpoints, with these certificates.
    fn options_to(
        &self,
        endpoints: Vec<String>,
        files: Option<Files>,
        timeout: Duration,
    ) -> Result<Options, UsageError> {
        let options = with_certificates(Options::new(endpoints).deadline(timeout), files);
        match self.token()? {
            Some(token) => options.token(token).map_err(|error| UsageError(error.to_string())),
            None => Ok(options),
        }
    }

    /// The certificates, if they are given.
    fn tls_files(&self) -> Option<Files> {
        files([&self.tls_ca, &self.tls_certificate, &self.tls_key])
    }

    /// The client's token. A flag could be read by every user of the machine.
    fn token(&self) -> Result<Option<String>, UsageError> {
        let Some(path) = &self.token_file else {
            return Ok(std::env::var(TOKEN_VARIABLE).ok().filter(|token| !token.is_empty()));
        };
        let unreadable = |error| UsageError(format!("--token-file {}: {error}", path.display()));
        std::fs::read_to_string(path).map(Some).map_err(unreadable)
    }
}

/// The CAs, the certificate and its key, if all three are given.
pub(crate) fn files([ca, certificate, key]: [&Option<PathBuf>; 3]) -> Option<Files> {
    Some(Files { ca: ca.clone()?, certificate: certificate.clone()?, key: key.clone()? })
}

/// The options of a client that proves its name with these, if there are any.
pub(crate) fn with_certificates(options: Options, files: Option<Files>) -> Options {
    match files {
        Some(Files { ca, certificate, key }) => options.tls(ca, certificate, key),
        None => options,
    }
}

/// The addresses in this file of `cairn dev`, of the first folder that has its endpoints.
fn remembered(here: &Path, file: &str) -> Option<Vec<String>> {
    let folder = here.ancestors().find(|folder| written(&folder.join(ENDPOINTS_FILE)).is_some())?;
    let text = written(&folder.join(file))?;
    let addresses: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect();
    (!addresses.is_empty()).then_some(addresses)
}

fn written(file: &Path) -> Option<String> {
    let ours = file.parent().is_some_and(is_ours) && is_ours(file);
    ours.then(|| std::fs::read_to_string(file).ok())?
}

/// Whether nobody else can have written it. Everything goes to these endpoints, a token too, and anybody may
/// write to a folder above, such as `/tmp`.
fn is_ours(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    std::fs::symlink_metadata(path).is_ok_and(|found| {
        !found.is_symlink() && is_written_only_by(user, (found.uid(), found.mode()))
    })
}

/// Whether nobody but this user, and root, can have written a file of this owner and mode.
fn is_written_only_by(user: u32, (owner, mode): (u32, u32)) -> bool {
    [0, user].contains(&owner) && mode & 0o002 == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_number_alone_means_seconds() {
        for (text, expected) in
            [("5", 5000), ("0.5", 500), ("500ms", 500), ("2m", 120_000), ("0", 0)]
        {
            assert_eq!(time(text), Ok(Duration::from_millis(expected)), "{text}");
        }
        for bad in ["", "soon", "-1", "NaN", "inf", "1e300", "5 s s"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn endpoints_are_found_in_the_folder_and_in_those_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        let below = root.path().join("a/b");
        std::fs::create_dir_all(&below).expect("folders");
        std::fs::create_dir_all(root.path().join(".cairn")).expect("a folder");
        std::fs::write(root.path().join(ENDPOINTS_FILE), "127.0.0.1:1\n127.0.0.1:2\n")
            .expect("a file");
        let found = || remembered(&below, ENDPOINTS_FILE);
        assert_eq!(remembered(&below, HTTP_FILE), None, "of a cluster without HTTP ports");
        std::fs::write(root.path().join(HTTP_FILE), "127.0.0.1:3\n").expect("a file");
        assert_eq!(remembered(&below, HTTP_FILE), Some(vec!["127.0.0.1:3".into()]));
        let both = Some(vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()]);
        assert_eq!(found(), both);
        // What others may write is nothing to go by.
        for path in [".cairn", ENDPOINTS_FILE].map(|path| root.path().join(path)) {
            let mode = std::fs::metadata(&path).expect("there").permissions();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o777)).expect("ours");
            assert_eq!(found(), None, "{}", path.display());
            std::fs::set_permissions(&path, mode).expect("ours");
            assert_eq!(found(), both);
        }
        // Nor is what a link leads to: who owns the file does not say who made the link.
        let file = root.path().join(ENDPOINTS_FILE);
        let moved = root.path().join("moved");
        std::fs::rename(&file, &moved).expect("ours");
        std::os::unix::fs::symlink(&moved, &file).expect("a link");
        assert_eq!(found(), None, "a link");
        assert_eq!(remembered(&below, HTTP_FILE), None, "of a cluster that is not found");
    }

    /// The story: somebody made `/tmp/.cairn/endpoints`, and whoever worked below `/tmp` sent a token there.
    #[test]
    fn endpoints_of_another_user_are_not_taken() {
        let taken = |owner, mode| is_written_only_by(1000, (owner, mode));
        for ours in [(1000, 0o644), (1000, 0o664), (0, 0o644), (0, 0o40_755)] {
            assert!(taken(ours.0, ours.1), "{ours:?}");
        }
        for others in [(1001, 0o644), (1001, 0o600), (65_534, 0o644), (1000, 0o646), (0, 0o41_777)]
        {
            assert!(!taken(others.0, others.1), "{others:?}");
        }
        assert!(!is_written_only_by(0, (1000, 0o600)), "root does not go by a user's");
    }
}
