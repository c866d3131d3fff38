//! An unsafe recovery discards only the newest writes.
//!
//! After a majority lost power at once under load, and an operator let the member with the most
//! up-to-date log lead, only writes acknowledged within one sync window before the cut may be
//! missing. The history up to there is checked as usual. Then every key is read, and all writes
//! acknowledged before that window must be there.

use crate::harness::cluster::Cluster;
use cairn_clients::Violation;
use cairn_clients::check::acknowledged::{self, FinalKeys};
use cairn_clients::history::{History, Outcome, Record};
use std::time::Duration;

/// How much longer than the sync interval a window lasts: the sync at its end takes time too, on a
/// slow disk.
const SYNC_TAKES: Duration = Duration::from_millis(500);

/// The event of a loss that clients could notice.
pub(super) const DISCARDED: &str = "acknowledged writes discarded";
/// What a member logs that refuses what contradicts its applied entries.
pub(in crate::harness) const DISCARDED_ERROR: &str =
    "what it holds was discarded with `cairn unsafe-recovery`";
/// The event of such a member.
pub(in crate::harness) const CONTRADICTED: &str = "a member with discarded entries stays apart";

/// Checks the answers of the recovered cluster against the history before it. Writes that were
/// synced before their acknowledgement must be there: because they asked for that, or because the
/// cluster had answered that all are. If one cut is known to have caused the loss,
/// so must writes acknowledged earlier than a window before it.
pub(in crate::harness) fn judge(
    cluster: &Cluster,
    records: Vec<Record>,
    end: &FinalKeys,
    cut: Option<Duration>,
) {
    let window = cluster.plan.sync_interval + SYNC_TAKES;
    let safe = cut.map_or(0, |cut| cut.saturating_sub(window).as_nanos());
    let is_safe = |record: &Record| {
        record.synced || u128::from(record.returned) <= safe || cluster.promises.covers(record)
    };
    let before = records.iter().filter(|record| is_safe(record) && record.is_applied()).count();
    cluster.trace.event(format!("{before} writes were synced, or acknowledged before the window"));
    if !acknowledged::check(&History::new(records.clone()), end).is_empty() {
        cluster.count_event(DISCARDED);
    }
    // A later write may be gone, or may have replaced an earlier one.
    let open = records.into_iter().map(|record| match !is_safe(&record) && record.is_applied() {
        true => Record { outcome: Outcome::Unknown, ..record },
        false => record,
    });
    for violation in acknowledged::check(&History::new(open.collect()), end) {
        cluster.violation(Violation::new(
            "an unsafe recovery discards only the newest writes",
            violation.detail,
        ));
    }
}
