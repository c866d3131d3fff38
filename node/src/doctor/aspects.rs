//! Reduces the facts to the few aspects that decide the verdict.

use super::device::{Layer, Medium, Queue};
use super::facts::{Facts, Unprobed};
use super::filesystem::{Filesystem, FilesystemKind};
use super::verdict::{Aspects, Atomicity, Cache, Flush, Mapping, Transfer};
use cairn_engine::io::{Extents, FileProbe};

/// The unit of every write.
const BLOCK_BYTES: u64 = cairn_engine::io::BLOCK as u64;

pub(super) fn aspects(facts: &Facts) -> Aspects {
    let filesystem = facts.filesystem.as_ref().ok();
    let layers = facts.stack.as_deref().unwrap_or_default();
    let files = facts.files.as_ref();
    Aspects {
        kernel_supported: facts.kernel.supported.is_ok(),
        writable: filesystem.is_none_or(|filesystem| !filesystem.read_only()),
        medium: layers.iter().map(|layer| layer.medium).max().unwrap_or(Medium::Unknown),
        cache: cache(layers),
        atomicity: atomicity(layers, filesystem),
        overwrite: filesystem.map_or(FilesystemKind::Unknown, |filesystem| filesystem.kind),
        mapping: mapping(files.ok().and_then(|files| files.extents)),
        transfer: transfer(files, filesystem),
        flush: flush(filesystem, layers),
    }
}

pub(super) fn cache(layers: &[Layer]) -> Cache {
    let of = |layer: &Layer| match (&layer.nvme, layer.queue.write_cache.as_deref()) {
        (Some(Ok(facts)), Some("write back")) if facts.backup_failed && facts.volatile_cache => {
            Cache::Unprotected
        }
        (Some(Ok(facts)), _) if facts.backup_failed => Cache::Unsyncable,
        // An operator can set "write through" in the kernel's queue settings against what the drive
        // reported. The drive's own report takes precedence.
        (Some(Ok(facts)), _) if facts.volatile_cache => Cache::Volatile,
        (_, Some("write back")) => Cache::Volatile,
        _ if is_overridden(&layer.queue) => Cache::Volatile,
        (_, Some("write through")) => Cache::None,
        _ => Cache::Unknown,
    };
    layers.iter().map(of).max().unwrap_or(Cache::Unknown)
}

fn atomicity(layers: &[Layer], filesystem: Option<&Filesystem>) -> Atomicity {
    let of_layer = |layer: &Layer| match layer.partition_start_bytes {
        Some(start) if !start.is_multiple_of(BLOCK_BYTES) => Atomicity::Torn,
        _ => layer_atomicity(layer),
    };
    let of_filesystem = match filesystem.and_then(|filesystem| filesystem.space) {
        Some(space) if space.block_bytes < BLOCK_BYTES => Atomicity::Torn,
        Some(_) => Atomicity::Whole,
        None => Atomicity::Unknown,
    };
    layers.iter().map(of_layer).max().unwrap_or(Atomicity::Unknown).max(of_filesystem)
}

/// Decides by the drive's own report, by the kernel's, or by the size of the drive's physical block
/// if no cache can tear it.
pub(super) fn layer_atomicity(layer: &Layer) -> Atomicity {
    let queue = &layer.queue;
    if let Some(Ok(facts)) = &layer.nvme {
        return if facts.writes_blocks_atomically() { Atomicity::Whole } else { Atomicity::Torn };
    }
    if queue
        .atomic_write_bytes
        .is_some_and(|(min, max)| min > 0 && (min..=max).contains(&BLOCK_BYTES))
    {
        return Atomicity::Whole;
    }
    match queue.physical_block_bytes {
        Some(block) if block < BLOCK_BYTES => Atomicity::Torn,
        Some(_)
            if queue.write_cache.as_deref() == Some("write through") && !is_overridden(queue) =>
        {
            Atomicity::Whole
        }
        _ => Atomicity::Unknown,
    }
}

pub(super) fn mapping(extents: Option<Extents>) -> Mapping {
    match extents {
        None => Mapping::Unknown,
        Some(extents) if extents.unwritten_bytes + extents.missing_bytes > 0 => Mapping::Unwritten,
        Some(extents) if extents.shared_bytes + extents.packed_bytes > 0 => Mapping::Shared,
        Some(_) => Mapping::Whole,
    }
}

fn transfer(files: Result<&FileProbe, &Unprobed>, filesystem: Option<&Filesystem>) -> Transfer {
    let files = match files {
        Ok(files) => files,
        Err(unprobed) if unprobed.passing => return Transfer::Untried,
        Err(_) => return Transfer::Fails,
    };
    let units = files.alignment.map(|alignment| alignment.offset_bytes.max(alignment.memory_bytes));
    let journalled = filesystem.is_some_and(|filesystem| filesystem.journals_data().is_some());
    if files.transfer.is_err()
        || files.direct && units.is_some_and(|unit| u64::from(unit) > BLOCK_BYTES)
    {
        Transfer::Fails
    } else if !files.direct || units == Some(0) || journalled {
        Transfer::Buffered
    } else {
        Transfer::Direct
    }
}

fn flush(filesystem: Option<&Filesystem>, layers: &[Layer]) -> Flush {
    match filesystem {
        Some(filesystem) if filesystem.sync_dropped().is_some() => Flush::Dropped,
        Some(filesystem) if filesystem.flush_suppressed().is_some() => Flush::Suppressed,
        _ if layers.iter().any(gets_no_flushes) => Flush::Suppressed,
        Some(filesystem) if filesystem.kind == FilesystemKind::CopyOnWrite => Flush::Unseen,
        _ if layers.iter().any(may_ignore_syncs) => Flush::Unseen,
        _ => Flush::Sent,
    }
}

/// A drive with a volatile cache whose queue an operator has set to "write through": the kernel then
/// sends it no flushes (Documentation/ABI/stable/sysfs-block, `write_cache`).
fn gets_no_flushes(layer: &Layer) -> bool {
    let volatile = matches!(&layer.nvme, Some(Ok(facts)) if facts.volatile_cache);
    volatile && layer.queue.write_cache.as_deref() == Some("write through")
        || is_overridden(&layer.queue)
}

/// Whether the queue shows that an operator has set it to "write through". The kernel gives a drive forced
/// unit access (FUA) only where it has a volatile cache, and keeps it then. Anybody may read this, also
/// where the drive cannot be asked.
pub(super) fn is_overridden(queue: &Queue) -> bool {
    queue.write_cache.as_deref() == Some("write through") && queue.fua == Some(true)
}

/// A disk of a hypervisor, or a ZFS volume.
fn may_ignore_syncs(layer: &Layer) -> bool {
    layer.medium == Medium::Virtual
        || layer.medium == Medium::Layered && layer.name.starts_with("zd")
}
