//! `cairn backup list` and `show`: what is at a target. No secret key is needed.

use super::{NamedArgs, TargetArgs, as_json, opened, time_text};
use crate::cli::exit::Exit;
use crate::cli::output::{Output, table_with_notes};
use cairn_backup::{Manifest, Target};
use cairn_client::proto::generation_text;
use cairn_node::config::format_size;
use serde_json::json;

pub(super) async fn list(args: TargetArgs, output: &Output) -> anyhow::Result<Exit> {
    let target = Target::open(&args.target)?;
    let found = Manifest::list(&target).await?;
    let damaged = found.iter().any(|(_, manifest)| manifest.is_err());
    output.either(
        || {
            let one = |(name, manifest): &(String, cairn_backup::Result<Manifest>)| match manifest {
                Ok(manifest) => as_json(manifest),
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
            for (name, manifest) in &found {
                match manifest {
                    Ok(manifest) => rows.push(vec![
                        name.clone(),
                        manifest.head.cluster.clone(),
                        manifest.head.index.to_string(),
                        time_text(manifest.ended),
                        manifest.keys.to_string(),
                        format_size(manifest.value_bytes),
                        format_size(manifest.own_bytes()),
                        if manifest.is_encrypted() { "yes" } else { "no" }.into(),
                        manifest.head.base.clone().unwrap_or_else(|| "-".into()),
                    ]),
                    Err(error) => {
                        rows.push(vec![name.clone(), "damaged".into()]);
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
    let manifest = backup.manifest();
    output.either(|| as_json(manifest), || text(manifest))?;
    Ok(Exit::Done)
}

fn text(manifest: &Manifest) -> String {
    let head = &manifest.head;
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
        manifest.name,
        head.cluster,
        generation_text(head.generation),
        head.index,
        head.term,
        manifest.keys,
        format_size(manifest.value_bytes),
        manifest.objects().count(),
        format_size(manifest.stored_bytes()),
        format_size(manifest.own_bytes()),
        time_text(head.began),
        time_text(manifest.ended),
        head.release,
    )
}
