//! All machines of a run, and what the simulated world knows: which faults may begin, and what was
//! counted.

use super::atlas::Atlas;
use super::clock::virtual_time;
use super::machine::{Condition, Machine, State, address};
use super::missing::Missing;
use super::plan::Plan;
use super::promises::Promises;
use super::removed::Operator;
use super::states::States;
use super::watches::Watches;
use crate::disk::SimDisk;
use crate::trace::Trace;
use cairn_clients::Violation;
use cairn_engine::{Engine, Error as EngineError, Identity};
use cairn_raft::MemberAddress;
use madsim::runtime::{Handle, NodeHandle};
use parking_lot::Mutex;
use rand::RngExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The cluster's name.
pub(super) const CLUSTER: &str = "simulated";

/// Longer than any stall of a simulated disk.
pub(super) const IO_TIMEOUT: Duration = Duration::from_secs(10);

/// More violations of one run tell nothing new.
const VIOLATIONS_MAX: usize = 20;

/// All machines of a run.
pub(super) struct Cluster {
    pub(super) plan: Plan,
    pub(super) trace: Trace,
    pub(super) machines: Vec<Machine>,
    /// Whose disks may decay.
    pub(super) atlas: Atlas,
    /// The members that form it, and where they are then.
    pub(super) members: BTreeMap<u16, MemberAddress>,
    violations: Mutex<Vec<Violation>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    events: Mutex<BTreeMap<&'static str, u64>>,
    /// Set when the faults are over.
    faults_ended: AtomicBool,
    /// An unsafe recovery was done: committed entries may be gone.
    decided: AtomicBool,
    /// Who was missing in an operator's unsafe recoveries.
    missing: Mutex<Missing>,
    /// Clean stops, and failures of devices, under way.
    pub(super) stopping: AtomicU32,
    /// Machines that lost power.
    pub(super) power_cuts: AtomicU64,
    /// When an acknowledged write is synced.
    pub(super) promises: Promises,
    /// What an operator did to the membership.
    pub(super) operator: Operator,
    /// The states that members sent.
    pub(super) states: States,
    /// What watchers heard, up to an unsafe recovery.
    pub(super) watches: Arc<Watches>,
}

impl Cluster {
    /// Creates hosts and formatted disks; starts nothing.
    pub(super) async fn build(plan: Plan, trace: Trace) -> Result<Arc<Cluster>, EngineError> {
        let handle = Handle::current();
        let device_host = handle.create_node().name("disks").build();
        let mut rng = plan.rng(1);
        let mut machines = Vec::new();
        let mut members = BTreeMap::new();
        for slot in 1..=plan.nodes {
            let ip = parse(&format!("10.0.0.{slot}"));
            let host = handle.create_node().name(format!("node-{slot}")).ip(ip).build();
            if slot + plan.joiners <= plan.nodes {
                members.insert(slot, address(slot, 0));
            }
            let disk = SimDisk::new(
                format!("disk-{slot}"),
                &plan.geometry,
                plan.honours_contract,
                rng.random(),
                device_host.clone(),
            );
            let identity = Identity {
                cluster: CLUSTER.into(),
                slot,
                incarnation: rng.random_range(1..1_u64 << 48),
            };
            Engine::format(&*disk.directory(), plan.geometry, &identity).await?;
            machines.push(Machine { slot, host: host.id(), disk, state: Mutex::new(State::new()) });
        }
        Ok(Arc::new(Cluster {
            atlas: Atlas::new(&plan),
            promises: Promises::new(plan.mode),
            operator: Operator::default(),
            states: States::default(),
            watches: Arc::default(),
            plan,
            trace,
            machines,
            members,
            violations: Mutex::default(),
            counts: Mutex::default(),
            events: Mutex::default(),
            faults_ended: AtomicBool::new(false),
            decided: AtomicBool::new(false),
            missing: Mutex::new(Missing::none()),
            stopping: AtomicU32::new(0),
            power_cuts: AtomicU64::new(0),
        }))
    }

    /// Where clients find the members.
    pub(super) fn endpoints(&self) -> Vec<String> {
        self.machines.iter().map(|machine| machine.address().client).collect()
    }

    /// Where clients ask one member.
    pub(super) fn endpoint(&self, slot: u16) -> Option<String> {
        let machine = self.machines.iter().find(|machine| machine.slot == slot);
        machine.map(|machine| machine.address().client)
    }

    /// Formats an empty disk as the data directory of a new identity.
    pub(super) async fn format(
        &self,
        machine: &Machine,
        incarnation: u64,
    ) -> Result<(), EngineError> {
        let identity = Identity { cluster: CLUSTER.into(), slot: machine.slot, incarnation };
        // Errors arranged for the previous disk must not apply to the format, which would not be
        // retried.
        machine.disk.disarm();
        self.missing.lock().replaced(machine.host, virtual_time());
        Engine::format(&*machine.disk.directory(), self.plan.geometry, &identity).await
    }

