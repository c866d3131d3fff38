//! Reduces the facts to the few aspects that decide the verdict.

use super::device::{Layer, LayerKind};
use super::facts::{Facts, Unprobed};
use super::filesystem::{Filesystem, FilesystemKind};
use super::verdict::{Aspects, Atomicity, Cache, Flush, Mapping, Medium, Overwrite, Transfer};
use cairn_engine::io::FileProbe;

/// The unit of every write.
const BLOCK_BYTES: u64 = cairn_engine::io::BLOCK as u64;

pub(super) fn aspects(facts: &Facts) -> Aspects {
    let filesystem = facts.filesystem.as_ref().ok();
    let layers = facts.stack.as_deref().unwrap_or_default();
    let files = facts.files.as_ref();
    Aspects {
        kernel_supported: facts.kernel.supported.is_ok(),
        writable: filesystem.is_none_or(|filesystem| !filesystem.read_only()),
        medium: medium(layers),
        cache: cache(layers),
        atomicity: atomicity(layers, filesystem),
        overwrite: overwrite(filesystem),
        mapping: mapping(files.ok()),
        transfer: transfer(files, filesystem),
        flush: flush(filesystem, layers),
    }
}

/// The layer that matters most for whether a completed write survives.
fn medium(layers: &[Layer]) -> Medium {
    let any = |kinds: &[LayerKind]| layers.iter().any(|layer| kinds.contains(&layer.kind));
    if layers.is_empty() || any(&[LayerKind::Unknown]) && !any(&[LayerKind::Network]) {
        Medium::Unknown
    } else if any(&[LayerKind::Network]) {
        Medium::Network
    } else if any(&[LayerKind::Memory]) {
        Medium::Memory
    } else if any(&[LayerKind::DeviceMapper, LayerKind::Md, LayerKind::Loop, LayerKind::Stacked]) {
        Medium::Layered
    } else if any(&[LayerKind::UsbDrive]) {
        Medium::Bridged
    } else if any(&[LayerKind::Virtual]) {
        Medium::Virtual
    } else {
        Medium::Drive
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
        (_, Some("write through")) => Cache::None,
        _ => Cache::Unknown,
    };
    let caches: Vec<Cache> = layers.iter().map(of).collect();
    if caches.contains(&Cache::Unsyncable) {
        Cache::Unsyncable
    } else if caches.contains(&Cache::Unprotected) {
        Cache::Unprotected
    } else if caches.contains(&Cache::Volatile) {
        Cache::Volatile
    } else if caches.is_empty() || caches.contains(&Cache::Unknown) {
        Cache::Unknown
    } else {
        Cache::None
    }
}

fn atomicity(layers: &[Layer], filesystem: Option<&Filesystem>) -> Atomicity {
    let block = filesystem.and_then(|filesystem| filesystem.space).map(|space| space.block_bytes);
    let misplaced = |layer: &Layer| {
        layer.partition_start_bytes.is_some_and(|start| !start.is_multiple_of(BLOCK_BYTES))
    };
    let each: Vec<Atomicity> = layers.iter().map(layer_atomicity).collect();
    if block.is_some_and(|block| block < BLOCK_BYTES)
        || layers.iter().any(misplaced)
        || each.contains(&Atomicity::Torn)
    {
        Atomicity::Torn
    } else if block.is_none() || each.is_empty() || each.contains(&Atomicity::Unknown) {
        Atomicity::Unknown
    } else {
        Atomicity::Whole
    }
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
        Some(_) if queue.write_cache.as_deref() == Some("write through") => Atomicity::Whole,
        _ => Atomicity::Unknown,
    }
}

fn overwrite(filesystem: Option<&Filesystem>) -> Overwrite {
    match filesystem.map(|filesystem| filesystem.kind) {
        Some(FilesystemKind::InPlace) => Overwrite::InPlace,
        Some(FilesystemKind::CopyOnWrite) => Overwrite::Elsewhere,
        Some(FilesystemKind::Network) => Overwrite::Network,
        Some(FilesystemKind::Opaque) => Overwrite::Opaque,
        Some(FilesystemKind::Memory) => Overwrite::Memory,
        Some(FilesystemKind::Unknown) | None => Overwrite::Unknown,
    }
}

fn mapping(files: Option<&FileProbe>) -> Mapping {
    match files.and_then(|files| files.extents) {
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
        Some(filesystem) if filesystem.kind == FilesystemKind::CopyOnWrite => Flush::Unseen,
        _ if layers.iter().any(may_ignore_syncs) => Flush::Unseen,
        _ => Flush::Sent,
    }
}

/// A disk of a hypervisor, or a ZFS volume.
fn may_ignore_syncs(layer: &Layer) -> bool {
    layer.kind == LayerKind::Virtual
        || layer.kind == LayerKind::Stacked && layer.name.starts_with("zd")
}
