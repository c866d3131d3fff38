//! `cairn inspect`: what a data directory that no node has open holds, and what of it verifies.

use super::exit::Exit;
use super::output::{Output, table};
use cairn_engine::{CheckpointArea, Contents, GroupContents, Inspection, Known, LogId};
use cairn_node::config::format_size;
use cairn_raft::{NodeId, vote_of};
use clap::Args;
use serde_json::{Value, json};
use std::path::PathBuf;

#[derive(Args)]
pub(crate) struct InspectArgs {
    /// Data directory of a stopped node
    dir: PathBuf,

    /// Also read every value and compare it with its hash
    #[arg(long)]
    values: bool,
}

pub(crate) async fn run(args: InspectArgs, output: &Output) -> anyhow::Result<Exit> {
    let found = cairn_node::files::inspect(&args.dir, args.values).await?;
    output.either(|| as_json(&found), || as_text(&found))?;
    Ok(if verifies(&found) { Exit::Done } else { Exit::Failed })
}

/// Whether nothing is damaged.
fn verifies(found: &Inspection) -> bool {
    let intact = |contents: &Contents| {
        contents.damage.is_none()
            && contents.checkpoints.iter().all(|area| area.damage.is_none())
            && contents
                .groups
                .iter()
                .flat_map(|group| &group.values)
                .all(|values| values.damaged == 0)
    };
    found.copies.iter().all(Result::is_ok) && found.contents.as_ref().is_some_and(intact)
}

fn position(id: Option<LogId>) -> String {
    id.map_or_else(|| "-".into(), |id| id.to_string())
}

/// What was found, for programs.
pub(super) fn as_json(found: &Inspection) -> Value {
    let copy = |copy: &Result<u64, String>| match copy {
        Ok(revision) => json!({ "revision": revision }),
        Err(why) => json!({ "error": why }),
    };
    json!({
        "verifies": verifies(found),
        "superblock_copies": found.copies.iter().map(copy).collect::<Value>(),
        "identity_error": found.known.as_ref().err(),
        "known": found.known.as_ref().ok().map(known_as_json),
        "contents": found.contents.as_ref().map(contents_as_json),
    })
}

fn known_as_json(known: &Known) -> Value {
    let votes = known.votes.iter().map(|(group, vote)| match vote_of(vote) {
        Some((term, node, granted)) => {
            json!({ "group": group.0, "term": term, "node_id": node.to_string(), "granted_by_quorum": granted })
        }
        None => json!({ "group": group.0, "error": "not a vote" }),
    });
    json!({
        "cluster": known.identity.cluster,
        "node_id": node_id(known).to_string(),
        "slot": known.identity.slot,
        "journal_bytes": known.geometry.journal_bytes,
        "checkpoint_bytes": known.geometry.checkpoint_bytes,
        "data_bytes": known.geometry.data_bytes,
        "boot_epoch": known.boot_epoch.number,
        "boot_nonce": format!("{:016x}", known.boot_epoch.nonce),
        "mode": known.mode.map(|mode| mode.name()),
        "member_state": known.member_state.name(),
        "unsynced_acks": known.unsynced_acks,
        "same_boot": known.same_boot,
        "failed_sync": known.failed_sync,
        "votes": votes.collect::<Value>(),
    })
}

fn contents_as_json(contents: &Contents) -> Value {
    let area = |area: &CheckpointArea| {
        json!({
            "file": area.file.name(),
            "number": area.holds.map(|(number, _)| number),
            "through_block": area.holds.map(|(_, sequence)| sequence),
            "damage": area.damage.as_ref().map(|(offset, length, what)| {
                json!({ "offset": offset, "length": length, "found": what })
            }),
        })
    };
    let id = |id: Option<LogId>| id.map(|id| json!({ "term": id.term, "index": id.index }));
    let group = |group: &GroupContents| {
        json!({
            "group": group.group.0,
            "log_purged": id(group.log.purged),
            "log_last": id(group.log.last),
            "applied": id(group.applied),
            "applied_before": id(group.applied_before),
            "checkpoint_keys": group.keys,
            "values": group.values.as_ref().map(|values| {
                json!({ "checked": values.checked, "damaged": values.damaged, "named": values.named })
            }),
        })
    };
    json!({
        "checkpoints": contents.checkpoints.iter().map(area).collect::<Value>(),
        "journal_end": contents.journal_end,
        "synced": contents.synced,
        "damage": contents.damage.as_ref().map(ToString::to_string),
        "member_state": contents.member_state.name(),
        "groups": contents.groups.iter().map(group).collect::<Value>(),
    })
}

