//! An ext4 filesystem in a file, mounted through a loop device.
//!
//! What holds here: the mount is in a mount namespace of the calling thread. It ends with its
//! guard, and with the process, also when that is killed. The loop device goes with the mount. No
//! mount of the user is changed.

use anyhow::{Context, Result, anyhow, bail};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sched::{CloneFlags, unshare};
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Gives the calling thread, and all threads and processes that it starts from now on, mounts of
/// their own.
///
/// # Errors
/// If the system refuses a mount namespace.
pub(super) fn isolate() -> Result<()> {
    unshare(CloneFlags::CLONE_NEWNS).context("a mount namespace of its own is refused")?;
    let none: Option<&str> = None;
    mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none)
        .context("keeping mounts private is refused")
}

/// Makes an ext4 filesystem with a journal in a file. It is complete at once: no thread of the
/// kernel finishes it beside the measurement.
///
/// # Errors
/// What the tool says.
pub(super) fn make_ext4(image: &Path) -> Result<()> {
    let mut command = Command::new("mkfs.ext4");
    // Without `nodiscard`, it would give the file's blocks back to the user's filesystem.
    command.args(["-q", "-F", "-b", "4096", "-i", "16384", "-m", "0", "-J", "size=8"]);
    command.args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]).arg(image);
    run_tool(command)
}

/// Runs a tool to its end.
fn run_tool(mut command: Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let path = std::env::var("PATH").unwrap_or_default();
    command.env("PATH", format!("{path}:/usr/sbin:/sbin")).env("LC_ALL", "C");
    let output = command.stdin(Stdio::null()).output().map_err(|error| match error.kind() {
        ErrorKind::NotFound => anyhow!("the program {name} is not installed"),
        _ => anyhow!("{name}: {error}"),
    })?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().map(str::trim).find(|line| !line.is_empty());
    // Some tools begin the line with their name.
    let line = line.map(|line| line.strip_prefix(&format!("{name}: ")).unwrap_or(line));
    bail!("{name}: {}", line.map_or_else(|| output.status.to_string(), str::to_owned))
}

/// A mounted filesystem.
#[derive(Debug)]
pub(super) struct Mounted {
    path: PathBuf,
    unmounted: bool,
    /// Whether the loop device writes the file with `O_DIRECT`.
    pub direct: bool,
}

impl Mounted {
    /// Mounts an image on an empty folder. The calling thread must be isolated.
    ///
    /// # Errors
    /// What the tool says.
    pub(super) fn new(image: &Path, path: &Path) -> Result<Mounted> {
        let mut command = Command::new("mount");
        command.args(["-t", "ext4", "-o", "loop"]).arg(image).arg(path);
        run_tool(command)?;
        let mut mounted = Mounted { path: path.to_path_buf(), unmounted: false, direct: false };
        mounted.direct = mounted.write_directly().unwrap_or(false);
        Ok(mounted)
    }

    /// Unmounts it. What still closes its files has [`UNMOUNT_TRIES`] × [`UNMOUNT_PAUSE`] to end.
    ///
    /// # Errors
    /// If it is still in use. It goes once nothing uses it any more.
    pub(super) async fn unmount(mut self) -> Result<()> {
        for _ in 0..UNMOUNT_TRIES {
            if umount2(&self.path, MntFlags::empty()).is_ok() {
                self.unmounted = true;
                return Ok(());
            }
            tokio::time::sleep(UNMOUNT_PAUSE).await;
        }
        bail!("the filesystem of its own is still in use after its rows")
    }

    /// Asks the loop device to bypass the page cache of the user's filesystem.
    fn write_directly(&self) -> Result<bool> {
        let device = self.field(0)?;
        let mut command = Command::new("losetup");
        command.arg("--direct-io=on").arg(&device);
        // Whether it took effect counts, not what the tool says.
        let _ = run_tool(command);
        let name = device.strip_prefix("/dev/").context("a device")?;
        Ok(fs::read_to_string(format!("/sys/block/{name}/loop/dio"))?.trim() == "1")
    }

