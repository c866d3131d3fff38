//! Where the cluster is. Looked up in this order: `--endpoints`, `CAIRN_ENDPOINTS`, the file `.cairn/endpoints` that
//! `cairn dev` leaves in the folder where it was started (that folder or any above the current one), and last the
//! address that a server listens on by default.

use super::DEFAULT_ENDPOINT;
use super::exit::UsageError;
use cairn_client::{Client, Options};
use clap::Args;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Left by `cairn dev`.
const ENDPOINTS_FILE: &str = ".cairn/endpoints";

/// Options of every command that talks to a cluster.
#[derive(Args, Clone, Debug)]
pub(crate) struct ConnectOptions {
    /// Nodes to ask, host:port each, separated by commas; one that is alive is enough. Default: what `cairn dev` left in
    /// .cairn/endpoints here or in a folder above, else 127.0.0.1:7400
    #[arg(short, long, value_delimiter = ',', env = "CAIRN_ENDPOINTS")]
    endpoints: Vec<String>,

    /// How long to try, all retries together
    #[arg(long, default_value = "10s", env = "CAIRN_TIMEOUT", value_parser = humantime::parse_duration)]
    timeout: Duration,
}

impl ConnectOptions {
    /// Endpoints as given or found.
    pub(crate) fn endpoints(&self) -> Result<Vec<String>, UsageError> {
        if !self.endpoints.is_empty() {
            return Ok(self.endpoints.clone());
        }
        let here = std::env::current_dir()
            .map_err(|error| UsageError(format!("the current folder cannot be told: {error}")))?;
        Ok(remembered(&here).unwrap_or_else(|| vec![DEFAULT_ENDPOINT.to_string()]))
    }

    /// How long one request may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Options for a client.
    pub(crate) fn options(&self) -> Result<Options, UsageError> {
        Ok(Options::new(self.endpoints()?).deadline(self.timeout))
    }

    /// A client that connects with its first request.
    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        Ok(self.options()?.build()?)
    }
}

fn remembered(here: &Path) -> Option<Vec<String>> {
    let text =
        here.ancestors().find_map(|folder| std::fs::read_to_string(folder.join(ENDPOINTS_FILE)).ok())?;
    let endpoints: Vec<String> =
        text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_string).collect();
    (!endpoints.is_empty()).then_some(endpoints)
}

/// Where endpoints are remembered for commands that run in this folder.
pub(crate) fn endpoints_file() -> PathBuf {
    PathBuf::from(ENDPOINTS_FILE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_found_in_the_folder_and_in_those_above_it() {
        let root = tempfile::tempdir().expect("a folder");
        let below = root.path().join("a/b");
        std::fs::create_dir_all(&below).expect("folders");
        std::fs::create_dir_all(root.path().join(".cairn")).expect("a folder");
        std::fs::write(root.path().join(ENDPOINTS_FILE), "127.0.0.1:1\n127.0.0.1:2\n").expect("a file");
        assert_eq!(remembered(&below), Some(vec!["127.0.0.1:1".into(), "127.0.0.1:2".into()]));
    }
}
