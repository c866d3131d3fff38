//! The files of a development cluster: configurations with their ports, and formatted data
//! directories.
//!
//! What holds here: the configured ports are held while the cluster runs, so that a node that ended
//! can be started again. If another program uses one of them, that is reported before any node
//! starts.

use super::super::exit::UsageError;
use super::super::format::format;
use anyhow::Context;
use cairn_launch::{HeldPort, Members, quoted};
use cairn_node::NodeConfig;
use cairn_node::config::{Layers, Source, format_size, parse_size};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

pub(crate) const DEFAULT_DIR: &str = ".cairn/dev";
/// Enough for trying and for a short bench, and quick to write in full.
pub(super) const DEFAULT_SIZE: &str = "1GiB";
/// Exists while the cluster is ready.
pub(super) const READY: &str = "ready";
pub(super) const NODES: u16 = 3;
/// The first node's port, if it is free: then the endpoints are easy to remember.
const FIRST_PORT: u16 = 7400;
const PORTS_APART: u16 = 10;

/// One node of the cluster.
#[derive(Clone, Debug)]
pub(super) struct DevNode {
    pub slot: u16,
    pub config_file: PathBuf,
    pub log_file: PathBuf,
    pub client_address: String,
    pub http_address: Option<String>,
    /// While the process that it names lives, the node is not started again.
    pub hold_file: PathBuf,
}

/// What a first start has created. It is removed when this is dropped, unless it is kept: a start
/// that failed must not look like a cluster to the next one. Once a node may have taken a write,
/// everything is kept.
#[derive(Default)]
pub(super) struct Created(Vec<PathBuf>);

impl Created {
    fn add(&mut self, path: PathBuf) {
        if !path.exists() {
            self.0.push(path);
        }
    }

    pub(super) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        for path in &self.0 {
            let _ = if path.is_dir() {
                std::fs::remove_dir_all(path)
            } else {
                std::fs::remove_file(path)
            };
        }
    }
}

/// Creates what is missing. The ports belong to the caller for as long as it keeps them.
pub(super) async fn prepare(
    home: &Path,
    size: Option<&str>,
    first_port: Option<u16>,
    set: &[String],
) -> anyhow::Result<(Vec<DevNode>, Vec<HeldPort>, Created)> {
    let missing = (1..=NODES).any(|slot| !config_file(home, slot).exists());
    let mut ports = Vec::new();
    let mut created = Created::default();
    if missing {
        for slot in 1..=NODES {
            created.add(config_file(home, slot));
            created.add(unfinished(home, slot));
            created.add(home.join(format!("node-{slot}")));
        }
        ports = write_configs(home, size.unwrap_or(DEFAULT_SIZE), first_port, set)?;
    } else if !set.is_empty() {
        let message =
            format!("--set is for a new cluster; edit {} instead", config_file(home, 1).display());
        return Err(UsageError(message).into());
    } else {
        for slot in 1..=NODES {
            check_size(size, &config_file(home, slot))?;
        }
        check_port(first_port, &config_file(home, 1))?;
        for slot in 1..=NODES {
            ports.extend(hold_configured(&config_file(home, slot))?);
        }
    }
    let mut nodes = Vec::new();
    for slot in 1..=NODES {
        nodes.push(prepare_node(home, slot).await?);
    }
    Ok((nodes, ports, created))
}

pub(super) fn configured(config_file: &Path) -> anyhow::Result<NodeConfig> {
    let mut layers = Layers::new();
    layers.add_file(config_file)?;
    Ok(NodeConfig::from_layers(&layers)?)
}

/// An existing node keeps its size.
fn check_size(size: Option<&str>, config_file: &Path) -> anyhow::Result<()> {
    let Some(size) = size else { return Ok(()) };
    let there = configured(config_file)?.storage.size_bytes;
    if parse_size(size) == Ok(there) {
        return Ok(());
    }
    let message = format!(
        "--size {size} is for a new cluster, and {} has storage.size = {}; leave --size out, give another --dir, or enlarge \
         each node with `cairn grow`",
        config_file.display(),
        format_size(there)
    );
    Err(UsageError(message).into())
}

/// An existing cluster keeps its ports, which `--port 0` leaves to it.
fn check_port(port: Option<u16>, config_file: &Path) -> anyhow::Result<()> {
    let Some(port) = port.filter(|port| *port != 0) else { return Ok(()) };
    let there = configured(config_file)?.client_address;
    if there.rsplit(':').next() == Some(port.to_string().as_str()) {
        return Ok(());
    }
    let message = format!(
        "--port {port} is for a new cluster, and {} has listen.client = {there}; leave --port out, give another --dir, or edit \
         the configuration of every node",
        config_file.display()
    );
    Err(UsageError(message).into())
}

