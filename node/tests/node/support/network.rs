//! Machines for tests: network namespaces on one bridge. They need root.
//!
//! What holds here: a namespace ends with its [`Network`]. Processes in it do not: end them before.

use super::{CAIRN, Ran, finish};
use rustix::process::{Pid, Signal, kill_process};
use std::path::Path;
use std::process::{Command, Stdio};

/// Machines in one network: a namespace each, with the address 10.0.0.SLOT, on a bridge in another.
pub struct Network {
    name: String,
    machines: usize,
}

impl Network {
    /// The namespaces of machines are called by this name and their slot.
    ///
    /// # Errors
    /// What this machine does not allow.
    pub fn named(name: &str, machines: usize) -> Result<Network, String> {
        let nsenter = Command::new("nsenter").arg("--version").output();
        nsenter.map_err(|error| format!("nsenter: {error}"))?;
        let network = Network { name: name.to_owned(), machines };
        let hub = network.hub();
        ip(&["netns", "add", &hub])?;
        ip(&["-n", &hub, "link", "add", "name", "hub0", "type", "bridge"])?;
        ip(&["-n", &hub, "link", "set", "hub0", "up"])?;
        for slot in 1..=machines {
            let (own, port) = (network.machine(slot), format!("port{slot}"));
            ip(&["netns", "add", &own])?;
            ip(&[
                "link", "add", "eth0", "netns", &own, "type", "veth", "peer", "name", &port,
                "netns", &hub,
            ])?;
            ip(&["-n", &own, "addr", "add", &format!("10.0.0.{slot}/24"), "dev", "eth0"])?;
            ip(&["-n", &own, "link", "set", "lo", "up"])?;
            ip(&["-n", &own, "link", "set", "eth0", "up"])?;
            ip(&["-n", &hub, "link", "set", &port, "master", "hub0", "up"])?;
        }
        Ok(network)
    }

    /// Removes what a run left that was killed, and ends the processes in these namespaces. Nobody else may have
    /// namespaces of these names.
    pub fn remove_leftovers(name: &str, machines: usize) {
        let left = Network { name: name.to_owned(), machines };
        for slot in 1..=machines {
            let listed = Command::new("ip").args(["netns", "pids", &left.machine(slot)]).output();
            let listed = listed.map(|ran| ran.stdout).unwrap_or_default();
            let listed = String::from_utf8_lossy(&listed);
            let pids = listed.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok());
            for pid in pids.filter_map(Pid::from_raw) {
                // It may have ended since.
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        drop(left);
    }

    fn hub(&self) -> String {
        format!("{}-hub", self.name)
    }

    fn machine(&self, slot: usize) -> String {
        format!("{}-{slot}", self.name)
    }

    /// Plugs a machine's cable in, or out.
    pub fn plug(&self, slot: usize, state: &str) {
        ip(&["-n", &self.hub(), "link", "set", &format!("port{slot}"), state]).expect("our own");
    }

    /// A program on a machine.
    pub fn program(
        &self,
        slot: usize,
        folder: &Path,
        program: &str,
        arguments: &[&str],
    ) -> Command {
        let network = format!("--net=/run/netns/{}", self.machine(slot));
        let mut inside = cairn_launch::command("nsenter", [network.as_str(), program]);
        inside.args(arguments).current_dir(folder).stdin(Stdio::null());
        inside
    }

    /// `cairn` on a machine.
    pub fn cairn(&self, slot: usize, folder: &Path, arguments: &[&str]) -> Command {
        self.program(slot, folder, CAIRN, arguments)
    }

    /// Runs `cairn` on a machine to its end.
    pub fn run(&self, slot: usize, folder: &Path, arguments: &[&str]) -> Ran {
        let mut command = self.cairn(slot, folder, arguments);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        finish(child.expect("nsenter runs"))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let machines = (1..=self.machines).map(|slot| self.machine(slot));
        for name in machines.chain([self.hub()]) {
            // One that was not made cannot be removed.
            let _ = ip(&["netns", "del", &name]);
        }
    }
}

fn ip(arguments: &[&str]) -> Result<(), String> {
    let ran = Command::new("ip").args(arguments).output().map_err(|error| error.to_string())?;
    match ran.status.success() {
        true => Ok(()),
        false => {
            Err(format!("ip {}: {}", arguments.join(" "), String::from_utf8_lossy(&ran.stderr)))
        }
    }
}
