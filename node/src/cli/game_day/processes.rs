//! What reaches the members' processes: signals to those of `cairn dev` on this machine, or commands that
//! the operator gives.
//!
//! What holds here: what was done to a member is remembered before it is done, until it is undone, also if the
//! undoing is dropped in the middle. A word of a command that the cluster says, such as a host, has no
//! character that a shell could take for anything else.

use super::shell;
use crate::cli::dev::DevMember;
use crate::cli::exit::{UsageError, in_full};
use anyhow::Context;
use clap::Args;
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long a process may take to end.
const END_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);

/// Commands for members that are no processes of `cairn dev` here. In each of them `{host}`, `{address}` and
/// `{slot}` stand for the member's.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct CommandArgs {
    /// Command that stops a member cleanly, such as `ssh {host} systemctl stop cairn`. {host}, {address} and
    /// {slot} stand for the member's
    #[arg(long, value_name = "COMMAND", requires = "start_with", conflicts_with = "dir")]
    stop_with: Option<String>,

    /// Command that starts a member again, such as `ssh {host} systemctl start cairn`
    #[arg(long, value_name = "COMMAND", conflicts_with = "dir")]
    start_with: Option<String>,

    /// Command that kills a member, such as `ssh {host} systemctl kill -s KILL cairn`
    #[arg(long, value_name = "COMMAND", requires = "start_with", conflicts_with = "dir")]
    kill_with: Option<String>,

    /// Command that pauses a member, such as `ssh {host} systemctl kill -s STOP cairn`
    #[arg(long, value_name = "COMMAND", requires = "resume_with", conflicts_with = "dir")]
    pause_with: Option<String>,

    /// Command that ends the pause, such as `ssh {host} systemctl kill -s CONT cairn`
    #[arg(long, value_name = "COMMAND", requires = "pause_with", conflicts_with = "dir")]
    resume_with: Option<String>,

    /// Command that cuts a member from the others' network
    #[arg(long, value_name = "COMMAND", requires = "heal_with", conflicts_with = "dir")]
    cut_with: Option<String>,

    /// Command that ends that
    #[arg(long, value_name = "COMMAND", requires = "cut_with", conflicts_with = "dir")]
    heal_with: Option<String>,
}

impl CommandArgs {
    /// Whether there is any.
    pub(super) fn are_given(&self) -> bool {
        self.start_with.is_some() || self.pause_with.is_some() || self.cut_with.is_some()
    }
}

/// What is done to a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Act {
    Stop,
    Kill,
    Pause,
    Cut,
    LoseDisk,
}

/// A member, as the cluster says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FaultTarget {
    pub(super) slot: u16,
    /// `host:port` for clients.
    pub(super) address: String,
}

/// What reaches the processes.
pub(super) enum Processes {
    Dev(Vec<DevMember>),
    Commands(CommandArgs),
}

/// What is to be undone.
#[derive(Clone, Debug)]
enum Done {
    Act(Act, FaultTarget),
    /// A data directory of `cairn dev` was put aside: where it was, and where it is.
    Aside {
        from: PathBuf,
        to: PathBuf,
    },
}

/// The processes, and what was done to them.
pub(super) struct Control {
    processes: Processes,
    done: Vec<Done>,
}

impl Control {
    pub(super) fn new(processes: Processes) -> Control {
        Control { processes, done: Vec::new() }
    }