/// Holds the ports of an existing configuration. If an address has a host name, the node itself
/// finds out whether its port is free.
fn hold_configured(config_file: &Path) -> anyhow::Result<Vec<HeldPort>> {
    let config = configured(config_file)?;
    let listens = [
        ("listen.client", Some(&config.client_address)),
        ("listen.peer", Some(&config.peer_address)),
        ("listen.http", config.http_address.as_ref()),
    ];
    let given = |(key, text): (_, Option<&String>)| Some((key, text?.parse::<SocketAddr>().ok()?));
    let hold = |(key, address)| {
        HeldPort::at(address).with_context(|| {
            let file = config_file.display();
            format!(
                "cannot listen on {address}, which is {key} in {file}; stop the program that uses this port, or choose another \
                 one in the configuration of every node"
            )
        })
    };
    listens.into_iter().filter_map(given).map(hold).collect()
}

pub(super) fn config_file(home: &Path, slot: u16) -> PathBuf {
    home.join(format!("node-{slot}.toml"))
}

pub(super) fn hold_file(home: &Path, slot: u16) -> PathBuf {
    home.join(format!("node-{slot}.hold"))
}

/// Where a data directory is formatted, so that an interrupted format never counts as a node's data.
fn unfinished(home: &Path, slot: u16) -> PathBuf {
    home.join(format!("node-{slot}.unfinished"))
}

/// A node with its directory, which is formatted if there is none.
pub(super) async fn prepare_node(home: &Path, slot: u16) -> anyhow::Result<DevNode> {
    let config_file = config_file(home, slot);
    let mut layers = Layers::new();
    layers.add_file(&config_file)?;
    let config = NodeConfig::from_layers(&layers)?;
    if !config.data_directory.exists() {
        let unfinished = unfinished(home, slot);
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished)?;
        }
        let source = Source::Flag("dev".into());
        layers.set("data_dir", unfinished.display().to_string(), source)?;
        format(&NodeConfig::from_layers(&layers)?, &|_| {}).await?;
        std::fs::rename(&unfinished, &config.data_directory)
            .with_context(|| format!("cannot rename {} to its final name", unfinished.display()))?;
    }
    Ok(DevNode {
        slot,
        config_file,
        log_file: home.join(format!("node-{slot}.log")),
        client_address: config.client_address,
        http_address: config.http_address,
        hold_file: hold_file(home, slot),
    })
}

fn write_configs(
    home: &Path,
    size: &str,
    first_port: Option<u16>,
    set: &[String],
) -> anyhow::Result<Vec<HeldPort>> {
    let mut more = Layers::new();
    more.set("storage.size", size.into(), Source::Flag("--size".into()))?;
    for assignment in set {
        more.add_assignment("--set", assignment)?;
    }
    let extra: Vec<(&str, String)> = more
        .settings()
        .into_iter()
        .filter(|setting| setting.source != Source::Default)
        .filter_map(|setting| Some((setting.key, setting.value?)))
        .collect();
    let mut lines = String::new();
    if !extra.iter().any(|(key, _)| key.starts_with("tls.") || *key == "insecure") {
        // It listens on this machine's loopback interface only.
        lines += "insecure = true\n";
    }
    lines.extend(extra.iter().map(|(key, value)| format!("{key} = {}\n", quoted(value))));
    let ports = choose_ports(first_port)?;
    let members = Members::at("dev", &ports);
    for member in &members.all {
        let data_dir = home.join(format!("node-{}", member.slot));
        let text = members.config(member, &data_dir, &lines);
        let text = format!("# Written by `cairn dev`.\n{text}");
        // Read the text back before keeping it: values of --set may exclude each other.
        let mut layers = Layers::new();
        layers.add_toml("--set", &text)?;
        NodeConfig::from_layers(&layers)?;
        std::fs::write(config_file(home, member.slot), text)?;
    }
    Ok(ports)
}

/// For each node its client, peer and HTTP port.
fn choose_ports(first_port: Option<u16>) -> anyhow::Result<Vec<HeldPort>> {
    let any = || cairn_launch::hold(usize::from(NODES) * 3).context("cannot listen on any port");
    let from = |first: u16| {
        let offsets =
            (0..NODES).flat_map(|node| (0..3).map(move |offset| node * PORTS_APART + offset));
        let hold = |offset| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, first.saturating_add(offset)));
            HeldPort::at(address).with_context(|| {
                format!("cannot listen on {address}; give another --port, or --port 0 for any that are free")
            })
        };
        offsets.map(hold).collect()
    };
    match first_port {
        Some(0) => any(),
        Some(first) => from(first),
        None => from(FIRST_PORT).or_else(|_| any()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn ports_are_distinct_and_a_used_one_is_reported() {
        let chosen = choose_ports(Some(0)).expect("free ports");
        let mut distinct: Vec<SocketAddr> = chosen.iter().map(HeldPort::address).collect();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), 9);
        let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("bound").port();
        let error = choose_ports(Some(port)).expect_err("taken");
        assert!(error.to_string().contains("--port"), "{error}");
    }
}
