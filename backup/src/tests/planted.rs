//! What somebody puts at the target who knows a recipient, and no secret key.

use super::encryption::{save, save_some, to, unlocked};
use super::*;
use crate::record::{Named, Piece, Record};
use crate::save::{Kind, write};
use age::x25519::Identity;
use prost::Message;

/// The story: somebody who could write at the target, and knew the recipient, put a save there that looked broken off.
/// Its records had the hashes of the cluster's values, and its object had other values. The next save was said to
/// be done, and nobody could read it.
#[test]
fn what_another_process_began_is_read_back_and_what_is_planted_is_not_taken() {
    run_in_folder(async |_, target| {
        let key = Identity::generate();
        let cluster = Cluster::new(58);
        let (other, with_key) = (to(&[&key], &[]), to(&[&key], &[&key]));
        let broken = save_some(&cluster, &target, "broken", None, Some(&other), 60).await;
        assert!(broken.unwrap().is_none());
        let saved = save(&cluster, &target, "whole", None, &with_key).await;
        let taken = saved.values.iter().filter(|object| object.path.starts_with("broken/"));
        assert!(taken.count() > 0, "it is as it should be");
        check_opened(&cluster.keys, &unlocked(&target, "whole", &key).await.unwrap()).await;

        let head = Head { recipients: other.recipients().to_vec(), ..cluster.head() };
        head.store(&target, "planted").await.unwrap();
        let (mut values, mut records) = (Vec::new(), Vec::new());
        for item in cluster.items(&Sources::default()).into_iter().take(60) {
            records.push(Record::of(&item, 0, values.len() as u64));
            // As long, and not the same.
            values.extend(item.value.iter().flatten().map(|byte| !byte));
        }
        let path = "planted/values-000000".to_owned();
        let object = write(&target, path, 0, values, Kind::Values, Some(other.clone())).await;
        let named = vec![Named::from(&object.unwrap())];
        let piece = Piece { named, records }.encode_to_vec();
        let path = "planted/records-000000".to_owned();
        write(&target, path, 0, piece, Kind::Records, Some(other)).await.unwrap();

        let found = Sources::find(&target, SHOP, None, true, Some(&with_key)).await.unwrap();
        assert_eq!(found.resumes()[0], "planted");
        let tried = save_some(&cluster, &target, "next", None, Some(&with_key), usize::MAX).await;
        let refused = tried.unwrap_err();
        assert!(matches!(&refused, Error::Damaged { name, .. } if name == "planted"), "{refused}");
        // Who has no secret key takes nothing of another process.
        let saved = save(&cluster, &target, "anew", None, &to(&[&key], &[])).await;
        assert_eq!((saved.sources(), saved.head.resumes.len()), (1, 0));
        check_opened(&cluster.keys, &unlocked(&target, "anew", &key).await.unwrap()).await;
    });
}
