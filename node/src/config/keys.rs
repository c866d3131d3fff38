//! Every configuration key: its name, kind, default and meaning. This is the only list of them. The
//! file reader, the environment, `--set`, `config print` and the hint on misspelled names all read
//! it.
//!
//! What holds here: each default passes the check of its own kind (a test), and no two keys share
//! an environment variable.

use super::{forms, members};
use crate::access::Entries;
use Kind::{
    Access, Address, AddressOrAuto, Addresses, BackupRecipient, BackupTarget, Choice, Integer,
    IntegerOrAuto, Members, OptionalAddress, OptionalFile, OptionalPeriod, Period, Size, Text,
    Time,
};
use cairn_client::shown;
use cairn_engine::Geometry;
use std::time::Duration;

/// The form of a key's value.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Any text that is not empty.
    Text,
    /// A whole number in a closed range.
    Integer(u64, u64),
    /// A whole number in a closed range, or `auto`.
    IntegerOrAuto(u64, u64),
    /// A number of bytes in a closed range: `65536`, `64KiB`, `1MiB`.
    Size(u64, u64),
    /// A length of time: `100ms`, `1s`.
    Time,
    /// A length of time of so many seconds or more: `1m`, `7d`.
    Period(u64),
    /// The same, or `none`.
    OptionalPeriod(u64),
    /// An absolute path or a bucket, or `none`.
    BackupTarget,
    /// A recipient of age, or the absolute path of a file with some, or `none`.
    BackupRecipient,
    /// `host:port`.
    Address,
    /// `host:port`, or `none`.
    OptionalAddress,
    /// `host:port`, or `auto`.
    AddressOrAuto,
    /// Any number of `host:port`, as an array or with commas.
    Addresses,
    /// The path of a file, or `none`.
    OptionalFile,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// Members, as `1=host:port/host:port,2=…` (client address, then peer address).
    Members,
    /// Names with their roles, as `NAME=ROLES,NAME=…`.
    Access,
}

/// One configuration key.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its dotted name, as in the file.
    pub name: &'static str,
    /// The form of its value.
    pub kind: Kind,
    /// The default; `None` if there is no sensible one.
    pub default: Option<&'static str>,
    /// One line for `config print` and the example file.
    pub doc: &'static str,
    /// Whether a running node takes another value when it reads its configuration again.
    pub live: bool,
}

impl Key {
    const fn means(self, doc: &'static str) -> Key {
        Key { doc, ..self }
    }

    const fn live(self) -> Key {
        Key { live: true, ..self }
    }

    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("CAIRN_{}", self.name.replace('.', "_").to_uppercase())
    }
}

/// A key with its default.
const fn key(name: &'static str, kind: Kind, default: &'static str) -> Key {
    Key { name, kind, default: Some(default), doc: "", live: false }
}

const fn required(name: &'static str, kind: Kind) -> Key {
    Key { name, kind, default: None, doc: "", live: false }
}

/// The longest key that fits a journal record with space to spare. A stored key may be this long,
/// even if the limit for new keys is lower now.
pub const KEY_BYTES_MAX: u64 = 2048;
/// The largest value that any limit allows.
pub const VALUE_BYTES_MAX: u64 = 16 << 20;

const FLAG: Kind = Choice(&["false", "true"]);

/// The shortest time between two backups, in seconds: each reads all keys.
const BACKUP_SECONDS_MIN: u64 = 60;

