//! Makes the data directory of a member of a new cluster, with the state of a backup.
//!
//! What holds here: until all of the state is in it, synced and checked against the backup's own hash,
//! the directory belongs to no cluster, and no node starts in it.

use super::{Progress, format_for};
use crate::compose::options;
use crate::compose::world::{Environment, durability};
use crate::config::NodeConfig;
use crate::error::{Error, RESTORING};
use cairn_backup::{Backup, Item};
use cairn_engine::{Engine, Identity, LogId, SnapshotKey};
use cairn_raft::{GROUP, MemberAddress, NodeId, Restored};
use std::collections::BTreeMap;
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
    /// Versions up to this one are those of the old cluster, or none.
    pub begins_behind: u64,
}

/// Makes the directory of this configuration from the backup, for a new cluster of this generation with
/// the members of the configuration. Each of them makes its own of the same backup, with the same
/// generation, and has the same state and knows the others.
///
/// # Errors
/// `Config`; `Engine`, also if the directory is not empty, or too small; `Backup`. The directory is of
/// no use then: remove its files, and begin again.
pub async fn restore(
    config: &NodeConfig,
    backup: &Backup,
    generation: u32,
    zeroing: Progress<'_>,
    mut restored: impl FnMut(u64),
) -> Result<RestoredMember, Error> {
    config.validate()?;
    let manifest = backup.manifest();
    let identity = |slot| Restored::identity(&config.cluster, &manifest.state, generation, slot);
    let id_of = |slot| {
        let Identity { slot, incarnation, .. } = identity(slot);
        NodeId::new(slot, incarnation)
    };
    let own = identity(config.slot);
    let mut members: BTreeMap<NodeId, MemberAddress> =
        config.members.iter().map(|(slot, address)| (id_of(*slot), address.clone())).collect();
    members.entry(id_of(config.slot)).or_default();
    let head = &manifest.head;
    let plan = Restored {
        members,
        generation,
        last: LogId { term: head.term, index: head.index },
        version: head.cluster_version,
    };
    let begins_behind = plan.begins_behind()?.index;
    let unfinished = Identity { cluster: RESTORING.to_owned(), ..own };
    format_for(config, &unfinished, zeroing).await?;
    fill(config, backup, &plan, &mut restored).await.map_err(|error| Error::HalfRestored {
        directory: config.data_directory.display().to_string(),
        why: error.to_string(),
    })?;
    Ok(RestoredMember {
        id: id_of(config.slot),
        voters: plan.members.into_keys().collect(),
        begins_behind,
    })
}

async fn fill(
    config: &NodeConfig,
    backup: &Backup,
    plan: &Restored,
    restored: &mut impl FnMut(u64),
) -> Result<(), Error> {
    let environment = Environment::from_files(config)?;
    let durability = durability(config)?;
    let expected = Some((RESTORING.to_owned(), config.slot));
    let opened = options(config, &durability, &environment);
    let engine = Engine::open(Arc::clone(&environment.directory), expected, opened).await?;
    let installed = install(&engine, backup, plan, restored).await;
    let named = match installed {
        Ok(()) => engine.set_cluster(&config.cluster).await.map_err(Error::from),
        failed => failed,
    };
    let closed = engine.close().await;
    named.and(closed.map_err(Error::from))
}

async fn install(
    engine: &Engine,
    backup: &Backup,
    plan: &Restored,
    restored: &mut impl FnMut(u64),
) -> Result<(), Error> {
    let mut installer = engine.begin_install(GROUP).await?;
    let mut items = backup.items();
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
            restored(done);
        }
    }
    installer.put(batch).await?;
    restored(done);
    plan.install(engine, installer).await?;
    Ok(())
}