    /// Adds a violation.
    pub(super) fn violation(&self, violation: Violation) {
        let mut violations = self.violations.lock();
        if violations.len() < VIOLATIONS_MAX && !violations.contains(&violation) {
            self.trace.event(format!("VIOLATION {violation}"));
            violations.push(violation);
        }
    }

    pub(super) fn violations(&self) -> Vec<Violation> {
        self.violations.lock().clone()
    }

    /// Counts a fault.
    pub(super) fn count(&self, fault: &'static str) {
        self.count_many(fault, 1);
    }

    /// Counts a fault that was applied this often.
    pub(super) fn count_many(&self, fault: &'static str, times: u64) {
        if times > 0 {
            *self.counts.lock().entry(fault).or_default() += times;
        }
    }

    pub(super) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.counts.lock().clone()
    }

    /// Counts an event of the nodes.
    pub(super) fn count_event(&self, event: &'static str) {
        self.count_events(event, 1);
    }

    /// Counts an event that happened so often.
    pub(super) fn count_events(&self, event: &'static str, times: u64) {
        if times > 0 {
            *self.events.lock().entry(event).or_default() += times;
        }
    }

    pub(super) fn events(&self) -> BTreeMap<&'static str, u64> {
        self.events.lock().clone()
    }

    /// From now on no fault begins.
    pub(super) fn end_faults(&self) {
        self.faults_ended.store(true, Ordering::Relaxed);
    }

    /// Notes that an unsafe recovery begins.
    pub(super) fn decide(&self) {
        self.decided.store(true, Ordering::Relaxed);
    }

    /// Notes that an operator decides, who does not reach the `missing` machines. Those `of_one_history` take
    /// part with nothing applied that is discarded.
    pub(super) fn decide_without<'m>(
        &self,
        missing: impl Iterator<Item = &'m Machine>,
        of_one_history: impl Iterator<Item = &'m Machine>,
    ) {
        self.decide();
        let missing = missing.map(|machine| machine.host);
        let of_one_history = of_one_history.map(|machine| machine.host);
        self.missing.lock().decided(missing, of_one_history, virtual_time());
    }

    /// Who was missing in an operator's unsafe recoveries.
    pub(super) fn missing(&self) -> Missing {
        self.missing.lock().clone()
    }

    pub(super) fn decided(&self) -> bool {
        self.decided.load(Ordering::Relaxed)
    }

    pub(super) fn faults_ended(&self) -> bool {
        self.faults_ended.load(Ordering::Relaxed)
    }

    /// Whether one more machine may lose power: at most as many as the cluster survives without an
    /// operator, unless the plan goes beyond that.
    pub(super) fn may_lose_acks(&self, machine: &Machine) -> bool {
        !self.plan.may_ack_unsynced()
            || !machine.unsynced_acks()
            || self.plan.beyond_tolerance
            || self.may_be_damaged(machine)
    }

    /// Whether one more machine may come back with less than it acknowledged, in any mode.
    pub(super) fn may_be_damaged(&self, machine: &Machine) -> bool {
        let others =
            self.machines.iter().filter(|other| other.slot != machine.slot && other.faulty());
        others.count() < (self.machines.len() - 1) / 2
    }

    /// Whether another member has an entry in its log. Before that, the disk of the member that
    /// forms the cluster is not lost: the others may have voted for it, and an operator would have
    /// to format them.
    pub(super) fn does_without(&self, machine: &Machine) -> bool {
        let others = self.machines.iter().filter(|other| other.slot != machine.slot);
        let mut nodes = others.filter_map(|other| other.node());
        nodes.any(|(_, node)| node.replica().status().last_log.is_some())
    }

    /// Whether so many machines may lack acknowledged entries that a cluster without a leader must
    /// wait for an operator.
    pub(super) fn may_be_stuck(&self) -> bool {
        let lacking = self.machines.iter().filter(|machine| machine.lacks_acks()).count();
        lacking > (self.machines.len() - 1) / 2
    }

    pub(super) fn host(&self, machine: &Machine) -> Option<NodeHandle> {
        Handle::current().get_node(machine.host)
    }

    /// Ends the run. Nodes, tasks and disks refer to one another, so nothing else would free them.
    pub(super) async fn dismantle(&self) {
        for machine in &self.machines {
            Handle::current().kill(machine.host);
            machine.disk.kill(false);
            machine.set(Condition::Down);
            let node = machine.state.lock().node.take();
            drop(node);
        }
        // The tasks of a killed host end when the scheduler next polls them.
        tokio::time::sleep(Duration::from_millis(20)).await;
        for machine in &self.machines {
            machine.disk.wipe();
        }
    }
}

fn parse(address: &str) -> std::net::IpAddr {
    address.parse().unwrap_or(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST))
}
