//! What was found, line by line: the value, whether it is good for the promise, and why it matters.

use super::aspects::layer_atomicity;
use super::device::{Layer, LayerKind};
use super::facts::{Facts, State};
use super::filesystem::{Filesystem, FilesystemKind};
use super::verdict::Atomicity;
use crate::config::format_size;
use cairn_engine::io::FileProbe;

/// What a finding means for the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Grade {
    /// Speaks for it.
    Good,
    /// Neither.
    Neutral,
    /// Speaks against the stronger promise, or against any.
    Bad,
}

impl Grade {
    /// In one word.
    pub const fn word(self) -> &'static str {
        match self {
            Grade::Good => "good",
            Grade::Neutral => "neutral",
            Grade::Bad => "bad",
        }
    }
}

/// One thing that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its name, with the device's where there may be several.
    pub name: String,
    /// What was found.
    pub value: String,
    /// What that means.
    pub grade: Grade,
    /// Why it matters.
    pub why: &'static str,
}

const UNKNOWN: &str = "unknown";

fn finding(name: impl Into<String>, value: impl Into<String>, grade: Grade, why: &'static str) -> Finding {
    Finding { name: name.into(), value: value.into(), grade, why }
}

const fn good_if(good: bool) -> Grade {
    if good { Grade::Good } else { Grade::Bad }
}

pub(super) fn findings(facts: &Facts, size_bytes: Option<u64>) -> Vec<Finding> {
    let mut all = vec![directory(facts)];
    all.extend(kernel(facts));
    all.extend(filesystem(facts));
    all.extend(files(facts));
    all.push(space(facts, size_bytes));
    match &facts.stack {
        Ok(layers) => all.extend(layers.iter().flat_map(layer)),
        Err(reason) => all.push(finding(
            "device",
            format!("{UNKNOWN}: {reason}"),
            Grade::Bad,
            "without it nothing tells whether a completed write survives the power",
        )),
    }
    all
}

fn directory(facts: &Facts) -> Finding {
    let examined = facts.place.examined.display();
    let (value, grade) = match facts.place.state {
        State::Formatted => (format!("{examined}, formatted"), Grade::Good),
        State::Empty => (format!("{examined}, empty"), Grade::Neutral),
        State::Missing => (format!("not there yet; {examined} was examined instead"), Grade::Neutral),
        State::Unfinished => (format!("{examined}, left by a format that did not end"), Grade::Bad),
        State::Foreign => (format!("{examined}, holds other files"), Grade::Neutral),
    };
    finding("directory", value, grade, "`cairn format` makes a new or empty one, and writes all of it")
}

fn kernel(facts: &Facts) -> [Finding; 3] {
    let kernel = &facts.kernel;
    let clock = match kernel.clock_is_fast() {
        Some(true) => Grade::Good,
        Some(false) | None => Grade::Neutral,
    };
    let io_uring = match &kernel.io_uring {
        Ok(()) => ("allowed".into(), Grade::Good),
        Err(reason) => (format!("not to be had: {reason}"), Grade::Neutral),
    };
    [
        finding(
            "kernel",
            kernel.release.as_str(),
            good_if(kernel.supported.is_ok()),
            "the server needs Linux 5.15 or newer",
        ),
        finding(
            "clock source",
            kernel.clock_source.as_deref().unwrap_or(UNKNOWN),
            clock,
            "the time is read on every request; a slow clock costs speed, not safety",
        ),
        finding(
            "io_uring",
            io_uring.0,
            io_uring.1,
            "without it threads drive the disk: slower, and the promise is the same",
        ),
    ]
}

fn filesystem(facts: &Facts) -> Vec<Finding> {
    let why = "an overwrite in place needs no metadata, so a completed direct write is on the device";
    let found = match &facts.filesystem {
        Ok(found) => found,
        Err(reason) => {
            return vec![finding("filesystem", format!("{UNKNOWN}: {reason}"), Grade::Bad, why)];
        }
    };
    let place = format!("{} on {}, mounted at {}", found.name, found.source, found.mount_point.display());
    vec![
        finding("filesystem", place, good_if(found.kind == FilesystemKind::InPlace), why),
        options(found),
        block(found),
    ]
}

fn options(found: &Filesystem) -> Finding {
    let against: Vec<&str> = [found.flush_suppressed(), found.sync_dropped(), found.journals_data()]
        .into_iter()
        .flatten()
        .chain(found.read_only().then_some("ro"))
        .collect();
    let why =
        "options can keep a sync from reaching the device, or a direct write out of the page cache's way";
    match against.is_empty() {
        true => finding("mount options", found.options.join(","), Grade::Good, why),
        false => finding("mount options", against.join(","), Grade::Bad, why),
    }
}