/// All keys, in the order of `config print`.
pub(crate) const KEYS: &[Key] = &[
    required("cluster", Text).means("name of the cluster, the same on every member"),
    required("slot", Integer(1, 65_535)).means("slot number of this member"),
    required("data_dir", Text).means("data directory, made by `cairn format`"),
    key("mode", Choice(&["auto", "device", "replicated", "sync"]), "auto")
        .means("what an acknowledgement promises in a cluster that this member forms; auto: the strongest mode that `cairn doctor` justifies for data_dir and the members. Later `cairn mode set` says it"),
    key("join", Addresses, "")
        .means("peer addresses of members, asked for the others until the log tells them; not empty, and no members: this one joins their cluster"),
    key("members", Members, "")
        .means("members that form the cluster, once; empty: only this one, or none with join. In the file, as tables [members.1] with client and peer"),
    key("failure_domain", Text, "none")
        .means("what fails as a whole with this machine, such as a rack or a host of virtual machines; status warns of voters that share it"),
    key("listen.client", Address, "127.0.0.1:7400").means("address that serves clients"),
    key("listen.peer", Address, "127.0.0.1:7401").means("address that serves the other members"),
    key("listen.http", OptionalAddress, "127.0.0.1:7402")
        .means("address that serves the status page, /live, /ready, /safe-to-stop and /metrics; none: do not serve them"),
    key("tls.ca", OptionalFile, "none")
        .means("CAs of the cluster, in PEM: who may connect and answer; `cairn certs init` makes one"),
    key("tls.certificate", OptionalFile, "none")
        .means("certificate of this member, in PEM, named cairn://CLUSTER/member/SLOT; `cairn certs issue` makes one. Changed files are used without a restart"),
    key("tls.key", OptionalFile, "none").means("key of that certificate, in PEM"),
    key("insecure", FLAG, "false")
        .means("true: no certificates; whoever reaches the ports can read, write, and act as a member"),
    key("advertise.client", AddressOrAuto, "auto")
        .means("address at which clients reach this member; auto: listen.client"),
    key("advertise.peer", AddressOrAuto, "auto")
        .means("address at which the other members reach this one; auto: listen.peer"),
    key("access", Access, "none")
        .means("who may do what; none: everybody may do everything. NAME=ROLES,…, where NAME is that of a certificate or of a token (`cairn access token`) and ROLES are \
                read, write, each with :PREFIX for some keys only, and operator. In the file, as a table [access] with NAME = \"ROLES\"")
        .live(),
    key("limits.max_key_bytes", Size(1, KEY_BYTES_MAX), "1KiB").means("longest key of a put")
        .live(),
    key("limits.max_value_bytes", Size(1, VALUE_BYTES_MAX), "1MiB").means("longest value")
        .live(),
    key("limits.max_batch_operations", Integer(1, 1024), "128")
        .means("most operations of one write request, and keys of one get of several")
        .live(),
    key("limits.max_request_bytes", Size(1, 4 * VALUE_BYTES_MAX), "4MiB")
        .means("most bytes of keys and values in one write request"),
    key("limits.max_list_items", Integer(1, 100_000), "10000").means("most items of one list page")
        .live(),
    key("limits.max_list_bytes", Size(1, 4 * VALUE_BYTES_MAX), "4MiB")
        .means("most bytes of keys and values in one list page, and of values in one get of several")
        .live(),
    key("limits.max_in_flight_writes", Integer(1, 1_000_000), "4096")
        .means("most write requests under way; more are refused as overloaded")
        .live(),
    key("limits.max_in_flight_bytes", Size(1 << 20, 1 << 40), "64MiB")
        .means("most bytes of write requests under way; more are refused as overloaded")
        .live(),
    key("limits.max_read_bytes", Size(16 << 20, 1 << 40), "256MiB")
        .means("most memory for values being read and for answers not yet sent to clients; more reads wait, or are refused as overloaded")
        .live(),
    key("limits.max_connections", Integer(1, 1_000_000), "10000")
        .means("most client connections at once, and at most three quarters of the files that the process may open; more are closed"),
    key("limits.max_sessions", Integer(1, 1_000_000), "10000")
        .means("most client sessions whose latest results are kept, so that a retried write is not applied twice"),
    key("limits.max_watches", Integer(1, 1_000_000), "20000")
        .means("most watches at once, of which a client may have as many as remain free; more are sent to another member")
        .live(),
    key("timing.heartbeat", Time, "100ms").means("interval between heartbeats, and the time limit of their answers: more than the round trip between any two members"),
    key("timing.election_min", Time, "500ms").means("shortest election timeout"),
    key("timing.election_max", Time, "1s").means("longest election timeout"),
    key("timing.request", Time, "10s").means("deadline of a request that has none of its own"),
    key("timing.shutdown", Time, "3s")
        .means("time for requests under way to finish when the server stops"),
    key("storage.size", Size(16 << 20, Geometry::MAX_TOTAL_BYTES), "10GiB")
        .means("size of the data directory in bytes; used by `cairn format` and `cairn grow` only"),
    key("storage.value_size", IntegerOrAuto(1, 1 << 30), "auto")
        .means("about the bytes of a value, by which `cairn format` and `cairn grow` divide the directory: the fewer, the more of it \
                is for keys; auto: right for values of about 600 bytes and more"),
    key("storage.backend", Choice(&["auto", "io_uring", "threads"]), "auto")
        .means("how the disk is accessed; auto: io_uring, or threads if the system forbids it"),
    key("storage.format_empty", FLAG, "false")
        .means("true: `cairn serve` formats data_dir if it is missing or empty, so that a machine with a new disk takes its slot \
                automatically; false: run `cairn format`"),
    key("storage.assert_device_contract", FLAG, "false")
        .means("true: you state that the device keeps completed writes through a power cut and writes 4 KiB atomically"),
    key("storage.boot_id_file", Text, "/proc/sys/kernel/random/boot_id")
        .means("file with the kernel boot id; another one for tests and for containers that hide it"),
    key("storage.sync_interval", Time, "1s")
        .means("longest time between a write and the background sync that covers it"),
    key("storage.sync_bytes", Size(1 << 20, 1 << 40), "4MiB")
        .means("most written bytes before a background sync begins; while sixteen times as many are not synced, acknowledgements wait for one"),
    key("storage.io_timeout", Time, "30s")
        .means("time after which a read, write or sync that has not returned counts as failed, and the node stops"),
    key("storage.log_cache_bytes", Size(1 << 20, 1 << 40), "64MiB")
        .means("memory for log entries on their way to followers"),
    key("storage.value_cache_bytes", Size(0, 1 << 36), "64MiB")
        .means("memory for values that are read often; 0: each get of a value reads the disk"),
    key("storage.log_retain_bytes", Size(1 << 20, 1 << 46), "256MiB")
        .means("applied log kept for followers that lag; bounded by an eighth of the data area; watch.retain_bytes may keep more"),
    key("storage.log_retain_entries", Integer(1, 100_000_000), "500000")
        .means("applied log entries kept, for followers that lag and for those who follow changes; at most 100000, or as many as \
                there are keys if these are more"),
    key("watch.retain_bytes", Size(1 << 20, 1 << 46), "256MiB")
        .means("changes that can be told to those who follow them, in bytes of the log, which waits for them, also beyond \
                storage.log_retain_bytes, and of the keys of deleted ranges, 64 MiB of these at most; bounded by an eighth of the \
                data area, and by storage.log_retain_entries"),
    key("watch.retain_time", Period(1), "1h").means("time for which changes can be told to those who follow them"),
    key("threads.clients", IntegerOrAuto(0, 64), "auto")
        .means("threads that serve client connections, beside the thread that replicates and stores; 0: that thread serves them too; \
                auto: 0 with one or two processors, else one less than there are, at most 8"),
    key("scrub.rate_bytes", Size(4096, 1 << 40), "10MiB")
        .means("bytes that the scrubber reads in a second, at most")
        .live(),
    key("scrub.cycle_days", Integer(1, 3650), "30")
        .means("days from the start of one full scrub to the next"),
    key("backup.target", BackupTarget, "none")
        .means("where the leader saves backups of the cluster, the same on every member: a folder that all of them reach, or \
                s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or az://CONTAINER/PREFIX; none: it saves none"),
    key("backup.every", Period(BACKUP_SECONDS_MIN), "1day")
        .means("time from the end of one backup to the beginning of the next")
        .live(),
    key("backup.keep", Integer(0, 10_000), "7")
        .means("backups that stay: the latest, so many; others are removed after each backup")
        .live(),
    key("backup.keep_within", OptionalPeriod(BACKUP_SECONDS_MIN), "none")
        .means("backups that are younger than this stay too")
        .live(),
    key("backup.full_every", OptionalPeriod(BACKUP_SECONDS_MIN), "none")
        .means("a backup saves what changed since the latest one, but everything once that one needs objects of this age; none: once \
                it needs those of 24 backups")
        .live(),
    key("backup.encrypt_to", BackupRecipient, "none")
        .means("recipient of age, age1…, or a file with one on each line, to whom backups are encrypted; each backup then has \
                everything. none: they are not encrypted")
        .live(),
    key("backup.verify", Choice(&["none", "stored", "all"]), "none")
        .means("how the leader reads each backup again that it has saved, before it removes others: stored: lengths and checksums of \
                all objects that it needs; all: keys and values too, which an encrypted one does not allow")
        .live(),
    key("unsafe_recovery.automatic", FLAG, "false")
        .means("true: if so many machines lost power that no member can be elected, the members discard what no member holds, without \
                an operator, once every voter answers; false: they wait for `cairn unsafe-recovery`"),
    key("log.level", Text, "info")
        .means("error, warn, info, debug or trace; or directives such as info,cairn_raft=debug")
        .live(),
    key("log.format", Choice(&["human", "json"]), "human").means("how the server writes its log"),
];

