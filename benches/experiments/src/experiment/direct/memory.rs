//! A memory cgroup: it limits the page cache of the processes in it.
//!
//! What holds here: a cgroup has this process's id in its name, lies below the cgroup of this
//! process or the nearest one above that can limit memory, and is removed when the guard is
//! dropped. One that a killed run left is removed by the next run: the kernel only removes empty
//! ones.

use anyhow::{Context, Result, bail};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The begin of the names of all cgroups of this command.
const PREFIX: &str = "cairn-bench-disk-";

/// A cgroup with a limit. Dropping it removes it.
#[derive(Debug)]
pub(super) struct Limited {
    path: PathBuf,
}

impl Limited {
    /// Makes a cgroup that gives `bytes` of memory.
    ///
    /// # Errors
    /// Why this machine has none for this process.
    pub(super) fn make(bytes: u64) -> Result<Limited> {
        let own = fs::read_to_string("/proc/self/cgroup").context("/proc/self/cgroup")?;
        Limited::make_below(Path::new("/sys/fs/cgroup"), &own, bytes)
    }

    /// The same with the mounted hierarchy and the content of `/proc/self/cgroup`.
    fn make_below(mounted: &Path, own: &str, bytes: u64) -> Result<Limited> {
        let (parent, file) = parent(mounted, own)?;
        remove_left_over(&parent);
        let path = parent.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&path).with_context(|| path.display().to_string())?;
        let limited = Limited { path };
        let limit = limited.path.join(file);
        fs::write(&limit, bytes.to_string()).with_context(|| limit.display().to_string())?;
        Ok(limited)
    }

    /// The file to which a process writes its id to join.
    pub(super) fn procs(&self) -> PathBuf {
        self.path.join("cgroup.procs")
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        // A killed child may need some time to end. What cannot be removed is left to the next run.
        for _ in 0..20 {
            match fs::remove_dir(&self.path) {
                Err(error) if error.kind() == ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => return,
            }
        }
    }
}

/// The cgroup to make one in, and the file of a limit.
fn parent(mounted: &Path, own: &str) -> Result<(PathBuf, &'static str)> {
    // Version 2: only below a cgroup that hands the memory controller down, and one with processes
    // of its own does not.
    if mounted.join("cgroup.controllers").exists() {
        let own = line(own, |controllers| controllers.is_empty()).unwrap_or_default();
        let hands_down = |path: &Path| {
            let control = fs::read_to_string(path.join("cgroup.subtree_control"));
            control.is_ok_and(|control| control.split_whitespace().any(|name| name == "memory"))
        };
        let below = mounted.join(own);
        let mut above = below.ancestors().take_while(|path| path.starts_with(mounted));
        let Some(parent) = above.find(|path| hands_down(path)) else {
            bail!("no cgroup above this process hands down the memory controller");
        };
        return Ok((parent.to_path_buf(), "memory.max"));
    }
    let memory = mounted.join("memory");
    if !memory.join("cgroup.procs").exists() {
        bail!("no memory cgroups are mounted in {}", mounted.display());
    }
    let own = line(own, |controllers| controllers.split(',').any(|name| name == "memory"));
    // In a container the mounted hierarchy may begin at its own cgroup.
    let own = own.map(|own| memory.join(own)).filter(|own| own.join("cgroup.procs").exists());
    Ok((own.unwrap_or(memory), "memory.limit_in_bytes"))
}

/// The path, without the leading slash, of the first line whose controllers are asked for. Not one
/// that leaves the hierarchy.
fn line(own: &str, asked: impl Fn(&str) -> bool) -> Option<&str> {
    let path = own.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        asked(controllers).then_some(path.trim_start_matches('/'))
    })?;
    (!path.split('/').any(|part| part == "..")).then_some(path)
}

/// Removes the empty cgroups of runs that are no more.
fn remove_left_over(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let Some(id) = id.and_then(|id| id.parse::<u32>().ok()) else { continue };
        if id == std::process::id() || !Path::new(&format!("/proc/{id}")).exists() {
            // One with processes stays.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "9:name=systemd:/a\n4:cpu,memory:/user/one\n0::/two\n";
    const V2: &str = "0::/user.slice/one.scope\n";
    /// No process has it: Linux has at most 2²² ids.
    const NO_ID: u32 = 4_294_967_000;

    fn file(path: &Path, content: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    #[test]
    fn version_2_has_its_limit_below_the_nearest_cgroup_that_hands_memory_down() {
        let mounted = tempfile::tempdir().unwrap();
        let mounted = mounted.path();
        file(&mounted.join("cgroup.controllers"), "cpu memory");
        file(&mounted.join("cgroup.subtree_control"), "cpu memory\n");
        file(&mounted.join("user.slice/cgroup.subtree_control"), "memory pids\n");
        file(&mounted.join("user.slice/one.scope/cgroup.subtree_control"), "\n");
        let expected = (mounted.join("user.slice"), "memory.max");
        assert_eq!(parent(mounted, V2).unwrap(), expected);
        file(&mounted.join("user.slice/cgroup.subtree_control"), "memoryless\n");
        assert_eq!(parent(mounted, V2).unwrap().0, mounted);
        file(&mounted.join("cgroup.subtree_control"), "");
        assert!(parent(mounted, V2).unwrap_err().to_string().contains("hands down"));
    }

    #[test]
    fn version_1_has_its_limit_below_the_process_or_at_the_top() {
        let mounted = tempfile::tempdir().unwrap();
        let mounted = mounted.path();
        assert!(parent(mounted, V1).unwrap_err().to_string().contains("no memory cgroups"));
        file(&mounted.join("memory/cgroup.procs"), "");
        assert_eq!(parent(mounted, V1).unwrap(), (mounted.join("memory"), "memory.limit_in_bytes"));
        file(&mounted.join("memory/user/one/cgroup.procs"), "");
        assert_eq!(parent(mounted, V1).unwrap().0, mounted.join("memory/user/one"));
        assert_eq!(parent(mounted, "4:memory:/../../etc\n").unwrap().0, mounted.join("memory"));
    }

    #[test]
    fn a_limit_is_written_and_only_the_left_over_of_ended_runs_is_removed() {
        let mounted = tempfile::tempdir().unwrap();
        let memory = mounted.path().join("memory");
        file(&memory.join("cgroup.procs"), "");
        let ended = memory.join(format!("{PREFIX}{NO_ID}"));
        // The first process of the machine lives.
        let (alive, foreign) = (memory.join(format!("{PREFIX}1")), memory.join("foreign"));
        for path in [&ended, &alive, &foreign] {
            fs::create_dir(path).unwrap();
        }
        let limited = Limited::make_below(mounted.path(), V1, 64 << 20).unwrap();
        assert!(!ended.exists() && alive.exists() && foreign.exists());
        let limit = limited.path.join("memory.limit_in_bytes");
        assert_eq!(fs::read_to_string(&limit).unwrap(), "67108864");
        assert_eq!(limited.procs().parent(), Some(limited.path.as_path()));
        // In a real hierarchy the files go with the folder.
        fs::remove_file(limit).unwrap();
        let path = limited.path.clone();
        drop(limited);
        assert!(!path.exists());
    }
}
