//! The verdict over all inputs, compared with the same rules in another form, and on typical
//! machines.

use super::*;

const MEDIA: [Medium; 7] = [
    Medium::Drive,
    Medium::Layered,
    Medium::Virtual,
    Medium::Bridged,
    Medium::Network,
    Medium::Memory,
    Medium::Unknown,
];
const CACHES: [Cache; 5] =
    [Cache::None, Cache::Volatile, Cache::Unprotected, Cache::Unsyncable, Cache::Unknown];
const ATOMICITIES: [Atomicity; 3] = [Atomicity::Whole, Atomicity::Torn, Atomicity::Unknown];
const OVERWRITES: [FilesystemKind; 6] = [
    FilesystemKind::InPlace,
    FilesystemKind::CopyOnWrite,
    FilesystemKind::Network,
    FilesystemKind::Opaque,
    FilesystemKind::Memory,
    FilesystemKind::Unknown,
];
const MAPPINGS: [Mapping; 4] =
    [Mapping::Whole, Mapping::Unwritten, Mapping::Shared, Mapping::Unknown];
const TRANSFERS: [Transfer; 4] =
    [Transfer::Direct, Transfer::Buffered, Transfer::Fails, Transfer::Untried];
const FLUSHES: [Flush; 4] = [Flush::Sent, Flush::Unseen, Flush::Suppressed, Flush::Dropped];

/// A drive that shows the whole contract.
const BEST: Aspects = Aspects {
    kernel_supported: true,
    writable: true,
    medium: Medium::Drive,
    cache: Cache::None,
    atomicity: Atomicity::Whole,
    overwrite: FilesystemKind::InPlace,
    mapping: Mapping::Whole,
    transfer: Transfer::Direct,
    flush: Flush::Sent,
};

/// Every combination of aspects, with too few voters and with enough, with and without the
/// operator's assertion.
fn for_all(check: impl Fn(&Aspects, usize, bool, &Verdict)) {
    let sizes = [
        MEDIA.len(),
        CACHES.len(),
        ATOMICITIES.len(),
        OVERWRITES.len(),
        MAPPINGS.len(),
        TRANSFERS.len(),
        FLUSHES.len(),
    ];
    for number in 0..sizes.iter().product::<usize>() * 16 {
        let mut rest = number;
        let mut pick = |count: usize| {
            let picked = rest % count;
            rest /= count;
            picked
        };
        let aspects = Aspects {
            medium: MEDIA[pick(MEDIA.len())],
            cache: CACHES[pick(CACHES.len())],
            atomicity: ATOMICITIES[pick(ATOMICITIES.len())],
            overwrite: OVERWRITES[pick(OVERWRITES.len())],
            mapping: MAPPINGS[pick(MAPPINGS.len())],
            transfer: TRANSFERS[pick(TRANSFERS.len())],
            flush: FLUSHES[pick(FLUSHES.len())],
            kernel_supported: pick(2) == 0,
            writable: pick(2) == 0,
        };
        let (voters, asserted) = (2 + pick(2), pick(2) == 1);
        check(&aspects, voters, asserted, &judge(&aspects, voters, asserted));
    }
}

#[test]
fn without_an_assertion_device_is_justified_only_where_everything_is_shown() {
    for_all(|aspects, voters, asserted, verdict| {
        if asserted {
            return;
        }
        // Without a volatile cache it does not matter whether a sync empties it.
        let relevant = match aspects.flush {
            Flush::Suppressed | Flush::Unseen => Aspects { flush: Flush::Sent, ..*aspects },
            _ => *aspects,
        };
        let justified = verdict.of(Mode::Device).justified();
        assert_eq!(justified, relevant == BEST, "{aspects:?}, {voters} voters");
        assert_eq!(verdict.contract, justified.then_some(Contract::Shown), "{aspects:?}");
    });
}