    /// Sets the interval at which ext4 commits its journal.
    ///
    /// # Errors
    /// The system's, also if the interval is not in effect then.
    pub(super) fn set_commit_interval(&self, seconds: u32) -> Result<()> {
        let (none, data): (Option<&str>, _) = (None, format!("commit={seconds}"));
        mount(none, &self.path, none, MsFlags::MS_REMOUNT, Some(data.as_str()))
            .with_context(|| format!("{data} is refused"))?;
        // ext4 does not show its default.
        let options = self.field(3)?;
        let shown = options.split(',').find_map(|option| option.strip_prefix("commit="));
        let found = shown.unwrap_or(DEFAULT_COMMIT_S);
        if found != seconds.to_string() {
            bail!("{data} is not in effect: the mount has commit={found}");
        }
        Ok(())
    }

    /// A field of the mount's line.
    fn field(&self, at: usize) -> Result<String> {
        let mounts = fs::read_to_string("/proc/thread-self/mounts").context("the mounts")?;
        let path = escaped(&self.path);
        let line = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some(path.as_str()));
        let field = line.and_then(|line| line.split(' ').nth(at));
        field.map(str::to_owned).context("the mount is not listed")
    }
}

const UNMOUNT_TRIES: u32 = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(20);

/// The interval of ext4 if none is set.
const DEFAULT_COMMIT_S: &str = "5";

/// A path as the list of mounts shows it.
fn escaped(path: &Path) -> String {
    let path = path.to_string_lossy();
    let octal = [('\\', "\\134"), (' ', "\\040"), ('\t', "\\011"), ('\n', "\\012")];
    octal.into_iter().fold(path.into_owned(), |path, (plain, code)| path.replace(plain, code))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // A busy mount goes once nothing uses it any more.
        if !self.unmounted
            && umount2(&self.path, MntFlags::empty()).is_err()
            && let Err(error) = umount2(&self.path, MntFlags::MNT_DETACH)
        {
            let mut err = io::stderr().lock();
            // A closed standard error leaves no way to say it.
            let _ = writeln!(err, "unmounting {}: {error}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tool_that_fails_or_is_missing_says_why_in_one_line() {
        let mut command = Command::new("sh");
        command.args(["-c", "printf '\\nsh: no luck\\nmore\\n' >&2; exit 3"]);
        assert_eq!(run_tool(command).unwrap_err().to_string(), "sh: no luck");
        let mut command = Command::new("sh");
        command.args(["-c", "exit 3"]);
        assert_eq!(run_tool(command).unwrap_err().to_string(), "sh: exit status: 3");
        let missing = run_tool(Command::new("mkfs.none")).unwrap_err().to_string();
        assert_eq!(missing, "the program mkfs.none is not installed");
    }

    #[test]
    fn a_path_with_a_space_is_found_among_the_mounts() {
        assert_eq!(escaped(Path::new("/a b\\c")), "/a\\040b\\134c");
    }

    #[test]
    fn a_mount_is_seen_by_its_own_thread_alone_and_has_the_interval_set() {
        if !nix::unistd::Uid::effective().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (image, path) = (folder.path().join("image"), folder.path().join("a mount"));
        fs::write(&image, vec![0; 32 << 20]).unwrap();
        fs::create_dir(&path).unwrap();
        let seen = || {
            let mounts = fs::read_to_string("/proc/thread-self/mounts").unwrap();
            mounts.contains(&escaped(&path))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // A container may refuse each of these to its root.
                if isolate().is_err() || make_ext4(&image).is_err() {
                    return;
                }
                let Ok(mounted) = Mounted::new(&image, &path) else { return };
                assert!(seen());
                std::thread::scope(|scope| scope.spawn(|| assert!(seen())).join()).unwrap();
                for seconds in [30, 5, 1] {
                    mounted.set_commit_interval(seconds).unwrap();
                }
                drop(mounted);
                assert!(!seen());
            });
        });
        assert!(!seen());
    }
}
