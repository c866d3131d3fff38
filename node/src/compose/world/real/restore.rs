//! Makes the data directory of a member of a new cluster, with the state of a backup.
//!
//! What holds here: until all of the state is in it, synced and checked against the backup's own hash,
//! the directory belongs to no cluster, and no node starts in it.

use super::format_for;
use crate::compose::options;
use crate::compose::world::files::Progress;
use crate::compose::world::{Environment, durability};
use crate::config::NodeConfig;
use crate::error::{Error, RESTORING};
use cairn_backup::{Backup, Item};
use cairn_engine::{Engine, Identity, LogId, SnapshotKey};
use cairn_raft::{GROUP, MemberAddress, NodeId, Restored};
use std::ops::ControlFlow;
use std::sync::Arc;

/// Bytes of values that are given to the engine at once.
const BATCH_BYTES: usize = 16 << 20;
/// Keys that are given to it at once.
const BATCH_KEYS: usize = 16_384;

/// What a restored directory is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RestoredMember {
    /// Its identity.
    pub id: NodeId,
    /// The voters of the new cluster.
    pub voters: Vec<NodeId>,
    /// The generation of the new cluster.
    pub generation: u32,
    /// Versions up to this one are those of the old cluster, or none.
    pub begins_behind: u64,
}

/// Makes the directory of this configuration from the backup, for a new cluster with the members of the
/// configuration, or of this one alone. Each of them makes its own of the same backup, with the same
/// members and the same `key`, and has the same state and knows the others.
///
/// # Errors
/// `Config`; `Engine`, also if the directory is not empty, or too small; `Replica`, if the backup is of
/// a later release; `HalfRestored`, if it breaks off, or `zeroing` ends the work.
pub async fn restore(
    config: &NodeConfig,
    backup: &Backup,
    key: u64,
    zeroing: Progress<'_>,
    mut restored: impl FnMut(u64),
) -> Result<RestoredMember, Error> {
    config.validate()?;
    let mut members = config.members.clone();
    if members.is_empty() && !config.has_peers() {
        members.insert(config.slot, MemberAddress::default());
    }
    if !members.contains_key(&config.slot) {
        return Err(Error::NotRestored(
            "the configuration names other members, and not this one: a member that joins a cluster needs no backup, but an \
             empty directory; else name all members of the new cluster in `[members]`, this one too",
        ));
    }
    if config.storage.format_empty {
        return Err(Error::NotRestored(
            "`storage.format_empty` would make an empty member of what a restore that breaks off leaves: unset it while you \
             restore",
        ));
    }
    let manifest = backup.manifest();
    let head = &manifest.head;
    let plan = Restored {
        cluster: config.cluster.clone(),
        members,
        key,
        state: manifest.state.clone(),
        last: LogId { term: head.term, index: head.index },
        generation: head.generation,
        version: head.cluster_version,
    };
    let begins_behind = plan.begins_behind()?.index;
    let own = plan.identity(config.slot);
    let id = NodeId::new(own.slot, own.incarnation);
    let unfinished = Identity { cluster: RESTORING.to_owned(), ..own };
    format_for(config, &unfinished, &mut *zeroing).await?;
    let mut told = |done| {
        restored(done);
        // All zeros are written, and it still knows whether to go on.
        zeroing(1, 1)
    };
    fill(config, backup, &plan, &mut told).await.map_err(|error| Error::HalfRestored {
        directory: config.data_directory.display().to_string(),
        why: error.to_string(),
    })?;
    Ok(RestoredMember {
        id,
        voters: plan.voters().into_keys().collect(),
        generation: plan.new_generation(),
        begins_behind,
    })
}

/// Of the engine, the replica, or the backup.
type Failure = Box<dyn std::error::Error + Send + Sync>;

async fn fill(
    config: &NodeConfig,
    backup: &Backup,
    plan: &Restored,
    restored: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let environment = Environment::from_files(config)?;
    let durability = durability(config)?;
    let expected = Some((RESTORING.to_owned(), config.slot));
    let opened = options(config, &durability, &environment);
    let engine = Engine::open(Arc::clone(&environment.directory), expected, opened).await?;
    let installed = install(&engine, backup, plan, restored).await;
    let named = match installed {
        Ok(()) => engine.set_cluster(&config.cluster).await.map_err(Failure::from),
        failed => failed,
    };
    let closed = engine.close().await;
    named.and(closed.map_err(Failure::from))
}

async fn install(
    engine: &Engine,
    backup: &Backup,
    plan: &Restored,
    restored: &mut impl FnMut(u64) -> ControlFlow<()>,
) -> Result<(), Failure> {
    let mut installer = engine.begin_install(GROUP).await?;
    let mut items = backup.items()?;
    let (mut batch, mut bytes, mut done) = (Vec::new(), 0, 0);
    while let Some(item) = items.next().await? {
        let Item { key, term, index, value, .. } = item;
        let value = value.unwrap_or_default();
        bytes += value.len();
        done += value.len() as u64;
        batch.push(SnapshotKey::with_value(key, LogId { term, index }, value));
        if bytes >= BATCH_BYTES || batch.len() >= BATCH_KEYS {
            installer.put(std::mem::take(&mut batch)).await?;
            bytes = 0;
            if restored(done).is_break() {
                return Err("it was interrupted".into());
            }
        }
    }
    installer.put(batch).await?;
    if restored(done).is_break() {
        return Err("it was interrupted".into());
    }
    plan.install(engine, installer).await?;
    Ok(())
}
