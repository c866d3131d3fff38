//! `cairn backup`: saves the state of a cluster, shows and checks what is saved, and makes directories
//! of a new cluster from it.

mod look;
mod save;

use super::bar;
use super::confirm::confirm;
use super::connect::time;
use super::exit::{Exit, UsageError};
use super::output::Output;
use super::server_options::ServerOptions;
use super::zeroing;
use cairn_backup::{Backup, ClusterId, Identities, Keep, OfCluster, Overview, Target, prune};
use cairn_client::NodeStatus;
use cairn_client::proto::generation_text;
use cairn_node::NodeConfig;
use cairn_node::backups::members_of;
use cairn_node::config::format_size;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// The end of the year 9999.
const LAST_SECOND: u64 = 253_402_300_799;

#[derive(Args)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Save the state of the cluster
    Save(save::SaveArgs),
    /// List the backups at a target
    List(TargetArgs),
    /// Show one backup
    Show(NamedArgs),
    /// Read all of a backup and check it
    Verify(VerifyArgs),
    /// Remove the backups that need not be kept, and what was broken off
    Prune(PruneArgs),
    /// Make the data directory of one member of a new cluster from a backup
    Restore(RestoreArgs),
}

#[derive(Args)]
struct TargetArgs {
    /// Where the backups are: a folder, or a bucket as s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or
    /// az://CONTAINER/PREFIX, with credentials in the variables of its provider, such as AWS_ACCESS_KEY_ID
    target: String,
}

#[derive(Args)]
struct NamedArgs {
    #[command(flatten)]
    at: TargetArgs,

    /// The backup's name, as `cairn backup list` shows it; without it, the latest one
    name: Option<String>,
}

#[derive(Args)]
struct IdentityArgs {
    /// File with a secret key of age, AGE-SECRET-KEY-1…, that reads the encrypted backup, or the one that a
    /// save builds on; may be given several times
    #[arg(long, value_name = "FILE")]
    identity: Vec<PathBuf>,
}

#[derive(Args)]
struct VerifyArgs {
    #[command(flatten)]
    named: NamedArgs,

    #[command(flatten)]
    identities: IdentityArgs,

    /// Only compare the objects with their lengths and checksums, which needs no secret key
    #[arg(long, conflicts_with = "identity")]
    stored: bool,
}

#[derive(Args)]
struct PruneArgs {
    #[command(flatten)]
    at: TargetArgs,

    /// Keep the latest backups of each cluster, so many
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    keep: usize,

    /// Keep all backups that are younger than this, such as 7d
    #[arg(long, value_name = "TIME", value_parser = time)]
    keep_within: Option<Duration>,

    /// Remove this backup too
    #[arg(long, value_name = "NAME")]
    remove: Vec<String>,

    /// Only say what would be removed
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
    #[arg(long)]
    yes: bool,
}

#[derive(Args)]
struct RestoreArgs {
    #[command(flatten)]
    server: ServerOptions,

    #[command(flatten)]
    named: NamedArgs,

    #[command(flatten)]
    identities: IdentityArgs,

    /// Size of the whole directory in bytes, such as 100GiB
    #[arg(long)]
    size: Option<String>,

    /// The key that the first member's restore printed: for the other members
    #[arg(long, value_name = "KEY")]
    restore_key: Option<String>,
}

pub(crate) async fn run(args: BackupArgs, output: &Output) -> anyhow::Result<Exit> {
    match args.command {
        Command::Save(args) => save::run(args, output).await,
        Command::List(args) => look::list(args, output).await,
        Command::Show(args) => look::show(args, output).await,
        Command::Verify(args) => verify(args, output).await,
        Command::Prune(args) => thin_out(args, output).await,
        Command::Restore(args) => restore(args, output).await,
    }
}

/// The latest backup, if all at the target are of one cluster.
async fn latest(target: &Target) -> anyhow::Result<String> {
    match cairn_backup::latest(target, None, SystemTime::now()).await {
        Err(error @ cairn_backup::Error::NoLatest(_)) => Err(UsageError(error.to_string()).into()),
        latest => Ok(latest?),
    }
}

