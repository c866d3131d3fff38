//! Nodes that another process holds down, so that `cairn dev --restart` does not start them.
//!
//! What holds here: a hold ends with the process that made it, however that ends. A hold that is left
//! from one holds nothing, also once another process has its number: the hold names when its own one started.

use std::io;
use std::path::Path;

/// Holds a node down until [`release`], or until this process ends.
pub(super) fn hold(file: &Path) -> io::Result<()> {
    let id = std::process::id();
    let started = started(id)
        .ok_or_else(|| io::Error::other("/proc does not say when this process started"))?;
    std::fs::write(file, format!("{id} {started}"))
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
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let Some((id, then)) = text.trim().split_once(' ') else { return false };
    let holder = id.parse::<u32>().ok().zip(then.parse::<u64>().ok());
    holder.is_some_and(|(id, then)| started(id) == Some(then))
}

/// Removes a hold that holds nothing.
pub(super) fn remove_stale(file: &Path) -> io::Result<()> {
    if is_held(file) { Ok(()) } else { release(file) }
}

/// When a process that lives started, in ticks since the boot.
fn started(id: u32) -> Option<u64> {
    let stat =
        std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("stat")).ok()?;
    // The name, in parentheses, may have any character. Behind it is the third field; the start is the 22nd.
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(19)?.parse().ok()
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
        std::fs::write(&file, format!("{id} 1")).expect("a file");
        assert!(!is_held(&file), "its process is gone");
        for text in ["", "no number", "1", "-1 7"] {
            std::fs::write(&file, text).expect("a file");
            assert!(!is_held(&file), "{text}");
        }
    }

    /// The story: a game day was killed, and later another process had its number. The node stayed down for as
    /// long as that ran.
    #[test]
    fn a_hold_of_a_process_whose_number_another_one_has_now_holds_nothing_and_is_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("node-1.hold");
        let id = std::process::id();
        let ours = started(id).expect("it runs");
        std::fs::write(&file, format!("{id} {}", ours - 1)).expect("a file");
        assert!(!is_held(&file));
        remove_stale(&file).expect("ours");
        assert!(!file.exists());
        hold(&file).expect("a file");
        remove_stale(&file).expect("nothing to do");
        assert!(is_held(&file), "its process lives");
    }
}
