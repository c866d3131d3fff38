//! Whether the memory that the process may use holds the keys of a full directory and the configured budgets.
//!
//! What holds here: no verdict depends on it. Puts are bounded by the checkpoint areas alone, so where memory
//! is scarcer than these, all members outgrow it alike. What is needed is an estimate from measured keys
//! of 24 bytes; connections, a checkpoint under way and a backup take more.

use super::Roots;
use super::device::text;
use crate::config::{NodeConfig, format_size};
use cairn_engine::Geometry;
use cairn_engine::io::FileKind;
use std::path::{Component, Path};

/// A limit that is at least this is none: cgroup v1 has no other word for it.
const UNLIMITED_BYTES: u64 = 1 << 62;

/// What a node is to keep in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// The size of a checkpoint area, which bounds the keys.
    pub checkpoint_bytes: u64,
    /// All configured budgets together.
    pub budget_bytes: u64,
}

impl MemoryPlan {
    /// That of a configuration; `None` if no directory can have its size.
    pub fn of(config: &NodeConfig) -> Option<MemoryPlan> {
        let geometry = config.storage.sizing().geometry().ok()?;
        let (limits, storage) = (&config.limits, &config.storage);
        let bytes = |budget: usize| u64::try_from(budget).unwrap_or(u64::MAX);
        let budgets = [
            bytes(limits.max_in_flight_bytes),
            bytes(limits.max_read_bytes),
            storage.log_cache_bytes,
            storage.value_cache_bytes,
        ];
        let budget_bytes = budgets.into_iter().fold(0, u64::saturating_add);
        Some(MemoryPlan { checkpoint_bytes: geometry.checkpoint_bytes, budget_bytes })
    }

    /// The same in an existing directory, if there is one: it keeps the sizes with which it was made.
    pub(super) fn with_existing(self, checkpoint_bytes: Option<u64>) -> MemoryPlan {
        MemoryPlan { checkpoint_bytes: checkpoint_bytes.unwrap_or(self.checkpoint_bytes), ..self }
    }

    /// What is needed when the directory is full of keys.
    pub fn needed_bytes(self) -> u64 {
        Geometry::keys_memory_bytes(self.checkpoint_bytes).saturating_add(self.budget_bytes)
    }

    /// What is needed, what there is and, if that is too little, what to do.
    pub(super) fn compared(self, limit: &MemoryLimit) -> Result<String, String> {
        let keys = mebibytes(Geometry::keys_memory_bytes(self.checkpoint_bytes));
        let needed = format!(
            "about {} when full ({keys} for keys, {} for budgets) of {} ({})",
            mebibytes(self.needed_bytes()),
            mebibytes(self.budget_bytes),
            mebibytes(limit.bytes),
            limit.of
        );
        if self.needed_bytes() <= limit.bytes {
            return Ok(needed);
        }
        Err(format!(
            "{needed}: allow it more memory, or format the directory again with a larger `storage.value_size`, \
             which leaves less of it for keys"
        ))
    }
}

/// The memory that the process may use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// So many bytes.
    pub bytes: u64,
    /// Who sets the limit.
    pub of: &'static str,
}

/// The size of a checkpoint area of an existing data directory.
pub(super) fn checkpoint_bytes(directory: &Path) -> Option<u64> {
    let file = directory.join(FileKind::Checkpoint0.name());
    Some(file.metadata().ok()?.len()).filter(|bytes| *bytes > 0)
}

/// The least of the machine's memory and the limits of the control groups that hold this process.
///
/// # Errors
/// Why it is not known.
pub(super) fn limit(roots: &Roots) -> Result<MemoryLimit, String> {
    let groups = control_groups(roots).map(|bytes| MemoryLimit { bytes, of: "its control group" });
    let machine = machine_bytes(roots).map(|bytes| MemoryLimit { bytes, of: "the machine" });
    let least = groups.into_iter().chain(machine).min_by_key(|limit| limit.bytes);
    least.ok_or_else(|| format!("{} shows no MemTotal", roots.proc.join("meminfo").display()))
}

