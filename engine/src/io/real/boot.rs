//! The boot id of the running kernel.
//!
//! The kernel draws a random UUID at each boot. It alone distinguishes two boots. The boot *time*
//! in `/proc/stat` is not used: the kernel computes it from the wall clock, so it moves by a second
//! or more when the clock is set. A node would then take a mere restart of its process for a power
//! cut.

use crate::types::KernelBootId;
use std::io;
use std::path::Path;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The running kernel's boot id.
///
/// # Errors
/// The system's error if `/proc` is not mounted; `InvalidData` if it holds no UUID.
pub fn boot_id() -> io::Result<KernelBootId> {
    boot_id_from(Path::new(BOOT_ID))
}

/// The boot id in a file of the format of `/proc/sys/kernel/random/boot_id`.
///
/// # Errors
/// The system's error if the file cannot be read; `InvalidData` if it holds no UUID.
pub fn boot_id_from(path: &Path) -> io::Result<KernelBootId> {
    let text = std::fs::read_to_string(path)?;
    parse(text.trim()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}: not a boot id: {text:?}", path.display()),
        )
    })
}

/// Parses a hyphenated UUID as a number. Zero is not a boot id.
fn parse(text: &str) -> Option<KernelBootId> {
    let groups: Vec<&str> = text.split('-').collect();
    let shape = groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]);
    let digits = groups.concat();
    if !shape || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    u128::from_str_radix(&digits, 16).ok().filter(|&id| id != 0).map(KernelBootId)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_running_kernel_has_one_boot_id() {
        let first = boot_id().unwrap();
        assert_eq!(boot_id().unwrap(), first);
        assert_ne!(first, KernelBootId(0));
    }

    #[test]
    fn a_boot_id_is_read_from_a_given_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("boot_id");
        std::fs::write(&path, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
        assert_eq!(
            boot_id_from(&path).unwrap(),
            KernelBootId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef)
        );
    }

    #[test]
    fn what_is_not_a_uuid_is_refused() {
        for text in [
            "",
            "0",
            "0123456789abcdef0123456789abcdef",
            "+1234567-89ab-cdef-0123-456789abcdef",
            "01234567-89ab-cdef-0123-456789abcdeg",
            "00000000-0000-0000-0000-000000000000",
        ] {
            assert_eq!(parse(text), None, "{text:?}");
        }
        assert!(boot_id_from(Path::new("/nonexistent")).is_err());
    }
}
