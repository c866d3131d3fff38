//! The doctor on simulated machines: trees of `/proc` and `/sys` as kernels show them.

use super::*;
use cairn_engine::Mode;
use cairn_engine::io::{DirectAlignment, Extents, FileProbe, FreeSpace};
use std::fs;
use tempfile::TempDir;

mod devices;
mod verdicts;

/// A tree that takes the role of a machine's root.
struct Machine {
    _folder: TempDir,
    root: PathBuf,
}

impl Machine {
    fn new() -> Machine {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().canonicalize().expect("a folder");
        Machine { _folder: folder, root }
    }

    fn file(&self, path: &str, text: &str) -> &Machine {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        fs::write(path, format!("{text}\n")).expect("a file");
        self
    }

    fn folder(&self, path: &str) -> &Machine {
        fs::create_dir_all(self.root.join(path)).expect("a folder");
        self
    }

    /// A link to a target below the root.
    fn link(&self, path: &str, target: &str) -> &Machine {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
        std::os::unix::fs::symlink(self.root.join(target), path).expect("a link");
        self
    }

    /// A disk with its number and queue.
    fn disk(&self, path: &str, number: &str, cache: &str, physical: &str) -> &Machine {
        self.link(&format!("sys/dev/block/{number}"), path)
            .file(&format!("{path}/queue/write_cache"), cache)
            .file(&format!("{path}/queue/physical_block_size"), physical)
            .file(&format!("{path}/queue/logical_block_size"), "512")
            .file(&format!("{path}/queue/fua"), if cache == "write back" { "1" } else { "0" })
            .file(&format!("{path}/queue/rotational"), "0")
    }

    fn stack(&self, number: &str) -> Result<Vec<Layer>, String> {
        device::stack(&Roots::below(&self.root), number)
    }

    fn medium(&self, number: &str) -> Medium {
        self.stack(number).expect("a device")[0].medium
    }
}

const NVME: &str = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/nvme0n1";

/// A data centre's NVMe drive with one partition, `259:1`.
fn nvme_machine() -> Machine {
    let machine = Machine::new();
    machine
        .disk(NVME, "259:0", "write through", "4096")
        .link(&format!("{NVME}/device"), "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0")
        .file("sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/transport", "pcie")
        .file("sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/model", "Good Drive 3000  ")
        .file(&format!("{NVME}/nvme0n1p1/partition"), "1")
        .file(&format!("{NVME}/nvme0n1p1/start"), "2048")
        .link("sys/dev/block/259:1", &format!("{NVME}/nvme0n1p1"));
    machine
}

/// Facts of a good machine with these devices, as if its directory had been probed.
fn facts(stack: Result<Vec<Layer>, String>) -> Facts {
    Facts {
        location: Location { asked: "/data".into(), examined: "/data".into(), state: State::Empty },
        kernel: Kernel {
            release: "6.12.0".into(),
            supported: Ok(()),
            clock_source: Some("tsc".into()),
            io_uring: Ok(()),
        },
        filesystem: Ok(Filesystem {
            name: "ext4".into(),
            kind: FilesystemKind::InPlace,
            mount_point: "/data".into(),
            source: "/dev/nvme0n1p1".into(),
            number: "259:1".into(),
            options: vec!["rw".into()],
            space: Some(FreeSpace { free_bytes: 1 << 40, block_bytes: 4096 }),
        }),
        stack,
        files: Ok(FileProbe {
            bytes: 1 << 20,
            direct: true,
            alignment: Some(DirectAlignment { memory_bytes: 4, offset_bytes: 512 }),
            extents: Some(Extents { written_bytes: 1 << 20, ..Extents::default() }),
            transfer: Ok(()),
        }),
        memory: Ok(MemoryLimit { bytes: 64 << 30, of: "the machine" }),
        checkpoint_bytes: None,
    }
}

fn plan(size_bytes: Option<u64>) -> Plan {
    let window = crate::promise::SyncWindow::default();
    Plan { voters: 3, size_bytes, contract_asserted: false, window, memory: None }
}

fn report(facts: Facts) -> Report {
    Report::new(facts, plan(Some(10 << 30)))
}

fn bad(report: &Report) -> Vec<Finding> {
    report.findings().into_iter().filter(|finding| finding.grade == Grade::Bad).collect()
}

fn refusals(report: &Report, mode: Mode) -> &[Reason] {
    &report.verdict.of(mode).refusals
}

/// What an NVMe drive reports.
fn reported(volatile_cache: bool, atomic_power_fail_bytes: u64) -> NvmeFacts {
    NvmeFacts {
        volatile_cache,
        backup_failed: false,
        power: None,
        atomic_power_fail_bytes,
        block_bytes: 512,
        atomic_bytes: 512,
        boundary: None,
    }
}

