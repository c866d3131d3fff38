//! What a power cut at some moment would leave holds what must be there, whatever the node reports
//! about itself.

use super::majority::leaves_majority;
use cairn_clients::Violation;
use cairn_engine::{LogId, MemberState};
use cairn_raft::NodeId;
use std::collections::BTreeSet;

/// The property's name.
pub const NAME: &str = "a power cut at any moment leaves what was acknowledged";

/// The result of opening the directory that a power cut would leave.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// The member.
    pub member: NodeId,
    /// The state in which the member would start.
    pub member_state: MemberState,
    /// The last entry that its member had counted as stored and still held, as the simulation
    /// observed it.
    pub counted: Option<LogId>,
    /// Whether the image holds that entry.
    pub holds_counted: bool,
    /// Whether the image holds the last entry that any member had applied.
    pub holds_applied: bool,
    /// Whether its node runs.
    pub up: bool,
    /// Whether it may acknowledge before it syncs.
    pub may_ack_unsynced: bool,
    /// Whether it may lack acknowledged entries already, because of a fault.
    pub lacks_acks: bool,
}

/// Checks the image of one machine.
pub fn check(image: &CrashImage) -> Option<Violation> {
    let CrashImage { member, member_state, counted, .. } = image;
    let slot = member.slot();
    let detail = match member_state {
        MemberState::Active if !image.holds_counted => {
            format!(
                "node {slot} would start as active without entry {counted:?}, which it had counted as stored"
            )
        }
        MemberState::Recovering if !image.may_ack_unsynced && !image.lacks_acks => {
            format!(
                "node {slot} would recover, though its mode acknowledges nothing before it is safe"
            )
        }
        _ => return None,
    };
    Some(Violation::new(NAME, detail))
}

/// Checks the images of all machines together: if all lost power, a majority would still hold what
/// is applied. With `synced`, it was synced before it was acknowledged, so a majority must hold it in
/// whatever state they come back. With `bare_majority`, only a bare majority has been up for long,
/// so each of them must come back as an active member.
pub fn check_all(
    images: &[CrashImage],
    configurations: &[BTreeSet<NodeId>],
    applied: LogId,
    [synced, bare_majority]: [bool; 2],
) -> Option<Violation> {
    let lacks = |image: &&CrashImage| !image.holds_applied;
    let active = |image: &&CrashImage| image.member_state == MemberState::Active;
    let ids = |image: &CrashImage| image.member;
    let lacking: BTreeSet<NodeId> = images.iter().filter(lacks).filter(active).map(ids).collect();
    if let Some(voters) = configurations.iter().find(|voters| !leaves_majority(voters, &lacking)) {
        let detail = format!(
            "nodes {lacking:?} of {voters:?} would come back as active without entry {applied}"
        );
        return Some(Violation::new(NAME, detail));
    }
    let blameless = |image: &&CrashImage| synced && !image.lacks_acks;
    let lost: BTreeSet<NodeId> = images.iter().filter(lacks).filter(blameless).map(ids).collect();
    if let Some(voters) = configurations.iter().find(|voters| !leaves_majority(voters, &lost)) {
        let detail = format!(
            "nodes {lost:?} of {voters:?} would not hold entry {applied}, which counts as synced"
        );
        return Some(Violation::new(NAME, detail));
    }
    let votes = |image: &&CrashImage| {
        !configurations.is_empty() && configurations.iter().all(|all| all.contains(&image.member))
    };
    let recovering: Vec<NodeId> = images
        .iter()
        .filter(votes)
        .filter(|image| image.up && image.member_state == MemberState::Recovering)
        .map(ids)
        .collect();
    (bare_majority && !recovering.is_empty()).then(|| {
        let detail = format!(
            "nodes {recovering:?} acknowledge before they sync though only a bare majority is up"
        );
        Violation::new(NAME, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = LogId { term: 2, index: 7 };

    fn image(slot: u16, member_state: MemberState, holds: bool) -> CrashImage {
        CrashImage {
            member: NodeId::new(slot, 1),
            member_state,
            counted: Some(ID),
            holds_counted: holds,
            holds_applied: holds,
            up: true,
            may_ack_unsynced: true,
            lacks_acks: false,
        }
    }

    #[test]
    fn a_member_that_lacks_what_it_counted_must_recover() {
        assert_eq!(check(&image(1, MemberState::Active, true)), None);
        assert_eq!(check(&image(1, MemberState::Recovering, false)), None);
        assert!(check(&image(1, MemberState::Active, false)).is_some());
        let synced =
            CrashImage { may_ack_unsynced: false, ..image(1, MemberState::Recovering, true) };
        assert!(check(&synced).is_some());
        assert_eq!(check(&CrashImage { lacks_acks: true, ..synced }), None);
    }

    fn three() -> Vec<BTreeSet<NodeId>> {
        vec![(1..=3).map(|slot| NodeId::new(slot, 1)).collect()]
    }

    #[test]
    fn what_was_synced_is_held_by_a_majority_in_any_state() {
        use MemberState::{Active, Recovering};
        let judge = |images: &[CrashImage], synced| {
            check_all(images, &three(), ID, [synced, false]).is_some()
        };
        let images =
            [image(1, Active, true), image(2, Recovering, false), image(3, Recovering, false)];
        assert!(!judge(&images, false));
        assert!(judge(&images, true));
        let [holds, lost, faulty] = images;
        assert!(!judge(&[holds, lost, CrashImage { lacks_acks: true, ..faulty }], true));
    }

    #[test]
    fn a_minority_may_lack_what_is_applied_and_a_bare_majority_syncs_before_it_acknowledges() {
        use MemberState::{Active, Recovering};
        let judge = |images: &[CrashImage], bare_majority| {
            check_all(images, &three(), ID, [false, bare_majority]).is_some()
        };
        let (active, lacks, recovers) =
            (image(1, Active, true), image(2, Active, false), image(3, Recovering, false));
        assert!(!judge(&[active.clone(), lacks.clone(), recovers.clone()], false));
        let other = CrashImage { member: NodeId::new(3, 1), ..lacks.clone() };
        assert!(judge(&[active.clone(), lacks.clone(), other], false));
        let joiner = CrashImage { member: NodeId::new(3, 2), ..lacks.clone() };
        assert!(!judge(&[active.clone(), lacks.clone(), joiner], false));
        assert!(judge(&[active.clone(), recovers.clone()], true));
        assert!(!judge(&[active.clone(), active.clone()], true));
        let killed = CrashImage { up: false, ..recovers.clone() };
        assert!(!judge(&[active.clone(), active.clone(), killed], true));
    }
}
