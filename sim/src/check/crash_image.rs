//! What a power cut at some moment would leave holds what must be there, whatever the node reports
//! about itself.

use cairn_clients::Violation;
use cairn_engine::{LogId, MemberState};

/// The property's name.
pub const NAME: &str = "a power cut at any moment leaves what was acknowledged";

/// The result of opening the directory that a power cut would leave.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// The member's slot.
    pub slot: u16,
    /// The state in which the member would start.
    pub member_state: MemberState,
    /// The last entry that its member had counted as stored and still held, as the simulation
    /// observed it.
    pub counted: Option<LogId>,
    /// Whether the image holds that entry.
    pub holds_counted: bool,
    /// Whether the image holds the last entry that any member had applied.
    pub holds_applied: bool,
    /// Whether the member votes.
    pub votes: bool,
    /// Whether its node runs.
    pub up: bool,
    /// Whether it may lack acknowledged entries: its mode acknowledges before it syncs, or its disk
    /// was changed by a fault.
    pub may_lose_acks: bool,
}

/// Checks the image of one machine.
pub fn check(image: &CrashImage) -> Option<Violation> {
    let CrashImage { slot, member_state, counted, .. } = image;
    let detail = match member_state {
        MemberState::Active if !image.holds_counted => {
            format!(
                "node {slot} would start as active without entry {counted:?}, which it had counted as stored"
            )
        }
        MemberState::Recovering if !image.may_lose_acks => {
            format!(
                "node {slot} would recover, though its mode acknowledges nothing before it is safe"
            )
        }
        _ => return None,
    };
    Some(Violation::new(NAME, detail))
}

/// Checks the images of all machines together: if all lost power, a majority would still hold what
/// is applied. With `bare_majority`, only a bare majority has been up for long, so each of them
/// must come back as an active member.
pub fn check_all(
    images: &[CrashImage],
    members: usize,
    applied: LogId,
    bare_majority: bool,
) -> Option<Violation> {
    let majority = members / 2 + 1;
    let voters = || images.iter().filter(|image| image.votes);
    let lacking: Vec<u16> = voters()
        .filter(|image| image.member_state == MemberState::Active && !image.holds_applied)
        .map(|image| image.slot)
        .collect();
    if members.saturating_sub(lacking.len()) < majority {
        let detail = format!(
            "nodes {lacking:?} of {members} would come back as active without entry {applied}"
        );
        return Some(Violation::new(NAME, detail));
    }
    let recovering: Vec<u16> = voters()
        .filter(|image| image.up && image.member_state == MemberState::Recovering)
        .map(|image| image.slot)
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
        let counted = Some(ID);
        let (votes, up, may_lose_acks) = (true, true, true);
        CrashImage {
            slot,
            member_state,
            counted,
            holds_counted: holds,
            holds_applied: holds,
            votes,
            up,
            may_lose_acks,
        }
    }

    #[test]
    fn a_member_that_lacks_what_it_counted_must_recover() {
        assert_eq!(check(&image(1, MemberState::Active, true)), None);
        assert_eq!(check(&image(1, MemberState::Recovering, false)), None);
        assert!(check(&image(1, MemberState::Active, false)).is_some());
        let synced = CrashImage { may_lose_acks: false, ..image(1, MemberState::Recovering, true) };
        assert!(check(&synced).is_some());
    }

    #[test]
    fn a_minority_may_lack_what_is_applied_and_a_bare_majority_syncs_before_it_acknowledges() {
        use MemberState::{Active, Recovering};
        let judge = |images: &[CrashImage], bare_majority| {
            check_all(images, 3, ID, bare_majority).is_some()
        };
        let (active, lacks, recovers) =
            (image(1, Active, true), image(2, Active, false), image(3, Recovering, false));
        assert!(!judge(&[active.clone(), lacks.clone(), recovers.clone()], false));
        assert!(judge(&[active.clone(), lacks.clone(), lacks.clone()], false));
        let joiner = CrashImage { votes: false, ..lacks.clone() };
        assert!(!judge(&[active.clone(), lacks.clone(), joiner], false));
        assert!(judge(&[active.clone(), recovers.clone()], true));
        assert!(!judge(&[active.clone(), active.clone()], true));
        let killed = CrashImage { up: false, ..recovers.clone() };
        assert!(!judge(&[active.clone(), active.clone(), killed], true));
    }
}
