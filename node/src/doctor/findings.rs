//! The findings, one per line: the value, whether it is good for the promise, and why it matters.

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
    /// Supports the promise.
    Good,
    /// Neither.
    Neutral,
    /// Refuses the stronger promises, or all of them.
    Bad,
}

impl Grade {
    /// As one word.
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
    /// Its name, with the device's name if there may be several.
    pub name: String,
    /// What was found.
    pub value: String,
    /// What that means.
    pub grade: Grade,
    /// Why it matters.
    pub why: &'static str,
}

const UNKNOWN: &str = "unknown";

fn finding(
    name: impl Into<String>,
    value: impl Into<String>,
    grade: Grade,
    why: &'static str,
) -> Finding {
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
            "without it nothing shows whether a completed write survives a power cut",
        )),
    }
    all
}

fn directory(facts: &Facts) -> Finding {
    let examined = facts.location.examined.display();
    let (value, grade) = match facts.location.state {
        State::Formatted => (format!("{examined}, formatted"), Grade::Good),
        State::Empty => (format!("{examined}, empty"), Grade::Neutral),
        State::Missing => {
            (format!("not there yet; {examined} was examined instead"), Grade::Neutral)
        }
        State::Unfinished => {
            (format!("{examined}, left by a format that was interrupted"), Grade::Bad)
        }
        State::Foreign => (format!("{examined}, holds other files"), Grade::Neutral),
    };
    finding("directory", value, grade, "`cairn format` creates it, and writes all of it")
}

fn kernel(facts: &Facts) -> [Finding; 3] {
    let kernel = &facts.kernel;
    let clock = match kernel.clock_is_fast() {
        Some(true) => Grade::Good,
        Some(false) | None => Grade::Neutral,
    };
    let io_uring = match &kernel.io_uring {
        Ok(()) => ("allowed".into(), Grade::Good),
        Err(reason) => (format!("not available: {reason}"), Grade::Neutral),
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
            "without it threads do the disk's I/O: slower, with the same promise",
        ),
    ]
}

fn filesystem(facts: &Facts) -> Vec<Finding> {
    let why =
        "an overwrite in place needs no metadata, so a completed direct write is on the device";
    let found = match &facts.filesystem {
        Ok(found) => found,
        Err(reason) => {
            return vec![finding("filesystem", format!("{UNKNOWN}: {reason}"), Grade::Bad, why)];
        }
    };
    let mount =
        format!("{} on {}, mounted at {}", found.name, found.source, found.mount_point.display());
    vec![
        finding("filesystem", mount, good_if(found.kind == FilesystemKind::InPlace), why),
        options(found),
        block(found),
    ]
}

fn options(found: &Filesystem) -> Finding {
    let against: Vec<&str> =
        [found.flush_suppressed(), found.sync_dropped(), found.journals_data()]
            .into_iter()
            .flatten()
            .chain(found.read_only().then_some("ro"))
            .collect();
    let why = "options can keep syncs from reaching the device, or route direct writes through the page cache";
    match against.is_empty() {
        true => finding("mount options", found.options.join(","), Grade::Good, why),
        false => finding("mount options", against.join(","), Grade::Bad, why),
    }
}

fn block(found: &Filesystem) -> Finding {
    let why = "with filesystem blocks under 4 KiB one write of 4 KiB can lie in two places";
    match found.space {
        Some(space) => finding(
            "filesystem block",
            format_size(space.block_bytes),
            good_if(space.block_bytes >= cairn_engine::io::BLOCK as u64),
            why,
        ),
        None => finding("filesystem block", UNKNOWN, Grade::Bad, why),
    }
}

fn files(facts: &Facts) -> Vec<Finding> {
    let whose =
        if facts.location.state == State::Formatted { "of its files" } else { "of a new file" };
    match &facts.files {
        Ok(files) => vec![extents(files, whose), direct(files), synced(files)],
        Err(unprobed) => vec![finding(
            "direct I/O",
            format!("could not be tried: {}", unprobed.reason),
            Grade::Bad,
            "a completed write is on the device only if it bypassed the page cache",
        )],
    }
}

fn extents(files: &FileProbe, whose: &str) -> Finding {
    let why =
        "a write to an unwritten, shared or missing extent needs metadata that completes later";
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
        true => {
            finding(name, format!("all {} written", format_size(files.bytes)), Grade::Good, why)
        }
        false => finding(
            name,
            format!("{} of {}", odd.join(", "), format_size(files.bytes)),
            Grade::Bad,
            why,
        ),
    }
}

