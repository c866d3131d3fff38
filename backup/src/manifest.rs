//! The manifest of a backup: what it is of, and every object that it needs.
//!
//! One line says `cairn-backup`, the CRC-32 of the JSON behind it, and its length.

mod list;

use self::list::at_most;
use crate::encryption::MORE_BYTES_MAX;
use crate::error::{Error, Result};
use crate::folder::Unreadable;
use crate::keys::{RECIPIENTS_MAX, are_recipients};
use crate::paths::{folder_of, head_path, is_name, is_path, manifest_path, removed_path};
use crate::shown::excerpt;
use crate::target::{Survey, Target};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};

/// The newest format that this release writes and reads: that of an encrypted backup, which
/// releases without encryption do not read.
const FORMAT: u32 = 2;
/// The format of a backup that is not encrypted.
const PLAIN_FORMAT: u32 = 1;
/// More than any backup has of one kind: each takes 140 bytes of a manifest as a save writes it.
const OBJECTS_MAX: usize = 1 << 20;
/// The most bytes of a head, of a manifest, and of objects once they are decompressed: what a hostile
/// target can make a reader hold. No value has more than 16 MiB, and a larger object of values is never
/// written.
const HEAD_BYTES_MAX: u64 = 1 << 20;
pub(crate) const MANIFEST_BYTES_MAX: u64 = 128 << 20;
pub(crate) const RECORDS_BYTES_MAX: u64 = 16 << 20;
pub(crate) const VALUES_BYTES_MAX: u64 = 16 << 20;
/// The most bytes of the hash, which is encrypted with a header as an object is, and written as text.
const STATE_BYTES_MAX: usize = 8 << 10;
/// A backup builds on no backup that needs the objects of so many folders. It is read in key order from
/// all of them at once, and the reader holds an object of each.
pub(crate) const FOLDERS_MAX: usize = 24;
/// No backup needs the objects of more folders: those of its base, of what it goes on with, and its own.
pub(crate) const ALL_FOLDERS_MAX: usize = FOLDERS_MAX + RESUMED_MAX;
/// Backups that were broken off, and that are built upon at once.
pub(crate) const RESUMED_MAX: usize = 8;
/// The most members that a head names. A cluster has fewer.
pub(crate) const MEMBERS_MAX: usize = 64;
/// The most bytes of the cluster's name and of a release: those of a member are no longer.
const TEXT_BYTES_MAX: usize = 64;
/// What a manifest has around an object's own JSON: eight lines are indented by four, and a comma and a
/// line's end follow.
const LISTED_BYTES: usize = 8 * 4 + 2;

/// What a backup is of.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The cluster's name.
    pub cluster: String,
    /// Its generation.
    pub generation: u32,
    /// Its version: no earlier release runs in it.
    pub cluster_version: u32,
    /// The term of the last entry that is in the state; 0: it is not known of which history that is, and
    /// nothing builds on it.
    #[serde(default)]
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// The release of the member that sent the state.
    pub release: String,
    /// The finished backup that this one builds on.
    pub base: Option<String>,
    /// The backups that were broken off, and with which this one goes on.
    #[serde(deserialize_with = "at_most::<_, _, RESUMED_MAX>")]
    pub resumes: Vec<String>,
    /// When it was begun, in seconds since 1970.
    pub began: u64,
    /// To whom its objects are encrypted, as recipients of age; none: they are not encrypted.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, RECIPIENTS_MAX>"
    )]
    pub recipients: Vec<String>,
    /// The identities of the members, each with the slot in the high 16 bits; none: an earlier release wrote it.
    #[serde(
        default,
        skip_serializing_if = "Vec::is_empty",
        deserialize_with = "at_most::<_, _, MEMBERS_MAX>"
    )]
    pub members: Vec<u64>,
}

/// What a finished backup has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// The format.
    pub format: u32,
    /// The backup's own name.
    pub name: String,
    /// What it is of.
    pub head: Head,
    /// Keys of the state.
    pub keys: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// The hash of all records in order; encrypted where they are: whoever guesses what a small state is
    /// could see whether that is right.
    pub state: String,
    /// When it was finished, in seconds since 1970.
    pub ended: u64,
    /// The objects with records, in order.
    #[serde(deserialize_with = "at_most::<_, _, OBJECTS_MAX>")]
    pub records: Vec<Object>,
    /// The objects with values, each with its number in the records.
    #[serde(deserialize_with = "at_most::<_, _, OBJECTS_MAX>")]
    pub values: Vec<Object>,
}

