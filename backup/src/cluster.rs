//! Which backups at a target are of one cluster.
//!
//! What holds here: the name and the generation do not say it, since two new clusters may have the same ones. A member's
//! identity is random, and members are replaced one after another. So backups that name a common member are of one
//! cluster, and so are those that others connect. What names no member, because an earlier release wrote it, is told
//! apart by name and generation alone, and counts as a cluster's own only where nothing shows that there are two.

use crate::manifest::Head;
use std::collections::BTreeMap;

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

/// The clusters of which there are backups at a target, by name and generation. Somebody may have put a hundred thousand
/// there: each costs as many steps as it has members, however many others there are.
pub(crate) struct Clusters(BTreeMap<(String, u32), Known>);

/// The clusters of one name and generation.
#[derive(Default)]
struct Known {
    /// The number of the cluster of each member.
    members: BTreeMap<u64, usize>,
    /// The number of the only one, if it is the only one.
    only: Option<usize>,
}

impl Clusters {
    pub(crate) fn of<'a>(all: impl IntoIterator<Item = ClusterId<'a>>) -> Clusters {
        let (mut known, mut joined) = (BTreeMap::<_, Known>::new(), Joined::default());
        for id in all.into_iter().filter(|id| !id.members.is_empty()) {
            let number = joined.add();
            let of_name = known.entry((id.name.to_owned(), id.generation)).or_default();
            for member in id.members {
                // It connects those that have a member of it.
                if let Some(other) = of_name.members.insert(*member, number) {
                    joined.join(other, number);
                }
            }
        }
        for of_name in known.values_mut() {
            of_name.members.values_mut().for_each(|number| *number = joined.last(*number));
            let mut numbers = of_name.members.values();
            let first = numbers.next().copied();
            of_name.only = first.filter(|first| numbers.all(|number| number == first));
        }
        Clusters(known)
    }

    /// Which one this is. Where one of its name is known, what names no member is of that one.
    pub(crate) fn key(&self, id: &ClusterId<'_>) -> Key {
        let name = (id.name.to_owned(), id.generation);
        let number = self.0.get(&name).and_then(|of_name| match id.members.first() {
            Some(member) => of_name.members.get(member).copied(),
            None => of_name.only,
        });
        (name.0, name.1, number)
    }
}

/// Numbers that were joined: each has the one that it was joined to, or itself.
#[derive(Default)]
struct Joined(Vec<usize>);

impl Joined {
    /// A new number, which is joined to none.
    fn add(&mut self) -> usize {
        let number = self.0.len();
        self.0.push(number);
        number
    }

    /// Joins a number, and all that it was joined with, to the newest one.
    fn join(&mut self, number: usize, newest: usize) {
        let last = self.last(number);
        if let Some(next) = self.0.get_mut(last) {
            *next = newest;
        }
    }

    /// The one number of all that were joined with this one. Each look halves the way of the next one.
    fn last(&mut self, mut number: usize) -> usize {
        while let Some(next) = self.0.get(number).copied().filter(|next| *next != number) {
            let behind = self.0.get(next).copied().unwrap_or(next);
            if let Some(next) = self.0.get_mut(number) {
                *next = behind;
            }
            number = behind;
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

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

    /// The story: each backup was compared with each cluster that was known by then. A hundred thousand made-up ones, each with
    /// members of its own, kept a leader busy for longer than anybody waits.
    #[test]
    fn a_hundred_thousand_clusters_are_told_apart_and_links_between_them_make_one() {
        const MANY: u64 = 100_000;
        let members: Vec<[u64; 2]> = (0..MANY).map(|number| [2 * number, 2 * number + 1]).collect();
        let apart = || members.iter().map(|members| shop(members));
        let keys =
            |clusters: &Clusters| apart().map(|id| clusters.key(&id)).collect::<BTreeSet<_>>();
        let clusters = Clusters::of(apart());
        assert_eq!(keys(&clusters).len() as u64, MANY);
        assert_eq!(clusters.key(&shop(&[])).2, None, "of any");
        // Those of a chain, each of which has a member of the one before and of the next one.
        let links: Vec<[u64; 2]> = (1..MANY).map(|number| [2 * number - 1, 2 * number]).collect();
        let clusters = Clusters::of(apart().chain(links.iter().map(|members| shop(members))));
        assert_eq!(keys(&clusters).len(), 1);
        assert_eq!(clusters.key(&shop(&[])), clusters.key(&shop(&[7])));
    }

    #[test]
    fn what_names_no_member_is_of_the_only_cluster_of_its_name() {
        let clusters = Clusters::of([shop(&[]), shop(&[1, 2])]);
        assert_eq!(clusters.key(&shop(&[])), clusters.key(&shop(&[2, 1])));
        let none = Clusters::of([shop(&[])]);
        assert_eq!(none.key(&shop(&[])), ("shop".to_owned(), 0, None));
    }
}
