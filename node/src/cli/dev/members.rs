//! The members of a development cluster that runs, for a command that stops and starts them.
//!
//! What holds here: a process is one of the cluster's only if its command line names the member's
//! configuration. Nothing else is signalled.

use super::{hold, home, layout, requests};
use crate::cli::exit::UsageError;
use anyhow::Context;
use rustix::process::{Pid, Signal, kill_process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// One member.
#[derive(Clone, Debug)]
pub(crate) struct DevMember {
    pub(crate) slot: u16,
    pub(crate) client_address: String,
    pub(crate) data_directory: PathBuf,
    http_address: Option<String>,
    config_file: PathBuf,
    hold_file: PathBuf,
}

/// The members of the cluster that `cairn dev --restart` runs in this folder.
///
/// # Errors
/// A [`UsageError`] if none runs there, or one that starts no member again.
pub(crate) fn members(dir: &Path) -> anyhow::Result<Vec<DevMember>> {
    let shown = dir.display();
    let Some(id) = home::holder(dir)? else {
        let why = format!(
            "no cluster of `cairn dev` runs in {shown}; start one with `cairn dev --restart`, or name another --dir"
        );
        return Err(UsageError(why).into());
    };
    if !arguments(&format!("/proc/{id}/cmdline")).iter().any(|word| word == "--restart") {
        let why = format!(
            "the cluster in {shown} starts no member again that ended: stop it, and start it with `cairn dev --restart`"
        );
        return Err(UsageError(why).into());
    }
    let home = std::fs::canonicalize(dir).with_context(|| shown.to_string())?;
    let member = |slot| -> anyhow::Result<DevMember> {
        let config_file = layout::config_file(&home, slot);
        let config = layout::configured(&config_file)?;
        Ok(DevMember {
            slot,
            client_address: config.client_address,
            data_directory: config.data_directory,
            http_address: config.http_address,
            config_file,
            hold_file: layout::hold_file(&home, slot),
        })
    };
    (1..=layout::NODES).map(member).collect()
}

/// The command line of a process; empty if there is none.
fn arguments(path: &str) -> Vec<String> {
    let bytes = std::fs::read(path).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0);
    words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
}

impl DevMember {
    /// The member's process, if it runs.
    ///
    /// # Errors
    /// If the system does not say which processes there are.
    pub(crate) fn process(&self) -> anyhow::Result<Option<Pid>> {
        for entry in std::fs::read_dir("/proc").context("cannot read /proc")? {
            // A process may end meanwhile.
            let Ok(entry) = entry else { continue };
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else {
                continue;
            };
            let Ok(line) = std::fs::read(entry.path().join("cmdline")) else { continue };
            if serves(&line, &self.config_file) {
                return Ok(Pid::from_raw(id));
            }
        }
        Ok(None)
    }

    /// Sends a signal to the member's process. One that has ended needs nothing to go on.
    ///
    /// The story: the folder's name was a link, no process was found, and nothing was signalled. So the member
    /// was said to have ended, and its directory was put aside while it ran.
    ///
    /// # Errors
    /// If the system does not allow it. If no process of the member is found, unless the signal is SIGCONT.
    pub(crate) fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        let Some(process) = self.process()? else {
            anyhow::ensure!(
                signal == Signal::CONT,
                "no process of slot {} is found, so nothing is done to it: none whose command line can be read serves with {}",
                self.slot,
                self.config_file.display()
            );
            return Ok(());
        };
        kill_process(process, signal)
            .with_context(|| format!("cannot signal the process of slot {}", self.slot))
    }

    /// How many requests of clients the member has answered; `None`: it does not tell.
    pub(crate) async fn requests(&self) -> Option<u64> {
        requests::answered(self.http_address.as_ref()?).await
    }

    /// Keeps the member down once it has ended, until [`DevMember::release`] or the end of this process.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn hold(&self) -> anyhow::Result<()> {
        hold::hold(&self.hold_file)
            .with_context(|| format!("cannot write {}", self.hold_file.display()))
    }

    /// Lets the member be started again.
    ///
    /// # Errors
    /// If the file cannot be removed.
    pub(crate) fn release(&self) -> anyhow::Result<()> {
        hold::release(&self.hold_file)
            .with_context(|| format!("cannot remove {}", self.hold_file.display()))
    }
}

/// Whether this is the command line of a server with this configuration: its words, each with a zero
/// behind it.
fn serves(line: &[u8], config_file: &Path) -> bool {
    let words: Vec<&OsStr> = line.split(|byte| *byte == 0).map(OsStr::from_bytes).collect();
    let mut after = words.iter().skip_while(|word| **word != "--config");
    words.get(1).is_some_and(|word| *word == "serve")
        && after.nth(1).is_some_and(|word| *word == config_file.as_os_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_the_members_only_if_it_serves_with_its_configuration() {
        let file = Path::new("/c/node-1.toml");
        let ours = |line: &str| serves(line.replace(' ', "\0").as_bytes(), file);
        assert!(ours("cairn serve --stop-with-stdin --config /c/node-1.toml "));
        for other in [
            "",
            "cairn serve --config /c/node-2.toml ",
            "cairn serve --config",
            "cat --config /c/node-1.toml ",
            "cairn config check --config /c/node-1.toml ",
            "tail /c/node-1.toml serve ",
        ] {
            assert!(!ours(other), "{other}");
        }
    }

    #[test]
    fn a_member_without_a_process_is_not_said_to_be_signalled() {
        let folder = tempfile::tempdir().expect("a folder");
        let member = DevMember {
            slot: 2,
            client_address: "a:1".into(),
            data_directory: folder.path().join("node-2"),
            http_address: None,
            config_file: folder.path().join("node-2.toml"),
            hold_file: folder.path().join("node-2.hold"),
        };
        for signal in [Signal::TERM, Signal::KILL, Signal::STOP] {
            let error = member.signal(signal).expect_err("there is no process").to_string();
            assert!(error.contains("slot 2") && error.contains("node-2.toml"), "{error}");
        }
        member.signal(Signal::CONT).expect("it needs nothing");
    }

    #[test]
    fn a_folder_without_a_cluster_is_refused_with_the_way_out() {
        let folder = tempfile::tempdir().expect("a folder");
        let error = members(folder.path()).expect_err("none runs").to_string();
        assert!(error.contains("cairn dev --restart"), "{error}");
    }
}
