//! What stands in a folder under the name of a backup, and cannot be read as one.

use super::*;
use crate::paths::{head_path, manifest_path};
use crate::{OfCluster, Overview, Own, ended_last, latest, prune_own, reaches_back};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use std::fs::{Permissions, set_permissions};
use std::os::unix::fs::PermissionsExt;

/// Runs a test with a folder by a thread that may read only what its user may, also if that is root.
fn run_without_privileges(test: impl AsyncFn(Place, Target) + Send + 'static) {
    let restricted = std::thread::spawn(move || {
        let mut sets = capabilities(None).unwrap();
        sets.effective.remove(CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH);
        set_capabilities(None, sets).unwrap();
        run_in_folder(test);
    });
    restricted.join().unwrap();
}

/// Sets the permissions of a backup's folder and of all that is in it.
fn set_modes(folder: &Path, of_folder: u32, of_files: u32) {
    set_permissions(folder, Permissions::from_mode(0o700)).unwrap();
    for entry in std::fs::read_dir(folder).unwrap() {
        set_permissions(entry.unwrap().path(), Permissions::from_mode(of_files)).unwrap();
    }
    set_permissions(folder, Permissions::from_mode(of_folder)).unwrap();
}

/// The story: somebody saved as another user than the service. No backup was saved any more, also by the schedule, and the error named no
/// folder. It said later that this user must be able to read the folder. Once it could, and none of the files, no backup was saved
/// again.
#[test]
fn a_folder_that_may_not_be_read_keeps_nobody_from_saving_and_each_prune_from_removing() {
    run_without_privileges(async |place, target| {
        let mut cluster = Cluster::new(81);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        let saved = cluster.save(&target, "b1", Some("b0")).await;
        let then = cluster.keys.clone();
        let path = place.path().join("b1");
        let of = |cluster: &Cluster| OfCluster { id: SHOP, term: 1, applied_index: cluster.index };
        let one = Keep { last: 1, within: Duration::ZERO };
        let now = SystemTime::now();
        let refused = |error: Error| {
            assert!(matches!(error, Error::Unreadable { .. }), "{error}");
            let said = error.to_string();
            assert!(said.contains("/b1` cannot") || said.contains("/b1/"), "{said}");
            assert!(said.contains("` cannot be read (Permission denied"), "{said}");
        };
        // It may not be listed, what is in it may not be looked at, or that may not be read.
        for (folder, file, next) in
            [(0o000, 0o600, "b2"), (0o400, 0o600, "b3"), (0o755, 0o000, "b4")]
        {
            set_modes(&path, folder, file);
            let base = latest(&target, Some(of(&cluster)), now).await.unwrap();
            assert_ne!(base, "b1");
            let last = ended_last(&target, of(&cluster), u64::MAX).await.unwrap().last.unwrap();
            assert_ne!(last.name, "b1");
            reaches_back(&target, &saved).await.unwrap();
            cluster.work(10);
            cluster.save(&target, next, Some(&base)).await;
            cluster.check(&target, next).await;

            refused(Backup::open(&target, "b1").await.err().unwrap());
            refused(latest(&target, None, now).await.unwrap_err());
            refused(prune(&target, &one, &[], now, true).await.unwrap_err());
            let own = Own { id: SHOP, most: 9 };
            refused(prune_own(&target, &one, &own, now).await.unwrap_err());
            let listed = Overview::list(&target).await.unwrap();
            let names: Vec<&str> = listed.iter().map(|(name, _)| name.as_str()).collect();
            assert!(names.starts_with(&["b0", "b1", "b2"]), "{names:?}");
            let without: Vec<&str> = listed
                .iter()
                .filter(|(_, it)| it.is_err())
                .map(|(name, _)| name.as_str())
                .collect();
            assert_eq!(without, ["b1"]);
        }
        set_modes(&path, 0o755, 0o644);
        check(&then, &target, "b1").await;
        let (own, now) = (Own { id: SHOP, most: 9 }, SystemTime::now());
        let pruned = prune_own(&target, &one, &own, now).await.unwrap();
        assert_eq!(pruned.backups, ["b0", "b1", "b2", "b3"]);
        cluster.check(&target, "b4").await;
    });
}

/// What another user broke off is nothing to go on with.
#[test]
fn a_save_goes_on_with_nothing_that_it_may_not_read() {
    run_without_privileges(async |place, target| {
        let cluster = Cluster::new(83);
        let sources = Sources::default();
        let items = cluster.items(&sources);
        let begun = Saver::begin_with(&target, "broken", cluster.head(), sources, SMALL).await;
        let mut saver = begun.unwrap();
        for item in items.into_iter().take(50) {
            saver.add(item).await.unwrap();
        }
        saver.break_off().await.unwrap();
        set_modes(&place.path().join("broken"), 0o755, 0o000);
        let sources = Sources::find(&target, SHOP, None, true, None).await.unwrap();
        assert!(sources.resumes().is_empty());
        cluster.save(&target, "b0", None).await;
        cluster.check(&target, "b0").await;
    });
}