/// What a manifest says beside the objects that it names: those may be millions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overview {
    /// The backup's name.
    pub name: String,
    /// What it is of.
    pub head: Head,
    /// Keys of the state.
    pub keys: u64,
    /// Bytes of their values.
    pub value_bytes: u64,
    /// When it was finished, in seconds since 1970.
    pub ended: u64,
    /// How many objects it needs.
    pub objects: usize,
    /// Their bytes at the target.
    pub stored_bytes: u64,
    /// The bytes of those that it wrote itself.
    pub own_bytes: u64,
}

impl Overview {
    /// Of this manifest.
    pub fn of(manifest: &Manifest) -> Overview {
        Overview {
            name: manifest.name.clone(),
            head: manifest.head.clone(),
            keys: manifest.keys,
            value_bytes: manifest.value_bytes,
            ended: manifest.ended,
            objects: manifest.objects().count(),
            stored_bytes: manifest.stored_bytes(),
            own_bytes: manifest.own_bytes(),
        }
    }

    /// The finished backups at a target by name, each with what it says or what is wrong with it. One that a prune
    /// removes meanwhile is none.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub async fn list(target: &Target) -> Result<Vec<(String, Result<Overview>)>> {
        Manifest::each(target, |manifest| Overview::of(&manifest)).await
    }
}

/// An object of a backup, or of an earlier one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Object {
    /// The number by which records name it.
    pub number: u32,
    /// Where it is at the target.
    pub path: String,
    /// Its length.
    pub bytes: u64,
    /// Its length once it is decompressed.
    pub raw_bytes: u64,
    /// Whether it is compressed, by zstd.
    pub zstd: bool,
    /// The CRC-32 of its bytes.
    pub crc32: u32,
}

impl Head {
    /// Of a cluster that has no members, and of no time.
    #[cfg(test)]
    pub(crate) fn of_shop(index: u64) -> Head {
        Head {
            cluster: "shop".into(),
            generation: 1,
            cluster_version: 1,
            term: 1,
            index,
            release: "test".into(),
            base: None,
            resumes: Vec::new(),
            began: 0,
            recipients: Vec::new(),
            members: Vec::new(),
        }
    }

    /// What no save writes in a head: each text of it stands in tables, log lines and errors.
    pub(crate) fn fault(&self) -> Option<String> {
        let texts = [("the name of its cluster", &self.cluster), ("its release", &self.release)];
        if let Some((what, text)) = texts.iter().find(|(_, text)| text.len() > TEXT_BYTES_MAX) {
            return Some(format!("{what} has {} bytes", text.len()));
        }
        let resumes = self.resumes.len();
        if resumes > RESUMED_MAX {
            return Some(format!("it goes on with {resumes} others"));
        }
        let odd = self.base.iter().chain(&self.resumes).find(|name| !is_name(name));
        if let Some(odd) = odd {
            return Some(format!("it builds on `{}`, which is no backup's name", excerpt(odd)));
        }
        let members = self.members.len();
        if members > MEMBERS_MAX {
            return Some(format!("it names {members} members"));
        }
        let known = are_recipients(&self.recipients);
        (!known).then(|| "it does not say to whom it is encrypted".into())
    }

    /// Stores it under the backup's name, as the first object.
    pub(crate) async fn store(&self, target: &Target, name: &str) -> Result<()> {
        if !is_name(name) {
            let reason = "a backup's name has letters, digits and hyphens, 64 at most".into();
            return Err(Error::Target { text: name.into(), reason });
        }
        target.create(&head_path(name), sealed(self, HEAD_BYTES_MAX)?).await
    }

    /// `None` if there is none, or it is damaged.
    pub(crate) async fn load(target: &Target, name: &str) -> Result<Option<Head>> {
        let bytes = match target.get(&head_path(name), HEAD_BYTES_MAX).await {
            Err(Error::TooLong { .. } | Error::Link { .. } | Error::NoFile { .. }) => None,
            bytes => bytes?,
        };
        Ok(bytes.and_then(|bytes| Head::decode(&bytes)))
    }

