//! `cairn backup save`: who sends the state, and what is built upon.

use super::{TargetArgs, as_json, bar, latest, own_bytes};
use crate::cli::ConnectOptions;
use crate::cli::exit::{Exit, StateError, UsageError};
use crate::cli::output::Output;
use anyhow::Context;
use cairn_backup::{Head, Item, Manifest, Saver, Sources, Target};
use cairn_client::{Client, HeldValues, NodeStatus, Role, StateItem};
use cairn_node::config::format_size;
use clap::Args;
use futures::future::join_all;
use indicatif::ProgressStyle;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime};

/// How long a node may take to answer, before it sends anything.
const NODE_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Args)]
pub(super) struct SaveArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    at: TargetArgs,

    /// Save only what changed since this backup, which must stay: a name, or `latest`
    #[arg(long, value_name = "NAME")]
    since: Option<String>,
}

/// The members that may send their state: followers first, then the leader. Learners may not be read.
async fn senders(client: &Client) -> anyhow::Result<Vec<(String, NodeStatus)>> {
    client.members().await?;
    let ask = client.endpoints().into_iter().map(|endpoint| async move {
        let status = client.status(&endpoint).await;
        (endpoint, status)
    });
    let (mut found, mut refused) = (Vec::new(), None);
    for (endpoint, status) in join_all(ask).await {
        match status {
            Ok(status) if status.not_ready.is_none() => found.push((endpoint, status)),
            Ok(status) => {
                let why = status.not_ready.unwrap_or_default();
                refused = Some(StateError(format!("{endpoint} may not be read now: {why}")).into());
            }
            Err(error) => refused = Some(error.into()),
        }
    }
    if found.is_empty() {
        let nobody = || UsageError("no node to ask".into()).into();
        return Err(refused.unwrap_or_else(nobody));
    }
    found.sort_by_key(|(_, status)| status.role == Role::Leader);
    Ok(found)
}

/// Whether another member may send its state though this one does not: it sends it to others, is gone, or
/// cannot read a value.
fn may_ask_another(error: &anyhow::Error) -> bool {
    use cairn_client::Error::{DeadlineExceeded, Refused, Unavailable, ValueUnreadable};
    let error = error.downcast_ref();
    matches!(
        error,
        Some(
            Refused { .. } | Unavailable { .. } | DeadlineExceeded { .. } | ValueUnreadable { .. }
        )
    )
}

pub(super) async fn run(args: SaveArgs, output: &Output) -> anyhow::Result<Exit> {
    // Whatever the shell allows: a backup has every value.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let target = Target::make(&args.at.target)?;
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let mut senders = senders(&client).await?.into_iter();
    let mut next = senders.next();
    let mut base = args.since;
    let (endpoint, manifest, upon) = loop {
        let (endpoint, status) = next.take().context("no node to ask")?;
        if base.as_deref() == Some("latest") {
            base = Some(latest(&target, Some(&status)).await?);
        }
        let from =
            |resume| save_from(&client, &endpoint, &status, &target, base.as_deref(), resume);
        let saved = match from(true).await {
            // What was broken off is of no use: it is damaged, removed meanwhile, of another history, or in
            // too many objects.
            Err((error, Upon { resumes: Some(_), .. })) if is_of_source(&error) => {
                from(false).await
            }
            saved => saved,
        };
        next = senders.next();
        match saved {
            Ok((manifest, upon)) => break (endpoint, manifest, upon),
            Err((error, _)) if !may_ask_another(&error) => {
                return Err(with_way_out(error, base.as_deref()));
            }
            Err((error, _)) => {
                let Some((other, _)) = &next else { return Err(error) };
                output.note(
                    || json!({ "not_sent_by": endpoint, "why": format!("{error:#}"), "asking": other }),
                    || format!("{endpoint} does not send its state ({error:#}); asking {other}"),
                );
            }
        }
    };
    let new = own_bytes(&manifest);
    let whole = upon.left_out.as_ref().map(|(base, needs)| {
        format!("{base} needs the objects of {needs} backups, so this one builds on none and has everything")
    });
    output.either(
        || {
            let mut shown = as_json(&manifest);
            if let Value::Object(shown) = &mut shown {
                shown.insert("from".into(), endpoint.clone().into());
                shown.insert("resumed".into(), upon.resumes.clone().into());
                let left_out = upon.left_out.as_ref().map(|(base, _)| base.clone());
                shown.insert("left_out".into(), left_out.into());
                shown.insert("why_left_out".into(), whole.clone().into());
            }
            shown
        },
        || {
            let resumed = match &upon.resumes {
                Some(name) => format!(", going on with {name}, which was broken off"),
                None => String::new(),
            };
            let whole = whole.as_ref().map_or(String::new(), |whole| format!("\n{whole}"));
            format!(
                "saved {} at {}: {} keys with {} of values at index {}, from {endpoint}{resumed}; {} new at the target{whole}",
                manifest.name,
                target.text(),
                manifest.keys,
                format_size(manifest.value_bytes),
                manifest.head.index,
                format_size(new),
            )
        },
    )?;
    Ok(Exit::Done)
}