/// Whether a secret may stand in place of this key's value: a key of a bucket or of a certificate, or a token.
/// The value of a number or an address is shown, since a slip is found by it.
pub(crate) fn hides_value(name: &str) -> bool {
    let is_text = |key: &Key| {
        matches!(key.kind, Text | OptionalFile | BackupTarget | BackupRecipient | Access)
    };
    name.starts_with("access.") || find(name).is_some_and(is_text)
}

/// The key of that name.
pub(crate) fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

/// Whether keys begin with this name and a dot.
pub(crate) fn is_section(name: &str) -> bool {
    KEYS.iter().any(|key| key.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')))
}

/// The known name that `name` was probably meant to be.
pub(crate) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    known
        .map(|candidate| (strsim::damerau_levenshtein(name, candidate), candidate))
        .filter(|(distance, candidate)| *distance <= 3 && *distance * 2 < candidate.len())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Reads a number of bytes: `4096`, `64KiB`, `1MiB`, `2GiB`, `1TiB`; `K`, `M`, `G`, `T` mean the
/// same.
///
/// # Errors
/// A sentence that says what was expected.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let text = text.trim();
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let expected = || "expected a number of bytes such as 4096, 64KiB, 1MiB or 2GiB".to_string();
    let shift = match text.get(digits.len()..).unwrap_or("").trim() {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(expected()),
    };
    let number: u64 = digits.parse().map_err(|_| expected())?;
    number.checked_mul(1 << shift).ok_or_else(|| "too large".into())
}

