//! Behaviour of real files, on the filesystem of the temporary directory, for both backends.

mod create;
mod grow;
mod lock;
mod probe;
mod rate;
mod set_aside;
mod transfer;

use super::{Backend, FileDirectory};
use crate::io::{Device, Directory, FileKind};
use crate::types::Geometry;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

pub(super) const SMALL: Geometry =
    Geometry { journal_bytes: 1 << 20, checkpoint_bytes: 64 << 10, data_bytes: 8 << 20 };

/// A formatted directory. Dropping the first part removes it.
pub(super) fn formatted(geometry: &Geometry) -> (TempDir, PathBuf) {
    let parent = tempfile::tempdir().unwrap();
    let path = parent.path().join("node");
    FileDirectory::create(&path, geometry, &mut |_, _| ControlFlow::Continue(())).unwrap();
    (parent, path)
}

pub(super) fn open(path: &Path, backend: Backend, kind: FileKind) -> Arc<dyn Device> {
    FileDirectory::open(path, backend).unwrap().open(kind).unwrap()
}

/// The backends available on this machine. If io_uring is forbidden, `Auto` must agree.
pub(super) fn backends() -> Vec<Backend> {
    let (_parent, path) = formatted(&SMALL);
    let auto = FileDirectory::open(&path, Backend::Auto).unwrap();
    match FileDirectory::open(&path, Backend::IoUring) {
        Ok(forced) => {
            assert_eq!((auto.backend(), forced.backend()), ("io_uring", "io_uring"));
            vec![Backend::IoUring, Backend::Threads]
        }
        Err(error) => {
            assert_eq!(auto.backend(), "threads");
            assert!(error.to_string().contains("io_uring"), "{error}");
            vec![Backend::Threads]
        }
    }
}
