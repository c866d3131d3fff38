//! What a new backup builds on: a finished backup, and those that were broken off.
//!
//! What holds here: a source is taken if every object that it names is there with its length. So many
//! folders are in one chain that a reader can hold an object of each. All of them are encrypted to the
//! recipients of the new backup, or none is. Terms never decrease along a log: an entry of the state that does
//! not fit the last one of a source shows that this is of another history. Of an encrypted save that another
//! process broke off each value is read back and compared with the hash that the cluster says: anybody who knows a
//! recipient can make one up.

use crate::cluster::{ClusterId, Whose};
use crate::encryption::{Encryption, MORE_BYTES_MAX, may_build_on};
use crate::error::{Error, Result};
use crate::fetch::{Reader, unpack};
use crate::keys::Identities;
use crate::manifest::{
    ALL_FOLDERS_MAX, FOLDERS_MAX, Head, Manifest, Object, RECORDS_BYTES_MAX, RESUMED_MAX,
};
use crate::paths::{folder_of, path_of};
use crate::prune::{UNDER_WAY, is_younger};
use crate::read::{Records, Values, decode_piece};
use crate::record::{Item, Piece, Record, matches};
use crate::shown::key_text;
use crate::target::{Found, Survey, Target};
use bytes::Bytes;
use real_tokio::task::spawn_blocking;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

/// The most bytes of an object of records at the target.
const STORED_BYTES_MAX: u64 = RECORDS_BYTES_MAX + MORE_BYTES_MAX as u64;

/// The most bytes of objects with values that are held of each source which is read back: four.
const READ_BACK_BYTES: u64 = 64 << 20;

/// Values that the saver has, and the cluster need not send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Written by an entry of this term and index, or by an earlier one.
    pub through: (u64, u64),
    /// Of keys up to this one; `None`: of all keys.
    pub through_key: Option<Bytes>,
}

impl Held {
    /// Whether the values have that of this key, by its version.
    fn has(&self, item: &Item) -> bool {
        (item.term, item.index) <= self.through
            && self.through_key.as_ref().is_none_or(|last| item.key <= *last)
    }

    /// Whether an entry may be of the same log as the last one of these.
    fn may_know(&self, term: u64, index: u64) -> bool {
        let (last_term, last_index) = self.through;
        match index.cmp(&last_index) {
            Ordering::Less => term <= last_term,
            Ordering::Equal => term == last_term,
            Ordering::Greater => term >= last_term,
        }
    }
}

/// Why a new backup does not build on the one that was asked for, in words behind its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeftOut {
    /// It needs the objects of so many backups.
    Needs(usize),
    /// It does not say the term of its last entry.
    TermUnknown,
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LeftOut::Needs(backups) => write!(f, "needs the objects of {backups} backups"),
            LeftOut::TermUnknown => write!(f, "does not say the term of its last entry"),
        }
    }
}

/// A backup that another one builds on.
pub(crate) struct Source {
    pub(crate) name: String,
    held: Held,
    records: Records,
    /// The next record.
    next: Option<Record>,
    objects: HashMap<u32, Object>,
    /// Reads its values back, where nobody knows who wrote it.
    unproven: Option<Values>,
}

impl Source {
    /// The folders of the objects that it has, and its own.
    pub(crate) fn folders(&self) -> BTreeSet<String> {
        let of_values = self.objects.values().map(|object| folder_of(&object.path));
        of_values.chain([self.name.as_str()]).map(str::to_owned).collect()
    }

    /// Whether it may be of the history of a state which ends with this entry.
    fn check(&self, term: u64, index: u64) -> Result<()> {
        let (last_term, last_index) = self.held.through;
        if last_index <= index && self.held.may_know(term, index) {
            return Ok(());
        }
        Err(Error::OtherHistory { base: self.name.clone(), term: last_term, index: last_index })
    }

    /// Where the value of a key is. Keys are asked for in order.
    pub(crate) async fn value_of(&mut self, item: &Item) -> Result<Option<(Object, u64)>> {
        let found = self.find(&item.key).await?.filter(|record| record.is(item));
        let Some(record) = found.cloned() else { return Ok(None) };
        let Some(object) = self.objects.get(&record.object).cloned() else { return Ok(None) };
        if let Some(values) = &mut self.unproven {
            let value = values.read(&record).await?;
            if !matches(&record, &value) {
                let what =
                    format!("the value of key {} does not have its hash", key_text(&item.key));
                return Err(Error::Damaged { name: self.name.clone(), what });
            }
        }
        // The new backup would name a place that is none.
        let end = record.offset.checked_add(record.length.into());
        if end.is_none_or(|end| end > object.raw_bytes) {
            let what =
                format!("the value of key {} lies outside of its object", key_text(&item.key));
            return Err(Error::Damaged { name: self.name.clone(), what });
        }
        Ok(Some((object, record.offset)))
    }