fn direct(files: &FileProbe) -> Finding {
    let why =
        "a completed write is on the device only if it bypassed the page cache, in units of 4 KiB";
    if !files.direct {
        return finding("direct I/O", "O_DIRECT is refused", Grade::Bad, why);
    }
    match files.alignment {
        Some(unit) if unit.offset_bytes == 0 => {
            finding("direct I/O", "O_DIRECT is accepted and ignored", Grade::Bad, why)
        }
        Some(unit) => finding(
            "direct I/O",
            format!(
                "in units of {} bytes, from memory aligned to {}",
                unit.offset_bytes, unit.memory_bytes
            ),
            good_if(unit.offset_bytes.max(unit.memory_bytes) <= cairn_engine::io::BLOCK as u32),
            why,
        ),
        None => finding(
            "direct I/O",
            "O_DIRECT is accepted; its units are unknown, 4096 is used",
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
    let why = "all of a data directory is written when it is created, and its size never changes";
    let space = facts.filesystem.as_ref().ok().and_then(|filesystem| filesystem.space);
    let free = space.map(|space| space.free_bytes);
    let shown = free.map_or_else(|| UNKNOWN.into(), |free| format_size(round(free)));
    match (facts.location.state, &facts.files, size_bytes, free) {
        (State::Formatted, Ok(files), _, _) => {
            let taken = format_size(files.bytes);
            finding("space", format!("{taken} used by its files, {shown} free"), Grade::Good, why)
        }
        (_, _, Some(size), Some(free)) => finding(
            "space",
            format!("{shown} free for {}", format_size(size)),
            good_if(free > size),
            why,
        ),
        _ => finding("space", format!("{shown} free"), Grade::Neutral, why),
    }
}

/// Rounds to three digits, which is enough for a reader.
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
        "a power cut loses completed writes that are in a volatile cache",
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
    let size =
        |bytes: Option<u64>| bytes.map_or_else(|| UNKNOWN.to_string(), |bytes| bytes.to_string());
    let (logical, physical) = (layer.queue.logical_block_bytes, layer.queue.physical_block_bytes);
    finding(
        format!("{} blocks", layer.name),
        format!("{} logical, {} physical", size(logical), size(physical)),
        match layer_atomicity(layer) {
            Atomicity::Whole => Grade::Good,
            Atomicity::Torn => Grade::Bad,
            Atomicity::Unknown => Grade::Neutral,
        },
        "after a power cut a write of 4 KiB must be complete or absent",
    )
}

fn rotational(layer: &Layer) -> Finding {
    let value = match layer.queue.rotational {
        Some(true) => "yes (as it reports)",
        Some(false) => "no",
        None => UNKNOWN,
    };
    let why = "Cairn is made for flash; on a rotating disk it is slow, but as safe";
    finding(format!("{} rotational", layer.name), value, Grade::Neutral, why)
}

fn atomic_writes(layer: &Layer) -> Option<Finding> {
    let (min, max) = layer.queue.atomic_write_bytes?;
    let block = cairn_engine::io::BLOCK as u64;
    let (value, grade) = match max {
        0 => ("none reported".to_string(), Grade::Neutral),
        _ if min <= block && block <= max => (format!("{min} to {max} bytes"), Grade::Good),
        _ => (format!("{min} to {max} bytes"), Grade::Neutral),
    };
    let why = "sizes that the device writes atomically, as the kernel reports since Linux 6.11";
    Some(finding(format!("{} atomic writes", layer.name), value, grade, why))
}

fn start(layer: &Layer) -> Option<Finding> {
    let start = layer.partition_start_bytes?;
    let aligned = start.is_multiple_of(cairn_engine::io::BLOCK as u64);
    let why =
        "in a partition that does not begin at a multiple of 4 KiB, every write spans two blocks";
    let value = if aligned { "at a multiple of 4 KiB".into() } else { format!("at byte {start}") };
    Some(finding(format!("{} partition begins", layer.name), value, good_if(aligned), why))
}

fn nvme(layer: &Layer) -> Vec<Finding> {
    let why_cache = "the drive's own report of a volatile cache";
    let why_whole = "the largest write that a power cut does not tear (AWUPF or NAWUPF)";
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
                if facts.backup_failed {
                    "the backup power of its cache has failed"
                } else {
                    "no failure of the backup power"
                },
                good_if(!facts.backup_failed),
                "the backup power of the drive's cache may wear out; the drive reports when it has",
            ),
            finding(
                name("NVMe AWUPF"),
                format!("{} bytes", facts.atomic_power_fail_bytes),
                good_if(facts.writes_blocks_atomically()),
                why_whole,
            ),
            finding(
                name("NVMe AWUN"),
                format!("{} bytes", facts.atomic_bytes),
                Grade::Neutral,
                "the largest write that no other command sees in part; Cairn never has two writes to one block under way",
            ),
        ],
    }
}
