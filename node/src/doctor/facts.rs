//! Everything that was found about a directory, before any of it is judged.

use super::device::{self, Layer, LayerKind};
use super::filesystem::{self, Filesystem};
use super::kernel::Kernel;
use super::nvme::NvmeFacts;
use super::{Error, Roots};
use cairn_engine::io::{self, Extents, FileKind, FileProbe};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// What is found at the place that was asked about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

/// The place that was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// As it was asked.
    pub asked: PathBuf,
    /// What was examined: the directory, or its nearest existing parent, absolute and without links.
    pub examined: PathBuf,
    /// What is there.
    pub state: State,
}

/// Why files could not be probed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unprobed {
    /// What the system said.
    pub reason: String,
    /// Whether that is a matter of who asks and when, such as a missing permission, and not of the place.
    pub passing: bool,
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// The place.
    pub place: Place,
    /// The kernel.
    pub kernel: Kernel,
    /// The filesystem, or why it cannot be told.
    pub filesystem: Result<Filesystem, String>,
    /// The devices from the filesystem down, or why they cannot be seen.
    pub stack: Result<Vec<Layer>, String>,
    /// How the files of a data directory are treated, or else how a new file is; or why that could not be tried.
    pub files: Result<FileProbe, Unprobed>,
}

impl Facts {
    /// Looks at this machine.
    ///
    /// # Errors
    /// Where the place is no directory and cannot become one.
    pub(super) fn gather(roots: &Roots, directory: &Path) -> Result<Facts, Error> {
        let place = Place::find(directory)?;
        let mut filesystem = filesystem::holding(roots, &place.examined);
        if let Ok(found) = &mut filesystem {
            found.room = io::room(&place.examined).ok();
        }
        let stack = match &filesystem {
            Ok(found) => stack(roots, found),
            Err(_) => Err("the filesystem is not known".into()),
        };
        let files = probe(&place);
        Ok(Facts { kernel: Kernel::read(roots), place, filesystem, stack, files })
    }
}

impl Place {
    fn find(asked: &Path) -> Result<Place, Error> {
        let place = |reason: String| Error::Place { path: asked.to_path_buf(), reason };
        let absolute = std::path::absolute(asked).map_err(|error| place(error.to_string()))?;
        let existing = absolute.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/"));
        let examined = existing.canonicalize().map_err(|error| place(error.to_string()))?;
        if !examined.is_dir() {
            return Err(place(format!("{} is not a directory", examined.display())));
        }
        let state = if existing == absolute {
            state(&examined).map_err(|error| place(error.to_string()))?
        } else {
            State::Missing
        };
        Ok(Place { asked: asked.to_path_buf(), examined, state })
    }
}

fn state(directory: &Path) -> std::io::Result<State> {
    let ours = FileKind::ALL.into_iter().filter(|kind| directory.join(kind.name()).exists()).count();
    if ours == FileKind::ALL.len() {
        return Ok(State::Formatted);
    }
    if ours > 0 {
        return Ok(State::Unfinished);
    }
    for entry in std::fs::read_dir(directory)? {
        // A new ext4 has this, and `format` does not mind it.
        if entry?.file_name() != "lost+found" {
            return Ok(State::Foreign);
        }
    }
    Ok(State::Empty)
}

/// The devices under a directory that is there, from the filesystem down.
pub(super) fn layers(roots: &Roots, directory: &Path) -> Result<Vec<Layer>, String> {
    stack(roots, &filesystem::holding(roots, directory)?)
}

/// The devices from the filesystem down, each NVMe drive asked.
fn stack(roots: &Roots, filesystem: &Filesystem) -> Result<Vec<Layer>, String> {
    let number = match filesystem.number.starts_with("0:") {
        false => filesystem.number.clone(),
        true => device::number_of(roots, &filesystem.source)
            .ok_or_else(|| format!("{} is not on a block device that can be seen", filesystem.name))?,
    };
    let mut stack = device::stack(roots, &number)?;
    for layer in stack.iter_mut().filter(|layer| layer.kind == LayerKind::NvmeDrive) {
        layer.nvme = Some(identify(&roots.dev.join(&layer.name)));
    }
    Ok(stack)
}

fn identify(device: &Path) -> Result<NvmeFacts, String> {
    let answer = io::nvme_identify(device).map_err(|error| format!("{}: {error}", device.display()))?;
    NvmeFacts::read(&answer)
}

fn probe(place: &Place) -> Result<FileProbe, Unprobed> {
    if place.state != State::Formatted {
        return io::probe_directory(&place.examined).map_err(|error| Unprobed::new(&place.examined, &error));
    }
    let mut whole: Option<FileProbe> = None;
    for kind in FileKind::ALL {
        let path = place.examined.join(kind.name());
        let one = io::probe_file(&path).map_err(|error| Unprobed::new(&path, &error))?;
        whole = Some(whole.map_or(one.clone(), |whole| together(whole, one)));
    }
    whole.ok_or_else(|| Unprobed { reason: "there are no files".into(), passing: false })
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

/// Two files as one: the worse of both, and the sum of their bytes.
fn together(a: FileProbe, b: FileProbe) -> FileProbe {
    let extents = a.extents.zip(b.extents).map(|(a, b)| Extents {
        written_bytes: a.written_bytes + b.written_bytes,
        unwritten_bytes: a.unwritten_bytes + b.unwritten_bytes,
        shared_bytes: a.shared_bytes + b.shared_bytes,
        packed_bytes: a.packed_bytes + b.packed_bytes,
        missing_bytes: a.missing_bytes + b.missing_bytes,
    });
    let coarser = |unit: fn(io::DirectAlignment) -> u32| {
        let unit = |alignment: Option<io::DirectAlignment>| alignment.map(unit);
        match (unit(a.alignment), unit(b.alignment)) {
            // Zero is no unit at all.
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
