//! Three machines on this one: each is a `cairn serve` process on a lossy disk, with a kernel boot
//! id of its own in a file.
//!
//! What holds here: processes and mounts end with the [`Cluster`], also in a panic. A server that
//! outlives the program nevertheless ends when its standard input does.

use crate::disk::{Behaviour, CutStyle, Damage, LossyMount};
use anyhow::{Context, Result, ensure};
use cairn_launch::{HeldPort, Member, Members, Server, Signal, log_end, run, serve};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The data directory inside the disk.
const DATA: &str = "data";

/// How many lines of a server's log are shown when it failed.
const LOG_LINES: usize = 12;

/// How to create a cluster.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The binary `cairn`.
    pub cairn: PathBuf,
    /// `sync`, `replicated` or `device`. Only in the last do the disks keep completed writes.
    pub mode: String,
    /// Size of each data directory, as `storage.size` takes it.
    pub size: String,
    /// How long a sync takes, on average.
    pub sync_time: Duration,
    /// More lines for each configuration.
    pub more: String,
    /// Keep logs and data when the cluster ends.
    pub keep: bool,
}

impl Setup {
    /// The disk that the mode assumes.
    pub fn behaviour(&self) -> Behaviour {
        if self.mode == "device" { Behaviour::Honour } else { Behaviour::Volatile }
    }
}

/// One machine.
pub struct Machine {
    slot: u16,
    config: PathBuf,
    log: PathBuf,
    boot_id_file: PathBuf,
    client_address: String,
    /// Before the disk, which can only be unmounted after the process has ended.
    process: Option<Server>,
    disk: LossyMount,
    started: Instant,
}

/// The machines, in order of their slots; numbered from 0 here.
pub struct Cluster {
    setup: Setup,
    machines: Vec<Machine>,
    /// The leader seen in each term.
    leaders: BTreeMap<u64, String>,
    rng: StdRng,
    /// Whether a power cut looks like the end of a process.
    cuts_are_hidden: bool,
    /// Where the machines listen, also while they are down.
    _ports: Vec<HeldPort>,
    /// The last field: the mounts in it must be gone before it is removed.
    folder: TempDir,
}

impl Cluster {
    /// Formats `size` machines; starts none.
    ///
    /// # Errors
    /// If a mount or `cairn format` fails.
    pub fn format(setup: &Setup, size: usize, seed: u64) -> Result<Cluster> {
        let mut folder = tempfile::Builder::new().prefix("cairn-lossy-").tempdir()?;
        folder.disable_cleanup(setup.keep);
        let ports = cairn_launch::hold(size * 3)?;
        let members = Members::at("lossy", &ports);
        let mut cluster = Cluster {
            setup: setup.clone(),
            machines: Vec::new(),
            leaders: BTreeMap::new(),
            rng: StdRng::seed_from_u64(seed),
            cuts_are_hidden: false,
            _ports: ports,
            folder,
        };
        for (number, member) in members.all.iter().enumerate() {
            let machine = cluster.make_machine(&members, member)?;
            cluster.machines.push(machine);
            cluster.new_boot(number)?;
            let mut format = cluster.command(&["format", "--config"]);
            run(format.arg(&cluster.machine(number)?.config))?;
        }
        Ok(cluster)
    }

    /// Creates a mounted disk and a configuration.
    fn make_machine(&self, members: &Members, member: &Member) -> Result<Machine> {
        let path = |name: &str| self.folder.path().join(format!("{name}-{}", member.slot));
        let (below, mounted) = (path("below"), path("disk"));
        std::fs::create_dir(&below)?;
        std::fs::create_dir(&mounted)?;
        let disk = LossyMount::new(&below, &mounted, self.setup.behaviour())?;
        disk.disk().sync_takes(self.setup.sync_time);
        let boot_id_file = path("boot");
        let lines = format!(
            "insecure = true\nmode = {:?}\nstorage.size = {:?}\nstorage.boot_id_file = {boot_id_file:?}\n\
             storage.assert_device_contract = {}\n{}",
            self.setup.mode,
            self.setup.size,
            self.setup.behaviour() == Behaviour::Honour,
            self.setup.more,
        );
        let config = path("config");
        std::fs::write(&config, members.config(member, &mounted.join(DATA), &lines))?;
        Ok(Machine {
            slot: member.slot,
            config,
            log: path("log"),
            boot_id_file,
            client_address: member.client.clone(),
            disk,
            process: None,
            started: Instant::now(),
        })
    }

