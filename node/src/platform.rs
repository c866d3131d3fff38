//! What the server needs from the machine: Linux 5.15 or newer. The client library does not need
//! it.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The oldest kernel that the server runs on.
const KERNEL_MIN: (u32, u32) = (5, 15);

/// Checks the running system.
///
/// # Errors
/// A sentence that names what was found and what is needed.
pub fn check() -> Result<(), String> {
    check_release(std::env::consts::OS, &release())
}

/// The running kernel's release, such as `6.1.0-13-amd64`.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Raises the limit of open descriptors of this process as far as the system allows. Each
/// connection takes one, and the initial soft limit is made for other programs.
pub fn raise_descriptors() {
    let before = descriptors();
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    match raised {
        Ok(()) => {
            tracing::debug!(before, now = descriptors(), "the limit of open files was raised")
        }
        Err(error) => {
            tracing::info!(limit = before, %error, "the limit of open files cannot be raised")
        }
    }
}

/// Descriptors that this process may open.
pub(crate) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

fn check_release(os: &str, release: &str) -> Result<(), String> {
    let (major, minor) = KERNEL_MIN;
    if os != "linux" {
        return Err(format!(
            "the Cairn server is for Linux {major}.{minor} or newer, and this is {os}; the client library and the \
             client commands work here"
        ));
    }
    match version(release) {
        Some(found) if found < KERNEL_MIN => Err(format!(
            "the Cairn server needs Linux {major}.{minor} or newer, and this kernel is {release}; use a newer kernel"
        )),
        // An unreadable release is no reason to refuse a kernel that may well be new enough.
        _ => Ok(()),
    }
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_from_5_15_on_are_taken() {
        for release in ["5.15.0", "5.15.0-91-generic", "6.1.0-13-amd64", "6.18.1", "10.0", "odd"] {
            assert_eq!(check_release("linux", release), Ok(()), "{release}");
        }
    }

    #[test]
    fn all_descriptors_that_the_system_allows_may_be_used() {
        raise_descriptors();
        assert_eq!(Some(descriptors()), getrlimit(Resource::Nofile).maximum.or(Some(u64::MAX)));
    }

    #[test]
    fn older_kernels_and_other_systems_are_refused_by_name() {
        for release in ["5.14.21", "4.19.0-26-amd64", "3.10"] {
            let error = check_release("linux", release).expect_err(release);
            assert!(error.contains(release) && error.contains("5.15"), "{error}");
        }
        let error = check_release("macos", "23.1.0").expect_err("not Linux");
        assert!(error.contains("macos") && error.contains("Linux 5.15"), "{error}");
    }
}
