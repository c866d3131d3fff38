//! On which machine each member runs, as its own messages say. It tells an operator that voters fail
//! together; nothing else depends on it.
//!
//! What holds here: what others send is bounded, in number and in length.

use crate::core::ids::NodeId;
use crate::core::machine::Machine;
use crate::core::proto::Envelope;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// More members than any cluster has: invented identities must not take all memory.
const MEMBERS_MAX: usize = 1024;

/// This member's machine, and those of the members that sent a message. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machines {
    own: Arc<Machine>,
    others: Arc<Mutex<BTreeMap<NodeId, Machine>>>,
}

impl Machines {
    pub(crate) fn of(own: Machine) -> Machines {
        Machines { own: Arc::new(own), others: Arc::default() }
    }

    pub(crate) fn own(&self) -> &Machine {
        &self.own
    }

    /// Learns what a member says of itself. One that says nothing changes nothing.
    pub(crate) fn observe(&self, member: NodeId, envelope: &Envelope) {
        let domain = match envelope.failure_domain.as_str() {
            domain if domain.len() <= Machine::DOMAIN_BYTES_MAX => domain,
            _ => "",
        };
        if envelope.kernel == 0 && domain.is_empty() {
            return;
        }
        let mut others = self.others.lock();
        let is_known =
            |known: &Machine| known.kernel == envelope.kernel && known.failure_domain == domain;
        if others.get(&member).is_some_and(is_known) {
            return;
        }
        if others.len() >= MEMBERS_MAX && !others.contains_key(&member) {
            // Invented identities are likely large numbers.
            others.pop_last();
        }
        let machine = Machine { kernel: envelope.kernel, failure_domain: domain.to_owned() };
        others.insert(member, machine);
    }

    /// The machine of another member, if it is known.
    pub(crate) fn get(&self, member: NodeId) -> Option<Machine> {
        self.others.lock().get(&member).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says(kernel: u64, failure_domain: &str) -> Envelope {
        Envelope { kernel, failure_domain: failure_domain.into(), ..Envelope::default() }
    }

    #[test]
    fn the_latest_message_counts_and_silence_changes_nothing() {
        let machines = Machines::default();
        let member = NodeId::new(2, 22);
        machines.observe(member, &says(7, "rack1"));
        machines.observe(member, &says(0, ""));
        assert_eq!(machines.get(member).unwrap().kernel, 7);
        machines.observe(member, &says(8, ""));
        assert_eq!(machines.get(member), Some(Machine { kernel: 8, ..Machine::default() }));
    }

    #[test]
    fn invented_members_and_long_names_take_bounded_memory() {
        let machines = Machines::default();
        machines.observe(NodeId::new(1, 1), &says(7, &"x".repeat(Machine::DOMAIN_BYTES_MAX + 1)));
        for incarnation in 1..2 * MEMBERS_MAX as u64 {
            machines.observe(NodeId::new(9, incarnation), &says(1, ""));
        }
        assert_eq!(machines.others.lock().len(), MEMBERS_MAX);
        assert_eq!(machines.get(NodeId::new(1, 1)).unwrap().failure_domain, "");
    }
}
