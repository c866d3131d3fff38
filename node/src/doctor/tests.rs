//! The doctor on simulated machines: trees of `/proc` and `/sys` as kernels show them.

use super::*;
use cairn_engine::Mode;
use cairn_engine::io::{DirectAlignment, Extents, FileProbe, FreeSpace};
use std::fs;
use tempfile::TempDir;

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
    }
}

fn plan(size_bytes: Option<u64>) -> Plan {
    let window = crate::promise::SyncWindow::default();
    Plan { voters: 3, size_bytes, contract_asserted: false, window }
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

/// The story: a drive was pulled and pushed back while the kernel ran on. The boot id was the same,
/// so what its cache lost counted as a torn tail.
#[test]
fn a_drive_that_lost_power_alone_reports_another_history_and_any_other_the_same() {
    let machine = nvme_machine();
    machine.file(&format!("{NVME}/diskseq"), "9").file(&format!("{NVME}/wwid"), "eui.01");
    let power = NvmePower { cycles: 7, unsafe_shutdowns: 3 };
    let history = |machine: &Machine, power: Option<NvmePower>| {
        let mut layers = machine.stack("259:1").expect("a device");
        let facts = NvmeFacts { power, ..reported(false, 4096) };
        layers[0].nvme = Some(Ok(facts));
        medium::history(&layers[0])
    };
    let first = history(&machine, Some(power));
    assert_eq!(
        first,
        "nvme0n1: disk sequence 9, identity eui.01, power cycles 7, unsafe shutdowns 3"
    );
    assert_eq!(history(&machine, Some(power)), first, "nothing happened");
    let others = [
        history(&machine, Some(NvmePower { cycles: 8, ..power })),
        history(&machine, Some(NvmePower { unsafe_shutdowns: 4, ..power })),
        history(&machine, None),
        history(machine.file(&format!("{NVME}/diskseq"), "10"), Some(power)),
        history(machine.file(&format!("{NVME}/wwid"), "eui.02"), Some(power)),
    ];
    let mut different = others.to_vec();
    different.push(first);
    different.sort();
    different.dedup();
    assert_eq!(different.len(), 6, "{others:?}");
}

/// The story: the data directory was named by a link, and the check of mode `device` asked the disk that the
/// link lies on.
#[test]
fn the_devices_are_those_of_the_directory_that_a_link_leads_to() {
    let machine = nvme_machine();
    let volume = machine.root.join("volume");
    let mounts = format!(
        "27 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n\
         30 27 254:0 / {} rw - ext4 /dev/vda rw",
        volume.display()
    );
    machine
        .disk("sys/devices/pci0000:00/virtio1/block/vda", "254:0", "write back", "4096")
        .file("proc/self/mountinfo", &mounts)
        .folder("volume/cairn")
        .link("data", "volume/cairn");
    let names = |path: &str| -> Vec<String> {
        let layers = facts::layers(&Roots::below(&machine.root), &machine.root.join(path));
        layers.expect("devices").into_iter().map(|layer| layer.name).collect()
    };
    assert_eq!(names("."), ["nvme0n1"], "where the link lies");
    assert_eq!(names("volume/cairn"), ["vda"]);
    assert_eq!(names("data"), ["vda"]);
}

#[test]
fn a_partition_is_read_with_its_disks_queue_and_its_start() {
    let layers = nvme_machine().stack("259:1").expect("a device");
    let [layer] = &layers[..] else { panic!("{layers:?}") };
    assert_eq!((layer.name.as_str(), layer.medium), ("nvme0n1", Medium::Drive));
    assert_eq!(layer.about, "NVMe drive, Good Drive 3000, pcie");
    assert_eq!(layer.partition_start_bytes, Some(1 << 20));
    let expected = Queue {
        write_cache: Some("write through".into()),
        fua: Some(false),
        rotational: Some(false),
        logical_block_bytes: Some(512),
        physical_block_bytes: Some(4096),
        atomic_write_bytes: None,
    };
    assert_eq!(layer.queue, expected);
}

#[test]
fn a_protected_drive_under_ext4_justifies_device() {
    let report = report(facts(nvme_machine().stack("259:1")));
    assert_eq!(report.verdict.mode, Some(Mode::Device));
    assert_eq!(report.verdict.contract, Some(Contract::Shown));
    assert_eq!(bad(&report), []);
    assert!(
        report.conclusion()[0].contains("device (for 3 voters, its contract shown by the machine)")
    );
}

/// The story: an operator set the queue to "write through" over a volatile cache. As root `cairn doctor` asked
/// the drive and refused every mode; the service may not ask it, and chose `device`.
#[test]
fn a_queue_that_hides_a_volatile_cache_justifies_no_mode_though_the_drive_is_not_asked() {
    let machine = nvme_machine();
    machine.file(&format!("{NVME}/queue/fua"), "1");
    let report = report(facts(machine.stack("259:1")));
    assert_eq!(report.verdict.mode, None);
    assert!(!bad(&report).is_empty());
}

#[test]
fn each_single_flaw_refuses_device_and_is_named() {
    let flaw = |change: &dyn Fn(&mut Facts)| {
        let mut facts = facts(nvme_machine().stack("259:1"));
        change(&mut facts);
        let report = report(facts);
        assert_ne!(report.verdict.mode, Some(Mode::Device));
        assert!(!bad(&report).is_empty(), "{:#?}", report.findings());
        refusals(&report, Mode::Device).to_vec()
    };
    let layer = |change: fn(&mut Layer)| {
        flaw(&|facts| facts.stack.as_mut().expect("layers").iter_mut().for_each(change))
    };
    let filesystem = |change: fn(&mut Filesystem)| {
        flaw(&|facts| change(facts.filesystem.as_mut().expect("known")))
    };
    let files =
        |change: fn(&mut FileProbe)| flaw(&|facts| change(facts.files.as_mut().expect("probed")));

    assert_eq!(layer(|layer| layer.partition_start_bytes = Some(63 * 512)), [Reason::NotAtomic]);
    assert_eq!(layer(|layer| layer.queue.physical_block_bytes = Some(512)), [Reason::NotAtomic]);
    assert_eq!(layer(|layer| layer.medium = Medium::Layered), [Reason::LayeredDevice]);
    let cached = layer(|layer| layer.queue.write_cache = Some("write back".into()));
    assert!(cached.contains(&Reason::VolatileCache), "{cached:?}");
    // The drive's own report takes precedence over an operator's setting in the kernel's queue.
    let overruled = flaw(&|facts| {
        facts.stack.as_mut().expect("layers")[0].nvme = Some(Ok(reported(true, 4096)))
    });
    assert_eq!(overruled, [Reason::FlushSuppressed, Reason::VolatileCache]);
    let worn = NvmeFacts { backup_failed: true, ..reported(false, 4096) };
    let worn = flaw(&|facts| facts.stack.as_mut().expect("layers")[0].nvme = Some(Ok(worn)));
    assert!(
        !worn.is_empty() && worn.iter().all(|reason| *reason == Reason::BackupFailed),
        "{worn:?}"
    );
    let torn = flaw(&|facts| {
        facts.stack.as_mut().expect("layers")[0].nvme = Some(Ok(reported(false, 512)))
    });
    assert_eq!(torn, [Reason::NotAtomic]);

    assert_eq!(filesystem(|found| found.kind = FilesystemKind::CopyOnWrite), [Reason::CopyOnWrite]);
    assert_eq!(filesystem(|found| found.space = None), [Reason::AtomicityUnknown]);
    assert_eq!(filesystem(|found| found.options.push("data=journal".into())), [Reason::NotDirect]);
    let small = |found: &mut Filesystem| {
        found.space = Some(FreeSpace { free_bytes: 1 << 40, block_bytes: 1024 })
    };
    assert_eq!(filesystem(small), [Reason::NotAtomic]);

    assert_eq!(files(|files| files.extents = None), [Reason::ExtentsUnknown]);
    assert_eq!(files(|files| files.direct = false), [Reason::NotDirect]);
    let unwritten = |files: &mut FileProbe| {
        files.extents = Some(Extents { unwritten_bytes: 1 << 20, ..Extents::default() });
    };
    assert_eq!(files(unwritten), [Reason::ExtentsUnwritten]);
    let shared = |files: &mut FileProbe| {
        files.extents =
            Some(Extents { shared_bytes: 4096, written_bytes: 4096, ..Extents::default() });
    };
    assert_eq!(files(shared), [Reason::ExtentsShared]);
    assert!(flaw(&|facts| facts.stack = Err("no sysfs".into())).contains(&Reason::DeviceUnknown));
}

/// The story: the doctor did not warn about mode `sync` on a ZFS with `sync=disabled`, or on a
/// virtual disk whose host ignores syncs.
#[test]
fn mode_sync_is_warned_about_where_syncs_may_be_ignored_unseen() {
    let warnings = |machine: &Machine, number: &str, change: &dyn Fn(&mut Filesystem)| {
        let mut facts = facts(machine.stack(number));
        change(facts.filesystem.as_mut().expect("known"));
        let report = report(facts);
        assert!(report.verdict.of(Mode::Sync).justified());
        report.verdict.of(Mode::Sync).warnings.clone()
    };
    let copies = |found: &mut Filesystem| found.kind = FilesystemKind::CopyOnWrite;
    assert!(warnings(&nvme_machine(), "259:1", &|_| {}).is_empty());
    assert_eq!(warnings(&nvme_machine(), "259:1", &copies), [Reason::SyncUnseen]);
    let machine = Machine::new();
    let (lvm, virtio) =
        ("sys/devices/virtual/block/dm-0", "sys/devices/pci0000:00/virtio1/block/vda");
    machine
        .disk(virtio, "254:0", "write through", "4096")
        .disk("sys/devices/virtual/block/zd16", "230:16", "write back", "8192")
        .disk(lvm, "253:0", "write through", "4096")
        .folder(&format!("{lvm}/dm"))
        .link(&format!("{lvm}/slaves/vda"), virtio);
    for number in ["254:0", "253:0", "230:16"] {
        assert_eq!(warnings(&machine, number, &|_| {}), [Reason::SyncUnseen], "{number}");
    }
}

#[test]
fn atomic_writes_reported_by_the_kernel_replace_large_blocks() {
    let machine = nvme_machine();
    machine
        .file(&format!("{NVME}/queue/physical_block_size"), "512")
        .file(&format!("{NVME}/queue/atomic_write_unit_min_bytes"), "512")
        .file(&format!("{NVME}/queue/atomic_write_unit_max_bytes"), "65536");
    assert_eq!(report(facts(machine.stack("259:1"))).verdict.mode, Some(Mode::Device));
    machine.file(&format!("{NVME}/queue/atomic_write_unit_max_bytes"), "0");
    let report = report(facts(machine.stack("259:1")));
    assert_eq!(refusals(&report, Mode::Device), [Reason::NotAtomic]);
}

#[test]
fn lvm_over_raid_is_walked_down_to_its_drives() {
    let machine = nvme_machine();
    let (lvm, raid) = ("sys/devices/virtual/block/dm-0", "sys/devices/virtual/block/md127");
    machine
        .disk(lvm, "253:0", "write through", "4096")
        .file(&format!("{lvm}/dm/name"), "vg-cairn")
        .file(&format!("{lvm}/dm/uuid"), "LVM-abcdef")
        .link(&format!("{lvm}/slaves/md127"), raid)
        .disk(raid, "9:127", "write through", "4096")
        .file(&format!("{raid}/md/level"), "raid1")
        .link(&format!("{raid}/slaves/nvme0n1p1"), &format!("{NVME}/nvme0n1p1"))
        .link("sys/class/block/dm-0", lvm)
        .file(&format!("{lvm}/dev"), "253:0")
        .link("dev/mapper/vg-cairn", "dev/dm-0")
        .file("dev/dm-0", "");
    let layers = machine.stack("253:0").expect("devices");
    let seen: Vec<_> = layers.iter().map(|layer| (layer.medium, layer.about.as_str())).collect();
    let expected = [
        (Medium::Layered, "LVM `vg-cairn`"),
        (Medium::Layered, "software raid1"),
        (Medium::Drive, "NVMe drive, Good Drive 3000, pcie"),
    ];
    assert_eq!(seen, expected);
    let roots = Roots::below(&machine.root);
    assert_eq!(device::number_of(&roots, "/dev/mapper/vg-cairn"), Some("253:0".into()));
    assert_eq!(device::number_of(&roots, "tank/data"), None);

    let report = report(facts(Ok(layers)));
    assert_eq!(report.verdict.mode, Some(Mode::Replicated));
    assert_eq!(refusals(&report, Mode::Device), [Reason::LayeredDevice]);
}

#[test]
fn devices_are_recognised_by_their_path_and_their_model() {
    let at = |path: &str, vendor: &str, model: &str| {
        let machine = Machine::new();
        machine.disk(path, "8:0", "write back", "512").folder(&format!("{path}/device"));
        machine
            .file(&format!("{path}/device/vendor"), vendor)
            .file(&format!("{path}/device/model"), model);
        machine.medium("8:0")
    };
    let pci = "sys/devices/pci0000:00/0000:00:1f.2";
    let sda = "target0:0:0/0:0:0:0/block/sda";
    for (path, vendor, model, expected) in [
        (format!("{pci}/ata1/host0/{sda}"), "ATA", "Some SSD", Medium::Drive),
        (format!("{pci}/ata1/host0/{sda}"), "ATA", "QEMU HARDDISK", Medium::Virtual),
        (format!("{pci}/host0/port-0:0/end_device-0:0/{sda}"), "SEAGATE", "ST1200", Medium::Drive),
        (format!("{pci}/host0/{sda}"), "DELL", "PERC H730", Medium::Unknown),
        (format!("{pci}/usb2/2-1/2-1:1.0/host0/{sda}"), "Stick", "2000", Medium::Bridged),
        (format!("sys/devices/platform/host3/session1/{sda}"), "LIO-ORG", "disk", Medium::Network),
        (format!("{pci}/host1/rport-1:0-0/{sda}"), "SAN", "LUN", Medium::Network),
        (format!("{pci}/virtio2/host0/{sda}"), "Google", "PersistentDisk", Medium::Network),
        (format!("{pci}/virtio2/host0/{sda}"), "QEMU", "QEMU HARDDISK", Medium::Virtual),
        (format!("{pci}/virtio1/block/vda"), "", "", Medium::Virtual),
        ("sys/devices/virtual/block/nbd0".into(), "", "", Medium::Network),
        ("sys/devices/virtual/block/rbd7".into(), "", "", Medium::Network),
        ("sys/devices/virtual/block/zram0".into(), "", "", Medium::Memory),
        ("sys/devices/virtual/block/loop3".into(), "", "", Medium::Layered),
        ("sys/devices/virtual/block/zd16".into(), "", "", Medium::Layered),
        ("sys/devices/virtual/block/odd0".into(), "", "", Medium::Unknown),
    ] {
        assert_eq!(at(&path, vendor, model), expected, "{path}, {vendor} {model}");
    }
}

#[test]
fn nvme_over_a_network_and_a_clouds_remote_disks_are_no_local_drives() {
    let controller = "sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0";
    for (file, text, expected) in [
        ("transport", "tcp", Medium::Network),
        ("model", "Amazon Elastic Block Store", Medium::Network),
        ("model", "Amazon EC2 NVMe Instance Storage", Medium::Drive),
        ("model", "QEMU NVMe Ctrl", Medium::Virtual),
    ] {
        let machine = nvme_machine();
        machine.file(&format!("{controller}/{file}"), text);
        assert_eq!(machine.medium("259:1"), expected, "{text}");
    }
    let machine = nvme_machine();
    fs::remove_file(machine.root.join(controller).join("transport")).expect("a file");
    assert_eq!(machine.medium("259:1"), Medium::Unknown);
    let report = report(facts(nvme_with("tcp").stack("259:1")));
    assert_eq!(report.verdict.mode, Some(Mode::Sync));
    assert_eq!(refusals(&report, Mode::Replicated), [Reason::NetworkDevice]);
}

fn nvme_with(transport: &str) -> Machine {
    let machine = nvme_machine();
    machine.file("sys/devices/pci0000:00/0000:00:04.0/nvme/nvme0/transport", transport);
    machine
}

#[test]
fn with_multipath_the_controllers_of_the_subsystem_have_the_transport() {
    let machine = Machine::new();
    let (disk, subsystem) = (
        "sys/devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1",
        "sys/class/nvme-subsystem/nvme-subsys0",
    );
    machine
        .disk(disk, "259:0", "write through", "4096")
        .link(&format!("{disk}/device"), subsystem)
        .file(&format!("{subsystem}/model"), "Two Ways")
        .file("sys/devices/pci0/nvme/nvme0/transport", "pcie")
        .link(&format!("{subsystem}/nvme0"), "sys/devices/pci0/nvme/nvme0");
    assert_eq!(machine.medium("259:0"), Medium::Drive);
    machine
        .file("sys/devices/virtual/nvme-fabrics/nvme1/transport", "rdma")
        .link(&format!("{subsystem}/nvme1"), "sys/devices/virtual/nvme-fabrics/nvme1");
    assert_eq!(machine.medium("259:0"), Medium::Network);
}

#[test]
fn cycles_and_missing_devices_end_the_walk() {
    let machine = Machine::new();
    let path = |name: &str| format!("sys/devices/virtual/block/{name}");
    machine
        .disk(&path("dm-0"), "253:0", "write back", "512")
        .disk(&path("dm-1"), "253:1", "write back", "512")
        .folder(&format!("{}/dm", path("dm-0")))
        .folder(&format!("{}/dm", path("dm-1")))
        .link(&format!("{}/slaves/dm-1", path("dm-0")), &path("dm-1"))
        .link(&format!("{}/slaves/dm-0", path("dm-1")), &path("dm-0"));
    assert_eq!(machine.stack("253:0").expect("devices").len(), 2);
    let error = machine.stack("8:0").expect_err("not there");
    assert!(error.contains("dev/block/8:0"), "{error}");
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
fn a_denied_probe_proves_nothing_and_any_other_failure_refuses_the_location() {
    let verdict = |passing| {
        let mut facts = facts(nvme_machine().stack("259:1"));
        facts.files = Err(Unprobed { reason: "no".into(), passing });
        report(facts).verdict
    };
    assert_eq!(verdict(true).mode, Some(Mode::Replicated));
    assert!(verdict(true).of(Mode::Replicated).warnings.contains(&Reason::Untried));
    assert_eq!(verdict(false).mode, None);
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