    /// `cairn` with these arguments, independent of the caller's environment.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = cairn_launch::command(&self.setup.cairn, arguments);
        command.current_dir(self.folder.path());
        command
    }

    fn machine(&self, number: usize) -> Result<&Machine> {
        self.machines.get(number).context("no such machine")
    }

    fn machine_mut(&mut self, number: usize) -> Result<&mut Machine> {
        self.machines.get_mut(number).context("no such machine")
    }

    /// Starts a machine's server.
    ///
    /// # Errors
    /// If the process cannot be created.
    pub fn start(&mut self, number: usize) -> Result<()> {
        let (folder, program) = (self.folder.path().to_owned(), self.setup.cairn.clone());
        let machine = self.machine_mut(number)?;
        let mut command = serve(program, &machine.config);
        command.current_dir(folder);
        let name = format!("machine {}", machine.slot);
        machine.process = Some(Server::start(&name, command, &machine.log)?);
        machine.started = Instant::now();
        Ok(())
    }

    /// Starts all machines.
    ///
    /// # Errors
    /// As [`Cluster::start`].
    pub fn start_all(&mut self) -> Result<()> {
        (0..self.len()).try_for_each(|number| self.start(number))
    }

    /// Cuts the power of these machines at the same moment. Each has another kernel boot id when it
    /// starts again, unless cuts are hidden.
    ///
    /// # Errors
    /// If the files below a disk cannot be written.
    pub fn cut_power(&mut self, numbers: &[usize], style: Option<CutStyle>) -> Result<Damage> {
        let mut damage = Damage::default();
        for number in numbers {
            if let Some(process) = &mut self.machine_mut(*number)?.process {
                process.signal(Signal::KILL)?;
            }
        }
        for number in numbers {
            let mut rng = StdRng::seed_from_u64(self.rng.random());
            let style = style.unwrap_or_else(|| CutStyle::random(&mut rng));
            damage.add(self.machine(*number)?.disk.disk().cut(style, &mut rng)?);
        }
        for number in numbers {
            self.kill(*number)?;
            if !self.cuts_are_hidden {
                self.new_boot(*number)?;
            }
        }
        Ok(damage)
    }

    /// From now on machines keep their boot ids over a power cut, so that they cannot notice it.
    pub fn hide_cuts(&mut self) {
        self.cuts_are_hidden = true;
    }

    /// Kills a machine's process; the machine continues.
    ///
    /// # Errors
    /// If there is no such machine.
    pub fn kill(&mut self, number: usize) -> Result<()> {
        self.machine_mut(number)?.process = None;
        Ok(())
    }

    /// Gives a machine a boot id that it never had.
    fn new_boot(&mut self, number: usize) -> Result<()> {
        let id = boot_id(&mut self.rng);
        std::fs::write(&self.machine(number)?.boot_id_file, id)?;
        Ok(())
    }

    /// Sets how all disks treat writes and syncs from now on.
    pub fn behave(&self, behaviour: Behaviour) {
        for machine in &self.machines {
            machine.disk.disk().behave(behaviour);
        }
    }

    /// Flips one bit in these 4 KiB blocks of a file in a machine's data directory. False if they
    /// hold only zeros.
    ///
    /// # Errors
    /// If the file does not exist.
    pub fn flip(&mut self, number: usize, file: &str, blocks: Range<u64>) -> Result<bool> {
        let mut rng = StdRng::seed_from_u64(self.rng.random());
        let disk = &self.machine(number)?.disk;
        Ok(disk.flip_within(&format!("{DATA}/{file}"), blocks, &mut rng)?.is_some())
    }

    /// How many lines of a machine's log contain this text.
    ///
    /// # Errors
    /// If there is no such machine, or no log.
    pub fn log_lines(&self, number: usize, what: &str) -> Result<u64> {
        let log = std::fs::read_to_string(&self.machine(number)?.log)?;
        Ok(log.lines().filter(|line| line.contains(what)).count() as u64)
    }

    /// The last error of this machine's process, if the process has ended.
    ///
    /// # Errors
    /// If there is no such machine.
    pub fn ended(&mut self, number: usize) -> Result<Option<String>> {
        let machine = self.machine_mut(number)?;
        let Some(process) = &mut machine.process else {
            return Ok(Some("it was not started".to_owned()));
        };
        Ok(process.check_running().err().map(|_| last_error(&machine.log)))
    }

    /// The number of machines.
    pub fn len(&self) -> usize {
        self.machines.len()
    }

    /// Whether there are no machines.
    pub fn is_empty(&self) -> bool {
        self.machines.is_empty()
    }

    /// When this machine was last started.
    ///
    /// # Errors
    /// If there is no such machine.
    pub fn started(&self, number: usize) -> Result<Instant> {
        Ok(self.machine(number)?.started)
    }

    /// The addresses for clients.
    pub fn addresses(&self) -> Vec<String> {
        self.machines.iter().map(|machine| machine.client_address.clone()).collect()
    }

    /// The output of `cairn status -o json`: one object for each machine that answered, by the
    /// machine's number.
    ///
    /// # Errors
    /// Two leaders of one term; output that is no JSON.
    pub fn status(&mut self) -> Result<BTreeMap<usize, serde_json::Value>> {
        let addresses = self.addresses();
        let endpoints = addresses.join(",");
        let output = self
            .command(&["status", "-o", "json", "--timeout", "1s", "--endpoints", &endpoints])
            .output()?;
        let answers: Vec<serde_json::Value> =
            serde_json::from_slice(&output.stdout).with_context(|| {
                format!("the output of cairn status: {}", String::from_utf8_lossy(&output.stderr))
            })?;
        let mut found = BTreeMap::new();
        for answer in answers.into_iter().filter(|answer| answer.get("error").is_none()) {
            let endpoint =
                answer.get("endpoint").and_then(|endpoint| endpoint.as_str()).unwrap_or_default();
            let Some(number) = addresses.iter().position(|address| address == endpoint) else {
                continue;
            };
            if let (Some("leader"), Some(term)) = (text(&answer, "role"), integer(&answer, "term"))
            {
                let id = text(&answer, "node_id").unwrap_or_default().to_owned();
                let known = self.leaders.entry(term).or_insert_with(|| id.clone());
                ensure!(*known == id, "split: {known} and {id} both led term {term}");
            }
            found.insert(number, answer);
        }
        Ok(found)
    }

    /// Does what an operator does when too many machines lost acknowledged writes: `cairn
    /// unsafe-recovery --accept-data-loss`.
    ///
    /// # Errors
    /// If that fails.
    pub fn accept_data_loss(&self) -> Result<()> {
        let endpoints = self.addresses().join(",");
        let arguments =
            ["unsafe-recovery", "--accept-data-loss", "--yes", "--endpoints", &endpoints];
        run(&mut self.command(&arguments))?;
        Ok(())
    }

    /// The ends of all servers' logs.
    pub fn logs(&self) -> String {
        let tail = |machine: &Machine| {
            let lines = log_end(&machine.log, LOG_LINES);
            format!("--- machine {}, {}\n{lines}\n", machine.slot, machine.log.display())
        };
        self.machines.iter().map(tail).collect()
    }
}

/// A kernel boot id that no machine ever had.
pub fn boot_id(rng: &mut StdRng) -> String {
    let id: u128 = rng.random();
    let digits = format!("{:032x}", id | 1);
    let groups: Vec<&str> = [(0, 8), (8, 12), (12, 16), (16, 20), (20, 32)]
        .iter()
        .filter_map(|(from, to)| digits.get(*from..*to))
        .collect();
    groups.join("-")
}

/// A text field of a status.
pub fn text<'a>(status: &'a serde_json::Value, field: &str) -> Option<&'a str> {
    status.get(field).and_then(|value| value.as_str())
}

/// A number field of a status.
pub fn integer(status: &serde_json::Value, field: &str) -> Option<u64> {
    status.get(field).and_then(|value| value.as_u64())
}

/// The last line of a log that tells why its process ended.
fn last_error(log: &Path) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    let last = |wanted: fn(&str) -> bool| text.lines().rev().find(|line| wanted(line));
    let line = last(|line| line.starts_with("cairn: "))
        .or_else(|| last(|line| line.contains("ERROR")))
        .or_else(|| last(|_| true));
    line.unwrap_or("its log is empty").to_owned()
}
