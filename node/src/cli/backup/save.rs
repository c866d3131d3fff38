//! `cairn backup save`: who sends the state, what is built upon, and who reads it.

use super::{IdentityArgs, TargetArgs, as_json, latest_of};
use crate::cli::ConnectOptions;
use crate::cli::bar;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::Output;
use crate::cli::senders::{NODE_TIMEOUT, may_ask_another, note_not_sent, senders, told};
use anyhow::Context;
use cairn_backup::Error::Unreadable;
use cairn_backup::{Encryption, Identities, Overview, Recipients, Target};
use cairn_node::backups::{self, SaveError, Saved};
use cairn_node::config::format_size;
use clap::Args;
use serde_json::Value;
use std::ops::ControlFlow;
use std::sync::Arc;

#[derive(Args)]
pub(super) struct SaveArgs {
    #[command(flatten)]
    connect: ConnectOptions,

    #[command(flatten)]
    at: TargetArgs,

    /// Save only what changed since this backup, which must stay: a name, or `latest`, which saves everything if those at the target are not of this cluster, or need what cannot be read
    #[arg(long, value_name = "NAME")]
    since: Option<String>,

    /// Encrypt to this recipient of age, age1…, or to those in this file, one a line; may be given several
    /// times: each of their secret keys reads the backup
    #[arg(long, value_name = "RECIPIENT|FILE")]
    encrypt_to: Vec<String>,

    #[command(flatten)]
    identities: IdentityArgs,
}

impl SaveArgs {
    /// How the backup is encrypted, if it is. One for all members that are asked: what this process wrote it
    /// goes on with.
    fn encryption(&self) -> anyhow::Result<Option<Arc<Encryption>>> {
        let identities = Identities::read(&self.identities.identity)?;
        if !self.encrypt_to.is_empty() {
            let recipients = Recipients::read(&self.encrypt_to)?;
            return Ok(Some(Arc::new(Encryption::new(recipients, identities))));
        }
        if !identities.is_empty() {
            let why = "--identity reads encrypted backups, and this one would not be encrypted: name its recipients with \
                       --encrypt-to";
            return Err(UsageError(why.into()).into());
        }
        Ok(None)
    }
}

pub(super) async fn run(args: SaveArgs, output: &Output) -> anyhow::Result<Exit> {
    // Whatever the shell allows: a backup has every value.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let encryption = args.encryption()?;
    let target = Target::make(&args.at.target)?;
    let client = args.connect.client_within(NODE_TIMEOUT)?;
    let mut senders = senders(&client).await?.into_iter();
    let mut next = senders.next();
    let is_latest = args.since.as_deref() == Some("latest");
    let (mut base, mut has_none, mut unread) = (args.since, false, None);
    let (endpoint, saved) = loop {
        let (endpoint, status) = next.take().context("no node to ask")?;
        if base.as_deref() == Some("latest") {
            base = latest_of(&target, &status).await?;
            has_none = base.is_none();
        }
        let shown = bar::of_keys(0, "saving");
        let each = |keys, of| {
            shown.set_length(of);
            shown.set_position(keys);
            ControlFlow::Continue(())
        };
        let (sender, since) = ((endpoint.as_str(), &status), base.as_deref());
        let encryption = encryption.as_ref();
        let mut saved = backups::save(&client, sender, &target, since, encryption, each).await;
        // Nobody named what cannot be read: a nightly save goes on without it.
        if let Err(SaveError::Backup(error @ Unreadable { .. })) = &saved
            && let Some(name) = base.take_if(|_| is_latest)
        {
            unread = Some((name.clone(), format!("{name} needs what cannot be read ({error})")));
            saved = backups::save(&client, sender, &target, None, encryption, each).await;
        }
        shown.finish_and_clear();
        next = senders.next();
        match saved {
            Ok(saved) => break (endpoint, saved),
            Err(error) if !matches!(&error, SaveError::Client(error) if may_ask_another(error)) => {
                return Err(with_way_out(error, base.as_deref()));
            }
            Err(error) => {
                let Some((other, _)) = &next else { return Err(told(error)) };
                note_not_sent(output, &endpoint, &error.to_string(), other);
            }
        }
    };
    let Saved { manifest, resumed, left_out } = saved;
    let resumed = Some(resumed.join(", ")).filter(|names| !names.is_empty());
    let new = manifest.own_bytes();
    // A nightly save goes on where no backup is the cluster's own: all members may have been replaced since.
    let none = || {
        let at = target.text();
        ("latest".to_owned(), format!("there is no backup of this cluster at {at}"))
    };
    let left_out = left_out.map(|(base, why)| {
        let why = format!("{base} {why}");
        (base, why)
    });
    let left_out = left_out.or(unread).or_else(|| has_none.then(none));
    let whole = left_out
        .as_ref()
        .map(|(_, why)| format!("{why}, so this one builds on none and has everything"));
    output.either(
        || {
            let mut shown = as_json(&Overview::of(&manifest));
            if let Value::Object(shown) = &mut shown {
                shown.insert("from".into(), endpoint.clone().into());
                shown.insert("resumed".into(), resumed.clone().into());
                let left_out = left_out.as_ref().map(|(base, _)| base.clone());
                shown.insert("left_out".into(), left_out.into());
                shown.insert("why_left_out".into(), whole.clone().into());
            }
            shown
        },
        || {
            let resumed = match &resumed {
                Some(name) => format!(", going on with {name}, which was broken off"),
                None => String::new(),
            };
            let whole = whole.as_ref().map_or(String::new(), |whole| format!("\n{whole}"));
            let encrypted = match manifest.head.recipients.len() {
                0 => String::new(),
                1 => ", encrypted to one recipient".to_owned(),
                more => format!(", encrypted to {more} recipients"),
            };
            format!(
                "saved {} at {}{encrypted}: {} keys with {} of values at index {}, from {endpoint}{resumed}; {} new at the target{whole}",
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

/// The error, with what helps if the base is of no use.
fn with_way_out(error: SaveError, base: Option<&str>) -> anyhow::Error {
    use cairn_backup::Error::{Damaged, NoIdentity, Removed, WrongIdentity};
    let way_out = match (&error, base) {
        (
            SaveError::Backup(
                Damaged { name, .. }
                | Removed(name)
                | NoIdentity { name, .. }
                | WrongIdentity { name, .. },
            ),
            Some(base),
        ) if name == base => {
            Some(format!("nothing can be saved since {base}: save without --since"))
        }
        _ => None,
    };
    let error = told(error);
    match way_out {
        Some(way_out) => error.context(way_out),
        None => error,
    }
}
