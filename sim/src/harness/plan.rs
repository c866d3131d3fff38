//! Everything that a seed decides before the run begins.

use super::kinds::FaultKind;
use cairn_clients::workload::Profile;
use cairn_engine::{Geometry, Mode};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::ops::Range;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The size of a data area that the run fills.
const FILLED_BYTES: u64 = 16 * MIB;

/// The plan of one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// The durability mode.
    pub mode: Mode,
    /// Members.
    pub nodes: u16,
    /// How many of them, those of the highest slots, do not form the cluster: an operator adds them.
    pub joiners: u16,
    /// Whether the disks keep completed writes through a power cut.
    pub honours_contract: bool,
    /// The disks' sizes.
    pub geometry: Geometry,
    /// Applied entries that a node keeps in its log.
    pub log_retain_entries: u64,
    /// Memory for values that are read often: none, or so little that few stay.
    pub value_cache_bytes: u64,
    /// The shortest and the longest election timeout, if not the defaults.
    pub election: Option<(Duration, Duration)>,
    /// How many sessions the state machine keeps, if not the default: so few that sessions of live
    /// clients are evicted.
    pub max_sessions: Option<usize>,
    /// Whether the members start an unsafe recovery without an operator when every voter answers.
    pub unsafe_recovery_automatic: bool,
    /// How often unsynced writes are synced.
    pub sync_interval: Duration,
    /// Clients.
    pub profile: Profile,
    /// Keys that an extra client overwrites all the time, so that space is reused soon; 0 for none.
    pub churn_keys: u32,
    /// Keys of an extra client, so many that a snapshot has many pieces; 0 for none.
    pub bulk_keys: u32,
    /// Whether somebody takes the state from one member after another, as a backup does.
    pub takes_states: bool,
    /// How many watchers follow what changes, by the client that they share.
    pub watchers: Vec<u32>,
    /// How much of what changed can be told, in bytes, and for how long, if not the defaults: so little that
    /// watchers come too late.
    pub history: Option<(u64, Duration)>,
    /// Where members acknowledge before they sync: whether more machines may lose power at once than the cluster survives
    /// without an operator. It may then stop for good, but must not lose or split anything.
    pub beyond_tolerance: bool,
    /// The faults of this run.
    pub faults: Vec<FaultKind>,
    /// The kinds of decay of this run.
    pub decays: Vec<FaultKind>,
    /// How many of a thousand messages between members arrive a second time.
    pub repeats_per_mille: u32,
    /// How many of a thousand calls have their connection reset before they are answered.
    pub resets_per_mille: u32,
    /// The time between two faults.
    pub fault_gap: Range<Duration>,
    /// How long most faults last, and how long some last, in milliseconds.
    pub outage_ms: [Range<u64>; 2],
    /// For how long new faults begin.
    pub fault_time: Duration,
    /// Whether faults wait until the cluster has formed.
    pub forms_in_peace: bool,
    /// Whether a minority is down for most of the faults.
    pub leaves: bool,
    /// Whether the network connects only some of the members for most of the faults. No other fault
    /// of links occurs then.
    pub half_connected: bool,
    /// Whether a minority stays down at first when the faults are over.
    pub heals_bare: bool,
    /// Whether one disk is slow at first when the faults are over.
    pub heals_slow: bool,
    /// Whether clients continue for long when the faults are over, while a minority stands still.
    pub lingers: bool,
    /// The size of a snapshot's pieces in bytes, if not the default.
    pub snapshot_piece_bytes: Option<u64>,
    /// The usual latency of a message.
    pub latency: Range<Duration>,
    /// Clock rates differ from true time by at most this many parts per million.
    pub clock_skew: u32,
}

