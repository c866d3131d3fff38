//! What to do about damage that no older state on this disk replaces: refuse, or, with peers, keep
//! what is verified.

use crate::error::{Corruption, Error, Result};

/// Whether damage is accepted, and the first damage that was.
///
/// What holds here: a directory opened in spite of damage never counts as complete. Its node may
/// have lost acknowledged writes, so it recovers.
pub(crate) struct Salvage {
    allowed: bool,
    /// The damage that was accepted first.
    pub(super) damage: Option<Corruption>,
}

impl Salvage {
    pub(super) fn new(allowed: bool) -> Salvage {
        Salvage { allowed, damage: None }
    }

    /// Continues in spite of damage if that is allowed; returns any other error.
    pub(super) fn accept(&mut self, error: Error) -> Result<()> {
        match error {
            Error::Corrupt(damage) if self.allowed => {
                self.damage.get_or_insert(damage);
                Ok(())
            }
            error => Err(error),
        }
    }

    /// As [`Salvage::accept`], for the error of a check.
    pub(super) fn check(&mut self, checked: Result<()>) -> Result<()> {
        checked.or_else(|error| self.accept(error))
    }
}
