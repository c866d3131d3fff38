//! Flags of the commands that read the server's configuration. Flags override the environment,
//! which overrides the file.

use cairn_node::config::{ConfigError, Layers, Source};
use clap::Args;
use std::path::PathBuf;

/// The flags.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct ServerOptions {
    /// Configuration file (TOML); `cairn config print` shows every key
    #[arg(short, long, env = "CAIRN_CONFIG")]
    pub config: Option<PathBuf>,

    /// Name of the cluster
    #[arg(long)]
    pub cluster: Option<String>,

    /// Slot number of this member in the cluster, from 1
    #[arg(long)]
    pub slot: Option<u16>,

    /// Data directory
    #[arg(long)]
    pub dir: Option<String>,

    /// Any other key of the configuration
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<String>,
}

impl ServerOptions {
    /// All layers of the configuration, and the form of the log that they ask for, also if they
    /// cannot be used. `flag`: that of `--log-format`.
    pub(crate) fn layers_and_log_format(
        &self,
        flag: Option<&str>,
    ) -> (Result<Layers, ConfigError>, Option<String>) {
        let assigned = |assignment: &String| {
            assignment.trim().strip_prefix("log.format=").map(|format| format.trim().to_owned())
        };
        let set = || self.set.iter().rev().find_map(assigned);
        let environment = || std::env::var("CAIRN_LOG_FORMAT").ok().filter(|text| !text.is_empty());
        let file = || Layers::log_format_of(self.config.as_deref()?);
        let format = flag.map(str::to_owned).or_else(set).or_else(environment).or_else(file);
        let layers = self.layers().and_then(|mut layers| {
            let assignment = flag.map(|flag| format!("log.format={flag}"));
            assignment.map_or(Ok(()), |text| layers.add_assignment("--log-format", &text))?;
            Ok(layers)
        });
        (layers, format)
    }

    /// All layers of the configuration.
    pub(crate) fn layers(&self) -> Result<Layers, ConfigError> {
        let mut layers = Layers::new();
        if let Some(path) = &self.config {
            layers.add_file(path)?;
        }
        let variables = std::env::vars_os().filter_map(|(name, value)| {
            Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
        });
        layers.add_environment(variables)?;
        let slot = self.slot.map(|slot| slot.to_string());
        set(&mut layers, "cluster", "--cluster", self.cluster.clone())?;
        set(&mut layers, "slot", "--slot", slot)?;
        set(&mut layers, "data_dir", "--dir", self.dir.clone())?;
        for assignment in &self.set {
            layers.add_assignment("--set", assignment)?;
        }
        Ok(layers)
    }

    /// The same, with `--size` and `--value-size` of a command that makes or enlarges a data directory.
    pub(crate) fn layers_sized(
        &self,
        size: Option<String>,
        value_size: Option<String>,
    ) -> Result<Layers, ConfigError> {
        let mut layers = self.layers()?;
        set(&mut layers, "storage.size", "--size", size)?;
        set(&mut layers, "storage.value_size", "--value-size", value_size)?;
        Ok(layers)
    }
}

/// Sets a key to the value of a flag, if that is given.
fn set(
    layers: &mut Layers,
    key: &str,
    flag: &str,
    value: Option<String>,
) -> Result<(), ConfigError> {
    value.map_or(Ok(()), |value| layers.set(key, value, Source::Flag(flag.into())))
}