/// The latest backup of this cluster, none behind what it has; `None` if those at the target are not its own.
///
/// The story: the disk of the target was not mounted. A nightly save since the latest wrote everything to the mount point each time, and
/// said that it was done. So where no backup is at all a person looks first. Where all that are there may not be read, the disk is mounted,
/// and the error says what may not be read.
async fn latest_of(target: &Target, of: &NodeStatus) -> anyhow::Result<Option<String>> {
    let members = members_of(of);
    let of = OfCluster {
        id: ClusterId { name: &of.cluster, generation: of.generation, members: &members },
        term: of.term,
        applied_index: of.applied_index,
    };
    match cairn_backup::latest(target, Some(of), SystemTime::now()).await {
        Err(error @ cairn_backup::Error::NoLatest(_)) => {
            let (mut unreadable, mut others) = (None, 0);
            for (_, overview) in Overview::list(target).await? {
                match overview {
                    Err(found @ cairn_backup::Error::Unreadable { .. }) => {
                        unreadable.get_or_insert(found);
                    }
                    _ => others += 1,
                }
            }
            if others > 0 {
                return Ok(None);
            }
            if let Some(unreadable) = unreadable {
                return Err(unreadable.into());
            }
            let why = format!(
                "{error}. See that this is the target, and that its disk is mounted; the first one is saved without --since"
            );
            Err(UsageError(why).into())
        }
        latest => Ok(Some(latest?)),
    }
}

/// The backup, and what reads its keys and values.
async fn unlocked(args: &NamedArgs, identities: &IdentityArgs) -> anyhow::Result<Backup> {
    let identities = Identities::read(&identities.identity)?;
    Ok(opened(args).await?.unlock(&identities)?)
}

async fn opened(args: &NamedArgs) -> anyhow::Result<Backup> {
    let target = Target::open(&args.at.target)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => latest(&target).await?,
    };
    Ok(Backup::open(&target, &name).await?)
}

fn as_json(overview: &Overview) -> Value {
    let head = &overview.head;
    json!({
        "name": overview.name,
        "cluster": head.cluster,
        "generation": generation_text(head.generation),
        "term": head.term,
        "index": head.index,
        "release": head.release,
        "encrypted_to": head.recipients,
        "since": head.base,
        "began": head.began,
        "ended": overview.ended,
        "keys": overview.keys,
        "value_bytes": overview.value_bytes,
        "stored_bytes": overview.stored_bytes,
        "own_bytes": overview.own_bytes,
        "objects": overview.objects,
    })
}

fn time_text(seconds: u64) -> String {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds.min(LAST_SECOND));
    humantime::format_rfc3339_seconds(time).to_string()
}

async fn verify(args: VerifyArgs, output: &Output) -> anyhow::Result<Exit> {
    if args.stored {
        return verify_stored(&args.named, output).await;
    }
    let backup = unlocked(&args.named, &args.identities).await?;
    let manifest = backup.manifest();
    let shown = bar::of_bytes(manifest.value_bytes, "reading");
    let keys = backup.verify(|item| shown.inc(u64::from(item.length))).await?;
    shown.finish_and_clear();
    output.either(
        || json!({ "name": manifest.name, "verifies": true, "keys": keys, "value_bytes": manifest.value_bytes }),
        || {
            format!(
                "backup {} verifies: {keys} keys, {} of values",
                manifest.name,
                format_size(manifest.value_bytes)
            )
        },
    )?;
    Ok(Exit::Done)
}

async fn verify_stored(args: &NamedArgs, output: &Output) -> anyhow::Result<Exit> {
    let backup = opened(args).await?;
    let manifest = backup.manifest();
    let shown = bar::of_bytes(manifest.stored_bytes(), "comparing");
    let objects = backup.verify_stored(|bytes| shown.inc(bytes)).await?;
    shown.finish_and_clear();
    output.either(
        || json!({ "name": manifest.name, "checksums_match": true, "objects": objects, "stored_bytes": manifest.stored_bytes() }),
        || {
            format!(
                "the {objects} objects that backup {} needs ({}) have their lengths and checksums; keys and values were not read",
                manifest.name,
                format_size(manifest.stored_bytes())
            )
        },
    )?;
    Ok(Exit::Done)
}

