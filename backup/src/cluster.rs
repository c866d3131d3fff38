//! Which backups at a target are of one cluster.
//!
//! What holds here: the name and the generation do not say it, since two new clusters may have the same ones. A member's
//! identity is random, and members are replaced one after another. So backups that name a common member are of one
//! cluster, and so are those that others connect. What names no member, because an earlier release wrote it, is told
//! apart by name and generation alone, and counts as a cluster's own only where nothing shows that there are two.

use crate::manifest::Head;
use std::collections::BTreeSet;

/// Which cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClusterId<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its generation.
    pub generation: u32,
    /// The identities of its members, each with the slot in the high 16 bits; none if they are not known.
    pub members: &'a [u64],
}

/// Whose a backup is, by what it names itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// It names a member of the cluster.
    Own,
    /// It has the name and the generation. Its members, or those of the cluster, are not known.
    Unknown,
    /// It has the name and the generation, and no member of the cluster.
    Namesake,
    /// It has another name or generation.
    Other,
}

impl<'a> ClusterId<'a> {
    /// As the head of a backup has it.
    pub(crate) fn of(head: &'a Head) -> ClusterId<'a> {
        let Head { cluster, generation, members, .. } = head;
        ClusterId { name: cluster, generation: *generation, members }
    }

    /// Whose a backup is.
    pub(crate) fn whose(&self, head: &Head) -> Whose {
        if (head.cluster.as_str(), head.generation) != (self.name, self.generation) {
            return Whose::Other;
        }
        if head.members.is_empty() || self.members.is_empty() {
            return Whose::Unknown;
        }
        match head.members.iter().any(|member| self.members.contains(member)) {
            true => Whose::Own,
            false => Whose::Namesake,
        }
    }
}

/// Tells clusters apart: name, generation, and a number where members are known.
pub(crate) type Key = (String, u32, Option<usize>);

/// The clusters of which there are backups at a target.
pub(crate) struct Clusters(Vec<Known>);

struct Known {
    name: String,
    generation: u32,
    /// No other one with this name and generation has one of these.
    members: BTreeSet<u64>,
}

impl Known {
    fn has_name(&self, id: &ClusterId<'_>) -> bool {
        (self.name.as_str(), self.generation) == (id.name, id.generation)
    }
}

impl Clusters {
    pub(crate) fn of<'a>(all: impl IntoIterator<Item = ClusterId<'a>>) -> Clusters {
        let mut known: Vec<Known> = Vec::new();
        for id in all.into_iter().filter(|id| !id.members.is_empty()) {
            let own: BTreeSet<u64> = id.members.iter().copied().collect();
            let mut members = own.clone();
            // It connects those that have a member of it.
            known.retain(|other| {
                let same = other.has_name(&id) && !other.members.is_disjoint(&own);
                if same {
                    members.extend(&other.members);
                }
                !same
            });
            let (name, generation) = (id.name.to_owned(), id.generation);
            known.push(Known { name, generation, members });
        }
        Clusters(known)
    }

    /// Which one this is. Where one of its name is known, what names no member is of that one.
    pub(crate) fn key(&self, id: &ClusterId<'_>) -> Key {
        let mut of_name = self.0.iter().enumerate().filter(|(_, known)| known.has_name(id));
        let number = match id.members.first() {
            Some(member) => of_name.find(|(_, known)| known.members.contains(member)),
            None => of_name.next().filter(|_| of_name.next().is_none()),
        };
        (id.name.to_owned(), id.generation, number.map(|(number, _)| number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn shop(members: &[u64]) -> ClusterId<'_> {
        ClusterId { name: "shop", generation: 0, members }
    }

    #[test]
    fn backups_that_name_a_common_member_are_of_one_cluster_also_through_others() {
        let all: [&[u64]; 5] = [&[1, 2, 3], &[7, 8], &[4, 5], &[3, 4], &[]];
        let clusters = Clusters::of(all.iter().map(|members| shop(members)));
        let key = |members: &[u64]| clusters.key(&shop(members));
        assert_eq!(key(&[1, 2, 3]), key(&[4, 5]), "by way of 3 and 4");
        assert_ne!(key(&[1, 2, 3]), key(&[7, 8]));
        assert_eq!(key(&[]).2, None, "of either");
        let named = ClusterId { name: "other", ..shop(&[1]) };
        assert_eq!(clusters.key(&named), ("other".to_owned(), 0, None));
        let made_anew = ClusterId { generation: 5, ..shop(&[1]) };
        assert_eq!(clusters.key(&made_anew).2, None);
    }

    #[test]
    fn what_names_no_member_is_of_the_only_cluster_of_its_name() {
        let clusters = Clusters::of([shop(&[]), shop(&[1, 2])]);
        assert_eq!(clusters.key(&shop(&[])), clusters.key(&shop(&[2, 1])));
        let none = Clusters::of([shop(&[])]);
        assert_eq!(none.key(&shop(&[])), ("shop".to_owned(), 0, None));
    }
}