#[test]
fn a_path_that_is_not_a_directory_is_refused_and_a_missing_one_is_judged_by_its_parent() {
    let machine = Machine::new();
    machine.file("file", "");
    let facts = |path: &str| Facts::gather(&Roots::default(), &machine.root.join(path));
    let error = facts("file/below").expect_err("no directory").to_string();
    assert!(error.contains("file/below") && error.contains("is not a directory"), "{error}");
    let found = facts("not/yet").expect("a parent");
    assert_eq!(
        (found.location.state, found.location.examined),
        (State::Missing, machine.root.clone())
    );
    assert_eq!(facts(".").expect("a directory").location.state, State::Foreign);
    machine.folder("empty");
    assert_eq!(facts("empty").expect("a directory").location.state, State::Empty);
    machine.file("half/journal", "");
    assert_eq!(facts("half").expect("a directory").location.state, State::Unfinished);
}

#[test]
fn the_clock_is_read_from_sysfs() {
    let machine = Machine::new();
    let roots = Roots::below(&machine.root);
    assert_eq!(Kernel::read(&roots).clock_is_fast(), None);
    let path = "sys/devices/system/clocksource/clocksource0/current_clocksource";
    machine.file(path, "hpet");
    assert_eq!(Kernel::read(&roots).clock_is_fast(), Some(false));
    machine.file(path, "tsc");
    assert_eq!(Kernel::read(&roots).clock_is_fast(), Some(true));
}

#[test]
fn free_space_is_compared_with_the_planned_size() {
    let space = |size_bytes| {
        let plan = plan(size_bytes);
        let findings = Report::new(facts(nvme_machine().stack("259:1")), plan).findings();
        findings.into_iter().find(|finding| finding.name == "space").expect("a finding")
    };
    assert_eq!(space(None).grade, Grade::Neutral);
    assert_eq!(space(Some(10 << 30)).grade, Grade::Good);
    let short = space(Some(2 << 40));
    assert_eq!((short.grade, short.value.as_str()), (Grade::Bad, "1TiB free for 2TiB"));
}

#[test]
fn memory_is_compared_with_what_a_full_directory_needs() {
    let memory = |planned: Option<u64>, made: Option<u64>, limit| {
        let of_plan = |checkpoint_bytes| MemoryPlan { checkpoint_bytes, budget_bytes: 448 << 20 };
        let plan = Plan { memory: planned.map(of_plan), ..plan(None) };
        let stack = nvme_machine().stack("259:1");
        let facts = Facts { memory: limit, checkpoint_bytes: made, ..facts(stack) };
        let findings = Report::new(facts, plan).findings();
        findings.into_iter().find(|finding| finding.name == "memory").expect("a finding")
    };
    let limit = || Ok(MemoryLimit { bytes: 4 << 30, of: "its control group" });
    assert_eq!(memory(Some(1 << 30), None, limit()).grade, Grade::Good);
    let short = memory(Some(9 << 30), None, limit());
    assert!(short.value.contains("storage.value_size"), "{short:?}");
    assert_eq!(short.grade, Grade::Bad);
    assert_eq!(memory(Some(1 << 30), Some(9 << 30), limit()), short, "as the directory was made");
    let unplanned = memory(None, Some(9 << 30), limit());
    assert_eq!(
        (unplanned.grade, unplanned.value.as_str()),
        (Grade::Neutral, "4GiB (its control group)")
    );
    assert_eq!(memory(Some(9 << 30), None, Err("no meminfo".into())).grade, Grade::Neutral);
}

#[test]
fn of_several_layers_the_one_that_matters_most_decides() {
    let media = [
        Medium::Drive,
        Medium::Virtual,
        Medium::Bridged,
        Medium::Layered,
        Medium::Memory,
        Medium::Unknown,
        Medium::Network,
    ];
    assert!(media.is_sorted_by(|less, more| less < more));
    let caches =
        [Cache::None, Cache::Unknown, Cache::Volatile, Cache::Unprotected, Cache::Unsyncable];
    assert!(caches.is_sorted_by(|less, more| less < more));
    let atomicities = [Atomicity::Whole, Atomicity::Unknown, Atomicity::Torn];
    assert!(atomicities.is_sorted_by(|less, more| less < more));
}

#[test]
fn words_for_programs_stay() {
    let states =
        [State::Formatted, State::Unfinished, State::Empty, State::Missing, State::Foreign];
    let states = serde_json::to_value(states).expect("JSON");
    assert_eq!(
        states,
        serde_json::json!(["formatted", "unfinished", "empty", "missing", "foreign"])
    );
    let grades = serde_json::to_value([Grade::Good, Grade::Neutral, Grade::Bad]).expect("JSON");
    assert_eq!(grades, serde_json::json!(["good", "neutral", "bad"]));
    let contracts = serde_json::to_value([Contract::Shown, Contract::Asserted]).expect("JSON");
    assert_eq!(contracts, serde_json::json!(["shown", "asserted"]));
}
