//! The findings, one per line: the value, whether it is good for the promise, and why it matters.

use super::aspects::{is_overridden, layer_atomicity};
use super::device::{Layer, Medium};
use super::facts::{Facts, State};
use super::filesystem::{Filesystem, FilesystemKind};
use super::verdict::Atomicity;
use super::{MemoryLimit, Plan};
use crate::config::{format_rounded, format_size};
use cairn_engine::io::{self, FileProbe};
use serde::Serialize;
use std::fmt::Display;

/// What a finding means for the promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
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

/// The unit of every write.
const BLOCK_BYTES: u64 = io::BLOCK as u64;

const UNKNOWN: &str = "unknown";

fn known(value: Option<impl Display>) -> String {
    value.map_or_else(|| UNKNOWN.into(), |value| value.to_string())
}

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

pub(super) fn findings(facts: &Facts, plan: &Plan) -> Vec<Finding> {
    let mut all = vec![directory(facts)];
    all.extend(kernel(facts));
    all.extend(filesystem(facts));
    all.extend(files(facts));
    all.push(space(facts, plan.size_bytes));
    all.push(memory(facts, plan));
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
    let clock = if kernel.clock_is_fast() == Some(true) { Grade::Good } else { Grade::Neutral };
    let (io_uring, io_uring_grade) = match &kernel.io_uring {
        Ok(()) => ("allowed".into(), Grade::Good),
        Err(reason) => (format!("not available: {reason}"), Grade::Neutral),
    };
    let why_kernel = "the server needs Linux 5.15 or newer";
    let why_clock = "the time is read on every request; a slow clock costs speed, not safety";
    let why_io_uring = "without it threads do the disk's I/O: slower, with the same promise";
    [
        finding("kernel", &kernel.release, good_if(kernel.supported.is_ok()), why_kernel),
        finding("clock source", known(kernel.clock_source.as_ref()), clock, why_clock),
        finding("io_uring", io_uring, io_uring_grade, why_io_uring),
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
    let read_only = found.read_only().then_some("ro");
    let against =
        [found.flush_suppressed(), found.sync_dropped(), found.journals_data(), read_only];
    let against: Vec<&str> = against.into_iter().flatten().collect();
    let why = "options can keep syncs from reaching the device, or route direct writes through the page cache";
    let value = if against.is_empty() { found.options.join(",") } else { against.join(",") };
    finding("mount options", value, good_if(against.is_empty()), why)
}

fn block(found: &Filesystem) -> Finding {
    let why = "with filesystem blocks under 4 KiB one write of 4 KiB can lie in two places";
    let bytes = found.space.map(|space| space.block_bytes);
    let large = bytes.is_some_and(|bytes| bytes >= BLOCK_BYTES);
    finding("filesystem block", known(bytes.map(format_size)), good_if(large), why)
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
    let total = format_size(files.bytes);
    let value = match odd.is_empty() {
        true => format!("all {total} written"),
        false => format!("{} of {total}", odd.join(", ")),
    };
    finding(name, value, good_if(odd.is_empty()), why)
}

fn direct(files: &FileProbe) -> Finding {
    let why =
        "a completed write is on the device only if it bypassed the page cache, in units of 4 KiB";
    let (value, grade) = match files.alignment {
        _ if !files.direct => ("O_DIRECT is refused".into(), Grade::Bad),
        Some(unit) if unit.offset_bytes == 0 => {
            ("O_DIRECT is accepted and ignored".into(), Grade::Bad)
        }
        Some(io::DirectAlignment { offset_bytes, memory_bytes }) => (
            format!("in units of {offset_bytes} bytes, from memory aligned to {memory_bytes}"),
            good_if(u64::from(offset_bytes.max(memory_bytes)) <= BLOCK_BYTES),
        ),
        None => {
            ("O_DIRECT is accepted; its units are unknown, 4096 is used".into(), Grade::Neutral)
        }
    };
    finding("direct I/O", value, grade, why)
}

fn synced(files: &FileProbe) -> Finding {
    let why = "votes are synced in every mode";
    match &files.transfer {
        Ok(()) => finding("fdatasync", "works", Grade::Good, why),
        Err(reason) => finding("fdatasync", format!("failed: {reason}"), Grade::Bad, why),
    }
}

fn space(facts: &Facts, size_bytes: Option<u64>) -> Finding {
    let why = "all of a data directory is written when it is created or enlarged";
    let space = facts.filesystem.as_ref().ok().and_then(|filesystem| filesystem.space);
    let free = space.map(|space| space.free_bytes);
    let shown = known(free.map(format_rounded));
    let (value, grade) = match (facts.location.state, &facts.files, size_bytes, free) {
        (State::Formatted, Ok(files), _, _) => {
            (format!("{} used by its files, {shown} free", format_size(files.bytes)), Grade::Good)
        }
        (_, _, Some(size), Some(free)) => {
            (format!("{shown} free for {}", format_size(size)), good_if(free > size))
        }
        _ => (format!("{shown} free"), Grade::Neutral),
    };
    finding("space", value, grade, why)
}

fn memory(facts: &Facts, plan: &Plan) -> Finding {
    let why = "all keys are in memory; where a full directory outgrows it, the kernel kills all members alike, at each start again";
    let limit = match &facts.memory {
        Ok(limit) => limit,
        Err(reason) => {
            return finding("memory", format!("{UNKNOWN}: {reason}"), Grade::Neutral, why);
        }
    };
    let planned = plan.memory.map(|plan| plan.with_existing(facts.checkpoint_bytes));
    match planned.map(|plan| plan.compared(limit)) {
        Some(Ok(enough)) => finding("memory", enough, Grade::Good, why),
        Some(Err(short)) => finding("memory", short, Grade::Bad, why),
        None => {
            let MemoryLimit { bytes, of } = limit;
            finding("memory", format!("{} ({of})", format_rounded(*bytes)), Grade::Neutral, why)
        }
    }
}

fn layer(layer: &Layer) -> Vec<Finding> {
    let Layer { name, queue, .. } = layer;
    let drive = good_if(layer.medium == Medium::Drive);
    let overridden = is_overridden(queue);
    let no_cache = good_if(queue.write_cache.as_deref() == Some("write through") && !overridden);
    let fua = queue.fua.map(|fua| if fua { "yes" } else { "no" });
    let rotational =
        queue.rotational.map(|rotates| if rotates { "yes (as it reports)" } else { "no" });
    let (logical, physical) = (known(queue.logical_block_bytes), known(queue.physical_block_bytes));
    let atomic = match layer_atomicity(layer) {
        Atomicity::Whole => Grade::Good,
        Atomicity::Torn => Grade::Bad,
        Atomicity::Unknown => Grade::Neutral,
    };
    let why_layer = "each layer below the filesystem may hold back, tear or lose a write that it reported complete";
    let why_cache = "a power cut loses completed writes that are in a volatile cache";
    let (fua_grade, why_fua) = match overridden {
        true => (
            Grade::Bad,
            "the kernel has this only beside a volatile cache: that was set to \"write through\" by hand, so no sync reaches it",
        ),
        false => {
            (Grade::Neutral, "a single write can be forced through the cache; Cairn syncs instead")
        }
    };
    let why_blocks = "after a power cut a write of 4 KiB must be complete or absent";
    let why_rotational = "Cairn is made for flash; on a rotating disk it is slow, but as safe";
    let cache = known(queue.write_cache.as_ref());
    let blocks = format!("{logical} logical, {physical} physical");
    let mut all = vec![
        finding(format!("device {name}"), &layer.about, drive, why_layer),
        finding(format!("{name} write cache"), cache, no_cache, why_cache),
        finding(format!("{name} FUA"), known(fua), fua_grade, why_fua),
        finding(format!("{name} blocks"), blocks, atomic, why_blocks),
        finding(format!("{name} rotational"), known(rotational), Grade::Neutral, why_rotational),
    ];
    all.extend(atomic_writes(layer));
    all.extend(start(layer));
    all.extend(nvme(layer));
    all
}

fn atomic_writes(layer: &Layer) -> Option<Finding> {
    let (min, max) = layer.queue.atomic_write_bytes?;
    let whole = (min..=max).contains(&BLOCK_BYTES);
    let grade = if whole { Grade::Good } else { Grade::Neutral };
    let value = if max == 0 { "none reported".into() } else { format!("{min} to {max} bytes") };
    let why = "sizes that the device writes atomically, as the kernel reports since Linux 6.11";
    Some(finding(format!("{} atomic writes", layer.name), value, grade, why))
}

fn start(layer: &Layer) -> Option<Finding> {
    let start = layer.partition_start_bytes?;
    let aligned = start.is_multiple_of(BLOCK_BYTES);
    let why =
        "in a partition that does not begin at a multiple of 4 KiB, every write spans two blocks";
    let value = if aligned { "at a multiple of 4 KiB".into() } else { format!("at byte {start}") };
    Some(finding(format!("{} partition begins", layer.name), value, good_if(aligned), why))
}

fn nvme(layer: &Layer) -> Vec<Finding> {
    let why_cache = "the drive's own report of a volatile cache";
    let why_health =
        "the backup power of the drive's cache may wear out; the drive reports when it has";
    let why_unseen = "the largest write that no other command sees in part; Cairn never has two writes to one block under way";
    let why_whole = "the largest write that a power cut does not tear (AWUPF or NAWUPF)";
    let name = |what: &str| format!("{} {what}", layer.name);
    let facts = match &layer.nvme {
        None => return Vec::new(),
        Some(Err(reason)) => {
            let value = format!("the drive could not be asked: {reason}");
            return vec![finding(name("NVMe identify"), value, Grade::Neutral, why_cache)];
        }
        Some(Ok(facts)) => facts,
    };
    let cache = if facts.volatile_cache { "1, a volatile cache" } else { "0, no volatile cache" };
    let health = match facts.backup_failed {
        true => "the backup power of its cache has failed",
        false => "no failure of the backup power",
    };
    let whole = format!("{} bytes", facts.atomic_power_fail_bytes);
    let unseen = format!("{} bytes", facts.atomic_bytes);
    let can_whole = good_if(facts.writes_blocks_atomically());
    vec![
        finding(name("NVMe VWC"), cache, good_if(!facts.volatile_cache), why_cache),
        finding(name("NVMe health"), health, good_if(!facts.backup_failed), why_health),
        finding(name("NVMe AWUPF"), whole, can_whole, why_whole),
        finding(name("NVMe AWUN"), unseen, Grade::Neutral, why_unseen),
    ]
}