impl Plan {
    /// The plan of a seed, in `mode` if that is given.
    pub fn new(seed: u64, mode: Option<Mode>) -> Plan {
        let mut rng = StdRng::seed_from_u64(seed);
        let mode = mode.unwrap_or(match seed % 3 {
            0 => Mode::Device,
            1 => Mode::Sync,
            _ => Mode::Replicated,
        });
        let millis = Duration::from_millis;
        // One run in four has few other faults than combined ones, so that they follow each other
        // undisturbed.
        let combines = rng.random_bool(0.25);
        let mut faults = FaultKind::ALL.to_vec();
        let apart = [
            FaultKind::Repeat,
            FaultKind::Reset,
            FaultKind::LoseIdentity,
            FaultKind::Hang,
            FaultKind::DiskPower,
            FaultKind::Move,
            FaultKind::ChangeMembers,
            FaultKind::ChangeMode,
            FaultKind::MoveLeader,
            FaultKind::Drain,
        ];
        faults.retain(|kind| !FaultKind::DECAYS.contains(kind) && !apart.contains(kind));
        faults.retain(|_| rng.random_bool(if combines { 0.1 } else { 0.5 }));
        faults.extend(variant(seed, "identity", 4).then_some(FaultKind::LoseIdentity));
        faults.extend(variant(seed, "hang", 4).then_some(FaultKind::Hang));
        faults.extend(variant(seed, "disk power", 4).then_some(FaultKind::DiskPower));
        faults.extend(variant(seed, "moves", 3).then_some(FaultKind::Move));
        // A change takes as long as several other faults, and the next one waits for its end.
        if variant(seed, "membership", 3) {
            faults.extend([FaultKind::ChangeMembers; 3]);
        }
        if variant(seed, "modes", 4) {
            faults.extend([FaultKind::ChangeMode; 2]);
        }
        if variant(seed, "leaders", 4) {
            faults.extend([FaultKind::MoveLeader, FaultKind::Drain]);
        }
        let half_connected = variant(seed, "half-connected", 4);
        if half_connected {
            faults.retain(|kind| !FaultKind::LINKS.contains(kind));
        }
        if combines {
            faults.extend(FaultKind::COMBINED.repeat(2));
        }
        let latency = match rng.random_range(0..4) {
            0 => millis(1)..millis(30),
            1 => Duration::from_micros(100)..millis(1),
            _ => Duration::from_micros(200)..millis(5),
        };
        let many = rng.random_range(0..6) == 0 || half_connected && variant(seed, "many", 2);
        let nodes = if many { 5 } else { 3 };
        let mut geometry = geometry(&mut rng);
        let decays = decays(seed, &mut geometry);
        let large = variant(seed, "large", 20);
        if large {
            geometry.data_bytes = geometry.data_bytes.max(32 * MIB);
        }
        Plan {
            seed,
            mode,
            nodes,
            joiners: 0,
            honours_contract: mode == Mode::Device,
            geometry,
            bulk_keys: if large { 300 } else { 0 },
            takes_states: variant(seed, "states", 4),
            watchers: watchers(seed),
            history: variant(seed, "history", 3).then_some((256 << 10, Duration::from_secs(2))),
            log_retain_entries: if rng.random_bool(0.4) {
                rng.random_range(5..60)
            } else {
                100_000
            },
            // What is in memory hides what happened to the disk.
            value_cache_bytes: match decays.is_empty() && variant(seed, "value cache", 2) {
                true => 16 << 10,
                false => 0,
            },
            election: variant(seed, "election", 4).then_some((millis(200), millis(400))),
            max_sessions: variant(seed, "sessions", 8).then_some(3),
            unsafe_recovery_automatic: false,
            sync_interval: millis(match rng.random_range(0..10) {
                0..=2 => 200,
                3..=7 => 1000,
                _ => 3000,
            }),
            profile: Profile::from_rng(&mut rng),
            churn_keys: if rng.random_bool(0.25) { rng.random_range(6..=24) } else { 0 },
            beyond_tolerance: rng.random_range(0..5) == 0,
            faults,
            decays,
            repeats_per_mille: repeats(seed),
            resets_per_mille: if variant(seed, "resets", 3) { 15 } else { 0 },
            fault_gap: if rng.random_bool(0.3) {
                millis(200)..millis(1_500)
            } else {
                millis(1_000)..millis(5_000)
            },
            outage_ms: [100..2_500, 100..9_000],
            leaves: variant(seed, "leaves", 4),
            half_connected,
            heals_bare: variant(seed, "bare", 3),
            heals_slow: variant(seed, "slow disk", 4),
            // A slow disk may be one of the majority that is left alone.
            lingers: variant(seed, "lingers", 6) && !variant(seed, "slow disk", 4),
            snapshot_piece_bytes: variant(seed, "pieces", 2).then_some(4_096),
            fault_time: Duration::from_secs(40),
            forms_in_peace: rng.random_bool(0.8),
            latency,
            clock_skew: if rng.random_bool(0.5) { 200_000 } else { 20_000 },
        }
    }

    /// A seed's plan with few other faults than power cuts, close upon each other: for counting
    /// many of them.
    pub fn storm(seed: u64, mode: Option<Mode>) -> Plan {
        let plan = Plan::new(seed, mode.or(Some(Mode::Replicated)));
        let mut rng = plan.rng(11);
        let millis = Duration::from_millis;
        let mut faults = FaultKind::COMPANIONS.to_vec();
        faults.retain(|_| rng.random_bool(0.3));
        faults.extend(FaultKind::CUTS.repeat(4));
        let profile = Profile { think_max: millis(40), deadline: millis(8_000), ..plan.profile };
        Plan {
            nodes: if rng.random_bool(0.5) { 5 } else { 3 },
            profile,
            faults,
            decays: Vec::new(),
            fault_gap: millis(200)..millis(900),
            outage_ms: [20..400, 20..3_000],
            fault_time: Duration::from_secs(40),
            forms_in_peace: true,
            half_connected: false,
            lingers: false,
            ..plan
        }
    }

