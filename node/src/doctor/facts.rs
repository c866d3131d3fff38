//! Everything that was found about a directory, before it is judged.

use super::device::{self, Layer, Medium};
use super::filesystem::{self, Filesystem};
use super::kernel::Kernel;
use super::memory::{self, MemoryLimit};
use super::nvme::NvmeFacts;
use super::{Error, Roots};
use cairn_engine::io::{self, Extents, FileKind, FileProbe};
use serde::Serialize;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What is at the examined location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A data directory.
    Formatted,
    /// Some files of a data directory, not all.
    Unfinished,
    /// An empty directory.
    Empty,
    /// Nothing yet.
    Missing,
    /// Other files.
    Foreign,
}

/// The location that is examined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// The path as given.
    pub asked: PathBuf,
    /// What was examined: the directory, or its nearest existing parent, absolute and without
    /// links.
    pub examined: PathBuf,
    /// What is at the path.
    pub state: State,
}

/// Why files could not be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprobed {
    /// The system's message.
    pub reason: String,
    /// Whether the reason is temporary or personal, such as a missing permission, and says nothing
    /// about the location.
    pub passing: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The location.
    pub location: Location,
    /// The kernel.
    pub kernel: Kernel,
    /// The filesystem, or why it is not known.
    pub filesystem: Result<Filesystem, String>,
    /// The devices from the filesystem down, or why they cannot be seen.
    pub stack: Result<Vec<Layer>, String>,
    /// How the filesystem treats the files of a data directory, or else a new file; or why that
    /// could not be tried.
    pub files: Result<FileProbe, Unprobed>,
    /// The memory that a process started here may use, or why it is not known.
    pub memory: Result<MemoryLimit, String>,
    /// The size of a checkpoint area, if there is one.
    pub checkpoint_bytes: Option<u64>,
}

impl Facts {
    /// Examines this machine.
    ///
    /// # Errors
    /// If the location is not a directory and cannot become one.
    pub(super) fn gather(roots: &Roots, directory: &Path) -> Result<Facts, Error> {
        let location = Location::find(directory)?;
        let mut filesystem = filesystem::holding(roots, &location.examined);
        if let Ok(found) = &mut filesystem {
            found.space = io::free_space(&location.examined).ok();
        }
        let stack = match &filesystem {
            Ok(found) => stack(roots, found),
            Err(_) => Err("the filesystem is not known".into()),
        };
        let files = probe(&location);
        let formatted = location.state == State::Formatted;
        let checkpoint = formatted.then(|| memory::checkpoint_bytes(&location.examined));
        Ok(Facts {
            kernel: Kernel::read(roots),
            memory: memory::limit(roots),
            checkpoint_bytes: checkpoint.flatten(),
            location,
            filesystem,
            stack,
            files,
        })
    }
}

impl Location {
    fn find(asked: &Path) -> Result<Location, Error> {
        let location_error = |reason: String| Error::Location { path: asked.to_path_buf(), reason };
        let failed = |error: std::io::Error| location_error(error.to_string());
        let absolute = std::path::absolute(asked).map_err(failed)?;
        let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let examined = existing.canonicalize().map_err(failed)?;
        if !examined.is_dir() {
            return Err(location_error(format!("{} is not a directory", examined.display())));
        }
        let state =
            if existing == absolute { state(&examined).map_err(failed)? } else { State::Missing };
        Ok(Location { asked: asked.to_path_buf(), examined, state })
    }
}

fn state(directory: &Path) -> std::io::Result<State> {
    let ours =
        FileKind::ALL.into_iter().filter(|kind| directory.join(kind.name()).exists()).count();
    if ours == FileKind::ALL.len() {
        return Ok(State::Formatted);
    }
    if ours > 0 {
        return Ok(State::Unfinished);
    }
    for entry in std::fs::read_dir(directory)? {
        // A new ext4 has this, and `cairn format` accepts it.
        if entry?.file_name() != "lost+found" {
            return Ok(State::Foreign);
        }
    }
    Ok(State::Empty)
}

