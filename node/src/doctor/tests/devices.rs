//! Which devices are below a directory, and what they are.

use super::*;

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
