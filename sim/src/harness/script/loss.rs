//! What a person gave up is the newest only.
//!
//! When a majority lost power at once under load, and a person let the member lead whose log reaches furthest, what may be
//! missing was acknowledged within one sync window before the cut. The history up to there is judged as ever; then every
//! key is read, and writes acknowledged earlier than that window must be there.

use crate::harness::cluster::Cluster;
use cairn_clients::Violation;
use cairn_clients::check::acknowledged::{self, FinalKeys};
use cairn_clients::history::{History, Outcome, Record};
use std::time::Duration;

/// How much longer than the interval a window lasts: the sync at its end takes time too, on a slow disk.
const SYNC_TAKES: Duration = Duration::from_millis(500);

/// The event of a loss that somebody could notice.
pub(super) const GIVEN_UP: &str = "acknowledged writes given up";
/// What such a member logs.
pub(in crate::harness) const TOLD: &str = "what it holds was given up with `cairn recover`";
/// The event of a member that refused what contradicts what it has applied.
pub(in crate::harness) const CONTRADICTED: &str = "a member keeps what was given up apart";

/// Judges what the recovered cluster answered against the history before it: what was acknowledged earlier than a window
/// before the cut is there, where one cut is known to have taken it, and what was synced before its answer always.
pub(in crate::harness) fn judge(
    cluster: &Cluster,
    records: Vec<Record>,
    end: &FinalKeys,
    cut: Option<Duration>,
) {
    let window = cluster.plan.sync_interval + SYNC_TAKES;
    let safe = cut.map_or(0, |cut| cut.saturating_sub(window).as_nanos());
    let is_safe = |record: &Record| record.synced || u128::from(record.returned) <= safe;
    let before = records.iter().filter(|record| is_safe(record) && record.is_applied()).count();
    cluster.trace.event(format!("{before} writes were synced, or acknowledged before the window"));
    if !acknowledged::check(&History::new(records.clone()), end).is_empty() {
        cluster.count_event(GIVEN_UP);
    }
    // A later one may be gone, or may have taken an earlier one's place.
    let open = records.into_iter().map(|record| match !is_safe(&record) && record.is_applied() {
        true => Record { outcome: Outcome::Unknown, ..record },
        false => record,
    });
    for violation in acknowledged::check(&History::new(open.collect()), end) {
        cluster.violation(Violation::new("only the newest writes are given up", violation.detail));
    }
}
