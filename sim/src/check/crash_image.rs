//! What a loss of power at some moment would leave holds what must be there, whatever the node says of itself.

use cairn_clients::Violation;
use cairn_engine::{LogId, Standing};

/// The property's name.
pub const NAME: &str = "what a loss of power would leave holds what was counted on";

/// What was found when the directory that a loss of power would leave was opened.
#[derive(Clone, Debug)]
pub struct CrashImage {
    /// Whose.
    pub slot: u16,
    /// What its member would be taken for.
    pub standing: Standing,
    /// Of the entries that its member had counted as stored, the last one that it still held; the simulation heard it say so.
    pub counted: Option<LogId>,
    /// Whether that is there.
    pub holds_counted: bool,
    /// Whether the last entry that anybody had applied is there.
    pub holds_applied: bool,
    /// Whether it votes.
    pub votes: bool,
    /// Whether its node runs.
    pub up: bool,
    /// Whether it may have forgotten something: it ran in a mode that counts before it syncs, or something was done to its disk.
    pub may_forget: bool,
}

/// Judges one machine's.
pub fn check(image: &CrashImage) -> Option<Violation> {
    let CrashImage { slot, standing, counted, .. } = image;
    let detail = match standing {
        Standing::Active if !image.holds_counted => {
            format!(
                "node {slot} would take itself for whole without entry {counted:?}, which it had counted as stored"
            )
        }
        Standing::Recovering if !image.may_forget => {
            format!("node {slot} would recover, and its mode counts nothing before it is safe")
        }
        _ => return None,
    };
    Some(Violation::new(NAME, detail))
}

/// Judges those of all machines together: if all lost power, no majority could be without what is applied. With `bare`, no more
/// than a majority has been there for long: each of them is to come back as a whole member.
pub fn check_all(images: &[CrashImage], members: usize, applied: LogId, bare: bool) -> Option<Violation> {
    let majority = members / 2 + 1;
    let voters = || images.iter().filter(|image| image.votes);
    let lacking: Vec<u16> = voters()
        .filter(|image| image.standing == Standing::Active && !image.holds_applied)
        .map(|image| image.slot)
        .collect();
    if members.saturating_sub(lacking.len()) < majority {
        let detail = format!("nodes {lacking:?} of {members} would come back whole, without entry {applied}");
        return Some(Violation::new(NAME, detail));
    }
    let forgetful: Vec<u16> = voters()
        .filter(|image| image.up && image.standing == Standing::Recovering)
        .map(|image| image.slot)
        .collect();
    (bare && !forgetful.is_empty()).then(|| {
        let detail = format!("nodes {forgetful:?} run ahead of their syncs though nobody can be spared");
        Violation::new(NAME, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: LogId = LogId { term: 2, index: 7 };

    fn image(slot: u16, standing: Standing, holds: bool) -> CrashImage {
        let counted = Some(ID);
        let (votes, up, may_forget) = (true, true, true);
        CrashImage {
            slot,
            standing,
            counted,
            holds_counted: holds,
            holds_applied: holds,
            votes,
            up,
            may_forget,
        }
    }

    #[test]
    fn who_lacks_what_it_counted_must_know_it() {
        assert_eq!(check(&image(1, Standing::Active, true)), None);
        assert_eq!(check(&image(1, Standing::Recovering, false)), None);
        assert!(check(&image(1, Standing::Active, false)).is_some());
        let synced = CrashImage { may_forget: false, ..image(1, Standing::Recovering, true) };
        assert!(check(&synced).is_some());
    }

    #[test]
    fn a_minority_may_lack_what_is_applied_and_a_bare_majority_does_not_run_ahead() {
        use Standing::{Active, Recovering};
        let judge = |images: &[CrashImage], bare| check_all(images, 3, ID, bare).is_some();
        let (whole, lacks, forgets) =
            (image(1, Active, true), image(2, Active, false), image(3, Recovering, false));
        assert!(!judge(&[whole.clone(), lacks.clone(), forgets.clone()], false));
        assert!(judge(&[whole.clone(), lacks.clone(), lacks.clone()], false));
        let newcomer = CrashImage { votes: false, ..lacks.clone() };
        assert!(!judge(&[whole.clone(), lacks.clone(), newcomer], false));
        assert!(judge(&[whole.clone(), forgets.clone()], true));
        assert!(!judge(&[whole.clone(), whole.clone()], true));
        let killed = CrashImage { up: false, ..forgets.clone() };
        assert!(!judge(&[whole.clone(), whole.clone(), killed], true));
    }
}
