//! `cairn config print`: every key, its value and its source, and the mode that follows on this
//! machine.

use super::cluster_view;
use super::exit::Exit;
use super::logging;
use super::output::{Output, table};
use super::server_options::ServerOptions;
use cairn_node::config::{Layers, LogConfig, NodeConfig, Setting};
use cairn_node::doctor::Contract;
use cairn_node::{Durability, promise};
use cairn_tls::Tls;
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print every key with its value and its source
    Print {
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Check that a server could start with this configuration; asks the members that run whether it
    /// belongs to them
    Check {
        #[command(flatten)]
        server: ServerOptions,
    },
}

pub(crate) async fn run(args: ConfigArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        Action::Print { server } => {
            let layers = server.layers()?;
            let (settings, mode) = (layers.settings(), durability(&layers));
            let security = security(&layers);
            output.either(
                || as_json(&settings, &mode, &security),
                || as_text(&settings, &mode, &security),
            )?;
        }
        Action::Check { server } => {
            let layers = server.layers()?;
            let config = NodeConfig::from_layers(&layers)?;
            logging::check(&LogConfig::from_layers(&layers)?.level)?;
            let durability = Durability::of(&config)?;
            let security = name(&config.tls()?);
            let outside = cluster_view::no_configuration_of(&config).await;
            let open = config.open_access(&layers).map(str::to_owned);
            let own = layers.ignored().into_iter().chain(config.exposed_key()).chain(open);
            let warnings: Vec<String> = outside.into_iter().chain(own).collect();
            let joins = joins(&config).or_else(|| config.alone().map(str::to_owned));
            output.either(
                || {
                    json!({ "cluster": config.cluster, "slot": config.slot, "mode": durability.mode.name(),
                            "security": security, "joins": config.members.is_empty(),
                            "warnings": warnings })
                },
                || {
                    let valid = format!(
                        "valid: member {} of {}, mode {}, {security}",
                        config.slot,
                        config.cluster,
                        durability.words()
                    );
                    let warnings = warnings.iter().map(|warning| format!("warning: {warning}"));
                    let lines = std::iter::once(valid).chain(joins.clone()).chain(warnings);
                    lines.collect::<Vec<_>>().join("\n")
                },
            )?;
        }
    }
    Ok(Exit::Done)
}

/// How a member that forms no cluster comes to belong to one.
fn joins(config: &NodeConfig) -> Option<String> {
    let slot = config.slot;
    config.members.is_empty().then(|| {
        format!(
            "joins the cluster of {}: in the place of a lost disk by itself, else once it runs and an operator says \
             `cairn members add {slot}`, or `cairn members replace {slot}` if the slot's member is alive",
            config.join.join(", ")
        )
    })
}

/// The mode in which a server with this configuration runs here, or why it does not start.
fn durability(layers: &Layers) -> Result<Durability, String> {
    let config = NodeConfig::from_layers(layers).map_err(|error| error.to_string())?;
    Durability::of(&config).map_err(|error| error.to_string())
}

/// How a server with this configuration authenticates connections here, or why it does not start.
fn security(layers: &Layers) -> Result<String, String> {
    let config = NodeConfig::from_layers(layers).map_err(|error| error.to_string())?;
    config.tls().map(|tls| name(&tls)).map_err(|error| error.to_string())
}

fn name(tls: &Option<Tls>) -> String {
    tls.as_ref().map_or_else(|| "insecure".into(), |tls| format!("TLS as {}", tls.name()))
}

pub(super) fn durability_json(durability: &Result<Durability, String>) -> Value {
    match durability {
        Ok(durability) => json!({
            "mode": durability.mode.name(),
            "chosen": durability.chosen.name(),
            "device_contract": durability.contract.map(Contract::words),
            "promise": promise::sentence(durability.mode, durability.window),
            "warnings": durability.warnings.iter().map(|reason| reason.sentence()).collect::<Vec<_>>(),
        }),
        Err(reason) => json!({ "mode": null, "reason": reason }),
    }
}

fn as_json(
    settings: &[Setting],
    durability: &Result<Durability, String>,
    security: &Result<String, String>,
) -> Value {
    let one = |setting: &Setting| {
        let mut value = json!({
            "value": setting.value,
            "source": setting.source.to_string(),
            "variable": setting.variable,
            "meaning": setting.doc,
            "without_restart": setting.live,
        });
        if let (Some(members), "mode") = (value.as_object_mut(), setting.key) {
            members.insert("here".into(), durability_json(durability));
        }
        if let (Some(members), "insecure") = (value.as_object_mut(), setting.key) {
            let here = match security {
                Ok(security) => json!({ "security": security }),
                Err(reason) => json!({ "security": null, "reason": reason }),
            };
            members.insert("here".into(), here);
        }
        (setting.key.to_string(), value)
    };
    Value::Object(settings.iter().map(one).collect())
}

fn as_text(
    settings: &[Setting],
    durability: &Result<Durability, String>,
    security: &Result<String, String>,
) -> String {
    let one = |setting: &Setting| {
        vec![
            setting.key.to_string(),
            setting.value.clone().unwrap_or_else(|| "(not set)".into()),
            setting.source.to_string(),
            setting.doc.to_string(),
        ]
    };
    let keys = table(&["KEY", "VALUE", "SOURCE", "MEANING"], settings.iter().map(one));
    let security = match security {
        Ok(security) => security.clone(),
        Err(reason) => format!("none: {reason}"),
    };
    format!("{keys}\n\n{}\nConnections here: {security}", durability_text(durability))
}

pub(super) fn durability_text(durability: &Result<Durability, String>) -> String {
    match durability {
        Ok(durability) => format!("Mode here: {}", durability.promise()),
        Err(reason) => format!("Mode here: none: {reason}"),
    }
}
