//! Chooses the next request, from a seed and the client's last answers.

use crate::history::{
    Action, Change, Condition, GROUP_KEYS, Key, ListSpec, Outcome, RangeSpec, Record, Value,
    Version, WriteOperation,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::BTreeMap;
use std::time::Duration;

/// The usual share of writes that ask for a sync before their answer.
pub const SYNCED_ONE_IN: u32 = 8;
/// The pause after a refused request, for clients that pause after no other.
const REFUSED_PAUSE: Duration = Duration::from_millis(20);
/// One write in this many deletes a range.
const RANGES_ONE_IN: u32 = 16;
/// A page that holds a whole group is never larger.
const WHOLE_GROUP_BYTES: u64 = 4 << 20;

/// How a run's clients behave.
#[derive(Clone, Debug)]
pub struct Profile {
    /// Clients, each with a connection of its own.
    pub clients: u32,
    /// Tasks that share one client.
    pub tasks_per_client: u32,
    /// Groups of keys in use at a time.
    pub groups: u32,
    /// The longest pause between a client's requests. If it is zero, clients pause only after a
    /// refusal.
    pub think_max: Duration,
    /// A request's deadline.
    pub deadline: Duration,
    /// How many of 100 requests are writes.
    pub write_percent: u32,
    /// One write in this many asks for a sync before its answer, whatever the mode.
    pub synced_one_in: u32,
    /// Whether some reads may be old: any node answers them, from a state of whatever age, or of a bounded one.
    pub stale_reads: bool,
}

impl Profile {
    /// A random profile.
    pub fn from_rng(rng: &mut StdRng) -> Profile {
        let pick = |rng: &mut StdRng, choices: &[u64]| {
            choices.get(rng.random_range(0..choices.len())).copied().unwrap_or(1)
        };
        Profile {
            clients: rng.random_range(2..=4),
            tasks_per_client: rng.random_range(1..=2),
            groups: rng.random_range(2..=5),
            think_max: Duration::from_millis(pick(rng, &[60, 150, 300, 600])),
            deadline: Duration::from_millis(pick(rng, &[1_500, 4_000, 8_000])),
            write_percent: u32::try_from(pick(rng, &[35, 55, 75])).unwrap_or(50),
            synced_one_in: SYNCED_ONE_IN,
            stale_reads: true,
        }
    }
}

/// One task's source of requests.
pub struct Generator {
    rng: StdRng,
    profile: Profile,
    next_value: Value,
    seen: BTreeMap<(u32, Key), Version>,
}

impl Generator {
    /// A task's generator; `task` makes its values differ from those of all others.
    pub fn new(seed: u64, task: u32, profile: Profile) -> Generator {
        let rng =
            StdRng::seed_from_u64(seed ^ (u64::from(task) + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        Generator { rng, profile, next_value: (u64::from(task) + 1) << 32, seen: BTreeMap::new() }
    }

    /// How long to pause after this request.
    pub fn pause(&mut self, after: &Record) -> Duration {
        match after.outcome {
            _ if !self.profile.think_max.is_zero() => {
                self.rng.random_range(Duration::ZERO..self.profile.think_max)
            }
            Outcome::NoEffect => REFUSED_PAUSE,
            _ => Duration::ZERO,
        }
    }

    /// The next request: a group and an action in it. `group` returns the group at a position below
    /// the profile's number of groups.
    pub fn next_action(&mut self, group: impl FnOnce(u32) -> u32) -> (u32, Action) {
        let group = group(self.rng.random_range(0..self.profile.groups));
        let key = self.key();
        if self.rng.random_range(0..100) < self.profile.write_percent {
            let write = match self.rng.random_range(0..RANGES_ONE_IN) {
                0 => Action::DeleteRange(self.range(key)),
                _ => Action::Write(self.write(group, key)),
            };
            return (group, write);
        }
        let action = match self.rng.random_range(0..16) {
            0..=4 => Action::Get(key),
            5 => Action::Version(key),
            6..=8 => Action::List(self.page()),
            9..=10 => Action::GetMany(self.keys()),
            14..=15 => Action::Scan,
            11 if self.profile.stale_reads => Action::StaleGet(key),
            12 if self.profile.stale_reads => Action::BoundedGet(key, self.age()),
            13 if self.profile.stale_reads => Action::BoundedGetMany(self.keys(), self.age()),
            _ => Action::Get(key),
        };
        (group, action)
    }

    /// Whether a write asks for a sync before its answer, whatever the mode.
    pub fn wants_synced(&mut self, action: &Action) -> bool {
        action.is_write() && self.rng.random_range(0..self.profile.synced_one_in) == 0
    }

    fn key(&mut self) -> Key {
        self.rng.random_range(0..GROUP_KEYS)
    }

    fn keys(&mut self) -> Vec<Key> {
        (0..self.rng.random_range(2..=4)).map(|_| self.key()).collect()
    }

    /// Milliseconds: less than an election takes, about as long, and longer.
    fn age(&mut self) -> u64 {
        10_u64.pow(self.rng.random_range(1..=4))
    }

    fn range(&mut self, from: Key) -> RangeSpec {
        let whole = self.rng.random_bool(0.3);
        let most = match self.rng.random_bool(0.5) {
            true => GROUP_KEYS,
            false => self.rng.random_range(1..=GROUP_KEYS),
        };
        // All keys of a group are a prefix's, too.
        let from = if self.rng.random_bool(0.3) { 0 } else { from };
        RangeSpec { from, until: self.rng.random_range(from + 1..=GROUP_KEYS), most, whole }
    }

    fn page(&mut self) -> ListSpec {
        let start_after = self.rng.random_bool(0.4).then(|| self.key());
        let end = self.rng.random_bool(0.3).then(|| self.key());
        ListSpec {
            start_after,
            end,
            limit: if self.rng.random_bool(0.5) {
                GROUP_KEYS
            } else {
                self.rng.random_range(1..=GROUP_KEYS)
            },
            // No key comes before the first one; an empty page shows little but is legal.
            reverse: self.rng.random_bool(0.3),
            keys_only: self.rng.random_bool(0.2),
            max_bytes: match self.rng.random_range(0..3) {
                0 => self.rng.random_range(1..1_000),
                1 => self.rng.random_range(1_000..20_000),
                _ => WHOLE_GROUP_BYTES,
            },
        }
    }

    fn write(&mut self, group: u32, key: Key) -> Vec<WriteOperation> {
        let operations =
            if self.rng.random_range(0..5) == 0 { self.rng.random_range(2..=4) } else { 1 };
        (0..operations)
            .map(|n| {
                let key = if n == 0 { key } else { self.key() };
                let change = match self.rng.random_range(0..20) {
                    0..=14 => Change::Put(self.value()),
                    15..=18 => Change::Delete,
                    _ => Change::Check,
                };
                let condition = self.condition(group, key);
                WriteOperation { key, change, condition }
            })
            .collect()
    }

    fn value(&mut self) -> Value {
        self.next_value += 1;
        self.next_value
    }

    fn condition(&mut self, group: u32, key: Key) -> Condition {
        match self.rng.random_range(0..10) {
            0 => Condition::Absent,
            1 => Condition::Exists,
            2..=4 => self
                .seen
                .get(&(group, key))
                .map_or(Condition::None, |version| Condition::Version(*version)),
            _ => Condition::None,
        }
    }

    /// Remembers the versions that an answer showed.
    pub fn learn(&mut self, record: &Record) {
        let group = record.group;
        match (&record.action, &record.outcome) {
            (Action::Write(operations), Outcome::Applied { index, .. }) => {
                for operation in operations {
                    self.seen.insert((group, operation.key), *index);
                }
            }
            (Action::Write(operations), Outcome::ConditionFailed { failed, .. }) => {
                for (position, version) in failed {
                    if let (Some(operation), Some(version)) = (operations.get(*position), version) {
                        self.seen.insert((group, operation.key), *version);
                    }
                }
            }
            _ => self
                .seen
                .extend(record.seen().into_iter().map(|(key, _, version)| ((group, key), version))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn actions(seed: u64, task: u32) -> Vec<(u32, Action)> {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut generator = Generator::new(seed, task, Profile::from_rng(&mut rng));
        (0..300).map(|_| generator.next_action(|position| position)).collect()
    }

    #[test]
    fn one_seed_makes_the_same_requests() {
        assert_eq!(actions(5, 0), actions(5, 0));
        assert_ne!(actions(5, 0), actions(5, 1));
    }

    #[test]
    fn no_two_writes_share_a_value_and_every_kind_of_request_occurs() {
        let all: Vec<Action> =
            (0..4).flat_map(|task| actions(9, task)).map(|(_, action)| action).collect();
        let mut values = std::collections::BTreeSet::new();
        let (mut batches, mut lists, mut deletes, mut ranges) = (0, 0, 0, [0; 2]);
        let (mut many, mut bounded, mut bounded_many, mut scans) = (0, 0, 0, 0);
        for action in &all {
            match action {
                Action::Write(operations) => {
                    batches += usize::from(operations.len() > 1);
                    for operation in operations {
                        match operation.change {
                            Change::Put(value) => assert!(values.insert(value)),
                            Change::Delete => deletes += 1,
                            Change::Check => {}
                        }
                    }
                }
                Action::DeleteRange(spec) => {
                    assert!(spec.from < spec.until && spec.until <= GROUP_KEYS && spec.most > 0);
                    ranges[usize::from(spec.leaves_none())] += 1;
                }
                Action::List(_) => lists += 1,
                Action::GetMany(_) => many += 1,
                Action::Scan => scans += 1,
                Action::BoundedGet(..) => bounded += 1,
                Action::BoundedGetMany(..) => bounded_many += 1,
                Action::Get(_) | Action::StaleGet(_) | Action::Version(_) => {}
            }
        }
        assert!(batches > 10 && lists > 10 && deletes > 10 && many > 10);
        assert!(bounded > 5 && bounded_many > 5 && scans > 10);
        assert!(ranges.iter().all(|count| *count > 0), "{ranges:?}");
    }
}