/// The story: what another backup needed in a folder that could not be read was taken for gone. Each nightly save since that one
/// failed as if it were damaged, and where the folder was closed at the last moment a finished backup lost its manifest.
#[test]
fn what_is_in_a_folder_that_may_not_be_read_is_not_taken_for_gone() {
    run_without_privileges(async |place, target| {
        let mut cluster = Cluster::new(84);
        cluster.save(&target, "b0", None).await;
        cluster.work(10);
        let saved = cluster.save(&target, "b1", Some("b0")).await;
        assert!(saved.objects().any(|object| object.path.starts_with("b0/")));
        cluster.work(10);
        let set = |name: &str, mode| set_modes(&place.path().join(name), mode, 0o600);
        let refused = |error: Error, name: &str| {
            assert!(matches!(error, Error::Unreadable { .. }), "{error}");
            assert!(error.to_string().contains(&format!("/{name}` cannot be read")), "{error}");
        };
        let since_b1 = async || Sources::find(&target, SHOP, Some("b1"), false, None).await;
        let begin = async |name: &str, sources: Sources| {
            Saver::begin_with(&target, name, cluster.head(), sources, SMALL).await
        };

        set("b0", 0o000);
        refused(since_b1().await.err().unwrap(), "b0");
        set("b0", 0o700);
        let sources = since_b1().await.unwrap();
        set("b1", 0o000);
        refused(begin("b2", sources).await.err().unwrap(), "b1");
        assert!(place.is_empty("b2"));
        set("b1", 0o700);

        let sources = since_b1().await.unwrap();
        let items = cluster.items(&sources);
        let mut saver = begin("b3", sources).await.unwrap();
        let keys = items.len() as u64;
        for item in items {
            saver.add(item).await.unwrap();
        }
        set("b0", 0o000);
        refused(saver.finish(keys).await.unwrap_err(), "b0");
        // Everything can be saved meanwhile, and what is there is whole once it can be read.
        cluster.save(&target, "b4", None).await;
        cluster.check(&target, "b4").await;
        set("b0", 0o700);
        cluster.save(&target, "b5", Some("b1")).await;
        cluster.check(&target, "b5").await;
    });
}

/// The story: a pipe stood where a manifest should be. It was listed, and whoever opened it waited for ever.
#[test]
fn a_pipe_or_a_socket_in_place_of_an_object_is_none_and_is_never_opened() {
    run_in_folder(async |place, target| {
        let cluster = Cluster::new(82);
        cluster.save(&target, "b0", None).await;
        let mut others = Vec::new();
        for name in ["pipe", "socket"] {
            std::fs::create_dir(place.path().join(name)).unwrap();
            for path in [head_path(name), manifest_path(name), format!("{name}/records-000000")] {
                let at = place.path().join(&path);
                match name {
                    "pipe" => {
                        mknodat(CWD, &at, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
                    }
                    _ => drop(std::os::unix::net::UnixListener::bind(&at).unwrap()),
                }
                others.push(path);
            }
        }
        let names: Vec<String> = target.find().await.unwrap().into_keys().collect();
        assert_eq!(names, ["b0"]);
        // Also one beside a file of the same backup, and by its name.
        std::fs::write(place.path().join("pipe/values-000000"), "old").unwrap();
        assert_eq!(Head::load(&target, "pipe").await.unwrap(), None);
        for name in ["pipe", "socket"] {
            let failed = Backup::open(&target, name).await.err().unwrap();
            assert!(matches!(&failed, Error::NoFile { .. }), "{failed}");
            assert!(failed.to_string().contains(&manifest_path(name)), "{failed}");
        }
        assert_eq!(latest(&target, None, SystemTime::now()).await.unwrap(), "b0");
        let later = SystemTime::now() + Duration::from_secs(9 * 24 * 3600);
        let pruned = prune(&target, &KEEP_ALL, &[], later, false).await.unwrap();
        assert_eq!((pruned.backups.len(), pruned.objects), (0, 0));
        assert!(others.iter().all(|path| place.path().join(path).symlink_metadata().is_ok()));
        cluster.save(&target, "b1", None).await;
        cluster.check(&target, "b1").await;
    });
}

/// The story: a pipe stood where a prune marks that it removed a backup. The manifest was gone when it came to the pipe, so that backup
/// was neither there nor removed.
#[test]
fn a_prune_removes_no_manifest_whose_removal_it_cannot_mark() {
    run_in_folder(async |place, target| {
        let mut cluster = Cluster::new(85);
        for name in ["b0", "b1", "b2"] {
            cluster.save(&target, name, None).await;
            cluster.work(10);
        }
        let pipe = place.path().join("b1/removed");
        mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let (one, now) = (Keep { last: 1, within: Duration::ZERO }, SystemTime::now());
        let own = Own { id: SHOP, most: 9 };
        let refused = |error: Error| {
            assert!(matches!(error, Error::NoFile { .. }), "{error}");
            assert!(error.to_string().contains("b1/removed"), "{error}");
        };
        refused(prune(&target, &one, &[], now, true).await.unwrap_err());
        refused(prune(&target, &one, &[], now, false).await.unwrap_err());
        refused(prune(&target, &KEEP_ALL, &["b1".to_owned()], now, false).await.unwrap_err());
        refused(prune_own(&target, &one, &own, now).await.unwrap_err());
        let names: Vec<String> = target.find().await.unwrap().into_keys().collect();
        assert_eq!(names, ["b0", "b1", "b2"]);
        assert!(["b0", "b1"].iter().all(|name| place.path().join(manifest_path(name)).exists()));
        std::fs::remove_file(&pipe).unwrap();
        let pruned = prune(&target, &one, &[], now, false).await.unwrap();
        assert_eq!(pruned.backups, ["b0", "b1"]);
    });
}