/// Writes a number of bytes in the form that [`parse_size`] reads, in the largest unit that divides
/// it.
pub fn format_size(bytes: u64) -> String {
    [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)]
        .into_iter()
        .find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift)
        .map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

/// Writes a number of bytes rounded to three digits, which is enough for a reader.
pub fn format_rounded(bytes: u64) -> String {
    let shift = (64 - bytes.leading_zeros()).saturating_sub(1) / 10 * 10;
    format_size((bytes >> shift) << shift)
}

/// Reads a number of threads; `None` for `auto`.
pub(crate) fn parse_threads(text: &str) -> Result<Option<usize>, String> {
    match text {
        "auto" => Ok(None),
        number => number.parse().map(Some).map_err(|_| "expected a whole number or auto".into()),
    }
}

/// Reads `storage.value_size`.
pub(crate) fn parse_value_size(text: &str) -> Result<Option<u64>, String> {
    match text {
        "auto" => Ok(None),
        number => number.parse().map(Some).map_err(|_| "expected a whole number or auto".into()),
    }
}

/// Reads a length of time.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|_| "expected a length of time such as 100ms, 1s or 2m".to_string())?;
    if time < Duration::from_millis(1) || time > Duration::from_secs(86_400) {
        return Err("expected between 1ms and 1day".into());
    }
    Ok(time)
}

