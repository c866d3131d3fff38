//! The block device under a filesystem and every layer below it, as sysfs shows them.
//!
//! What holds here: a layer of an unknown kind is [`Medium::Unknown`] and is never skipped. What
//! sysfs does not say is `None`, never a default.

use super::Roots;
use super::nvme::NvmeFacts;
use std::path::{Path, PathBuf};

/// A deeper stack counts as a loop in sysfs.
const LAYERS_MAX: usize = 32;
/// The kernel counts the start of a partition in these units, whatever the block size of the
/// device.
const SECTOR_BYTES: u64 = 512;

/// What a layer is. All layers together are what the last of them here is, which matters most for
/// whether a completed write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Medium {
    /// A drive of this machine: NVMe, SATA or SAS.
    Drive,
    /// A disk of a hypervisor.
    Virtual,
    /// A drive behind a USB bridge.
    Bridged,
    /// Device mapper (LVM, encryption, multipath), software RAID, a file used as a device, bcache,
    /// or a ZFS volume.
    Layered,
    /// Memory.
    Memory,
    /// Anything else, or nothing that can be seen.
    Unknown,
    /// A device on another machine.
    Network,
}

/// What the kernel reports about a device's request queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Queue {
    /// `write back` or `write through`.
    pub write_cache: Option<String>,
    /// Whether a single write can be forced through the cache.
    pub fua: Option<bool>,
    /// Whether it reports to be rotational.
    pub rotational: Option<bool>,
    /// Smallest addressable unit.
    pub logical_block_bytes: Option<u64>,
    /// Smallest unit that is written without reading.
    pub physical_block_bytes: Option<u64>,
    /// Smallest and largest unit that is written atomically; zeros: none. Linux 6.11 or newer.
    pub atomic_write_bytes: Option<(u64, u64)>,
}

/// Files below a disk's directory in sysfs that may hold its identity.
const IDENTITIES: &[&str] =
    &["wwid", "device/wwid", "device/serial", "serial", "dm/uuid", "md/uuid", "loop/backing_file"];

/// One block device of the stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layer {
    /// The kernel's name, such as `nvme0n1`.
    pub name: String,
    /// What it is.
    pub medium: Medium,
    /// Model, RAID level, file or the like, as text.
    pub about: String,
    /// Its queue.
    pub queue: Queue,
    /// Where the partition in use begins, in bytes.
    pub partition_start_bytes: Option<u64>,
    /// The kernel's sequence number of this disk. A disk that comes back gets a new one.
    pub sequence: Option<u64>,
    /// The disk's own identity: a world-wide name, a serial number, an identifier of device mapper
    /// or RAID.
    pub identity: Option<String>,
    /// For an NVMe drive: its answer to Identify, or why it could not be asked.
    pub nvme: Option<Result<NvmeFacts, String>>,
}

/// The device with this number and all devices below it, from the top. No drive has been asked yet.
///
/// # Errors
/// Why sysfs shows no such device.
pub(super) fn stack(roots: &Roots, number: &str) -> Result<Vec<Layer>, String> {
    let link = roots.sys.join("dev/block").join(number);
    let top = link.canonicalize().map_err(|error| format!("{}: {error}", link.display()))?;
    let mut layers: Vec<Layer> = Vec::new();
    let mut waiting = vec![top];
    while let Some(path) = waiting.pop() {
        let layer = layer(roots, &path)?;
        if layers.iter().any(|known| known.name == layer.name) {
            continue;
        }
        if layers.len() == LAYERS_MAX {
            return Err(format!("more than {LAYERS_MAX} layers of devices"));
        }
        layers.push(layer);
        let mut below = links(&disk(&path).0.join("slaves"));
        below.sort();
        waiting.extend(below.into_iter().rev());
    }
    Ok(layers)
}

/// The number of a device, found by its file such as `/dev/mapper/data`. For filesystems whose own
/// number is not that of a device.
pub(super) fn number_of(roots: &Roots, source: &str) -> Option<String> {
    let file = roots.dev.join(source.strip_prefix("/dev/")?).canonicalize().ok()?;
    text(&roots.sys.join("class/block").join(file.file_name()?).join("dev"))
}

fn layer(roots: &Roots, path: &Path) -> Result<Layer, String> {
    let (disk, partition_start_bytes) = disk(path);
    let name = disk.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("{}: not a device name", disk.display()))?.to_string();
    let below_sys = disk.strip_prefix(&roots.sys).unwrap_or(&disk);
    let parts: Vec<&str> = below_sys.iter().filter_map(|part| part.to_str()).collect();
    let (medium, about) = recognise(&disk, &name, &parts);
    let sequence = number(&disk.join("diskseq"));
    let identity = IDENTITIES.iter().find_map(|file| text(&disk.join(file)));
    let queue = queue(&disk.join("queue"));
    Ok(Layer { medium, about, queue, partition_start_bytes, sequence, identity, nvme: None, name })
}

/// The whole disk of a device, and where on it the device begins if it is a partition.
fn disk(path: &Path) -> (PathBuf, Option<u64>) {
    match (path.join("partition").exists(), path.parent()) {
        (true, Some(disk)) => (
            disk.to_path_buf(),
            number(&path.join("start")).map(|start| start.saturating_mul(SECTOR_BYTES)),
        ),
        _ => (path.to_path_buf(), None),
    }
}

