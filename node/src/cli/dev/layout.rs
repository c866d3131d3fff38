//! The files of a development cluster: configurations with free ports, and formatted data directories.

use super::super::exit::UsageError;
use super::super::format::format;
use anyhow::Context;
use cairn_node::NodeConfig;
use cairn_node::config::{Layers, Source};
use std::fmt::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};

pub(super) const DEFAULT_DIR: &str = ".cairn/dev";
/// Enough to try and to bench a little, and quick to write in full.
pub(super) const DEFAULT_SIZE: &str = "1GiB";
/// Exists while the cluster is ready.
pub(super) const READY: &str = "ready";
const NODES: u16 = 3;

/// One node of the cluster.
#[derive(Clone, Debug)]
pub(super) struct DevNode {
    pub slot: u16,
    pub config_file: PathBuf,
    pub log_file: PathBuf,
    pub client_address: String,
}

/// Makes what is missing.
pub(super) async fn prepare(home: &Path, size: &str, set: &[String]) -> anyhow::Result<Vec<DevNode>> {
    let missing = (1..=NODES).any(|slot| !config_file(home, slot).exists());
    if missing {
        write_configs(home, size, set)?;
    } else if !set.is_empty() {
        let message = format!("--set is for a new cluster; edit {} instead", config_file(home, 1).display());
        return Err(UsageError(message).into());
    }
    let mut nodes = Vec::new();
    for slot in 1..=NODES {
        nodes.push(prepare_node(home, slot).await?);
    }
    Ok(nodes)
}

fn config_file(home: &Path, slot: u16) -> PathBuf {
    home.join(format!("node-{slot}.toml"))
}

async fn prepare_node(home: &Path, slot: u16) -> anyhow::Result<DevNode> {
    let config_file = config_file(home, slot);
    let mut layers = Layers::new();
    layers.add_file(&config_file)?;
    let config = NodeConfig::from_layers(&layers)?;
    if !config.data_directory.exists() {
        // Made under another name, so that a format that was cut short is never taken for a node's data.
        let unfinished = home.join(format!("node-{slot}.unfinished"));
        if unfinished.exists() {
            std::fs::remove_dir_all(&unfinished)?;
        }
        let source = Source::Flag("dev".into());
        layers.set("data_dir", unfinished.display().to_string(), source)?;
        format(&NodeConfig::from_layers(&layers)?).await?;
        std::fs::rename(&unfinished, &config.data_directory)
            .with_context(|| format!("cannot put {} in its place", unfinished.display()))?;
    }
    Ok(DevNode {
        slot,
        config_file,
        log_file: home.join(format!("node-{slot}.log")),
        client_address: config.client_address,
    })
}

fn write_configs(home: &Path, size: &str, set: &[String]) -> anyhow::Result<()> {
    let mut more = Layers::new();
    for assignment in set {
        more.add_assignment("--set", assignment)?;
    }
    let extra: Vec<(&str, String)> = more
        .settings()
        .into_iter()
        .filter(|setting| setting.source != Source::Default)
        .filter_map(|setting| Some((setting.key, setting.value?)))
        .collect();
    // All ports are held until all are known, so that none is given twice.
    let held: Vec<TcpListener> =
        (0..NODES * 3).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<Result<_, _>>()?;
    let addresses: Vec<String> =
        held.iter().map(|port| Ok(port.local_addr()?.to_string())).collect::<std::io::Result<_>>()?;
    let members: Vec<&[String]> = addresses.chunks(3).collect();
    for (slot, own) in (1..=NODES).zip(&members) {
        let [client, peer, http] = own else { continue };
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut text = String::from("# Made by `cairn dev`.\n");
        writeln!(text, "cluster = \"dev\"\nslot = {slot}")?;
        writeln!(text, "data_dir = {}", quoted(&home.join(format!("node-{slot}")).display().to_string()))?;
        writeln!(text, "listen.client = {}", quoted(client))?;
        writeln!(text, "listen.peer = {}", quoted(peer))?;
        writeln!(text, "listen.http = {}", quoted(http))?;
        if !extra.iter().any(|(key, _)| *key == "storage.size") {
            writeln!(text, "storage.size = {}", quoted(size))?;
        }
        for (key, value) in &extra {
            writeln!(text, "{key} = {}", quoted(value))?;
        }
        for (slot, member) in (1..=NODES).zip(&members) {
            let [client, peer, _] = member else { continue };
            writeln!(text, "\n[members.{slot}]\nclient = {}\npeer = {}", quoted(client), quoted(peer))?;
        }
        // Read back before it is kept: a bad --size or --set is told now, with nothing left behind.
        let mut layers = Layers::new();
        layers.add_toml("--size or --set", &text)?;
        NodeConfig::from_layers(&layers)?;
        std::fs::write(config_file(home, slot), text)?;
    }
    Ok(())
}