#[test]
fn an_assertion_is_about_the_device_and_never_about_what_the_filesystem_is_seen_to_do() {
    for_all(|aspects, voters, asserted, verdict| {
        if !asserted {
            return;
        }
        let contradicted = matches!(
            aspects.overwrite,
            FilesystemKind::CopyOnWrite | FilesystemKind::Network | FilesystemKind::Memory
        ) || matches!(aspects.mapping, Mapping::Unwritten | Mapping::Shared)
            || matches!(aspects.transfer, Transfer::Buffered | Transfer::Fails)
            || aspects.medium == Medium::Memory
            || matches!(aspects.cache, Cache::Unprotected | Cache::Unsyncable)
            || aspects.flush == Flush::Dropped
            || !aspects.kernel_supported
            || !aspects.writable;
        assert_eq!(verdict.of(Mode::Device).justified(), !contradicted, "{aspects:?}");
        let shown = judge(aspects, voters, false);
        if let Some(contract) = verdict.contract {
            let expected =
                if shown.contract.is_some() { Contract::Shown } else { Contract::Asserted };
            assert_eq!(contract, expected, "{aspects:?}");
        }
    });
}

#[test]
fn replicated_needs_three_voters_a_local_device_and_overwrites_in_place() {
    for_all(|aspects, voters, asserted, verdict| {
        let expected = voters >= 3
            && verdict.of(Mode::Sync).justified()
            && !matches!(aspects.overwrite, FilesystemKind::CopyOnWrite | FilesystemKind::Network)
            && !matches!(aspects.mapping, Mapping::Unwritten | Mapping::Shared)
            && (aspects.medium != Medium::Network || verdict.contract.is_some());
        assert_eq!(
            verdict.of(Mode::Replicated).justified(),
            expected,
            "{aspects:?}, {voters}, {asserted}"
        );
    });
}

#[test]
fn sync_is_justified_wherever_a_write_and_a_sync_work_and_reach_the_device() {
    for_all(|aspects, _, asserted, verdict| {
        let reaches = match aspects.flush {
            Flush::Sent | Flush::Unseen => true,
            Flush::Suppressed => {
                aspects.cache == Cache::None || asserted && aspects.cache != Cache::Unprotected
            }
            Flush::Dropped => false,
        };
        let works = aspects.kernel_supported
            && aspects.writable
            && aspects.transfer != Transfer::Fails
            && aspects.cache != Cache::Unsyncable;
        assert_eq!(verdict.of(Mode::Sync).justified(), works && reaches, "{aspects:?}");
    });
}

#[test]
fn the_verdict_is_the_strongest_mode_that_is_justified_and_an_assertion_never_weakens_it() {
    let strength =
        |mode: Option<Mode>| mode.map(|mode| MODES.iter().rev().position(|other| *other == mode));
    for_all(|aspects, voters, asserted, verdict| {
        match verdict.mode {
            Some(mode) => {
                assert!(verdict.of(mode).justified());
                let stronger = MODES.into_iter().take_while(|other| *other != mode);
                assert!(
                    stronger.into_iter().all(|mode| !verdict.of(mode).justified()),
                    "{aspects:?}"
                );
            }
            None => {
                assert!(MODES.into_iter().all(|mode| !verdict.of(mode).justified()), "{aspects:?}")
            }
        }
        if asserted {
            let without = judge(aspects, voters, false).mode;
            assert!(strength(verdict.mode) >= strength(without), "{aspects:?}");
        }
        assert_eq!(verdict.mode == Some(Mode::Device), verdict.contract.is_some(), "{aspects:?}");
    });
}

#[test]
fn what_cannot_be_seen_refuses_device_and_warns_about_the_other_modes() {
    for_all(|aspects, _, _, verdict| {
        let unseen = aspects.medium == Medium::Unknown
            || matches!(
                aspects.overwrite,
                FilesystemKind::Opaque | FilesystemKind::Unknown | FilesystemKind::Memory
            )
            || aspects.medium == Medium::Memory
            || aspects.transfer == Transfer::Untried
            || aspects.flush == Flush::Unseen;
        if unseen {
            assert!(!verdict.of(Mode::Sync).warnings.is_empty(), "{aspects:?}");
        }
        if unseen || aspects.mapping == Mapping::Unknown || aspects.transfer == Transfer::Buffered {
            assert!(!verdict.of(Mode::Replicated).warnings.is_empty(), "{aspects:?}");
        }
    });
}

#[test]
fn no_reason_is_given_twice() {
    for_all(|aspects, _, _, verdict| {
        for mode in MODES {
            let judgement = verdict.of(mode);
            for reasons in [&judgement.refusals, &judgement.warnings] {
                let mut codes: Vec<_> =
                    reasons.iter().map(|reason| format!("{reason:?}")).collect();
                codes.sort_unstable();
                codes.dedup();
                assert_eq!(codes.len(), reasons.len(), "{mode}: {reasons:?} for {aspects:?}");
            }
        }
    });
}

