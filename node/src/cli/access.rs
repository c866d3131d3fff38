//! `cairn access token`: makes a token, and the line of the configuration by which the servers know
//! it. Asks no server.

use super::exit::{Exit, UsageError};
use super::output::Output;
use cairn_node::access::{Entry, TokenHash, check_name, random_token};
use clap::{Args, Subcommand};
use serde_json::json;

#[derive(Args)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a token for a client, and the line of the configuration that gives it its roles
    Token {
        /// The client's name in the log and in the configuration
        name: String,

        /// What it may do: read, read:PREFIX, write, write:PREFIX, operator, several separated by
        /// spaces
        #[arg(long, default_value = "read")]
        roles: String,
    },
}

pub(crate) fn run(args: AccessArgs, output: &Output) -> anyhow::Result<Exit> {
    let Action::Token { name, roles } = args.action;
    check_name(&name).map_err(UsageError)?;
    let token = random_token();
    let hash = TokenHash::of(token.as_bytes());
    let entry = Entry::parse(&format!("{roles} token:{hash}"))
        .map_err(|reason| UsageError(format!("--roles: {reason}")))?;
    let line = format!("access.{} = \"{entry}\"", quoted(&name));
    let text = || {
        format!(
            "For the client, as CAIRN_TOKEN or in the file of --token-file; it is stored nowhere else:\n{token}\n\n\
             For the configuration file of every member, above the first table, or in the table [access] without `access.`;\n\
             it holds only the token's hash:\n{line}"
        )
    };
    output.either(|| json!({ "name": name, "token": token, "configuration": line }), text)?;
    Ok(Exit::Done)
}

/// A name as a key of TOML.
fn quoted(name: &str) -> String {
    let bare = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte));
    if bare { name.to_string() } else { format!("\"{name}\"") }
}