    /// Why this cannot be done here; `None`: it can.
    pub(super) fn cannot(&self, act: Act) -> Option<&'static str> {
        match (&self.processes, act) {
            (Processes::Dev(_), Act::Cut) => Some(
                "the members share this machine's loopback interface, so there is no network to cut",
            ),
            (Processes::Dev(_), _) => None,
            (Processes::Commands(commands), _) => match (commands.of(act), act) {
                (Some(_), _) => None,
                (None, Act::Stop) => Some("--stop-with was not given"),
                (None, Act::Kill) => Some("--kill-with was not given"),
                (None, Act::Pause) => Some("--pause-with was not given"),
                (None, Act::Cut) => Some("--cut-with was not given"),
                (None, Act::LoseDisk) => {
                    Some("only members of `cairn dev` on this machine can lose their disk here")
                }
            },
        }
    }

    /// Does it to a member. Returns once it is done: the process has ended, or is paused.
    pub(super) async fn act(&mut self, act: Act, target: &FaultTarget) -> anyhow::Result<()> {
        if let Some(lost) = self.lost_disk(target.slot).filter(|_| act == Act::LoseDisk) {
            anyhow::bail!(
                "{} is kept from an earlier game day: look at it, and remove it",
                lost.display()
            );
        }
        // An act that fails in the middle may have had its effect.
        self.done.push(Done::Act(act, target.clone()));
        let member = match &self.processes {
            Processes::Dev(members) => of_slot(members, target.slot)?.clone(),
            Processes::Commands(commands) => {
                let command = commands.of(act).context("there is no command for this")?;
                return run(command, target).await;
            }
        };
        match act {
            Act::Stop => ended(&member, Signal::TERM).await,
            Act::Kill => ended(&member, Signal::KILL).await,
            Act::Pause => member.signal(Signal::STOP),
            Act::Cut => anyhow::bail!("there is no network to cut"),
            Act::LoseDisk => {
                ended(&member, Signal::KILL).await?;
                let from = member.data_directory.clone();
                let to = lost_of(&from);
                self.done.push(Done::Aside { from: from.clone(), to: to.clone() });
                std::fs::rename(&from, &to)
                    .with_context(|| format!("cannot put {} aside", from.display()))
            }
        }
    }

    /// Undoes all that was done, the last first. What cannot be undone stays remembered, and is named. It may
    /// be dropped: what is not undone by then is undone by the next call.
    pub(super) async fn undo(&mut self) -> anyhow::Result<()> {
        let mut first_error = None;
        for at in (0..self.done.len()).rev() {
            // It is taken away once it is undone: a signal may end this while a command runs.
            let Some(done) = self.done.get(at).cloned() else { continue };
            match self.undo_one(&done).await {
                Ok(()) => {
                    self.done.remove(at);
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
        }
        let Some(error) = first_error else { return Ok(()) };
        anyhow::bail!("what was done is not undone: {}", in_full(&error))
    }

    async fn undo_one(&self, done: &Done) -> anyhow::Result<()> {
        let (act, target) = match done {
            Done::Act(act, target) => (*act, target),
            Done::Aside { from, to } => {
                // A directory that was formatted meanwhile has a new identity, and stays.
                if to.exists() && !from.exists() {
                    std::fs::rename(to, from)
                        .with_context(|| format!("{} is not back where it was", to.display()))?;
                }
                return Ok(());
            }
        };
        match &self.processes {
            Processes::Commands(commands) => {
                let command = commands.undoing(act).context("there is no command for this")?;
                run(command, target).await
            }
            Processes::Dev(members) => {
                let member = of_slot(members, target.slot)?;
                match act {
                    Act::Pause => member.signal(Signal::CONT),
                    _ => member.release(),
                }
            }
        }
    }

    /// Starts a member whose disk is lost, which forms an empty directory. The old one stays aside. After an
    /// error all of it is still to be undone.
    pub(super) fn start_empty(&mut self) -> anyhow::Result<()> {
        let Processes::Dev(members) = &self.processes else { return Ok(()) };
        for done in &self.done {
            if let Done::Act(_, target) = done {
                of_slot(members, target.slot)?.release()?;
            }
        }
        self.done.clear();
        Ok(())
    }

    /// The disk that a member lost, if it is there.
    pub(super) fn lost_disk(&self, slot: u16) -> Option<PathBuf> {
        let Processes::Dev(members) = &self.processes else { return None };
        let lost = lost_of(&of_slot(members, slot).ok()?.data_directory);
        lost.exists().then_some(lost)
    }

    /// Removes the disk that a member lost, once the cluster is well without it. Returns what it could not
    /// remove.
    pub(super) fn remove_lost(&self, slot: u16) -> Option<PathBuf> {
        let lost = self.lost_disk(slot)?;
        std::fs::remove_dir_all(&lost).is_err().then_some(lost)
    }
}

impl CommandArgs {
    fn of(&self, act: Act) -> Option<&str> {
        let command = match act {
            Act::Stop => &self.stop_with,
            Act::Kill => &self.kill_with,
            Act::Pause => &self.pause_with,
            Act::Cut => &self.cut_with,
            Act::LoseDisk => return None,
        };
        command.as_deref()
    }

    fn undoing(&self, act: Act) -> Option<&str> {
        let command = match act {
            Act::Stop | Act::Kill | Act::LoseDisk => &self.start_with,
            Act::Pause => &self.resume_with,
            Act::Cut => &self.heal_with,
        };
        command.as_deref()
    }
}

/// Where a data directory is put aside.
fn lost_of(data_directory: &Path) -> PathBuf {
    data_directory.with_extension("lost")
}

fn of_slot(members: &[DevMember], slot: u16) -> anyhow::Result<&DevMember> {
    members
        .iter()
        .find(|member| member.slot == slot)
        .with_context(|| format!("slot {slot} is no member of the cluster of `cairn dev`"))
}

/// Sends a signal that ends the process, and waits for the end. `cairn dev` does not start it again.
async fn ended(member: &DevMember, signal: Signal) -> anyhow::Result<()> {
    member.hold()?;
    member.signal(signal)?;
    let began = Instant::now();
    while member.process()?.is_some() {
        let slot = member.slot;
        anyhow::ensure!(began.elapsed() < END_LIMIT, "slot {slot} did not end in {END_LIMIT:?}");
        sleep(POLL).await;
    }
    Ok(())
}

/// Runs a command of the operator for a member.
async fn run(template: &str, target: &FaultTarget) -> anyhow::Result<()> {
    shell::run(&filled(template, target)?).await
}

/// The command for a member.
///
/// # Errors
/// A [`UsageError`] if what the cluster calls the member could be more than a word of a shell.
fn filled(template: &str, target: &FaultTarget) -> Result<String, UsageError> {
    let host = target.address.rsplit_once(':').map_or(target.address.as_str(), |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-_:[]".contains(c);
    if host.is_empty() || host.starts_with('-') || !target.address.chars().all(is_plain) {
        let address = target.address.escape_debug();
        return Err(UsageError(format!(
            "slot {} is at `{address}`, which is no plain host and port: no command is run with it",
            target.slot
        )));
    }
    let text = template.replace("{host}", host).replace("{address}", &target.address);
    Ok(text.replace("{slot}", &target.slot.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(address: &str) -> FaultTarget {
        FaultTarget { slot: 2, address: address.into() }
    }

    #[test]
    fn a_command_gets_the_members_host_and_nothing_that_a_shell_could_take() {
        let all = "ssh {host} stop {slot} at {address}";
        let text = filled(all, &target("db2.example:7400")).expect("plain");
        assert_eq!(text, "ssh db2.example stop 2 at db2.example:7400");
        let text = filled("{host}", &target("[fd00::2]:7400")).expect("plain");
        assert_eq!(text, "fd00::2");
        for hostile in ["a;reboot:1", "$(reboot):1", "-oProxyCommand=x:1", "a b:1", ":1", "a\n:1"] {
            let error = filled(all, &target(hostile)).expect_err(hostile).to_string();
            assert!(error.contains("no command is run"), "{hostile}: {error}");
        }
    }

    #[test]
    fn what_there_is_no_command_for_is_said() {
        let given = CommandArgs {
            stop_with: Some("stop".into()),
            start_with: Some("start".into()),
            ..CommandArgs::default()
        };
        assert!(given.are_given() && !CommandArgs::default().are_given());
        let control = Control::new(Processes::Commands(given));
        assert_eq!(control.cannot(Act::Stop), None);
        assert_eq!(control.cannot(Act::Pause), Some("--pause-with was not given"));
        assert!(control.cannot(Act::LoseDisk).is_some());
        let control = Control::new(Processes::Dev(Vec::new()));
        assert!(control.cannot(Act::Cut).is_some() && control.cannot(Act::Kill).is_none());
    }

    /// The story: a signal came while the command ran that undoes a pause. What was being undone was forgotten, and
    /// the member stayed paused.
    #[tokio::test]
    async fn what_was_not_undone_when_a_signal_came_is_undone_by_the_next_call() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, gate) = (folder.path().join("log"), folder.path().join("gate"));
        std::fs::write(&gate, "").expect("a file");
        let say = |what: &str| format!("echo {what} {{slot}} >> {}", log.display());
        let resume =
            format!("{}; if test -e {}; then sleep 100000; fi", say("resume"), gate.display());
        let given = CommandArgs {
            stop_with: Some(say("stop")),
            start_with: Some(say("start")),
            pause_with: Some(say("pause")),
            resume_with: Some(resume),
            ..CommandArgs::default()
        };
        let mut control = Control::new(Processes::Commands(given));
        control.act(Act::Stop, &target("a:1")).await.expect("it is done");
        control.act(Act::Pause, &target("a:1")).await.expect("it is done");
        let said = || std::fs::read_to_string(&log).unwrap_or_default();
        let resumes = async {
            while !said().ends_with("resume 2\n") {
                sleep(POLL).await;
            }
        };
        tokio::select! {
            () = resumes => {}
            ended = control.undo() => panic!("it ended: {ended:?}"),
        }
        std::fs::remove_file(&gate).expect("our own file");
        control.undo().await.expect("it is undone");
        assert_eq!(said(), "stop 2\npause 2\nresume 2\nresume 2\nstart 2\n");
        control.undo().await.expect("nothing is left");
        assert_eq!(said().lines().count(), 5);
    }

    /// The story: a member could not be started with an empty disk, and nothing was undone in the end.
    #[test]
    fn a_member_that_is_not_started_with_an_empty_disk_is_still_to_be_started() {
        let mut control = Control::new(Processes::Dev(Vec::new()));
        control.done.push(Done::Act(Act::LoseDisk, target("a:1")));
        let error = control.start_empty().expect_err("no such member").to_string();
        assert!(error.contains("slot 2 is no member"), "{error}");
        assert_eq!(control.done.len(), 1);
    }

    /// The story of an act that failed in the middle: the member was stopped, and nobody started it again.
    #[tokio::test]
    async fn what_was_done_is_undone_once_in_the_other_order_though_an_act_failed() {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("log");
        let say = |what: &str| Some(format!("echo {what} {{slot}} >> {}", log.display()));
        let given = CommandArgs {
            stop_with: Some("false".into()),
            start_with: say("start"),
            pause_with: say("pause"),
            resume_with: say("resume"),
            ..CommandArgs::default()
        };
        let mut control = Control::new(Processes::Commands(given));
        let error = control.act(Act::Stop, &target("a:1")).await.expect_err("it fails");
        assert!(error.to_string().contains("`false` ended"), "{error}");
        control.act(Act::Pause, &target("a:1")).await.expect("it is done");
        control.undo().await.expect("it is undone");
        control.undo().await.expect("nothing is left");
        let said = std::fs::read_to_string(&log).expect("a log");
        assert_eq!(said, "pause 2\nresume 2\nstart 2\n");
    }
}
