//! The facts of the machine that a result is kept with: figures of two machines cannot be compared
//! without them.

use anyhow::{Context, Result};
use rustix::fs::{major, minor, stat};
use serde::{Deserialize, Serialize};
use std::fs::read_to_string;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The facts. What the system does not tell is `unknown`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// When, in UTC: 2026-11-23.
    pub date: String,
    /// The kernel's release.
    pub kernel: String,
    /// The processors' model.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory_bytes: u64,
    /// The filesystem of the measured directory.
    pub filesystem: String,
    /// Its mount options, and those of its superblock.
    pub mount_options: String,
    /// The disk below it, by its name in the kernel.
    pub device: String,
    /// What the disk calls itself.
    pub device_model: String,
    /// Whether the disk has a volatile write cache: `write back` or `write through`.
    pub write_cache: String,
}

impl Machine {
    /// The facts of this machine and of the disk below a directory.
    ///
    /// # Errors
    /// If the directory does not exist.
    pub fn of(directory: &Path) -> Result<Machine> {
        let found = stat(directory).with_context(|| directory.display().to_string())?;
        let number = format!("{}:{}", major(found.st_dev), minor(found.st_dev));
        let mounts = read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mount = mount(&mounts, &number);
        let disk = disk(&number);
        let of_disk = |name: &str| match &disk {
            Some(disk) => line(&disk.join(name)),
            None => unknown(),
        };
        let name = disk.as_ref().and_then(|disk| disk.file_name());
        Ok(Machine {
            date: today(),
            kernel: line(Path::new("/proc/sys/kernel/osrelease")),
            processor: processor(&read_to_string("/proc/cpuinfo").unwrap_or_default()),
            processors: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            memory_bytes: memory(&read_to_string("/proc/meminfo").unwrap_or_default()),
            filesystem: mount.as_ref().map_or_else(unknown, |(filesystem, _)| filesystem.clone()),
            mount_options: mount.map_or_else(unknown, |(_, options)| options),
            device: name.map_or_else(unknown, |name| name.to_string_lossy().into_owned()),
            device_model: of_disk("device/model"),
            write_cache: of_disk("queue/write_cache"),
        })
    }

    /// One line for readers.
    pub fn text(&self) -> String {
        format!(
            "{}, {} × {}, {} GiB of memory, Linux {}, {} on {} ({}, write cache: {})",
            self.date,
            self.processors,
            self.processor,
            self.memory_bytes.div_ceil(1 << 30),
            self.kernel,
            self.filesystem,
            self.device,
            self.device_model,
            self.write_cache,
        )
    }
}

fn unknown() -> String {
    "unknown".to_owned()
}

fn line(path: &Path) -> String {
    let text = read_to_string(path).unwrap_or_default();
    let text = text.trim();
    if text.is_empty() { unknown() } else { text.to_owned() }
}

/// The whole disk with this number, or the disk of a partition with it.
fn disk(number: &str) -> Option<PathBuf> {
    let found = Path::new("/sys/dev/block").join(number).canonicalize().ok()?;
    let partition = found.join("partition").exists();
    if partition { found.parent().map(Path::to_path_buf) } else { Some(found) }
}

/// Filesystem and options of the mount with this device number. The last mount hides the others.
fn mount(mounts: &str, number: &str) -> Option<(String, String)> {
    let of = |line: &str| {
        let (head, tail) = line.split_once(" - ")?;
        let mut head = head.split(' ').skip(2);
        let (found, own) = (head.next()?, head.nth(2)?);
        let mut tail = tail.split(' ');
        let (filesystem, of_superblock) = (tail.next()?, tail.nth(1)?);
        (found == number).then(|| (filesystem.to_owned(), format!("{own}; {of_superblock}")))
    };
    mounts.lines().filter_map(of).next_back()
}

fn processor(cpuinfo: &str) -> String {
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name"));
    let model = model.and_then(|line| line.split_once(':'));
    // Processors of other makes than x86 have no such line.
    model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned())
}

fn memory(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

fn today() -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    date(now / 86_400)
}

/// The date of a day since 1970, after Howard Hinnant's `civil_from_days`.
fn date(day: u64) -> String {
    let day = day + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{of_month:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_the_dates_of_the_calendar() {
        for (day, text) in [
            (0, "1970-01-01"),
            (11_016, "2000-02-29"),
            (11_017, "2000-03-01"),
            (20_780, "2026-11-23"),
        ] {
            assert_eq!(date(day), text);
        }
    }

    #[test]
    fn the_last_mount_of_a_device_counts_with_both_kinds_of_options() {
        let mounts = "22 1 253:1 / /a rw,relatime shared:1 - xfs /dev/vdb rw,noquota\n\
                      23 1 254:0 / / rw,noatime - ext4 /dev/vda rw,discard\n\
                      24 1 253:1 /x /b ro - xfs /dev/vdb rw\n";
        let found = |number| mount(mounts, number);
        assert_eq!(found("254:0"), Some(("ext4".into(), "rw,noatime; rw,discard".into())));
        assert_eq!(found("253:1"), Some(("xfs".into(), "ro; rw".into())));
        assert_eq!(found("1:1"), None);
    }

    #[test]
    fn facts_of_proc_are_read_and_missing_ones_are_not_guessed() {
        assert_eq!(processor("processor: 0\nmodel name\t: A B\nmodel name\t: C\n"), "A B");
        assert_eq!(processor(""), std::env::consts::ARCH);
        assert_eq!(memory("MemTotal:       16 kB\n"), 16_384);
        assert_eq!(memory("MemTotal: x kB\n"), 0);
    }

    #[test]
    fn this_machine_has_facts_and_a_missing_directory_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let machine = Machine::of(folder.path()).unwrap();
        assert!(machine.processors > 0 && machine.memory_bytes > 0, "{machine:?}");
        assert!(Machine::of(&folder.path().join("missing")).is_err());
    }
}