/// What a backup builds on, beside its base.
#[derive(Default)]
struct Upon {
    /// Those that were broken off, and with which it goes on.
    resumes: Option<String>,
    /// The base that it does not build on, and how many folders that one needs.
    left_out: Option<(String, usize)>,
}

/// A backup, and what it builds on; or an error, and the same.
type Saved = Result<(Manifest, Upon), (anyhow::Error, Upon)>;

/// Whether the error is about what a backup builds on.
fn is_of_source(error: &anyhow::Error) -> bool {
    use cairn_backup::Error::{Damaged, History, Missing, Removed, TooMuch};
    matches!(
        error.downcast_ref(),
        Some(Damaged { .. } | History { .. } | Missing { .. } | Removed(_) | TooMuch { .. })
    )
}

/// The error, with what helps if the base is of no use.
fn with_way_out(error: anyhow::Error, base: Option<&str>) -> anyhow::Error {
    use cairn_backup::Error::{Damaged, Removed};
    match (error.downcast_ref(), base) {
        (Some(Damaged { name, .. } | Removed(name)), Some(base)) if name == base => {
            let way_out = format!("nothing can be saved since {base}: save without --since");
            error.context(way_out)
        }
        _ => error,
    }
}

async fn save_from(
    client: &Client,
    endpoint: &str,
    status: &NodeStatus,
    target: &Target,
    base: Option<&str>,
    resume: bool,
) -> Saved {
    let (cluster, generation) = (&status.cluster, status.generation);
    let sources = Sources::find(target, cluster, generation, base, resume).await;
    let sources = sources.map_err(|error| (error.into(), Upon::default()))?;
    let upon = Upon {
        resumes: Some(sources.resumes().join(", ")).filter(|names| !names.is_empty()),
        left_out: sources.left_out().map(|(name, needs)| (name.to_owned(), needs)),
    };
    match save_beside(client, endpoint, target, sources).await {
        Ok(manifest) => Ok((manifest, upon)),
        Err(error) => Err((error, upon)),
    }
}

async fn save_beside(
    client: &Client,
    endpoint: &str,
    target: &Target,
    sources: Sources,
) -> anyhow::Result<Manifest> {
    let held = sources.held().into_iter();
    let held = held
        .map(|held| HeldValues { through: held.through, through_key: held.through_key })
        .collect::<Vec<_>>();
    let mut state = client.operator().state(endpoint, &held).await?;
    let from = state.head().clone();
    let now = humantime::format_rfc3339_millis(SystemTime::now()).to_string();
    let now: String = now.chars().filter(|c| c.is_ascii_digit() || *c == 'T').collect();
    let name = format!("{}-{}", now.replace('T', "-"), from.index);
    let head = Head {
        cluster: from.cluster,
        generation: from.generation,
        cluster_version: from.cluster_version,
        term: from.term,
        index: from.index,
        release: from.release,
        base: None,
        resumes: Vec::new(),
        began: 0,
    };
    let mut saver = Saver::begin(target, &name, head, sources).await?;
    let shown = bar(from.keys, "saving");
    if let Ok(style) = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} keys {eta}") {
        shown.set_style(style);
    }
    loop {
        let items = match state.next().await {
            Ok(Some(items)) => items,
            Ok(None) => break,
            Err(error) => {
                saver.break_off().await?;
                return Err(error.into());
            }
        };
        shown.inc(items.len() as u64);
        for StateItem { key, term, index, length, hash, value, .. } in items {
            saver.add(Item { key, term, index, length, hash, value }).await?;
        }
    }
    shown.finish_and_clear();
    Ok(saver.finish(from.keys).await?)
}
