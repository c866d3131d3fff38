//! The byte strings between the children of an inner node, packed into one buffer in ascending
//! order. Child `i` holds the keys below separator `i`, and at or above separator `i - 1`.

/// Packed byte strings in ascending order.
#[derive(Clone, Default)]
pub(super) struct Separators {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Separators {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of the strings.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }

    fn start(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |before| self.end(before))
    }

    fn end(&self, at: usize) -> usize {
        self.ends.get(at).map_or(self.bytes.len(), |end| *end as usize)
    }

    pub(super) fn get(&self, at: usize) -> &[u8] {
        let found = self.bytes.get(self.start(at)..self.end(at));
        assert!(found.is_some(), "separators of the index lie within their buffer");
        found.unwrap_or_default()
    }

    /// The number of separators at or below `key`: the child that it belongs to.
    pub(super) fn child_of(&self, key: &[u8]) -> usize {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            if self.get(middle) <= key {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    pub(super) fn insert(&mut self, at: usize, separator: &[u8]) {
        let start = self.start(at);
        self.bytes.splice(start..start, separator.iter().copied());
        self.ends.insert(at, start as u32);
        self.ends.iter_mut().skip(at).for_each(|end| *end += separator.len() as u32);
    }

    pub(super) fn push(&mut self, separator: &[u8]) {
        self.bytes.extend_from_slice(separator);
        self.ends.push(self.bytes.len() as u32);
    }

    pub(super) fn remove(&mut self, at: usize) {
        let (start, end) = (self.start(at), self.end(at));
        self.bytes.drain(start..end);
        self.ends.remove(at);
        self.ends.iter_mut().skip(at).for_each(|later| *later -= (end - start) as u32);
    }

    /// Cuts before separator `at`. Returns that separator and those behind it.
    pub(super) fn split_off(&mut self, at: usize) -> (Vec<u8>, Separators) {
        let (middle, end) = (self.get(at).to_vec(), self.end(at));
        let bytes = self.bytes.split_off(end);
        let ends = self.ends.split_off(at + 1).into_iter().map(|later| later - end as u32);
        let right = Separators { bytes, ends: ends.collect() };
        self.ends.pop();
        self.bytes.truncate(end - middle.len());
        (middle, right)
    }

    /// Appends a separator and those behind it.
    pub(super) fn append(&mut self, middle: &[u8], right: &Separators) {
        self.push(middle);
        (0..right.len()).for_each(|at| self.push(right.get(at)));
    }

    /// Gives back memory that is reserved for more.
    pub(super) fn shrink(&mut self) {
        self.bytes.shrink_to_fit();
        self.ends.shrink_to_fit();
    }
}

/// The shortest byte string above `left` and at most `right`, which is above `left`.
pub(super) fn between<'a>(left: &[u8], right: &'a [u8]) -> &'a [u8] {
    let common = left.iter().zip(right).take_while(|(left, right)| left == right).count();
    right.get(..=common).unwrap_or(right)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn strings() -> impl Strategy<Value = Vec<Vec<u8>>> {
        prop::collection::btree_set(prop::collection::vec(0u8..3, 0..5), 1..20)
            .prop_map(|strings| strings.into_iter().collect())
    }

    fn packed(strings: &[Vec<u8>]) -> Separators {
        let mut separators = Separators::default();
        strings.iter().for_each(|string| separators.push(string));
        separators
    }

    fn all(separators: &Separators) -> Vec<Vec<u8>> {
        (0..separators.len()).map(|at| separators.get(at).to_vec()).collect()
    }

    proptest! {
        #[test]
        fn separators_are_edited_as_a_list(mut list in strings(), at: prop::sample::Index) {
            let mut separators = packed(&list);
            let at = at.index(list.len());
            let taken = list.remove(at);
            separators.remove(at);
            prop_assert_eq!(all(&separators), list.clone());
            separators.insert(at, &taken);
            list.insert(at, taken);
            prop_assert_eq!(all(&separators), list.clone());
            let (middle, right) = separators.split_off(at);
            prop_assert_eq!(all(&separators), &list[..at]);
            prop_assert_eq!(&middle, &list[at]);
            prop_assert_eq!(all(&right), &list[at + 1..]);
            separators.append(&middle, &right);
            prop_assert_eq!(all(&separators), list);
        }

        #[test]
        fn a_key_belongs_behind_the_separators_that_are_not_above_it(
            list in strings(), key in prop::collection::vec(0u8..3, 0..5),
        ) {
            let expected = list.iter().filter(|separator| **separator <= key).count();
            prop_assert_eq!(packed(&list).child_of(&key), expected);
        }

        #[test]
        fn a_separator_lies_between_its_neighbours(list in strings()) {
            for pair in list.windows(2) {
                let separator = between(&pair[0], &pair[1]);
                prop_assert!(&pair[0][..] < separator && separator <= &pair[1][..]);
            }
        }
    }
}
