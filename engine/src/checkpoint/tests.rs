//! Checkpoints in several parts, against a model of the keys.

use super::header::Part;
use super::load::parts;
use super::*;
use crate::group::Group;
use crate::io::memory::Memory;
use crate::io::{BLOCK, FileKind, OpenFile};
use crate::journal::Moved;
use crate::types::{GroupId, KeyEntry, LogId, ValueRef};
use bytes::Bytes;
use futures::executor::block_on;
use futures::future::ready;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const AREA_BYTES: u64 = 4 << 20;
const GROUP: GroupId = GroupId(3);

type Groups = BTreeMap<GroupId, Group>;

#[derive(Clone, Copy, Debug)]
enum Step {
    Put(u8),
    Delete(u8),
    Move(u8),
    Checkpoint,
    /// The state is read back from the area with the newest one, as after a restart.
    Open,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => any::<u8>().prop_map(|key| Step::Put(key % 40)),
        3 => any::<u8>().prop_map(|key| Step::Delete(key % 40)),
        3 => any::<u8>().prop_map(|key| Step::Move(key % 40)),
        4 => Just(Step::Checkpoint),
        1 => Just(Step::Open),
    ]
}

/// A state, the areas that it is written to in turn, and what it should be.
struct World {
    groups: Groups,
    model: BTreeMap<u8, KeyEntry>,
    index: u64,
    devices: [Arc<Memory>; 2],
    /// What is written in each area, and at which state.
    written: [Option<(Header, BTreeMap<GroupId, LogId>)>; 2],
    /// What the newest checkpoint holds.
    saved: BTreeMap<u8, KeyEntry>,
    number: u64,
    parts_of_changes: usize,
}

impl World {
    fn new() -> World {
        let devices = [(); 2].map(|()| Memory::new(vec![0; AREA_BYTES as usize]));
        World {
            groups: Groups::from([(GROUP, Group::default())]),
            model: BTreeMap::new(),
            index: 0,
            devices,
            written: [None, None],
            saved: BTreeMap::new(),
            number: 0,
            parts_of_changes: 0,
        }
    }

    fn group(&mut self) -> &mut Group {
        self.groups.get_mut(&GROUP).unwrap()
    }