    /// The record of a key.
    async fn find(&mut self, key: &Bytes) -> Result<Option<&Record>> {
        while self.next.as_ref().is_none_or(|record| record.key < key) {
            match self.records.next().await? {
                Some(record) => self.next = Some(record),
                None => return Ok(None),
            }
        }
        Ok(self.next.as_ref().filter(|record| record.key == key))
    }
}

/// What a new backup builds on.
#[derive(Default)]
pub struct Sources {
    pub(crate) all: Vec<Source>,
    pub(crate) base: Option<String>,
    left_out: Option<(String, LeftOut)>,
    pub(crate) resumes: Vec<String>,
    pub(crate) encryption: Option<Arc<Encryption>>,
}

impl Sources {
    /// The finished backup `base`, and, with `resume`, the latest of this cluster that were broken off, for
    /// a new backup that is encrypted so, or not. What was broken off and cannot be read is left out.
    /// A base that needs the objects of 24 folders is left out: so a chain of backups renews itself
    /// before it is slow to read. So is one that does not say its term.
    ///
    /// # Errors
    /// [`Error::Missing`] or [`Error::Damaged`], of `base`; [`Error::Mixed`], if that is not encrypted to
    /// the same recipients; [`Error::NoIdentity`] or [`Error::WrongIdentity`], if it cannot be read;
    /// [`Error::Unreadable`], if this process may not read what it needs; [`Error::Store`].
    pub async fn find(
        target: &Target,
        of: ClusterId<'_>,
        base: Option<&str>,
        resume: bool,
        encryption: Option<&Arc<Encryption>>,
    ) -> Result<Sources> {
        let seen = target.survey().await?.listed();
        let found = &seen.found;
        let mut sources = Sources { encryption: encryption.cloned(), ..Sources::default() };
        let encryption = encryption.map(Arc::as_ref);
        let own = encryption.map(Encryption::own_identity);
        let recipients = encryption.map(Encryption::recipients).unwrap_or_default();
        let reader = |name: &str| Reader {
            target: target.clone(),
            name: name.to_owned(),
            identities: encryption.map(|encryption| encryption.readers().clone()),
        };
        let mut folders = BTreeSet::new();
        if let Some(name) = base {
            let manifest = Manifest::load(target, name).await?;
            may_build_on(name, &manifest.head.recipients, encryption)?;
            let needs = manifest.sources();
            if manifest.head.term == 0 {
                sources.left_out = Some((name.to_owned(), LeftOut::TermUnknown));
            } else if needs < FOLDERS_MAX {
                if let Some(encryption) = encryption {
                    encryption.reads(name, &manifest.head.recipients)?;
                }
                let source = finished(reader(name), manifest, &seen)?;
                folders = source.folders();
                sources.base = Some(name.to_owned());
                sources.all.push(source);
            } else {
                sources.left_out = Some((name.to_owned(), LeftOut::Needs(needs)));
            }
        }
        // A prune removes what is older, and does not see who begins to build on it.
        let now = SystemTime::now();
        let unfinished = found.iter().filter(|(_, found)| {
            let rest = found.finished || found.removed;
            resume && !rest && is_younger(found.latest, UNDER_WAY / 2, now)
        });
        let mut unfinished: Vec<_> = unfinished.map(|(name, f)| (f.latest, name)).collect();
        unfinished.sort_unstable();
        while let Some((_, name)) = unfinished.pop().filter(|_| sources.resumes.len() < RESUMED_MAX)
        {
            let head = match Head::load(target, name).await {
                // Another user broke it off.
                Err(Error::Unreadable { .. }) => continue,
                head => head?,
            };
            let Some(head) = head else { continue };
            if !matches!(of.whose(&head), Whose::Own | Whose::Unknown)
                || head.term == 0
                || head.recipients != recipients
                // What builds on nothing needs no object of an earlier backup, also not through this one.
                || base.is_none() && head.base.is_some()
            {
                continue;
            }
            let broken_off = broken_off(reader(name), own.as_ref(), &head, found);
            let Some(source) = broken_off.await? else { continue };
            // A save that breaks off often takes over the folders of all its attempts.
            let more: BTreeSet<String> = folders.union(&source.folders()).cloned().collect();
            if more.len() < ALL_FOLDERS_MAX {
                folders = more;
                sources.resumes.push(name.clone());
                sources.all.push(source);
            }
        }
        Ok(sources)
    }

    /// What the cluster need not send.
    pub fn held(&self) -> Vec<Held> {
        self.all.iter().map(|source| source.held.clone()).collect()
    }

    /// The base that was asked for, if it is left out, and why.
    pub fn left_out(&self) -> Option<(&str, LeftOut)> {
        self.left_out.as_ref().map(|(name, why)| (name.as_str(), *why))
    }

    /// Whether all of them may be of the history of this state.
    ///
    /// # Errors
    /// [`Error::OtherHistory`].
    pub(crate) fn check_head(&self, head: &Head) -> Result<()> {
        self.all.iter().try_for_each(|source| source.check(head.term, head.index))
    }

