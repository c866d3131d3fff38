//! `cairn backup list` and `show`: what is at a target. No secret key is needed.

use super::{NamedArgs, TargetArgs, as_json, opened, time_text};
use crate::cli::exit::Exit;
use crate::cli::output::{Output, table_with_notes};
use cairn_backup::{Error, Overview, Target};
use cairn_client::proto::generation_text;
use cairn_node::config::format_size;
use serde_json::json;

pub(super) async fn list(args: TargetArgs, output: &Output) -> anyhow::Result<Exit> {
    let target = Target::open(&args.target)?;
    let found = Overview::list(&target).await?;
    let damaged = found.iter().any(|(_, overview)| overview.is_err());
    output.either(
        || {
            let one = |(name, overview): &(String, cairn_backup::Result<Overview>)| match overview {
                Ok(overview) => as_json(overview),
                Err(error) => json!({ "name": name, "error": error.to_string() }),
            };
            found.iter().map(one).collect()
        },
        || {
            let head = [
                "NAME",
                "CLUSTER",
                "INDEX",
                "ENDED",
                "KEYS",
                "VALUES",
                "OWN",
                "ENCRYPTED",
                "SINCE",
            ];
            let mut notes = Vec::new();
            let mut rows = Vec::new();
            for (name, overview) in &found {
                match overview {
                    Ok(Overview { head, ended, keys, value_bytes, own_bytes, .. }) => {
                        rows.push(vec![
                            name.clone(),
                            head.cluster.clone(),
                            head.index.to_string(),
                            time_text(*ended),
                            keys.to_string(),
                            format_size(*value_bytes),
                            format_size(*own_bytes),
                            if head.recipients.is_empty() { "no" } else { "yes" }.into(),
                            head.base.clone().unwrap_or_else(|| "-".into()),
                        ])
                    }
                    Err(error) => {
                        let is_unreadable = matches!(error, Error::Unreadable { .. });
                        let state = if is_unreadable { "unreadable" } else { "damaged" };
                        rows.push(vec![name.clone(), state.into()]);
                        notes.push(error.to_string());
                    }
                }
            }
            table_with_notes(&head, rows, notes)
        },
    )?;
    Ok(if damaged { Exit::Failed } else { Exit::Done })
}

pub(super) async fn show(args: NamedArgs, output: &Output) -> anyhow::Result<Exit> {
    let backup = opened(&args).await?;
    let overview = Overview::of(backup.manifest());
    output.either(|| as_json(&overview), || text(&overview))?;
    Ok(Exit::Done)
}

fn text(overview: &Overview) -> String {
    let head = &overview.head;
    let since = head.base.as_ref().map_or(String::new(), |base| {
        format!("\nIt builds on {base}, whose objects it needs; `cairn backup prune` keeps those.")
    });
    let encrypted = match head.recipients.as_slice() {
        [] => "not encrypted".to_owned(),
        recipients => format!("encrypted to {}", recipients.join(", ")),
    };
    format!(
        "backup {} of cluster {} (generation {}) at index {}, term {}\n\
         {} keys with {} of values, in {} objects of {}; its own are {}\n\
         begun {}, ended {}, by release {}; {encrypted}{since}",
        overview.name,
        head.cluster,
        generation_text(head.generation),
        head.index,
        head.term,
        overview.keys,
        format_size(overview.value_bytes),
        overview.objects,
        format_size(overview.stored_bytes),
        format_size(overview.own_bytes),
        time_text(head.began),
        time_text(overview.ended),
        head.release,
    )
}