/// The devices under an existing directory, from the filesystem down, wherever links lead to it.
pub(super) fn layers(roots: &Roots, directory: &Path) -> Result<Vec<Layer>, String> {
    // The mount table names directories in this form.
    let directory =
        directory.canonicalize().map_err(|error| format!("{}: {error}", directory.display()))?;
    stack(roots, &filesystem::holding(roots, &directory)?)
}

/// The devices from the filesystem down. Asks each NVMe drive.
fn stack(roots: &Roots, filesystem: &Filesystem) -> Result<Vec<Layer>, String> {
    let number = match filesystem.number.starts_with("0:") {
        false => filesystem.number.clone(),
        true => device::number_of(roots, &filesystem.source).ok_or_else(|| {
            format!("{} is not on a block device that can be seen", filesystem.name)
        })?,
    };
    let mut stack = device::stack(roots, &number)?;
    for layer in stack.iter_mut().filter(|layer| layer.medium == Medium::Drive) {
        if layer.name.starts_with("nvme") {
            layer.nvme = Some(identify(&roots.dev.join(&layer.name)));
        }
    }
    Ok(stack)
}

fn identify(device: &Path) -> Result<NvmeFacts, String> {
    let answer =
        io::nvme_identify(device).map_err(|error| format!("{}: {error}", device.display()))?;
    NvmeFacts::read(&answer)
}

fn probe(location: &Location) -> Result<FileProbe, Unprobed> {
    if location.state != State::Formatted {
        return io::probe_directory(&location.examined)
            .map_err(|error| Unprobed::new(&location.examined, &error));
    }
    let probe_one = |kind: FileKind| {
        let path = location.examined.join(kind.name());
        io::probe_file(&path).map_err(|error| Unprobed::new(&path, &error))
    };
    let probes: Vec<FileProbe> =
        FileKind::ALL.into_iter().map(probe_one).collect::<Result<_, _>>()?;
    let none = || Unprobed { reason: "there are no files".into(), passing: false };
    probes.into_iter().reduce(together).ok_or_else(none)
}

impl Unprobed {
    fn new(path: &Path, error: &std::io::Error) -> Unprobed {
        let passing = matches!(
            error.kind(),
            ErrorKind::PermissionDenied | ErrorKind::StorageFull | ErrorKind::QuotaExceeded
        );
        Unprobed { reason: format!("{}: {error}", path.display()), passing }
    }
}

/// The extents of all files of a data directory now; `None` if the filesystem does not report them.
pub(super) fn extents(directory: &Path) -> Result<Option<Extents>, String> {
    let mut all = Some(Extents::default());
    for kind in FileKind::ALL {
        let path = directory.join(kind.name());
        let found =
            io::file_extents(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        all = all.zip(found).map(|(a, b)| sum(a, b));
    }
    Ok(all)
}

fn sum(a: Extents, b: Extents) -> Extents {
    Extents {
        written_bytes: a.written_bytes + b.written_bytes,
        unwritten_bytes: a.unwritten_bytes + b.unwritten_bytes,
        shared_bytes: a.shared_bytes + b.shared_bytes,
        packed_bytes: a.packed_bytes + b.packed_bytes,
        missing_bytes: a.missing_bytes + b.missing_bytes,
    }
}

/// Combines the probes of two files: the worse of both, and the sum of their bytes.
fn together(a: FileProbe, b: FileProbe) -> FileProbe {
    let extents = a.extents.zip(b.extents).map(|(a, b)| sum(a, b));
    let coarser = |unit: fn(io::DirectAlignment) -> u32| {
        let unit = |alignment: Option<io::DirectAlignment>| alignment.map(unit);
        match (unit(a.alignment), unit(b.alignment)) {
            // Zero means that there is no unit.
            (Some(0), _) | (_, Some(0)) => Some(0),
            (a, b) => a.max(b),
        }
    };
    let alignment = coarser(|unit| unit.memory_bytes)
        .zip(coarser(|unit| unit.offset_bytes))
        .map(|(memory_bytes, offset_bytes)| io::DirectAlignment { memory_bytes, offset_bytes });
    FileProbe {
        bytes: a.bytes + b.bytes,
        direct: a.direct && b.direct,
        alignment,
        extents,
        transfer: a.transfer.and(b.transfer),
    }
}
