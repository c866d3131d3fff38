//! Puts a value and reads it back, step by step.

use cairn_client::Client;
use serde_json::{Value, json};

const KEY: &str = "greeting";

/// What was done, for programs and for people.
pub(super) struct Demo {
    pub json: Value,
    pub text: String,
}

pub(super) async fn run(endpoints: &[String]) -> anyhow::Result<Demo> {
    let client = Client::connect(endpoints.to_vec()).await?;
    let value = "hello from a quorum of three";
    let written = client.put(KEY, value).await?;
    let read = client.get(KEY).await?;
    let read = read.ok_or_else(|| anyhow::anyhow!("`{KEY}` was put and does not exist"))?;
    anyhow::ensure!(
        read.value == value,
        "`{KEY}` was put as `{value}` and read as `{}`",
        read.value.escape_ascii()
    );
    Ok(Demo {
        json: json!({ "put": KEY, "version": written.version.0, "got": value }),
        text: format!(
            "put {KEY} = \"{value}\"   acknowledged by a quorum as version {}\nget {KEY} → \"{value}\"   at version {}",
            written.version, read.version
        ),
    })
}
