//! `cairn config print`: every key, its value, and where that was given.

use super::exit::Exit;
use super::output::{Output, table};
use super::server_options::ServerOptions;
use cairn_node::config::{NodeConfig, Setting};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

#[derive(Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Print every key with its value and where that was given
    Print {
        #[command(flatten)]
        server: ServerOptions,
    },
    /// Check that a server could start with this configuration
    Check {
        #[command(flatten)]
        server: ServerOptions,
    },
}

pub(crate) fn run(args: ConfigArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.action {
        Action::Print { server } => {
            let settings = server.layers()?.settings();
            output.either(|| as_json(&settings), || as_text(&settings))?;
        }
        Action::Check { server } => {
            let config = NodeConfig::from_layers(&server.layers()?)?;
            output.either(
                || json!({ "cluster": config.cluster, "slot": config.slot, "mode": config.mode.name() }),
                || format!("good: member {} of {}, mode {}", config.slot, config.cluster, config.mode),
            )?;
        }
    }
    Ok(Exit::Done)
}

fn as_json(settings: &[Setting]) -> Value {
    let one = |setting: &Setting| {
        let value = json!({
            "value": setting.value,
            "source": setting.source.to_string(),
            "variable": setting.variable,
            "meaning": setting.doc,
        });
        (setting.key.to_string(), value)
    };
    Value::Object(settings.iter().map(one).collect())
}

fn as_text(settings: &[Setting]) -> String {
    let head = ["KEY", "VALUE", "SOURCE", "MEANING"].map(str::to_string).to_vec();
    let one = |setting: &Setting| {
        vec![
            setting.key.to_string(),
            setting.value.clone().unwrap_or_else(|| "(not set)".into()),
            setting.source.to_string(),
            setting.doc.to_string(),
        ]
    };
    table(&std::iter::once(head).chain(settings.iter().map(one)).collect::<Vec<_>>())
}
