//! Nodes that another process holds down, so that `cairn dev --restart` does not start them.
//!
//! What holds here: a hold ends with the process that made it, however that ends. A hold that is left
//! from one holds nothing.

use std::io;
use std::path::Path;

/// Holds a node down until [`release`], or until this process ends.
pub(super) fn hold(file: &Path) -> io::Result<()> {
    std::fs::write(file, std::process::id().to_string())
}

/// Lets the node be started again.
pub(super) fn release(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Whether a process that lives holds the node down.
pub(super) fn is_held(file: &Path) -> bool {
    let id = std::fs::read_to_string(file).ok().and_then(|text| text.trim().parse::<u32>().ok());
    id.is_some_and(|id| Path::new("/proc").join(id.to_string()).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_lasts_as_long_as_the_process_that_made_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node-1.hold");
        assert!(!is_held(&file));
        hold(&file).expect("a file");
        assert!(is_held(&file));
        release(&file).expect("ours");
        assert!(!is_held(&file));
        release(&file).expect("nothing is there any more");
        let mut ended = std::process::Command::new("true").spawn().expect("a process");
        let id = ended.id();
        ended.wait().expect("it ends");
        std::fs::write(&file, id.to_string()).expect("a file");
        assert!(!is_held(&file), "its process is gone");
        std::fs::write(&file, "no number").expect("a file");
        assert!(!is_held(&file));
    }
}