fn block(found: &Filesystem) -> Finding {
    let why = "a filesystem's block under 4 KiB lets one write of 4 KiB lie in two places";
    match found.room {
        Some(room) => finding(
            "filesystem block",
            format_size(room.block_bytes),
            good_if(room.block_bytes >= cairn_engine::io::BLOCK as u64),
            why,
        ),
        None => finding("filesystem block", UNKNOWN, Grade::Bad, why),
    }
}

fn files(facts: &Facts) -> Vec<Finding> {
    let whose = if facts.place.state == State::Formatted { "of its files" } else { "of a new file" };
    match &facts.files {
        Ok(files) => vec![extents(files, whose), direct(files), synced(files)],
        Err(unprobed) => vec![finding(
            "direct I/O",
            format!("could not be tried: {}", unprobed.reason),
            Grade::Bad,
            "a completed write is on the device only if it went around the page cache",
        )],
    }
}

fn extents(files: &FileProbe, whose: &str) -> Finding {
    let why = "a write to an unwritten, shared or missing extent needs metadata that completes later";
    let name = format!("extents {whose}");
    let Some(extents) = files.extents else {
        return finding(name, "not shown by the filesystem (FIEMAP)", Grade::Bad, why);
    };
    let kinds = [
        (extents.unwritten_bytes, "unwritten"),
        (extents.missing_bytes, "missing"),
        (extents.shared_bytes, "shared"),
        (extents.packed_bytes, "compressed or packed"),
    ];
    let odd: Vec<String> = kinds
        .into_iter()
        .filter(|(bytes, _)| *bytes > 0)
        .map(|(bytes, kind)| format!("{} {kind}", format_size(bytes)))
        .collect();
    match odd.is_empty() {
        true => finding(name, format!("all {} written", format_size(files.bytes)), Grade::Good, why),
        false => {
            finding(name, format!("{} of {}", odd.join(", "), format_size(files.bytes)), Grade::Bad, why)
        }
    }
}

fn direct(files: &FileProbe) -> Finding {
    let why = "a completed write is on the device only if it went around the page cache, in units of 4 KiB";
    if !files.direct {
        return finding("direct I/O", "O_DIRECT is refused", Grade::Bad, why);
    }
    match files.alignment {
        Some(unit) if unit.offset_bytes == 0 => {
            finding("direct I/O", "O_DIRECT is taken and not honoured", Grade::Bad, why)
        }
        Some(unit) => finding(
            "direct I/O",
            format!("in units of {} bytes, from memory aligned to {}", unit.offset_bytes, unit.memory_bytes),
            good_if(unit.offset_bytes.max(unit.memory_bytes) <= cairn_engine::io::BLOCK as u32),
            why,
        ),
        None => finding(
            "direct I/O",
            "O_DIRECT is taken; its units are not told, 4096 is used",
            Grade::Neutral,
            why,
        ),
    }
}

fn synced(files: &FileProbe) -> Finding {
    let why = "votes are synced in every mode";
    match &files.transfer {
        Ok(()) => finding("fdatasync", "works", Grade::Good, why),
        Err(reason) => finding("fdatasync", format!("failed: {reason}"), Grade::Bad, why),
    }
}

fn space(facts: &Facts, size_bytes: Option<u64>) -> Finding {
    let why = "all of a data directory is written when it is made, and its size never changes";
    let room = facts.filesystem.as_ref().ok().and_then(|filesystem| filesystem.room);
    let free = room.map(|room| room.free_bytes);
    let shown = free.map_or_else(|| UNKNOWN.into(), |free| format_size(round(free)));
    match (facts.place.state, &facts.files, size_bytes, free) {
        (State::Formatted, Ok(files), _, _) => {
            let taken = format_size(files.bytes);
            finding("space", format!("{taken} taken by its files, {shown} free"), Grade::Good, why)
        }
        (_, _, Some(size), Some(free)) => {
            finding("space", format!("{shown} free for {}", format_size(size)), good_if(free > size), why)
        }
        _ => finding("space", format!("{shown} free"), Grade::Neutral, why),
    }
}

/// Three digits are enough for a person.
fn round(bytes: u64) -> u64 {
    let shift = (64 - bytes.leading_zeros()).saturating_sub(1) / 10 * 10;
    (bytes >> shift) << shift
}

fn layer(layer: &Layer) -> Vec<Finding> {
    let mut all = vec![medium(layer), cache(layer), fua(layer), blocks(layer), rotational(layer)];
    all.extend(atomic_writes(layer));
    all.extend(start(layer));
    all.extend(nvme(layer));
    all
}