async fn thin_out(args: PruneArgs, output: &Output) -> anyhow::Result<Exit> {
    let target = Target::open(&args.at.target)?;
    let keep = Keep { last: args.keep, within: args.keep_within.unwrap_or_default() };
    let now = SystemTime::now();
    let would = prune(&target, &keep, &args.remove, now, true).await?;
    let nothing = would.backups.is_empty() && would.objects == 0;
    if !nothing && !args.dry_run && !args.yes {
        let question = format!(
            "Remove {} backups ({}) and {} objects of {}?",
            would.backups.len(),
            would.backups.join(", "),
            would.objects,
            format_size(would.bytes)
        );
        if !confirm(&question, "add --yes")? {
            anyhow::bail!("nothing was removed");
        }
    }
    let pruned = match nothing || args.dry_run {
        true => would,
        false => prune(&target, &keep, &args.remove, now, false).await?,
    };
    let did = if args.dry_run { "would remove" } else { "removed" };
    output.either(
        || {
            json!({ "dry_run": args.dry_run, "backups": pruned.backups, "objects": pruned.objects,
                    "bytes": pruned.bytes, "kept_for": pruned.kept_for })
        },
        || {
            let kept_for = match pruned.kept_for.as_slice() {
                [] => String::new(),
                names => format!(
                    "\nOther objects stay, since a backup under way may need them ({}): prune again when it has ended.",
                    names.join(", ")
                ),
            };
            format!(
                "{did} {} backups and {} objects of {}{}{}{kept_for}",
                pruned.backups.len(),
                pruned.objects,
                format_size(pruned.bytes),
                if pruned.backups.is_empty() { "" } else { ": " },
                pruned.backups.join(", ")
            )
        },
    )?;
    Ok(Exit::Done)
}

async fn restore(args: RestoreArgs, output: &Output) -> anyhow::Result<Exit> {
    cairn_node::platform::check().map_err(cairn_node::Error::Platform)?;
    let config = NodeConfig::from_layers(&args.server.layers_sized(args.size, None)?)?;
    let key = match &args.restore_key {
        None => rand::random(),
        Some(text) => u64::from_str_radix(text, 16).map_err(|_| {
            UsageError(format!(
                "`{text}` is no key: expected what the first member's restore printed"
            ))
        })?,
    };
    let backup = unlocked(&args.named, &args.identities).await?;
    let directory = config.data_directory.display().to_string();
    let shown = bar::of_bytes(backup.manifest().value_bytes, &format!("restoring {directory}"));
    let message = format!("formatting {directory}");
    let note = |estimate: &zeroing::Estimate| estimate.note(output);
    let member = zeroing::show(message, &note, async |progress| {
        let done = |bytes| shown.set_position(bytes);
        cairn_node::files::restore(&config, &backup, key, progress, done).await
    });
    let member = member.await?;
    shown.finish_and_clear();
    let (manifest, generation) = (backup.manifest(), generation_text(member.generation));
    let key = format!("{key:016x}");
    let voters: Vec<String> = member.voters.iter().map(ToString::to_string).collect();
    output.either(
        || {
            json!({ "directory": directory, "backup": manifest.name, "cluster": config.cluster, "slot": config.slot,
                    "node_id": member.id.to_string(), "voters": voters, "generation": generation, "restore_key": key,
                    "keys": manifest.keys, "begins_behind": member.begins_behind })
        },
        || {
            let others = match voters.len() {
                1 => "Start it. Other members join it with empty directories: give them `join`, and `cairn members add` them.".to_owned(),
                _ => format!(
                    "Before you start it, do the same for each other member, of the same backup ({}), with its configuration and --restore-key {key}.",
                    manifest.name
                ),
            };
            format!(
                "restored {} to {directory}: {} keys with {} of values, for node {} of cluster {}, generation {generation}. \
                 Versions of the new cluster begin behind {}.\n{others}\nClients of the old cluster must be started anew.",
                manifest.name,
                manifest.keys,
                format_size(manifest.value_bytes),
                member.id,
                config.cluster,
                member.begins_behind,
            )
        },
    )?;
    Ok(Exit::Done)
}