    /// The same by a key of that state. A value that is sent although a source has it says that the member
    /// knows the source to be of another history.
    ///
    /// # Errors
    /// [`Error::History`], [`Error::OtherHistory`].
    pub(crate) fn check_item(&self, item: &Item) -> Result<()> {
        for Source { name, held, .. } in &self.all {
            if !held.may_know(item.term, item.index) {
                return Err(Error::History { base: name.clone(), key: key_text(&item.key) });
            }
            if item.length > 0 && item.value.is_some() && held.has(item) {
                let (term, index) = held.through;
                return Err(Error::OtherHistory { base: name.clone(), term, index });
            }
        }
        Ok(())
    }

    /// The backups that were broken off, and that this one goes on with.
    pub fn resumes(&self) -> &[String] {
        &self.resumes
    }
}

/// Whether the object is there as it was written.
fn is_there(object: &Object, found: &BTreeMap<String, Found>) -> bool {
    let found = found.get(folder_of(&object.path));
    found.and_then(|found| found.objects.get(&object.path)) == Some(&object.bytes)
}

/// Whether every object of a backup is there as it was written. `is_not` says of one what is wrong with it.
///
/// The story: a folder that could not be read was left out, so what another backup needed there was gone. That one was refused as
/// damaged each night, and one that was finished just then lost its manifest.
///
/// # Errors
/// [`Error::Damaged`], if one is not; [`Error::Unreadable`], if it may be in a folder that this process may not read.
pub(crate) fn are_there(
    manifest: &Manifest,
    (target, seen): (&Target, &Survey),
    is_not: &str,
) -> Result<()> {
    let mut hidden = None;
    for Object { path, .. } in manifest.objects().filter(|object| !is_there(object, &seen.found)) {
        let Some(folder) = seen.hides(path) else {
            let what = format!("object `{path}` {is_not}");
            return Err(Error::Damaged { name: manifest.name.clone(), what });
        };
        hidden = hidden.or(Some(folder));
    }
    hidden.map_or(Ok(()), |folder| Err(target.unreadable(folder)))
}

fn finished(reader: Reader, manifest: Manifest, seen: &Survey) -> Result<Source> {
    are_there(&manifest, (&reader.target, seen), "is not there, or has another length")?;
    let through = (manifest.head.term, manifest.head.index);
    Ok(Source {
        held: Held { through, through_key: None },
        records: Records::new(&reader, &manifest.records),
        name: reader.name,
        next: None,
        unproven: None,
        objects: manifest.values.into_iter().map(|object| (object.number, object)).collect(),
    })
}

/// `None` if nothing of it can be used. `own`: what reads the encrypted records of this process alone.
async fn broken_off(
    mut reader: Reader,
    own: Option<&Identities>,
    head: &Head,
    found: &BTreeMap<String, Found>,
) -> Result<Option<Source>> {
    let Reader { target, name, identities } = &reader;
    let (mut records, mut objects, mut last) = (Vec::new(), HashMap::new(), None);
    let (mut paths, mut is_proven) = (HashSet::new(), true);
    loop {
        let path = path_of(name, "records", records.len());
        let Ok(Some(stored)) = target.get(&path, STORED_BYTES_MAX).await else { break };
        let (bytes, crc32) = (stored.len() as u64, crc32fast::hash(&stored));
        let (identities, own) = (identities.clone(), own.cloned());
        let unpacking = spawn_blocking(move || {
            let by = |identities: Option<&Identities>| {
                unpack(stored.clone(), identities, true, RECORDS_BYTES_MAX)
            };
            match own.and_then(|own| by(Some(&own)).ok()) {
                Some(raw) => Ok((raw, true)),
                None => by(identities.as_ref()).map(|raw| (raw, identities.is_none())),
            }
        });
        let Ok(Ok((raw, by_own))) = unpacking.await else { break };
        let Ok(Piece { named, records: piece }) = decode_piece(name, &raw) else { break };
        let named: Vec<Object> = named.iter().map(Object::from).collect();
        if !named.iter().all(|object| object.is_values() && is_there(object, found)) {
            break;
        }
        // A saver names each object once: so no more are named than there are.
        if !named.iter().all(|object| paths.insert(object.path.clone())) {
            break;
        }
        is_proven &= by_own;
        objects.extend(named.into_iter().map(|object| (object.number, object)));
        last = piece.last().map(|record| record.key.clone()).or(last);
        let raw_bytes = raw.len() as u64;
        records.push(Object { number: 0, path, bytes, raw_bytes, zstd: true, crc32 });
    }
    let Some(last) = last else { return Ok(None) };
    let unproven = (!is_proven).then(|| {
        let mut values = Values::new(&reader, &objects.values().cloned().collect::<Vec<_>>());
        values.held_bytes_max = READ_BACK_BYTES;
        values
    });
    if is_proven && own.is_some() {
        // Its records are read again, and others may stand there by then.
        reader.identities = own.cloned();
    }
    let through = (head.term, head.index);
    Ok(Some(Source {
        held: Held { through, through_key: Some(last) },
        records: Records::new(&reader, &records),
        name: reader.name,
        next: None,
        objects,
        unproven,
    }))
}