    /// Whether only power cuts can take from a disk what it had synced.
    pub fn keeps_disks(&self) -> bool {
        use FaultKind::{
            DiskPower, FailSync, FailWrite, Hang, LoseDisk, LoseIdentity, Misread, OldDisk,
            StaleDisk,
        };
        let takes = |kind: &FaultKind| {
            let fails = matches!(kind, FailSync | FailWrite | Hang | DiskPower);
            fails || matches!(kind, LoseDisk | LoseIdentity | OldDisk | StaleDisk | Misread)
        };
        self.decays.is_empty() && !self.faults.iter().any(takes)
    }

    /// Whether members may acknowledge before they sync at some time of the run, though their disks
    /// do not keep completed writes.
    pub fn may_ack_unsynced(&self) -> bool {
        let changes = || self.faults.contains(&FaultKind::ChangeMode);
        match self.mode {
            Mode::Replicated => true,
            Mode::Sync => changes(),
            Mode::Device => false,
        }
    }

    /// A generator for one part of the run, independent of the others.
    pub fn rng(&self, part: u64) -> StdRng {
        StdRng::seed_from_u64(
            self.seed.wrapping_mul(0x2545_F491_4F6C_DD1D)
                ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15),
        )
    }
}

/// In half of the seeds, half of the kinds of decay. Drawn from a generator of its own, so that it
/// changes nothing else of a seed.
fn decays(seed: u64, geometry: &mut Geometry) -> Vec<FaultKind> {
    let mut rng =
        StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x6465_6361_7973);
    if rng.random_bool(0.5) {
        return Vec::new();
    }
    let mut decays = FaultKind::DECAYS.to_vec();
    decays.retain(|_| rng.random_bool(0.5));
    // Only a small data area can be filled within a run. The smallest has no space for this
    // workload's values, whole and in pieces, side by side.
    decays
        .retain(|kind| *kind != FaultKind::Fill || geometry.data_bytes == Geometry::MIN_DATA_BYTES);
    if decays.contains(&FaultKind::Fill) {
        geometry.data_bytes = FILLED_BYTES;
    }
    decays
}

/// True in one of `one_of` seeds; each name selects other seeds. Drawn from a generator of its own
/// as well.
fn variant(seed: u64, name: &str, one_of: u32) -> bool {
    let name =
        name.bytes().fold(0, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte)));
    StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ name).random_ratio(1, one_of)
}

/// In a third of the seeds messages arrive twice. Drawn from a generator of its own as well.
fn repeats(seed: u64) -> u32 {
    let mut rng =
        StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x0072_6570_6561_7473);
    if rng.random_bool(1.0 / 3.0) { rng.random_range(5..100) } else { 0 }
}

/// From two to six, of which up to three share a client, and so a stream at each node. Drawn from a generator of its
/// own as well.
fn watchers(seed: u64) -> Vec<u32> {
    let mut rng =
        StdRng::seed_from_u64(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0x7761_7463_6865_7273);
    let mut left: u32 = rng.random_range(2..=6);
    let mut by_client = Vec::new();
    while left > 0 {
        let together = rng.random_range(1..=left.min(3));
        by_client.push(together);
        left -= together;
    }
    by_client
}

/// Small journals and data areas, so that a run of a minute wraps around them.
fn geometry(rng: &mut StdRng) -> Geometry {
    let tight = rng.random_bool(0.5);
    Geometry {
        journal_bytes: if tight { MIB } else { 8 * MIB },
        checkpoint_bytes: 4 * MIB,
        data_bytes: match rng.random_range(0..4) {
            // So small that space is reused between two syncs.
            0 | 1 => Geometry::MIN_DATA_BYTES,
            2 => 32 * MIB,
            _ => 128 * MIB,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The story: each watcher had a client of its own, so no stream ever had two watches, and what a node tells all
    /// watches of a stream at once was never wrong for one of them.
    #[test]
    fn each_seed_has_two_to_six_watchers_and_in_some_two_or_three_share_a_client() {
        let drawn: Vec<Vec<u32>> = (0..100).map(watchers).collect();
        assert!(drawn.iter().all(|by_client| (2..=6).contains(&by_client.iter().sum::<u32>())));
        let together: BTreeSet<u32> = drawn.iter().flatten().copied().collect();
        assert_eq!(together, BTreeSet::from([1, 2, 3]));
        assert_eq!(Plan::new(7, None).watchers, watchers(7));
    }

    /// The story: watchers beside a majority that is left alone were checked once that had lasted for 47 s, and no run had
    /// so much time without a fault.
    #[test]
    fn in_some_seeds_clients_go_on_for_long_and_no_disk_is_slow_then() {
        let plans: Vec<Plan> = (0..200).map(|seed| Plan::new(seed, None)).collect();
        let lingers = || plans.iter().filter(|plan| plan.lingers);
        assert!(lingers().count() > 10 && lingers().all(|plan| !plan.heals_slow));
    }
}