    fn place(&mut self) -> ValueRef {
        self.index += 1;
        ValueRef::contiguous(self.index * BLOCK as u64, 4096, u128::from(self.index)).unwrap()
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Put(key) => {
                let value = self.place();
                let version = LogId { term: 1, index: self.index };
                let entry = KeyEntry { version, value };
                self.group().applied = Some(version);
                self.group().keys.insert(&[key], entry.clone());
                self.model.insert(key, entry);
            }
            Step::Delete(key) => {
                self.index += 1;
                self.group().applied = Some(LogId { term: 1, index: self.index });
                self.group().remove_key(&[key]);
                self.model.remove(&key);
            }
            Step::Move(key) => {
                let Some(held) = self.model.get(&key).cloned() else { return };
                let to = self.place();
                let to = ValueRef::contiguous(to.offset(), 4096, held.value.hash).unwrap();
                let key_bytes = Bytes::copy_from_slice(&[key]);
                let (id, from) = (held.version, held.value.clone());
                let moved = Moved { group: GROUP, id, key: key_bytes, from, to: to.clone() };
                self.group().value_moved(&moved);
                self.model.insert(key, KeyEntry { value: to, ..held });
            }
            Step::Checkpoint => self.checkpoint(),
            Step::Open => {
                self.groups = self.load().unwrap_or_else(|| [(GROUP, Group::default())].into());
                self.model = self.saved.clone();
                self.written = [None, None];
            }
        }
    }

    fn newest(&self) -> usize {
        self.number as usize % 2
    }

    fn file(&self, area: usize) -> OpenFile {
        self.devices[area].file(FileKind::Checkpoint0)
    }

    fn checkpoint(&mut self) {
        let capture = Capture::next(false, &mut self.groups);
        self.number += 1;
        let area = self.newest();
        let header = Header { number: self.number, ..Header::default() };
        let before = self.written[area].take();
        let changes = before.and_then(|(before, applied)| {
            let parts = block_on(parts(&self.file(area), &before)).unwrap().len();
            Some((before, capture.changes(&applied)?)).filter(|_| parts < PARTS)
        });
        let file = self.file(area);
        let header = match changes {
            None => block_on(write(&file, &capture, header, ready(Ok(())))),
            Some((before, changes)) => {
                self.parts_of_changes += 1;
                let headers = (&before, header);
                block_on(write_changes(&file, &capture, &changes, headers, ready(Ok(()))))
            }
        };
        let header = header.unwrap();
        self.written[area] = Some((header, capture.applied()));
        self.saved = self.model.clone();
        self.compare();
    }

    /// The newest checkpoint.
    fn load(&self) -> Option<Groups> {
        let file = self.file(self.newest());
        let header = Header::decode(&self.devices[self.newest()].0.lock()[..BLOCK], AREA_BYTES)?;
        assert_eq!(block_on(verify(&file, 0, &|_| Box::pin(ready(())))), Ok(Some(header)));
        Some(block_on(load(&file, &header, &mut |_, _| {})).unwrap())
    }

    fn compare(&self) {
        let groups = self.load().unwrap();
        let group = &groups[&GROUP];
        let found: BTreeMap<u8, KeyEntry> =
            group.keys.iter().map(|(key, entry)| (key[0], entry)).collect();
        assert_eq!(found, self.saved);
        assert_eq!(group.applied, self.groups[&GROUP].applied);
        assert_eq!(group.keys.len(), self.saved.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever was put, deleted and moved between them, and whichever restarts were between.
    #[test]
    fn the_parts_of_a_checkpoint_give_the_state_that_was_captured(
        steps in proptest::collection::vec(step(), 1..200)
    ) {
        let mut world = World::new();
        steps.into_iter().for_each(|step| world.take(step));
    }
}

/// Two whole checkpoints, then three of what changed: two in the area of the first one.
fn example() -> World {
    let mut world = World::new();
    for round in 0..5 {
        [Step::Put(round), Step::Put(9), Step::Delete(round / 2), Step::Move(9)]
            .into_iter()
            .for_each(|step| world.take(step));
        world.take(Step::Checkpoint);
    }
    // Nobody knows what the interval before the first one touched.
    assert_eq!(world.parts_of_changes, 3);
    world
}

#[test]
fn a_part_that_is_damaged_is_found_and_not_loaded_wherever_it_is() {
    let world = example();
    let area = world.newest();
    let (header, _) = world.written[area].clone().unwrap();
    let file = world.file(area);
    let parts = block_on(parts(&file, &header)).unwrap();
    assert!(parts.len() > 1, "{parts:?}");
    for Part { at, .. } in parts {
        world.devices[area].0.lock()[at as usize + 20] ^= 1;
        assert!(block_on(load(&file, &header, &mut |_, _| {})).is_err(), "the part at {at}");
        assert!(block_on(verify(&file, 0, &|_| Box::pin(ready(())))).is_err(), "the part at {at}");
        world.devices[area].0.lock()[at as usize + 20] ^= 1;
    }
    world.compare();
}

/// A power cut may leave any of what follows the last checkpoint of an area.
#[test]
fn what_lies_behind_the_parts_of_a_checkpoint_does_not_matter() {
    let world = example();
    let area = world.newest();
    let (header, _) = world.written[area].clone().unwrap();
    world.devices[area].0.lock()[header.area_bytes() as usize..].fill(0xa5);
    world.compare();
}

#[test]
fn too_many_changes_for_the_area_leave_the_checkpoint_before_them() {
    let mut world = World::new();
    for round in 0..3 {
        world.take(Step::Put(round));
        world.take(Step::Checkpoint);
    }
    let area = 1 - world.newest();
    let (before, applied) = world.written[area].clone().unwrap();
    (0..40).for_each(|key| world.take(Step::Put(key)));
    let capture = Capture::next(false, &mut world.groups);
    let changes = capture.changes(&applied).unwrap();
    let short = OpenFile { bytes: before.area_bytes() + 2048, ..world.file(area) };
    let headers = (&before, Header { number: 9, ..Header::default() });
    let written = block_on(write_changes(&short, &capture, &changes, headers, ready(Ok(()))));
    assert!(matches!(written, Err(crate::error::Error::Full { .. })), "{written:?}");
    assert!(block_on(load(&world.file(area), &before, &mut |_, _| {})).is_ok());
}
