//! Which modes a machine justifies, and why not the others.

use super::*;

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

/// The story: ext4's own default, of `tune2fs -o nobarrier`, is not in the table of mounts, and the doctor
/// justified every mode but `device` over a volatile cache that no sync empties.
#[test]
fn a_superblock_that_disables_barriers_over_a_volatile_cache_justifies_no_mode() {
    let machine = nvme_machine();
    machine
        .file(&format!("{NVME}/queue/write_cache"), "write back")
        .file("proc/self/mountinfo", "30 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw");
    let verdict = |machine: &Machine| {
        let roots = Roots::below(&machine.root);
        let found = filesystem::holding(&roots, &machine.root).expect("a mount");
        let mut facts = facts(machine.stack("259:1"));
        facts.filesystem.as_mut().expect("known").options = found.options;
        report(facts).verdict
    };
    assert_eq!(verdict(&machine).mode, Some(Mode::Replicated));
    machine.file("proc/fs/ext4/nvme0n1p1/options", "rw\nnobarrier");
    assert_eq!(verdict(&machine).mode, None);
    assert_eq!(verdict(&machine).of(Mode::Sync).refusals, [Reason::FlushSuppressed]);
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
