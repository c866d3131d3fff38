//! Taking a checkpoint beside foreground work, and reclaiming the journal that it covers.

use crate::checkpoint::{
    Capture, CapturedGroup, Changes, Header, PARTS, replace, void, write_changes,
};
use crate::error::{Error, Result};
use crate::state::{Shared, State, Written};
use crate::superblock::NEWEST_FORMAT;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::Instant;

/// Writes a captured state to the device, then reclaims the journal.
pub(super) async fn run(shared: Arc<Shared>, capture: Capture, sequence: u64, chain: u128) {
    if let Err(error) = save(&shared, &capture, sequence, chain).await {
        shared.fail(&error);
    }
    shared.signals.changed.notify_waiters();
    shared.signals.writer.notify_one();
    // Most of the nodes may belong to the capture alone by now.
    for group in capture.groups {
        group.keys.drop_in_pieces().await;
    }
}

async fn save(shared: &Arc<Shared>, capture: &Capture, sequence: u64, chain: u128) -> Result<()> {
    let ended = |s: &Shared| match s.failed() {
        Some(error) => Some(Err(error)),
        None => (s.progress.lock().written >= sequence).then_some(Ok(())),
    };
    shared.wait_until(ended).await?;
    let (area, number, written, rest_bytes, newest_format) = {
        let mut state = shared.state.lock();
        let area = 1 - state.checkpoints.area;
        // It holds nothing to add to while it is written.
        let written = state.checkpoints.areas.get_mut(area).and_then(Option::take);
        let number = state.checkpoints.number + 1;
        let rest_bytes = capture.groups.iter().map(|group| rest_bytes(&state, group)).sum::<u64>();
        (area, number, written, rest_bytes, state.checkpoints.newest_format)
    };
    let incarnation = shared.facts.identity.incarnation;
    let header = Header { incarnation, number, sequence, chain, ..Header::default() };
    let file = shared.files.area(area);
    let sync_all = || async { shared.sync_now().await.map(drop) };
    let changes = written.filter(|_| newest_format && !capture.replaces).and_then(|written| {
        let changes = capture.changes(&written.applied)?;
        worth(&written, capture, &changes, rest_bytes, file.size()).then_some((written, changes))
    });
    let now = match changes {
        None => Written::whole(replace(file, capture, header, sync_all()).await?, capture),
        Some((before, changes)) => {
            to_newest_format(shared).await?;
            let headers = (&before.header, header);
            match write_changes(file, capture, &changes, headers, sync_all()).await {
                // It was reckoned from the mean length of a key.
                Err(Error::Full { .. }) => {
                    Written::whole(replace(file, capture, header, sync_all()).await?, capture)
                }
                written => before.with_changes(written?, capture),
            }
        }
    };
    shared.counters.device_bytes.fetch_add(now.header.written_bytes(), Ordering::Relaxed);
    if capture.replaces {
        // A snapshot replaced the state: the older checkpoint and the journal no longer lead to it.
        void(shared.files.area(1 - area)).await?;
    }
    let mut state = shared.state.lock();
    let checkpoints = &mut state.checkpoints;
    assert!(sequence >= checkpoints.sequence, "checkpoints are written in order");
    checkpoints.previous = if capture.replaces { sequence } else { checkpoints.sequence };
    checkpoints.sequence = sequence;
    checkpoints.number = number;
    checkpoints.area = area;
    checkpoints.applied = capture.applied();
    if capture.replaces {
        checkpoints.areas = [None, None];
    }
    if let Some(written) = checkpoints.areas.get_mut(area) {
        *written = Some(now);
    }
    checkpoints.completed = checkpoints.begun;
    checkpoints.running = false;
    checkpoints.hold &= !capture.replaces;
    // There is no older one now. A second one follows at once: a bad block in the only one would cost
    // everything.
    checkpoints.requested |= capture.replaces;
    Ok(())
}

/// About the bytes of a captured group that are not keys. The log may have been purged since.
fn rest_bytes(state: &State, captured: &CapturedGroup) -> u64 {
    let image = captured.image.as_ref().map_or(0, |image| image.encoded_bytes());
    let log = state.groups.get(&captured.id).map(|group| &group.log);
    let entry_bytes = log.map_or(0, |log| log.checkpoint_bytes() / log.len().max(1) as u64 + 1);
    image + entry_bytes * captured.log.len() as u64
}

/// Records in the superblock that an earlier release cannot read the directory, before it cannot.
async fn to_newest_format(shared: &Shared) -> Result<()> {
    if shared.superblock.lock().await.current().format < NEWEST_FORMAT {
        shared.update_superblock(|superblock| superblock.format = NEWEST_FORMAT).await?;
    }
    Ok(())
}

/// All of the state is written to an area again after so long: what a disk damaged there unnoticed is
/// part of each checkpoint until then.
const WHOLE_WITHIN: Duration = Duration::from_secs(24 * 3600);

/// Whether to write what changed instead of all of the state. Parts that are longer together than all of
/// the state take longer to load.
fn worth(
    written: &Written,
    capture: &Capture,
    changes: &[Changes],
    rest_bytes: u64,
    area_bytes: u64,
) -> bool {
    let most = |(group, changes): (&CapturedGroup, &Changes)| {
        let (bytes, keys) = (group.keys.checkpoint_bytes(), group.keys.len() as u64);
        changes.about(group.applied).min(keys).saturating_mul(bytes / keys.max(1) + 1)
    };
    let bytes = capture.groups.iter().zip(changes).map(most).fold(rest_bytes, u64::saturating_add);
    let keys = capture.groups.iter().map(|group| group.keys.checkpoint_bytes());
    written.parts < PARTS
        && written.since.elapsed() < WHOLE_WITHIN
        && written.changes_bytes.saturating_add(bytes) <= rest_bytes + keys.sum::<u64>()
        && written.header.part.end().saturating_add(bytes) <= area_bytes
}

impl Written {
    fn whole(header: Header, capture: &Capture) -> Written {
        let since = Instant::now();
        Written { header, parts: 1, since, changes_bytes: 0, applied: capture.applied() }
    }

    fn with_changes(self, header: Header, capture: &Capture) -> Written {
        Written {
            parts: self.parts + 1,
            changes_bytes: self.changes_bytes + header.part.body_bytes,
            applied: capture.applied(),
            header,
            ..self
        }
    }
}
