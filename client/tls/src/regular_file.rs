//! Files that an operator names: certificates, and the configuration of a server.
//!
//! What holds here: reading one never waits and has an end, whatever the path turns out to be.
//!
//! The story: a FIFO in place of the configuration stopped `config check`, and with SIGHUP the leader;
//! `/dev/zero` filled the memory.

use rustix::fs::OFlags;
use std::fs::OpenOptions;
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// The content of a regular file of at most so many bytes.
///
/// # Errors
/// Those of the system; or the path is no regular file, or the file is larger.
pub fn read_file(path: &Path, most_bytes: u64) -> io::Result<Vec<u8>> {
    // A FIFO that nobody writes is opened at once like this.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if found.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !found.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "not a regular file; name one"));
    }
    let mut bytes = Vec::new();
    file.take(most_bytes + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most_bytes {
        let reason = format!("larger than {} KiB", most_bytes >> 10);
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_of_that_size_is_refused_and_never_waited_for() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        std::fs::write(&path, [7; 1024]).expect("a file");
        assert_eq!(read_file(&path, 1024).expect("a file"), [7; 1024]);
        let refused = |path: &Path, most| read_file(path, most).expect_err("refused").to_string();
        assert_eq!(refused(&path, 1023), "larger than 0 KiB");
        let fifo = folder.path().join("fifo");
        let mode = rustix::fs::Mode::RUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, mode).expect("a FIFO");
        for other in [fifo.as_path(), Path::new("/dev/zero"), Path::new("/dev/null")] {
            assert!(refused(other, 1024).contains("not a regular file"), "{}", other.display());
        }
        assert!(read_file(folder.path(), 1024).is_err());
        std::os::unix::fs::symlink(&path, folder.path().join("link")).expect("a link");
        assert!(read_file(&folder.path().join("link"), 1024).is_ok(), "as in a ConfigMap");
    }
}
