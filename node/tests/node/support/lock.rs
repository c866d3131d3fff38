//! Locks for tests that use what a machine has once: names of containers, of namespaces and of devices.
//!
//! What holds here: a lock is the machine's, whatever folder for temporary files a run has. It ends with its process.

use std::fs::File;
use std::path::Path;

/// Waits until no other run on this machine holds this name, and holds it until the file is dropped. It needs root.
pub fn only_run(name: &str) -> File {
    let path = Path::new("/run").join(format!("{name}.lock"));
    let lock = File::create(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    lock.lock().expect("no other run");
    lock
}
