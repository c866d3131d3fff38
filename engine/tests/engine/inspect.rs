//! An inspection reports what a directory holds and what of it verifies, and changes nothing.

use crate::support::sixty::{GROUP, filled, filled_ahead_of_syncs, id, key, stopped};
use crate::support::{Disk, Fate, geometry, identity, run};
use cairn_engine::io::{BLOCK, FileKind};
use cairn_engine::{Error, Inspection, KernelBootId, MemberState, inspect};

const COPY: usize = 4 * BLOCK;

/// Inspects every value under kernel boot id `boot`, and checks that nothing is written.
async fn inspect_disk(disk: &Disk, boot: u128) -> Inspection {
    let files = || FileKind::ALL.map(|kind| disk.bytes(kind));
    let before = files();
    let found = inspect(disk, KernelBootId(boot), true).await.unwrap();
    assert!(files() == before, "the inspection changed a file");
    found
}

#[test]
fn an_intact_directory_verifies_and_its_content_is_reported() {
    run(async {
        let found = inspect_disk(&stopped().await, 1).await;
        assert!(found.copies.iter().all(Result::is_ok));
        let known = found.known.unwrap();
        assert_eq!((known.identity, known.geometry), (identity(), geometry()));
        assert_eq!(
            (known.member_state, known.unsynced_acks, known.same_boot),
            (MemberState::Active, false, true)
        );
        assert_eq!(known.votes[&GROUP], b"the vote".as_slice());
        let contents = found.contents.unwrap();
        assert!(
            contents.checkpoints.iter().all(|area| area.holds.is_some() && area.damage.is_none())
        );
        assert_eq!((contents.damage, contents.member_state), (None, MemberState::Active));
        let [group] = contents.groups.as_slice() else { panic!("{:?}", contents.groups) };
        assert_eq!((group.log.last, group.keys), (Some(id(59)), 20));
        let values = group.values.as_ref().unwrap();
        assert!(values.checked >= 60 && values.damaged == 0, "{values:?}");
    });
}

#[test]
fn damage_is_reported_file_by_file() {
    run(async {
        let (disk, engine) = filled().await;
        // Both checkpoints hold it, so this damage cannot pass for a torn tail.
        let at = engine.lookup(GROUP, &key(40)).unwrap().value.offset() as usize;
        engine.close().await.unwrap();
        drop(engine);
        disk.kill(Fate::Kept);
        let areas = inspect_disk(&disk, 1).await.contents.unwrap().checkpoints;
        let older = areas.iter().min_by_key(|area| area.holds).unwrap().file;
        disk.damage(FileKind::Superblock, |bytes| bytes[COPY + 100] ^= 1);
        disk.damage(older, |bytes| bytes[BLOCK + 50] ^= 1);
        disk.damage(FileKind::Data, |bytes| bytes[at] ^= 1);
        let found = inspect_disk(&disk, 1).await;
        assert_eq!(found.copies.iter().filter(|copy| copy.is_err()).count(), 1);
        let contents = found.contents.unwrap();
        let damaged: Vec<FileKind> = contents
            .checkpoints
            .iter()
            .filter(|area| area.damage.is_some())
            .map(|area| area.file)
            .collect();
        assert_eq!(damaged, [older]);
        let values = contents.groups[0].values.as_ref().unwrap();
        assert_eq!((values.damaged, values.named.len()), (1, 1), "{values:?}");
    });
}

#[test]
fn it_reports_the_member_state_that_an_open_would_give() {
    run(async {
        // Killed while its acknowledgements ran ahead of its syncs.
        let (disk, engine) = filled_ahead_of_syncs().await;
        drop(engine);
        disk.kill(Fate::Kept);
        assert_eq!(
            inspect_disk(&disk, 1).await.contents.unwrap().member_state,
            MemberState::Active,
            "the machine keeps running"
        );
        let after_a_cut = inspect_disk(&disk, 2).await;
        assert!(!after_a_cut.known.unwrap().same_boot);
        assert_eq!(after_a_cut.contents.unwrap().member_state, MemberState::Recovering);
    });
}

#[test]
fn without_an_identity_only_the_copies_are_reported_and_an_unformatted_directory_is_refused() {
    run(async {
        let disk = stopped().await;
        disk.damage(FileKind::Superblock, |bytes| {
            [0, 1, 2].iter().for_each(|copy| bytes[copy * COPY + 100] ^= 1)
        });
        let found = inspect_disk(&disk, 1).await;
        assert_eq!(found.copies.iter().filter(|copy| copy.is_ok()).count(), 1);
        assert!(found.known.is_err() && found.contents.is_none());
        disk.damage(FileKind::Superblock, |bytes| bytes.fill(0));
        let found = inspect_disk(&disk, 1).await;
        assert!(found.known.is_err() && found.contents.is_none(), "its journal was written to");

        let empty = Disk::new(geometry());
        let refused = inspect(&empty, KernelBootId(1), true).await;
        assert!(matches!(refused, Err(Error::NotFormatted { .. })), "{refused:?}");
    });
}
