//! What is lost: the first ones by name, and how many there are.
//!
//! What holds here: however much is lost, what is remembered of it is bounded.

/// So many are named; all are counted.
const NAMED: usize = 10;

/// Writes that were acknowledged and are not there, and values that nobody was told of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Losses {
    named: Vec<String>,
    count: u64,
}

impl Losses {
    pub(super) fn add(&mut self, what: String) {
        self.count += 1;
        if self.named.len() < NAMED {
            self.named.push(what);
        }
    }

    pub(super) fn append(&mut self, other: Losses) {
        self.count += other.count;
        let space = NAMED.saturating_sub(self.named.len());
        self.named.extend(other.named.into_iter().take(space));
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first ones.
    pub(super) fn named(&self) -> &[String] {
        &self.named
    }

    /// All of it in one line.
    pub(super) fn line(&self) -> String {
        if self.is_empty() {
            return "nothing is lost".to_owned();
        }
        let more = if self.count > self.named.len() as u64 { "; …" } else { "" };
        format!("{} ARE LOST: {}{more}", self.count, self.named.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some(numbers: std::ops::Range<u64>) -> Losses {
        let mut losses = Losses::default();
        for number in numbers {
            losses.add(format!("k{number}"));
        }
        losses
    }

    #[test]
    fn the_first_losses_are_named_and_all_are_counted() {
        let mut losses = some(0..3);
        assert_eq!(losses.line(), "3 ARE LOST: k0; k1; k2");
        losses.append(some(3..20));
        assert_eq!((losses.count(), losses.named().len()), (20, NAMED));
        assert!(losses.line().ends_with("k9; …"), "{}", losses.line());
        assert_eq!(Losses::default().line(), "nothing is lost");
    }
}
