//! The systems under load: real processes on this machine. They stop with the measurement that
//! started them.

use std::path::PathBuf;

pub mod cairn;
pub mod etcd;

/// The first file with this name on the search path.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| file.is_file())
}
