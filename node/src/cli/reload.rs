//! SIGHUP: a running node reads its configuration again and takes what can change without a restart.
//!
//! What holds here: a configuration that is refused changes nothing. A key that needs a restart keeps
//! its value, and one WARN line names all such keys.

use super::logging::SetLevel;
use super::server_options::ServerOptions;
use cairn_node::config::{LogConfig, Setting};
use cairn_node::{Node, NodeConfig};
use tokio::signal::unix::Signal;
use tracing::{info, warn};

/// What a running node needs to read its configuration again.
pub(crate) struct Reload {
    pub(super) server: ServerOptions,
    pub(super) log_format: Option<String>,
    pub(super) set_level: SetLevel,
    /// The values in use.
    pub(super) running: Vec<Setting>,
    pub(super) hangups: Signal,
}

impl Reload {
    /// Reads the configuration again at each signal. Never returns.
    pub(crate) async fn run(mut self, node: &Node) {
        while self.hangups.recv().await.is_some() {
            if let Err(error) = self.apply(node) {
                let error = format!("{error:#}");
                warn!(
                    error,
                    "SIGHUP: the configuration is refused and nothing was changed; correct it and send SIGHUP again"
                );
            }
        }
        std::future::pending::<()>().await;
    }

    fn apply(&mut self, node: &Node) -> anyhow::Result<()> {
        let layers = self.server.layers_and_log_format(self.log_format.as_deref()).0?;
        let config = NodeConfig::from_layers(&layers)?;
        let limits = node.limits().reloaded(&config.limits)?;
        let log = LogConfig::from_layers(&layers)?;
        // Refuses what is not a level, before anything is applied.
        (self.set_level)(&log.level)?;
        let (mut applied, mut kept) = (Vec::new(), Vec::new());
        let read = layers.settings();
        let is_elsewhere = self
            .running
            .iter()
            .zip(&read)
            .any(|(running, read)| read.key == "backup.target" && running.value != read.value);
        for (running, read) in self.running.iter_mut().zip(read) {
            if running.value == read.value {
                continue;
            }
            // What should stay elsewhere says nothing of the backups that are here.
            let of_elsewhere = is_elsewhere && read.key.starts_with("backup.");
            // A table that is gone may be a slip, and would let everybody in.
            let opens = read.key == "access" && config.access.is_empty();
            if !read.live || opens || of_elsewhere {
                kept.push(read.key);
                continue;
            }
            let shown = match (read.key, read.value.as_deref().filter(|value| !value.is_empty())) {
                (_, None) => "(not set)".to_string(),
                // Its names alone: what tokens are known by stays out of the log.
                ("access", _) => {
                    let names: Vec<&str> = config.access.iter().map(|(name, _)| name).collect();
                    format!("of {}", names.join(", "))
                }
                (_, Some(value)) => value.to_string(),
            };
            applied.push(format!("{} = {shown}", read.key));
            *running = read;
        }
        node.reload(&limits, &config.scrub, config.backup.as_ref());
        if !config.access.is_empty() {
            node.set_access(&config.access);
        }
        if let Some(warning) = config.exposed_key() {
            warn!("SIGHUP: {warning}");
        }
        // If the lines are gone, the node goes by the old ones.
        let opens = kept.contains(&"access");
        if let Some(warning) = config.open_access(&layers).filter(|_| !opens) {
            warn!("SIGHUP: {warning}");
        }
        match applied.is_empty() {
            true => info!(
                "SIGHUP: the configuration was read; no value changed that can change while the node runs"
            ),
            false => info!(applied = applied.join(", "), "SIGHUP: the configuration was read"),
        }
        if !kept.is_empty() {
            warn!(
                keys = kept.join(", "),
                "SIGHUP: these keys changed and need a restart; until then the node runs with the old values"
            );
        }
        Ok(())
    }
}
