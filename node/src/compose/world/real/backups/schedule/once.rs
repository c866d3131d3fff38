//! What is logged once for each reason.
//!
//! What holds here: a reason that was told is told again only behind another one, or once it has ended. Whoever logs
//! reasons keeps one of these for each kind.

/// The reason that was told last.
#[derive(Debug, Default)]
pub(super) struct Once(Option<String>);

impl Once {
    /// Whether this reason was not the last one. It is from now on.
    pub(super) fn is_new(&mut self, why: &str) -> bool {
        let is_new = self.0.as_deref() != Some(why);
        if is_new {
            self.0 = Some(why.to_owned());
        }
        is_new
    }

    /// There is no reason any more. Returns whether there was one.
    pub(super) fn end(&mut self) -> bool {
        self.0.take().is_some()
    }
}

/// What a schedule tells.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Why nothing is saved.
    pub(super) unsaved: Once,
    /// Why nothing is removed.
    pub(super) unremoved: Once,
    /// What is wrong with the backup that was saved last.
    pub(super) unverified: Once,
    /// Which backups lie in the future.
    pub(super) ahead: Once,
    /// That another cluster of this name saves there.
    pub(super) namesake: Once,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_told_once_until_it_is_another_one_or_has_ended() {
        let mut once = Once::default();
        assert!(!once.end());
        let told = ["a", "a", "b", "b", "a"].map(|why| once.is_new(why));
        assert_eq!(told, [true, false, true, false, true]);
        assert!(once.end());
        assert!(once.is_new("a"));
    }
}