/// Reads who may do what; `none`: everybody may do everything. A text that names nobody is a slip, which
/// would let everybody in.
pub(crate) fn parse_access(text: &str) -> Result<Entries, String> {
    if text == "none" {
        return Ok(Entries::default());
    }
    let entries = Entries::parse(text)?;
    match entries.is_empty() {
        true => Err("expected at least one NAME=ROLES; leave `access` out, or set it to none, if everybody may do everything".into()),
        false => Ok(entries),
    }
}

impl Kind {
    /// Checks a value's form.
    pub(crate) fn check(self, text: &str) -> Result<(), String> {
        match self {
            Kind::Text | Kind::OptionalFile if text.is_empty() => {
                Err("expected a text that is not empty".into())
            }
            Kind::Text | Kind::OptionalFile if text.chars().any(shown::is_unprintable) => {
                Err("expected a text without control characters".into())
            }
            Kind::Text | Kind::OptionalFile => Ok(()),
            Kind::Integer(min, max) => {
                let number: u64 = text
                    .parse()
                    .map_err(|_| format!("expected a whole number from {min} to {max}"))?;
                in_range(number, min, max, |n| n.to_string())
            }
            Kind::IntegerOrAuto(..) if text == "auto" => Ok(()),
            Kind::IntegerOrAuto(min, max) => Kind::Integer(min, max)
                .check(text)
                .map_err(|expected| format!("{expected}, or auto")),
            Kind::Size(min, max) => in_range(parse_size(text)?, min, max, format_size),
            Kind::Time => parse_time(text).map(|_| ()),
            Kind::Period(least) => forms::parse_period(text, least).map(|_| ()),
            Kind::OptionalPeriod(least) => forms::parse_some_period(text, least).map(|_| ()),
            Kind::BackupTarget | Kind::BackupRecipient
                if text.chars().any(shown::is_unprintable) =>
            {
                Err("expected a text without control characters".into())
            }
            Kind::BackupTarget => forms::check_target(text),
            Kind::BackupRecipient => forms::check_recipient(text),
            Kind::OptionalAddress if text == "none" => Ok(()),
            Kind::AddressOrAuto if text == "auto" => Ok(()),
            Kind::Address | Kind::OptionalAddress | Kind::AddressOrAuto => {
                members::check_address(text)
            }
            Kind::Addresses => members::parse_addresses(text).map(|_| ()),
            Kind::Choice(words) if words.contains(&text) => Ok(()),
            Kind::Choice(words) => Err(format!("expected one of {}", words.join(", "))),
            Kind::Members => members::parse(text).map(|_| ()),
            Kind::Access => parse_access(text).map(|_| ()),
        }
    }
}

fn in_range(number: u64, min: u64, max: u64, show: impl Fn(u64) -> String) -> Result<(), String> {
    if (min..=max).contains(&number) {
        Ok(())
    } else {
        Err(format!("expected from {} to {}", show(min), show(max)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_default_passes_its_own_check() {
        for key in KEYS {
            assert!(!key.doc.is_empty(), "{}", key.name);
            if let Some(default) = key.default {
                assert_eq!(key.kind.check(default), Ok(()), "{}", key.name);
            }
        }
    }

    #[test]
    fn every_size_that_passes_can_be_formatted() {
        let Some(Kind::Size(min, max)) = find("storage.size").map(|key| key.kind) else {
            panic!("a size")
        };
        assert!(Geometry::for_total(min).is_ok() && Geometry::for_total(max).is_ok());
    }

    #[test]
    fn names_and_variables_are_unique() {
        let names: BTreeSet<_> = KEYS.iter().map(|key| key.name).collect();
        let variables: BTreeSet<_> = KEYS.iter().map(Key::variable).collect();
        assert_eq!((names.len(), variables.len()), (KEYS.len(), KEYS.len()));
    }

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, bytes) in
            [("4096", 4096), ("64KiB", 65_536), ("1 MiB", 1 << 20), ("2G", 2 << 30)]
        {
            assert_eq!(parse_size(text), Ok(bytes));
            assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }
        assert_eq!(format_size(0), "0");
        assert_eq!(format_size(1500), "1500");
        for bad in ["", "KiB", "-1", "1.5MiB", "1MB", "99999999999999TiB"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