fn medium(layer: &Layer) -> Finding {
    let grade = match layer.kind {
        LayerKind::NvmeDrive | LayerKind::ScsiDrive => Grade::Good,
        _ => Grade::Bad,
    };
    let why = "each layer below the filesystem may hold back, tear or lose a write that it reported complete";
    finding(format!("device {}", layer.name), layer.about.as_str(), grade, why)
}

fn cache(layer: &Layer) -> Finding {
    let value = layer.queue.write_cache.as_deref();
    finding(
        format!("{} write cache", layer.name),
        value.unwrap_or(UNKNOWN),
        good_if(value == Some("write through")),
        "what is in a volatile cache when the power goes is lost, although the write completed",
    )
}

fn fua(layer: &Layer) -> Finding {
    let value = match layer.queue.fua {
        Some(true) => "yes",
        Some(false) => "no",
        None => UNKNOWN,
    };
    let why = "a single write can be forced through the cache; Cairn syncs instead";
    finding(format!("{} FUA", layer.name), value, Grade::Neutral, why)
}

fn blocks(layer: &Layer) -> Finding {
    let size = |bytes: Option<u64>| bytes.map_or_else(|| UNKNOWN.to_string(), |bytes| bytes.to_string());
    let (logical, physical) = (layer.queue.logical_block_bytes, layer.queue.physical_block_bytes);
    finding(
        format!("{} blocks", layer.name),
        format!("{} logical, {} physical", size(logical), size(physical)),
        match layer_atomicity(layer) {
            Atomicity::Whole => Grade::Good,
            Atomicity::Torn => Grade::Bad,
            Atomicity::Unknown => Grade::Neutral,
        },
        "a write of 4 KiB must be there whole or not at all after a power cut",
    )
}

fn rotational(layer: &Layer) -> Finding {
    let value = match layer.queue.rotational {
        Some(true) => "yes (or so it says)",
        Some(false) => "no",
        None => UNKNOWN,
    };
    let why = "Cairn is made for flash; on a rotating disk it is slow, and as safe";
    finding(format!("{} rotational", layer.name), value, Grade::Neutral, why)
}

fn atomic_writes(layer: &Layer) -> Option<Finding> {
    let (min, max) = layer.queue.atomic_write_bytes?;
    let block = cairn_engine::io::BLOCK as u64;
    let (value, grade) = match max {
        0 => ("none told".to_string(), Grade::Neutral),
        _ if min <= block && block <= max => (format!("{min} to {max} bytes"), Grade::Good),
        _ => (format!("{min} to {max} bytes"), Grade::Neutral),
    };
    let why = "sizes that the device writes whole or not at all, as the kernel tells since Linux 6.11";
    Some(finding(format!("{} atomic writes", layer.name), value, grade, why))
}

fn start(layer: &Layer) -> Option<Finding> {
    let start = layer.partition_start_bytes?;
    let aligned = start.is_multiple_of(cairn_engine::io::BLOCK as u64);
    let why = "in a partition that does not begin on a multiple of 4 KiB, every write lies across two blocks";
    let value = if aligned { "on a multiple of 4 KiB".into() } else { format!("at byte {start}") };
    Some(finding(format!("{} partition begins", layer.name), value, good_if(aligned), why))
}

fn nvme(layer: &Layer) -> Vec<Finding> {
    let why_cache = "the drive's own word on a cache that a power cut empties";
    let why_whole = "the largest write that the drive leaves whole in a power cut (AWUPF or NAWUPF)";
    let name = |what: &str| format!("{} {what}", layer.name);
    match &layer.nvme {
        None => Vec::new(),
        Some(Err(reason)) => {
            let value = format!("the drive could not be asked: {reason}");
            vec![finding(name("NVMe identify"), value, Grade::Neutral, why_cache)]
        }
        Some(Ok(facts)) => vec![
            finding(
                name("NVMe VWC"),
                if facts.volatile_cache { "1, a volatile cache" } else { "0, no volatile cache" },
                good_if(!facts.volatile_cache),
                why_cache,
            ),
            finding(
                name("NVMe health"),
                if facts.backup_failed { "the backup of its cache has failed" } else { "no failed backup" },
                good_if(!facts.backup_failed),
                "what keeps the drive's cache through a power cut may wear out; the drive tells when it has",
            ),
            finding(
                name("NVMe AWUPF"),
                format!("{} bytes", facts.atomic_power_fail_bytes),
                good_if(facts.keeps_blocks_whole()),
                why_whole,
            ),
            finding(
                name("NVMe AWUN"),
                format!("{} bytes", facts.atomic_bytes),
                Grade::Neutral,
                "the largest write that no other command sees in part; no two of ours touch one block at a time",
            ),
        ],
    }
}
