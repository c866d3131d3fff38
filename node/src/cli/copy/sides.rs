//! The two clusters of a copy: where each is, and what this client proves its name with there.
//!
//! What holds here: no credential of one side reaches the other one. Nothing comes from the environment,
//! where a token or a certificate does not say of which cluster it is. A cluster is not copied onto itself.

use crate::cli::connect::{files, with_certificates};
use crate::cli::exit::UsageError;
use cairn_client::{Client, Member, Options};
use cairn_tls::Files;
use clap::Args;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The cluster that is read.
#[derive(Args, Clone, Debug)]
pub(super) struct FromArgs {
    /// Nodes of the cluster to read, host:port each, separated by commas; one that answers is enough
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', required = true)]
    from: Vec<String>,

    /// File with the token that names this client to the cluster that is read. It needs the roles
    /// `operator` and `read` of all keys there
    #[arg(long, value_name = "FILE")]
    from_token_file: Option<PathBuf>,

    /// CAs of the cluster that is read, in PEM. With this and the next two the connection is TLS
    #[arg(long, value_name = "FILE", requires_all = ["from_tls_certificate", "from_tls_key"])]
    from_tls_ca: Option<PathBuf>,

    /// Own certificate for the cluster that is read, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["from_tls_ca", "from_tls_key"])]
    from_tls_certificate: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["from_tls_ca", "from_tls_certificate"])]
    from_tls_key: Option<PathBuf>,
}

/// The cluster that is written.
#[derive(Args, Clone, Debug)]
pub(super) struct ToArgs {
    /// Nodes of the cluster to write, host:port each, separated by commas; one that answers is enough
    #[arg(long, value_name = "ADDRESSES", value_delimiter = ',', required = true)]
    to: Vec<String>,

    /// File with the token that names this client to the cluster that is written. It needs the role
    /// `write` of the keys there
    #[arg(long, value_name = "FILE")]
    to_token_file: Option<PathBuf>,

    /// CAs of the cluster that is written, in PEM. With this and the next two the connection is TLS
    #[arg(long, value_name = "FILE", requires_all = ["to_tls_certificate", "to_tls_key"])]
    to_tls_ca: Option<PathBuf>,

    /// Own certificate for the cluster that is written, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["to_tls_ca", "to_tls_key"])]
    to_tls_certificate: Option<PathBuf>,

    /// Key of that certificate, in PEM
    #[arg(long, value_name = "FILE", requires_all = ["to_tls_ca", "to_tls_certificate"])]
    to_tls_key: Option<PathBuf>,
}

/// The options of either side, and how their names begin.
struct Side<'a> {
    name: &'static str,
    endpoints: &'a [String],
    token_file: Option<&'a Path>,
    tls: Option<Files>,
}

impl FromArgs {
    /// A client that connects with its first request.
    pub(super) fn client(&self, timeout: Duration) -> anyhow::Result<Client> {
        let tls = [&self.from_tls_ca, &self.from_tls_certificate, &self.from_tls_key];
        let side = Side {
            name: "--from",
            endpoints: &self.from,
            token_file: self.from_token_file.as_deref(),
            tls: files(tls),
        };
        side.client(timeout)
    }
}

impl ToArgs {
    /// A client that connects with its first request.
    pub(super) fn client(&self, timeout: Duration) -> anyhow::Result<Client> {
        let tls = [&self.to_tls_ca, &self.to_tls_certificate, &self.to_tls_key];
        let side = Side {
            name: "--to",
            endpoints: &self.to,
            token_file: self.to_token_file.as_deref(),
            tls: files(tls),
        };
        side.client(timeout)
    }
}

impl Side<'_> {
    fn client(self, timeout: Duration) -> anyhow::Result<Client> {
        let name = self.name;
        let given = self.endpoints.iter().filter(|endpoint| !endpoint.is_empty()).cloned();
        let mut options = with_certificates(Options::new(given).deadline(timeout), self.tls);
        if let Some(path) = self.token_file {
            let wrong =
                |why: String| UsageError(format!("{name}-token-file {}: {why}", path.display()));
            let token = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
            options = options.token(token).map_err(|error| wrong(error.to_string()))?;
        }
        options.build().map_err(|error| anyhow::Error::new(error).context(name))
    }
}

/// The names of both clusters.
///
/// # Errors
/// A [`UsageError`] if both are one cluster; if no node of one of them answers.
pub(super) async fn apart(from: &Client, to: &Client) -> anyhow::Result<(String, String)> {
    let source = members(from, "--from").await?;
    let target = members(to, "--to").await?;
    let names = (from.cluster().unwrap_or_default(), to.cluster().unwrap_or_default());
    match share(&source, &target) {
        false => Ok(names),
        true => {
            let why = format!(
                "--from and --to are both the cluster `{}`: a cluster is not copied onto itself; name another one",
                names.0
            );
            Err(UsageError(why).into())
        }
    }
}

async fn members(client: &Client, side: &'static str) -> anyhow::Result<Vec<Member>> {
    client.members().await.map_err(|error| anyhow::Error::new(error).context(side))
}

/// Whether a node is a member of both. Identities are random; names and addresses may be the same in two
/// clusters.
fn share(source: &[Member], target: &[Member]) -> bool {
    let ids = |members: &[Member]| -> BTreeSet<u64> {
        members.iter().map(|member| member.node_id).collect()
    };
    !ids(source).is_disjoint(&ids(target))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Both {
        #[command(flatten)]
        from: FromArgs,
        #[command(flatten)]
        to: ToArgs,
    }

    fn both(more: &[&str]) -> Result<Both, clap::Error> {
        let always = ["copy", "--from", "127.0.0.1:1,127.0.0.1:2", "--to", "127.0.0.1:3"];
        Both::try_parse_from(always.iter().chain(more))
    }

    #[tokio::test]
    async fn each_side_has_addresses_and_credentials_of_its_own() {
        let sides = both(&[]).expect("both sides");
        let limit = Duration::from_secs(1);
        let from = sides.from.client(limit).expect("addresses");
        assert_eq!(from.endpoints(), ["127.0.0.1:1", "127.0.0.1:2"]);
        assert_eq!(sides.to.client(limit).expect("an address").endpoints(), ["127.0.0.1:3"]);
        let sides = both(&["--to-token-file", "/no such file"]).expect("both sides");
        sides.from.client(limit).expect("that is not its token");
        let error = sides.to.client(limit).expect_err("no such file");
        assert!(error.to_string().starts_with("--to-token-file /no such file: "), "{error}");
        // A part of the certificate's files is none.
        assert!(both(&["--from-tls-ca", "a"]).is_err());
        assert!(both(&["--to-tls-key", "a", "--to-tls-ca", "b"]).is_err());
    }
}