fn node_id(known: &Known) -> NodeId {
    NodeId::new(known.identity.slot, known.identity.incarnation)
}

fn as_text(found: &Inspection) -> String {
    let mut rows = Vec::new();
    let mut row = |what: &str, found: String| rows.push(vec![what.to_string(), found]);
    for (number, copy) in found.copies.iter().enumerate() {
        let text = match copy {
            Ok(revision) => format!("revision {revision}"),
            Err(why) => why.clone(),
        };
        row(&format!("superblock copy {number}"), text);
    }
    match &found.known {
        Err(why) => row("identity", why.clone()),
        Ok(known) => {
            let (id, cluster) = (node_id(known), &known.identity.cluster);
            row("identity", format!("member {id} of cluster `{cluster}`"));
            let bytes = known.geometry;
            let sizes = [bytes.journal_bytes, bytes.checkpoint_bytes, bytes.data_bytes];
            let [journal, checkpoint, data] = sizes.map(format_size);
            row("sizes", format!("journal {journal}, checkpoints 2 x {checkpoint}, data {data}"));
            let mode = known.mode.map_or("never opened", |mode| mode.name());
            let boot = if known.same_boot { "the running kernel" } else { "another boot" };
            let epoch = known.boot_epoch.number;
            row("last opened", format!("boot epoch {epoch}, mode {mode}, under {boot}"));
            let unsynced = if known.unsynced_acks { "perhaps" } else { "nothing" };
            row("acknowledged unsynced", unsynced.into());
            if let Some(end) = known.failed_sync {
                row("failed write or sync", format!("recorded; the journal ended at block {end}"));
            }
            for vote in known.votes.values() {
                let Some((term, node, granted)) = vote_of(vote) else {
                    row("vote", "not a vote".into());
                    continue;
                };
                let by = if granted { ", granted by a quorum" } else { "" };
                row("vote", format!("term {term} for member {node}{by}"));
            }
        }
    }
    if let Some(contents) = &found.contents {
        for area in &contents.checkpoints {
            let text = match (&area.holds, &area.damage) {
                (Some((number, sequence)), _) => {
                    format!("checkpoint {number}, through journal block {sequence}")
                }
                (None, Some((offset, length, what))) => {
                    format!("damaged at {offset}, {length} bytes: {what}")
                }
                (None, None) => "empty".into(),
            };
            row(area.file.name(), text);
        }
        let (end, synced) = (contents.journal_end, contents.synced);
        row("journal", format!("through block {end}, synced through {synced}"));
        for group in &contents.groups {
            let (purged, last) = (position(group.log.purged), position(group.log.last));
            row("log", format!("after {purged} through {last}"));
            let (applied, before) = (position(group.applied), position(group.applied_before));
            row("applied", format!("{applied}, {before} before"));
            row("keys in the checkpoint", group.keys.to_string());
            if let Some(values) = &group.values {
                row("values", format!("{} checked, {} damaged", values.checked, values.damaged));
                values.named.iter().for_each(|named| row("", named.clone()));
            }
        }
        if let Some(damage) = &contents.damage {
            row("damage", damage.to_string());
        }
        row("state if it has peers", contents.member_state.name().into());
    }
    let end = match verifies(found) {
        true => "Everything that was read verifies.",
        false => "Not everything verifies.",
    };
    format!("{}\n\n{end}", table(&["WHAT", "FOUND"], rows))
}