    /// `None` if these bytes are none.
    fn decode(bytes: &[u8]) -> Option<Head> {
        let head: Head = serde_json::from_str(unsealed(bytes).ok()?).ok()?;
        head.fault().is_none().then_some(head)
    }
}

/// Says that a prune removed the manifest of this name: what is left is no backup under way, however young.
pub(crate) async fn mark_removed(target: &Target, name: &str) -> Result<()> {
    target.create_once(&removed_path(name), sealed(&name, HEAD_BYTES_MAX)?).await
}

/// Whether a prune said so.
pub(crate) async fn is_marked_removed(target: &Target, name: &str) -> Result<bool> {
    let bytes = match target.get(&removed_path(name), HEAD_BYTES_MAX).await {
        Err(Error::TooLong { .. }) => None,
        bytes => bytes?,
    };
    let json = bytes.as_ref().and_then(|bytes| unsealed(bytes).ok());
    Ok(json.and_then(|json| serde_json::from_str::<String>(json).ok()).as_deref() == Some(name))
}

impl Object {
    /// Whether a backup may have an object of records like this.
    fn is_records(&self) -> bool {
        self.fits("records", RECORDS_BYTES_MAX)
    }

    /// Whether a backup may have an object of values like this.
    pub(crate) fn is_values(&self) -> bool {
        self.fits("values", VALUES_BYTES_MAX)
    }

    /// The bytes that it takes in a manifest.
    pub(crate) fn listed_bytes(&self) -> u64 {
        let json = serde_json::to_vec_pretty(self).map_or(0, |json| json.len());
        (json + LISTED_BYTES) as u64
    }

    fn fits(&self, kind: &str, most: u64) -> bool {
        let stored = most + MORE_BYTES_MAX as u64;
        is_path(&self.path, kind) && self.raw_bytes <= most && self.bytes <= stored
    }
}

impl Manifest {
    pub(crate) fn new(name: String, head: Head) -> Manifest {
        Manifest {
            format: if head.recipients.is_empty() { PLAIN_FORMAT } else { FORMAT },
            name,
            head,
            keys: 0,
            value_bytes: 0,
            state: String::new(),
            ended: 0,
            records: Vec::new(),
            values: Vec::new(),
        }
    }

    /// Whether its objects are encrypted.
    pub fn is_encrypted(&self) -> bool {
        !self.head.recipients.is_empty()
    }

    /// The bytes that the objects take at the target.
    pub fn stored_bytes(&self) -> u64 {
        self.objects().map(|object| object.bytes).sum()
    }

    /// The bytes of those that this backup wrote itself.
    pub fn own_bytes(&self) -> u64 {
        let own = self.objects().filter(|object| folder_of(&object.path) == self.name);
        own.map(|object| object.bytes).sum()
    }