fn recognise(disk: &Path, name: &str, parts: &[&str]) -> (Medium, String) {
    let is = |prefix: &str| {
        name.strip_prefix(prefix).is_some_and(|rest| {
            rest.starts_with(|next: char| next.is_ascii_digit()) || rest.is_empty()
        })
    };
    if disk.join("dm").is_dir() {
        let label = text(&disk.join("dm/name")).unwrap_or_default();
        let uuid = text(&disk.join("dm/uuid")).unwrap_or_default();
        let owner =
            uuid.split('-').next().filter(|owner| !owner.is_empty()).unwrap_or("device mapper");
        return (Medium::Layered, format!("{owner} `{label}`"));
    }
    if disk.join("md").is_dir() {
        let level = text(&disk.join("md/level")).unwrap_or_else(|| "RAID".into());
        return (Medium::Layered, format!("software {level}"));
    }
    if is("loop") {
        let file = text(&disk.join("loop/backing_file")).unwrap_or_else(|| "no file".into());
        return (Medium::Layered, format!("loop device on {file}"));
    }
    let (medium, about) = match name {
        _ if is("nvme") => return nvme(disk),
        _ if name.starts_with("sd") => return scsi(disk, parts),
        _ if is("nbd") => (Medium::Network, "network block device"),
        _ if is("rbd") => (Medium::Network, "Ceph RBD"),
        _ if is("drbd") => (Medium::Network, "DRBD"),
        _ if is("rnbd") => (Medium::Network, "RDMA block device"),
        _ if is("zram") || is("ram") => (Medium::Memory, "memory"),
        _ if is("bcache") => (Medium::Layered, "bcache"),
        _ if is("zd") => (Medium::Layered, "ZFS volume"),
        _ if name.starts_with("vd") => (Medium::Virtual, "virtio disk"),
        _ if name.starts_with("xvd") => (Medium::Virtual, "Xen disk"),
        _ => (Medium::Unknown, "unknown kind of device"),
    };
    (medium, about.into())
}

/// Models of cloud disks that are on other machines.
const REMOTE_MODELS: &[&str] =
    &["Amazon Elastic Block Store", "nvme_card-pd", "MSFT NVMe Accelerator", "PersistentDisk"];
/// Models and vendors of hypervisors' disks.
const VIRTUAL_MODELS: &[&str] = &["QEMU", "VMware", "VBOX", "Virtual", "Google", "Xen"];

fn by_model(model: &str, local: Medium) -> Medium {
    let any = |names: &[&str]| names.iter().any(|name| model.contains(name));
    if any(REMOTE_MODELS) {
        Medium::Network
    } else if any(VIRTUAL_MODELS) {
        Medium::Virtual
    } else {
        local
    }
}

fn nvme(disk: &Path) -> (Medium, String) {
    let device = disk.join("device");
    let model = text(&device.join("model")).unwrap_or_else(|| "unknown model".into());
    // With multipath the device is a subsystem, and its controllers have the transports.
    let mut transports: Vec<String> = text(&device.join("transport")).into_iter().collect();
    if transports.is_empty() {
        transports =
            links(&device).iter().filter_map(|path| text(&path.join("transport"))).collect();
    }
    let about = format!("NVMe drive, {model}, {}", transports.join(" and "));
    let local = |transport: &String| transport == "pcie" || transport == "apple-nvme";
    match transports.iter().all(local) {
        _ if transports.is_empty() => {
            (Medium::Unknown, format!("NVMe drive, {model}, unknown transport"))
        }
        true => (by_model(&model, Medium::Drive), about),
        false => (Medium::Network, about),
    }
}

fn scsi(disk: &Path, parts: &[&str]) -> (Medium, String) {
    let field = |name: &str| text(&disk.join("device").join(name)).unwrap_or_default();
    let model = format!("{} {}", field("vendor"), field("model"));
    let has = |prefix: &str| parts.iter().any(|part| part.starts_with(prefix));
    let model = model.trim();
    let (medium, what) = match () {
        () if has("session") => (Medium::Network, "iSCSI disk"),
        () if has("rport-") => (Medium::Network, "Fibre Channel disk"),
        () if has("usb") => (Medium::Bridged, "USB drive"),
        () if has("virtio") => (by_model(model, Medium::Virtual), "virtio SCSI disk"),
        () if has("VMBUS") || has("vmbus") => (Medium::Virtual, "Hyper-V disk"),
        // Of a drive on its own cable, not of a volume that a controller makes of several, whose caches
        // nobody sees.
        () if has("ata") || has("end_device-") => {
            (by_model(model, Medium::Drive), "SCSI or SATA drive")
        }
        () => (by_model(model, Medium::Unknown), "volume of a controller"),
    };
    (medium, format!("{what}, {model}"))
}

fn queue(path: &Path) -> Queue {
    let flag = |name: &str| number(&path.join(name)).map(|value| value != 0);
    let size = |name: &str| number(&path.join(name));
    Queue {
        write_cache: text(&path.join("write_cache")),
        fua: flag("fua"),
        rotational: flag("rotational"),
        logical_block_bytes: size("logical_block_size"),
        physical_block_bytes: size("physical_block_size"),
        atomic_write_bytes: size("atomic_write_unit_min_bytes")
            .zip(size("atomic_write_unit_max_bytes")),
    }
}

/// The targets of a directory's entries; none if the directory does not exist.
fn links(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.path().canonicalize().ok()).collect()
}

/// The one line of a file in `/proc` or `/sys`, if there is one.
pub(super) fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim()).filter(|text| !text.is_empty()).map(str::to_string)
}

fn number(path: &Path) -> Option<u64> {
    text(path)?.parse().ok()
}