fn machine_bytes(roots: &Roots) -> Option<u64> {
    let text = text(&roots.proc.join("meminfo"))?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

/// The least limit of this process's control groups and those above them, in both versions.
fn control_groups(roots: &Roots) -> Option<u64> {
    let text = text(&roots.proc.join("self/cgroup"))?;
    let mounted = roots.sys.join("fs/cgroup");
    let of_line = |line: &str| {
        // `0::/system.slice/cairn.service`, or of version 1 `9:memory:/docker/0123`.
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        match controllers {
            "" => least(&mounted, path, "memory.max"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                least(&mounted.join("memory"), path, "memory.limit_in_bytes")
            }
            _ => None,
        }
    };
    text.lines().filter_map(of_line).min()
}

/// The least of the limits in this file of a group and of all above it. What is mounted in a container may begin at
/// the container's own group, which is then the root, and the rest of the path is not there.
fn least(mounted: &Path, path: &str, file: &str) -> Option<u64> {
    let parts = Path::new(path).components();
    let parts = parts.filter(|part| matches!(part, Component::Normal(_)));
    let group = parts.fold(mounted.to_path_buf(), |path, part| path.join(part));
    let above = group.ancestors().take_while(|above| above.starts_with(mounted));
    // `max` is no number.
    let limits = above.filter_map(|above| text(&above.join(file))?.parse::<u64>().ok());
    limits.filter(|bytes| *bytes < UNLIMITED_BYTES).min()
}

/// A reader needs no more of it.
fn mebibytes(bytes: u64) -> String {
    format_size((bytes >> 20) << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Machine(tempfile::TempDir);

    impl Machine {
        /// One with 16 GiB.
        fn new() -> Machine {
            let machine = Machine(tempfile::tempdir().expect("a folder"));
            machine.file("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB");
            machine
        }

        fn file(&self, path: &str, text: &str) -> &Machine {
            let path = self.0.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            std::fs::write(path, format!("{text}\n")).expect("a file");
            self
        }

        fn gib(&self) -> Result<(u64, &'static str), String> {
            limit(&Roots::below(self.0.path())).map(|limit| (limit.bytes >> 30, limit.of))
        }
    }

    #[test]
    fn the_least_limit_of_a_group_and_of_those_above_it_counts() {
        let machine = Machine::new();
        assert_eq!(machine.gib(), Ok((16, "the machine")));
        machine
            .file("proc/self/cgroup", "0::/system.slice/cairn.service")
            .file("sys/fs/cgroup/system.slice/cairn.service/memory.max", "max");
        assert_eq!(machine.gib(), Ok((16, "the machine")));
        let limit = |gib: u64| (gib << 30).to_string();
        machine.file("sys/fs/cgroup/system.slice/memory.max", &limit(4));
        assert_eq!(machine.gib(), Ok((4, "its control group")));
        machine.file("sys/fs/cgroup/system.slice/cairn.service/memory.max", &limit(8));
        assert_eq!(machine.gib(), Ok((4, "its control group")));
        machine.file("sys/fs/cgroup/system.slice/memory.max", &limit(32));
        assert_eq!(machine.gib(), Ok((8, "its control group")));
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root_in_both_versions() {
        let machine = Machine::new();
        machine
            .file("proc/self/cgroup", "0::/../../kubepods/pod1")
            .file("sys/fs/cgroup/memory.max", &(3u64 << 30).to_string())
            .file("memory.max", "1");
        assert_eq!(machine.gib(), Ok((3, "its control group")));
        let machine = Machine::new();
        machine
            .file("proc/self/cgroup", "12:cpu,cpuacct:/a\n9:hugetlb,memory:/docker/0123\n0::/")
            .file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
        assert_eq!(machine.gib(), Ok((16, "the machine")), "no limit");
        machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", &(2u64 << 30).to_string());
        assert_eq!(machine.gib(), Ok((2, "its control group")));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = limit(&Roots::below(folder.path())).expect_err("nothing there");
        assert!(error.contains("meminfo"), "{error}");
    }

    /// The story: the chart for Kubernetes gave a directory of 90 GiB 4 GiB of memory. Puts of small values are taken
    /// until a checkpoint area is full, and the keys need more by then: the kernel killed all members, and each
    /// again while it read its keys.
    #[test]
    fn a_full_directory_that_needs_more_than_the_limit_is_told_with_the_way_out() {
        let sizing = |value_bytes| cairn_engine::Sizing { total_bytes: 90 << 30, value_bytes };
        let plan = |value_bytes| {
            let checkpoint_bytes = sizing(value_bytes).geometry().expect("sizes").checkpoint_bytes;
            MemoryPlan { checkpoint_bytes, budget_bytes: 448 << 20 }
        };
        let limit = |gib: u64| MemoryLimit { bytes: gib << 30, of: "its control group" };
        let short = plan(None).compared(&limit(4)).expect_err("too little");
        for words in ["of 4GiB (its control group)", "448MiB for budgets", "storage.value_size"] {
            assert!(short.contains(words), "{short}");
        }
        let enough = plan(None).compared(&limit(10)).expect("enough");
        assert!(!enough.contains("storage.value_size"), "{enough}");
        // The way out that the sentence names is one.
        plan(Some(4096)).compared(&limit(4)).expect("fewer keys");
        // A directory keeps the sizes with which it was made.
        let made = plan(Some(4096)).with_existing(Some(plan(None).checkpoint_bytes));
        assert_eq!(made, plan(None));
        assert_eq!(plan(None).with_existing(None), plan(None));
    }

    #[test]
    fn the_checkpoint_area_of_an_existing_directory_is_measured() {
        let folder = tempfile::tempdir().expect("a folder");
        assert_eq!(checkpoint_bytes(folder.path()), None);
        std::fs::write(folder.path().join(FileKind::Checkpoint0.name()), [0; 4096])
            .expect("a file");
        assert_eq!(checkpoint_bytes(folder.path()), Some(4096));
    }
}