    /// Every object that the backup needs.
    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.records.iter().chain(&self.values)
    }

    /// In how many folders these are. An incremental backup needs objects of those that it builds on.
    pub fn sources(&self) -> usize {
        self.objects().map(|object| folder_of(&object.path)).collect::<BTreeSet<_>>().len()
    }

    pub(crate) fn encode(&self) -> Result<Bytes> {
        sealed(self, MANIFEST_BYTES_MAX)
    }

    /// Reads a manifest. Nothing of it is used before all of it is checked.
    pub(crate) fn decode(name: &str, bytes: &[u8]) -> Result<Manifest> {
        let damaged = |what: &str| Error::Damaged { name: name.into(), what: what.into() };
        let json = unsealed(bytes).map_err(|what| damaged(&format!("its manifest {what}")))?;
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let unreadable = |error: serde_json::Error| {
            damaged(&format!("its manifest: {}", excerpt(&error.to_string())))
        };
        let Format { format } = serde_json::from_str(json).map_err(unreadable)?;
        if format > FORMAT {
            return Err(Error::Newer { name: name.into(), format, newest: FORMAT });
        }
        let manifest: Manifest = serde_json::from_str(json).map_err(unreadable)?;
        manifest.check(name)?;
        Ok(manifest)
    }

    /// The manifest of a finished backup.
    ///
    /// # Errors
    /// [`Error::Missing`], [`Error::Damaged`], [`Error::Newer`], [`Error::Link`], [`Error::NoFile`],
    /// [`Error::Store`].
    pub async fn load(target: &Target, name: &str) -> Result<Manifest> {
        let missing = || Error::Missing { target: target.text().to_owned(), name: name.to_owned() };
        if !is_name(name) {
            return Err(missing());
        }
        let bytes =
            target.get(&manifest_path(name), MANIFEST_BYTES_MAX).await?.ok_or_else(missing)?;
        Manifest::decode(name, &bytes)
    }

    /// The finished backups at a target by name, each with what is kept of its manifest, or what is wrong with it.
    /// One manifest is in memory at a time. One that a prune removes meanwhile is none. A folder that may not be read may be one.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub(crate) async fn each<T>(
        target: &Target,
        keep: impl Fn(Manifest) -> T,
    ) -> Result<Vec<(String, Result<T>)>> {
        let Survey { found, unreadable, .. } = target.survey().await?;
        let refused = |folder: &Unreadable| (folder.name.clone(), Err(target.unreadable(folder)));
        let mut listed: Vec<(String, Result<T>)> = unreadable.iter().map(refused).collect();
        for (name, found) in found {
            if !found.finished || found.has_links {
                continue;
            }
            match Manifest::load(target, &name).await {
                Err(Error::Missing { .. }) => {}
                manifest => listed.push((name, manifest.map(&keep))),
            }
        }
        listed.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(listed)
    }

    #[cfg(test)]
    pub(crate) async fn list(target: &Target) -> Result<Vec<(String, Result<Manifest>)>> {
        Manifest::each(target, |manifest| manifest).await
    }

    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let damaged = |what: String| Error::Damaged { name: name.into(), what };
        if self.name != name {
            return Err(damaged(format!("its manifest is that of `{}`", excerpt(&self.name))));
        }
        let (records, values) = (self.records.len(), self.values.len());
        if records > OBJECTS_MAX || values > OBJECTS_MAX {
            return Err(damaged(format!("its manifest names {} objects", records + values)));
        }
        if let Some(fault) = self.head.fault() {
            return Err(damaged(format!("its manifest: {fault}")));
        }
        let odd = self.records.iter().find(|object| !object.is_records());
        let odd = odd.or_else(|| self.values.iter().find(|object| !object.is_values()));
        if let Some(object) = odd {
            let path = excerpt(&object.path);
            return Err(damaged(format!("its manifest names an object `{path}`")));
        }
        let paths: HashSet<&str> = self.objects().map(|object| object.path.as_str()).collect();
        if paths.len() < records + values {
            return Err(damaged("two objects of its manifest have the same path".into()));
        }
        let folders = self.sources();
        if folders > ALL_FOLDERS_MAX {
            return Err(damaged(format!("its manifest names objects of {folders} backups")));
        }
        if (self.format > PLAIN_FORMAT) != self.is_encrypted() {
            return Err(damaged("its manifest does not say to whom it is encrypted".into()));
        }
        if self.state.len() > STATE_BYTES_MAX {
            let bytes = self.state.len();
            return Err(damaged(format!("its manifest has a hash of {bytes} bytes")));
        }
        let numbers: BTreeSet<u32> = self.values.iter().map(|object| object.number).collect();
        if numbers.len() < values {
            return Err(damaged("two objects of its manifest have the same number".into()));
        }
        Ok(())
    }
}

/// JSON behind a line with its checksum and length. No more than is read.
fn sealed(content: &impl Serialize, most: u64) -> Result<Bytes> {
    let json = serde_json::to_string_pretty(content).map_err(|e| Error::Sent(e.to_string()))?;
    let sealed = format!("{}{json}", first_line(&json));
    let bytes = sealed.len() as u64;
    if bytes > most {
        return Err(Error::TooMuch { bytes, most });
    }
    Ok(sealed.into())
}

/// The JSON, if it is as it was written; else what is wrong with it.
fn unsealed(bytes: &[u8]) -> std::result::Result<&str, &'static str> {
    let text = std::str::from_utf8(bytes).map_err(|_| "is no text")?;
    let (line, json) = text.split_once('\n').ok_or("is cut")?;
    match first_line(json).strip_suffix('\n') == Some(line) {
        true => Ok(json),
        false => Err("does not have its checksum"),
    }
}

fn first_line(json: &str) -> String {
    format!("cairn-backup {:08x} {}\n", crc32fast::hash(json.as_bytes()), json.len())
}

#[cfg(test)]
mod tests;
