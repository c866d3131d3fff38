//! Writes files into a tar archive, compressed with zstd: `tar -xf` reads it.
//!
//! What holds here: the archive appears under its name once all of it is written and synced, for its owner
//! alone, and replaces nothing.

use anyhow::Context;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::time::{Duration, SystemTime};
use zstd::stream::write::Encoder;

/// zstd's level.
const LEVEL: i32 = 3;
const BLOCK_BYTES: usize = 512;
/// The longest name of a file in the old form of the format, which everything reads.
const NAME_BYTES: usize = 100;

/// Writes these files, as name and content, to a new file at `path`. Returns how many bytes it has. Blocks.
///
/// # Errors
/// The file cannot be written, or exists.
pub(super) fn write<'f>(
    path: &Path,
    files: impl Iterator<Item = (&'f str, &'f [u8])>,
) -> anyhow::Result<u64> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new("."));
    let failed = || format!("cannot write {}", path.display());
    let beside = tempfile::Builder::new().prefix(".cairn-debug-").tempfile_in(folder);
    let beside = beside.with_context(failed)?;
    let written = compress(beside.as_file(), files).with_context(failed)?;
    beside.as_file().sync_all().with_context(failed)?;
    beside.persist_noclobber(path).map_err(|error| error.error).with_context(failed)?;
    File::open(folder).and_then(|folder| folder.sync_all()).with_context(failed)?;
    Ok(written)
}

fn compress<'f>(file: &File, files: impl Iterator<Item = (&'f str, &'f [u8])>) -> io::Result<u64> {
    let mut archive = Encoder::new(file, LEVEL)?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    for (name, content) in files {
        archive.write_all(&header(name, content.len(), now)?)?;
        archive.write_all(content)?;
        let rest = content.len().next_multiple_of(BLOCK_BYTES) - content.len();
        archive.write_all(&vec![0; rest])?;
    }
    // Two empty blocks are the end.
    archive.write_all(&[0; 2 * BLOCK_BYTES])?;
    archive.finish()?.metadata().map(|found| found.len())
}

/// The block in front of a file's content, as POSIX describes it (ustar).
fn header(name: &str, bytes: usize, modified: Duration) -> io::Result<Vec<u8>> {
    if name.len() > NAME_BYTES {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of a part is too long"));
    }
    let before = [
        field(name, NAME_BYTES),
        field("0000600", 8),
        // Its owner and group, which whoever unpacks it is.
        field("0000000", 8),
        field("0000000", 8),
        field(&format!("{bytes:011o}"), 12),
        field(&format!("{:011o}", modified.as_secs()), 12),
    ]
    .concat();
    // A regular file; no link; magic and version; no names, no device, no prefix.
    let behind = [field("0", 1), field("", 100), field("ustar", 6), field("00", 2), field("", 247)];
    let behind = behind.concat();
    let sum: u32 =
        before.iter().chain(b"        ").chain(&behind).map(|byte| u32::from(*byte)).sum();
    let checksum = [field(&format!("{sum:06o}"), 7), b" ".to_vec()].concat();
    Ok([before, checksum, behind].concat())
}

/// The text, and zeros behind it.
fn field(text: &str, bytes: usize) -> Vec<u8> {
    let mut field = text.as_bytes().to_vec();
    field.resize(bytes, 0);
    field
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::process::Command;

    #[test]
    fn tar_reads_what_is_written_and_the_file_is_for_its_owner_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.tar.zst");
        let long = vec![b'x'; 100_000];
        let files = [("empty.txt", &b""[..]), ("one.json", &b"{}\n"[..]), ("long.txt", &long[..])];
        let bytes = write(&path, files.into_iter()).expect("written");
        let packed = std::fs::read(&path).expect("a file");
        assert_eq!(packed.len() as u64, bytes);
        let mode = std::fs::metadata(&path).expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
        let unpacked = zstd::stream::decode_all(&packed[..]).expect("zstd");
        std::fs::write(folder.path().join("a.tar"), unpacked).expect("a file");
        let ran = Command::new("tar").args(["-xf", "a.tar"]).current_dir(&folder).status();
        assert!(ran.expect("tar").success());
        for (name, content) in files {
            assert_eq!(
                std::fs::read(folder.path().join(name)).expect("unpacked"),
                content,
                "{name}"
            );
        }
        let again = write(&path, files.into_iter()).expect_err("it exists");
        assert!(format!("{again:#}").contains("a.tar.zst"), "{again:#}");
    }

    #[test]
    fn a_header_is_one_block_with_its_checksum() {
        let header = header("a", 8, Duration::from_secs(1)).expect("a short name");
        assert_eq!(header.len(), BLOCK_BYTES);
        assert_eq!(&header[124..136], b"00000000010\0");
        assert_eq!(&header[257..265], b"ustar\x0000");
        assert!(super::header(&"n".repeat(101), 1, Duration::ZERO).is_err());
    }
}