/// The machine, its voters, whether the operator asserts the contract; then the mode, and what
/// refuses a stronger one.
type Row = (&'static str, Aspects, usize, bool, Option<Mode>, &'static [Reason]);

#[test]
fn typical_machines() {
    let laptop = Aspects { cache: Cache::Volatile, atomicity: Atomicity::Torn, ..BEST };
    let virtio = Aspects { medium: Medium::Virtual, cache: Cache::Volatile, ..BEST };
    let network = Aspects { medium: Medium::Network, ..BEST };
    let btrfs =
        Aspects { overwrite: FilesystemKind::CopyOnWrite, medium: Medium::Unknown, ..laptop };
    let overlay = Aspects {
        medium: Medium::Unknown,
        cache: Cache::Unknown,
        atomicity: Atomicity::Unknown,
        overwrite: FilesystemKind::Opaque,
        mapping: Mapping::Unknown,
        ..BEST
    };
    let lvm = Aspects { medium: Medium::Layered, ..BEST };
    let copied = Aspects { mapping: Mapping::Unwritten, ..BEST };
    let reckless = Aspects { flush: Flush::Suppressed, ..laptop };
    let (device, replicated, sync) = (Some(Mode::Device), Some(Mode::Replicated), Some(Mode::Sync));
    let rows: &[Row] = &[
        ("a protected NVMe drive", BEST, 3, false, device, &[]),
        ("the same, alone", BEST, 1, false, device, &[]),
        (
            "a laptop's NVMe drive",
            laptop,
            3,
            false,
            replicated,
            &[Reason::VolatileCache, Reason::NotAtomic],
        ),
        ("the same, alone", laptop, 1, false, sync, &[Reason::FewVoters]),
        ("the same, of two", laptop, 2, false, sync, &[Reason::FewVoters]),
        ("the same, asserted", laptop, 3, true, device, &[]),
        (
            "a virtio disk",
            virtio,
            3,
            false,
            replicated,
            &[Reason::VirtualDevice, Reason::VolatileCache],
        ),
        ("a cloud's network disk", network, 3, false, sync, &[Reason::NetworkDevice]),
        ("the same, asserted", network, 3, true, device, &[]),
        ("btrfs", btrfs, 3, false, sync, &[Reason::CopyOnWrite]),
        ("btrfs, asserted", btrfs, 3, true, sync, &[Reason::CopyOnWrite]),
        ("a container's own layer", overlay, 3, false, replicated, &[Reason::FilesystemOpaque]),
        ("LVM on a protected drive", lvm, 3, false, replicated, &[Reason::LayeredDevice]),
        ("files restored from a backup", copied, 3, false, sync, &[Reason::ExtentsUnwritten]),
        ("the same, asserted", copied, 3, true, sync, &[Reason::ExtentsUnwritten]),
        (
            "ext4 that journals data",
            Aspects { transfer: Transfer::Buffered, ..BEST },
            3,
            false,
            replicated,
            &[Reason::NotDirect],
        ),
        ("no barriers", reckless, 3, false, None, &[Reason::FlushSuppressed]),
        (
            "a protected drive, no barriers",
            Aspects { flush: Flush::Suppressed, ..BEST },
            3,
            false,
            device,
            &[],
        ),
    ];
    for (machine, aspects, voters, asserted, mode, reasons) in rows {
        let verdict = judge(aspects, *voters, *asserted);
        assert_eq!(verdict.mode, *mode, "{machine}");
        // These reasons refuse the next stronger mode.
        let strongest = mode.map_or(MODES.len(), |mode| {
            MODES.iter().position(|other| *other == mode).expect("a mode")
        });
        if let Some(refused) = strongest.checked_sub(1).and_then(|stronger| MODES.get(stronger)) {
            let refusals = &verdict.of(*refused).refusals;
            assert!(
                reasons.iter().all(|reason| refusals.contains(reason)),
                "{machine}: {refusals:?}"
            );
            assert!(!reasons.is_empty(), "{machine}: a row says why");
        }
    }
}
