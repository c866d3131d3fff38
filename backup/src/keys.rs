//! The keys of encrypted backups, as age writes them: recipients, to whom one is encrypted, and
//! identities, the secret keys that read it.
//!
//! What holds here: keys are those of X25519, `age1…` and `AGE-SECRET-KEY-1…`. A file of them has a
//! bounded length, and what is refused names the file and the line. No error shows a secret key.

use crate::error::{Error, Result};
use age::x25519::{Identity, Recipient};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// To so many a backup is encrypted at most: each takes a hundred bytes of every object.
pub(crate) const RECIPIENTS_MAX: usize = 16;
/// So many identities are tried at most, with each recipient of each object.
const IDENTITIES_MAX: usize = 16;
/// The most bytes of a file with keys.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The length of each recipient.
const RECIPIENT_BYTES: usize = 62;
/// Recipients to whom nothing can be encrypted: the points of small order, without and with the bit that X25519 passes
/// over. Everybody knows what is agreed upon with one, and the library panics then.
const WEAK: [&str; 14] = [
    "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq5cu47z",
    "age1qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqzqqsuwj9m",
    "age1qyqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqj7vrya",
    "age1qyqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqzqqk67yly",
    "age1ur4h5lpmgxu2u9jku0a0r87ydtdqnr0tnsetrlvxvgz3vh6fhqqqzyt4v9",
    "age1ur4h5lpmgxu2u9jku0a0r87ydtdqnr0tnsetrlvxvgz3vh6fhzqqxqejhu",
    "age1t7wft09r2zxzfvwsk92eeql0tvzyghxytqwgapkcyf8dm5ylz9ts6wm9s8",
    "age1t7wft09r2zxzfvwsk92eeql0tvzyghxytqwgapkcyf8dm5ylz8ts72fzt7",
    "age1anlllllllllllllllllllllllllllllllllllllllllllllllals4n2t7m",
    "age1anllllllllllllllllllllllllllllllllllllllllllllllllls3hcv9z",
    "age1ahlllllllllllllllllllllllllllllllllllllllllllllllalsn46ayy",
    "age1ahlllllllllllllllllllllllllllllllllllllllllllllllllsh3g6la",
    "age1amlllllllllllllllllllllllllllllllllllllllllllllllalselrwrv",
    "age1amlllllllllllllllllllllllllllllllllllllllllllllllllsam3fc4",
];

const SECRET: &str = "AGE-SECRET-KEY-";
/// How files begin that are encrypted themselves, as age does it with a passphrase.
const LOCKED: [&[u8]; 2] = [b"age-encryption.org/", b"-----BEGIN AGE ENCRYPTED FILE-----"];

/// To whom a backup is encrypted: at least one, each once, sorted by their texts.
#[derive(Clone, Debug)]
pub struct Recipients {
    texts: Vec<String>,
    keys: Vec<Recipient>,
}

impl Recipients {
    /// Each text is a recipient as `age1…`, or the path of a file with recipients, one a line.
    ///
    /// # Errors
    /// [`Error::Key`].
    pub fn read(given: &[String]) -> Result<Recipients> {
        let mut found = BTreeMap::new();
        for text in given {
            if looks_like_key(text) {
                let key = recipient(text).map_err(|why| refused(shown_key(text), why))?;
                found.insert(key.to_string(), key);
                continue;
            }
            let lines = lines_of(Path::new(text)).map_err(|why| {
                let expected = "expected a recipient as age1…, or a file with one on each line";
                refused(format!("`{text}`"), format!("{why}; {expected}"))
            })?;
            for (number, line) in &lines {
                let at = || format!("`{text}`, line {number}");
                let key = recipient(line).map_err(|why| refused(at(), why))?;
                found.insert(key.to_string(), key);
            }
            if lines.is_empty() {
                return Err(refused(format!("`{text}`"), "it has no recipient, age1…"));
            }
        }
        match found.len() {
            0 => Err(refused("nobody".into(), "a backup is encrypted to at least one recipient")),
            1..=RECIPIENTS_MAX => {
                let (texts, keys) = found.into_iter().unzip();
                Ok(Recipients { texts, keys })
            }
            more => {
                let why = format!("a backup is encrypted to at most {RECIPIENTS_MAX}");
                Err(refused(format!("{more} recipients"), why))
            }
        }
    }

    /// As a head names them.
    pub fn texts(&self) -> &[String] {
        &self.texts
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = &Recipient> {
        self.keys.iter()
    }
}

/// Whether a head may name these, or none: as a save writes them.
pub(crate) fn are_recipients(texts: &[String]) -> bool {
    texts.len() <= RECIPIENTS_MAX
        && texts.is_sorted_by(|one, next| one < next)
        && texts.iter().all(|text| {
            text.len() == RECIPIENT_BYTES
                && recipient(text).is_ok_and(|key| key.to_string() == *text)
        })
}

/// Secret keys, maybe none. Clones share them.
#[derive(Clone, Default)]
pub struct Identities(Arc<Vec<Identity>>);

impl Identities {
    /// The secret keys of these files, one a line.
    ///
    /// # Errors
    /// [`Error::Key`], also of a file that is protected by a passphrase.
    pub fn read(files: &[PathBuf]) -> Result<Identities> {
        let mut found = Vec::new();
        for path in files {
            let file = path.display();
            if is_secret(&file.to_string()) {
                let why = "expected the path of a file that has it: arguments are seen by others";
                return Err(refused("a secret key".into(), why));
            }
            let lines = lines_of(path).map_err(|why| refused(format!("`{file}`"), why))?;
            for (number, line) in &lines {
                let key = identity(line, &file.to_string())
                    .map_err(|why| refused(format!("`{file}`, line {number}"), why))?;
                found.push(key);
            }
            if lines.is_empty() {
                let why = format!("it has no secret key, {SECRET}1…; `age-keygen` makes one");
                return Err(refused(format!("`{file}`"), why));
            }
        }
        if found.len() > IDENTITIES_MAX {
            let why = format!("at most {IDENTITIES_MAX} are tried: give those of this backup");
            return Err(refused(format!("{} secret keys", found.len()), why));
        }
        Ok(Identities(Arc::new(found)))
    }

    /// These, and another one.
    pub(crate) fn and(&self, other: Identity) -> Identities {
        Identities(Arc::new(self.iter().cloned().chain([other]).collect()))
    }

    /// The one that the tests know.
    #[cfg(test)]
    pub(crate) fn known() -> Identities {
        let [secret, _] = KNOWN;
        Identities(Arc::new(secret.parse::<Identity>().into_iter().collect()))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Identity> {
        self.0.iter()
    }

    /// Whose they are.
    pub(crate) fn recipients(&self) -> Vec<String> {
        self.iter().map(|one| one.to_public().to_string()).collect()
    }
}

fn refused(given: String, reason: impl Into<String>) -> Error {
    Error::Key { given, reason: reason.into() }
}

/// The lines of a file that have keys, with their numbers.
fn lines_of(path: &Path) -> std::result::Result<Vec<(usize, String)>, String> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    lines_in(bytes, path)
}

/// The same, of the bytes of the file.
fn lines_in(bytes: Vec<u8>, path: &Path) -> std::result::Result<Vec<(usize, String)>, String> {
    if bytes.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("it has more than {FILE_BYTES_MAX} bytes, and is no file of keys"));
    }
    if LOCKED.iter().any(|begin| bytes.starts_with(begin)) {
        let file = path.display();
        return Err(format!(
            "it is protected by a passphrase, which nobody types here: give what `age --decrypt` makes of it, \
             as --identity <(age --decrypt {file}) in bash, which leaves nothing on the disk"
        ));
    }
    let text = String::from_utf8(bytes).map_err(|_| "it is no text".to_owned())?;
    let lines = text.lines().map(str::trim).zip(1..);
    let keys = lines.filter(|(line, _)| !line.is_empty() && !line.starts_with('#'));
    Ok(keys.map(|(line, number)| (number, line.to_owned())).collect())
}

/// Also where it stands behind something else, as in what `$(cat key.txt)` gives.
fn is_secret(text: &str) -> bool {
    text.to_ascii_uppercase().contains(SECRET)
}

fn is_of_ssh(text: &str) -> bool {
    ["ssh-", "ecdsa-", "sk-ssh-", "sk-ecdsa-", "-----BEGIN"]
        .iter()
        .any(|begin| text.starts_with(begin))
}

/// Whether a text is meant as a key, and not as the path of a file.
fn looks_like_key(text: &str) -> bool {
    text.starts_with("age1") || text.contains("AAAA") && is_of_ssh(text) || is_secret(text)
}

/// A text that is meant as a key, for an error.
fn shown_key(text: &str) -> String {
    match is_secret(text) {
        true => "a secret key".into(),
        false => format!("`{}`", text.escape_default()),
    }
}

fn recipient(text: &str) -> std::result::Result<Recipient, &'static str> {
    let key: Recipient = text.parse().map_err(|_| match text {
        _ if is_secret(text) => {
            "a secret key belongs into the file of --identity, and into no command: `age-keygen -y FILE` prints its \
             recipient. Make another key, if somebody may have seen this one"
        }
        _ if is_of_ssh(text) => {
            "keys of SSH are not served: make a key of age with `age-keygen`, and give its recipient, age1…"
        }
        // An X25519 recipient has no other 1.
        _ if text.starts_with("age1") && text.matches('1').count() > 1 => {
            "recipients of plugins and other kinds are not served: give one that `age-keygen` made, without options"
        }
        _ => "it is no recipient of age, as age1…, or has a slip",
    })?;
    match WEAK.contains(&key.to_string().as_str()) {
        true => Err(
            "nothing can be encrypted to this one, since everybody knows its secret: give one that `age-keygen` made",
        ),
        false => Ok(key),
    }
}

/// A secret key for tests, and its recipient.
#[cfg(test)]
pub(crate) const KNOWN: [&str; 2] = [
    "AGE-SECRET-KEY-1QURSWPC8QURSWPC8QURSWPC8QURSWPC8QURSWPC8QURSWPC8QURSKMP32K",
    "age1zwlyl6h27gzv0lfntr7fcqrjrzqazap8sy5zylkxwneh7llf0dksu37mwt",
];

fn identity(text: &str, file: &str) -> std::result::Result<Identity, String> {
    text.parse().map_err(|_| match text {
        _ if text.starts_with("age1") => {
            "it is a recipient, for --encrypt-to: give the file with its secret key".to_owned()
        }
        _ if text.starts_with("AGE-PLUGIN-") => {
            "identities of plugins are not served: give the secret key of another recipient"
                .to_owned()
        }
        _ if is_of_ssh(text) => {
            format!("keys of SSH are not served: give a secret key of age, {SECRET}1…")
        }
        _ if is_secret(text) => {
            format!(
                "it is no secret key of X25519, or has a slip: `age-keygen -y {file}` says which"
            )
        }
        _ => format!("it is no secret key of age, {SECRET}1…"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use age::secrecy::ExposeSecret;

    fn said(given: &[&str]) -> String {
        let given: Vec<String> = given.iter().map(|text| (*text).to_owned()).collect();
        Recipients::read(&given).unwrap_err().to_string()
    }

    fn file(bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn read(bytes: &[u8]) -> Result<Identities> {
        let (_folder, path) = file(bytes);
        Identities::read(&[path])
    }

    #[test]
    fn recipients_are_read_from_texts_and_files_and_sorted_each_once() {
        let keys: Vec<Identity> = (0..3).map(|_| Identity::generate()).collect();
        let texts: Vec<String> = keys.iter().map(|key| key.to_public().to_string()).collect();
        let lines = format!("# of the office\n\n  {}  \r\n{}\n", texts[0], texts[1]);
        let (_folder, path) = file(lines.as_bytes());
        let path = path.to_str().unwrap().to_owned();
        let read = Recipients::read(&[texts[2].clone(), path, texts[0].clone()]).unwrap();
        let mut expected = texts;
        expected.sort();
        assert_eq!(read.texts(), expected);
        assert!(read.keys().map(ToString::to_string).eq(expected.iter().cloned()));
        assert!(are_recipients(&expected) && are_recipients(&[]));
        expected.reverse();
        assert!(!are_recipients(&expected));
        assert!(!are_recipients(&["age1\u{1b}[2J".to_owned()]));
    }

    /// The story: the library panicked while it encrypted to such a recipient, so each save of a schedule failed with no word of
    /// why.
    #[test]
    fn a_recipient_whose_secret_everybody_knows_is_refused() {
        for text in WEAK {
            let key: Recipient = text.parse().unwrap();
            let encrypted = std::panic::catch_unwind(|| {
                let to = std::iter::once(&key as &dyn age::Recipient);
                age::Encryptor::with_recipients(to).is_ok()
            });
            assert!(encrypted.is_err(), "{text} can be used");
            assert!(said(&[text]).contains("everybody knows its secret"), "{text}");
            assert!(!are_recipients(&[text.to_owned()]), "{text}");
        }
    }

    /// What a head names is compared with what a save is given, text by text.
    #[test]
    fn a_head_names_a_recipient_in_one_form_alone() {
        let [_, public] = KNOWN;
        let upper = public.to_uppercase();
        assert!(upper.parse::<Recipient>().is_ok());
        assert!(are_recipients(&[public.to_owned()]) && !are_recipients(&[upper]));
    }

    #[test]
    fn what_is_no_recipient_is_refused_with_the_way_out() {
        let ssh =
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHsKLqeplhpW+uObz5dvMgjz1OxfM/XXUB+VHtZ6isGN a@b";
        assert!(said(&[ssh]).contains("keys of SSH are not served: make a key of age"));
        let plugin = "age1yubikey1q2w7u3vpya839jxxuq8g0sedh3d740d4xvn639sqhr95ejj8vu3hyfumptt";
        assert!(said(&[plugin]).contains("plugins and other kinds are not served"));
        let mut slip = Identity::generate().to_public().to_string();
        let last = if slip.ends_with('q') { 'p' } else { 'q' };
        slip.pop();
        slip.push(last);
        let error = said(&[slip.as_str()]);
        assert!(error.contains(&slip) && error.contains("has a slip"), "{error}");
        let missing = said(&["no such file"]);
        assert!(missing.contains("`no such file`: ") && missing.contains("age1…"), "{missing}");
        assert!(said(&[]).contains("at least one recipient"));
        let (_folder, path) = file(format!("\n{ssh}\n").as_bytes());
        let error = said(&[path.to_str().unwrap()]);
        assert!(error.contains("keys`, line 2: keys of SSH"), "{error}");
        let many: Vec<String> =
            (0..17).map(|_| Identity::generate().to_public().to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        assert!(said(&many).contains("17 recipients: a backup is encrypted to at most 16"));
    }

    #[test]
    fn a_secret_key_in_the_place_of_a_recipient_is_refused_and_not_shown() {
        let key = Identity::generate();
        let secret = key.to_string();
        let secret = secret.expose_secret();
        let (lower, (_folder, path)) = (secret.to_lowercase(), file(secret.as_bytes()));
        for given in [secret, lower.as_str(), path.to_str().unwrap()] {
            let error = said(&[given]);
            assert!(error.contains("`age-keygen -y FILE` prints its recipient"), "{error}");
            assert!(!error.to_uppercase().contains(secret), "{error}");
        }
    }

    #[test]
    fn identities_are_read_as_age_keygen_writes_them() {
        let keys = [Identity::generate(), Identity::generate()];
        let [first, second] = keys.each_ref().map(|key| key.to_string());
        let text = format!(
            "# created: 2026-11-29T12:00:00Z\n# public key: {}\n{}\n{}\n",
            keys[0].to_public(),
            first.expose_secret(),
            second.expose_secret()
        );
        let expected = keys.map(|key| key.to_public().to_string());
        assert_eq!(read(text.as_bytes()).unwrap().recipients(), expected);
        assert!(Identities::read(&[]).unwrap().is_empty());
    }

    #[test]
    fn what_is_no_identity_is_refused_with_the_way_out_and_not_shown() {
        let public = Identity::generate().to_public().to_string();
        let secret = Identity::generate().to_string();
        let cut = &secret.expose_secret()[..40];
        let cases: [(&[u8], &str); 11] = [
            (b"", "it has no secret key"),
            (b"# nothing\n", "it has no secret key"),
            (public.as_bytes(), "line 1: it is a recipient, for --encrypt-to"),
            (b"age-encryption.org/v1\n-> scrypt abc 18\n\xff", "protected by a passphrase"),
            (b"-----BEGIN AGE ENCRYPTED FILE-----\nYWdl\n", "age --decrypt"),
            (b"-----BEGIN OPENSSH PRIVATE KEY-----\nb3Bl\n", "keys of SSH are not served"),
            (b"AGE-PLUGIN-YUBIKEY-1QQQ\n", "identities of plugins are not served"),
            (b"\n\nhunter2\n", "line 3: it is no secret key of age"),
            (cut.as_bytes(), "has a slip"),
            (b"\xff\xfe", "it is no text"),
            (&[b'#'; (64 << 10) + 1], "it has more than 65536 bytes"),
        ];
        for (bytes, what) in cases {
            let error = read(bytes).err().unwrap().to_string();
            assert!(error.contains(what), "{error}");
            assert!(!error.contains("hunter2") && !error.contains(cut), "{error}");
        }
        let error = Identities::read(&["no such file".into()]).err().unwrap().to_string();
        assert!(error.contains("`no such file`: "), "{error}");
    }

    #[test]
    fn any_bytes_are_lines_of_keys_or_are_refused_and_not_shown() {
        let [secret, public] = KNOWN;
        cairn_fuzz::target!(
            "identities" => format!("# public key: {public}\n{secret}\n").into_bytes(),
            "recipients" => format!("# of the office\n\n  {public}  \r\n").into_bytes(),
            "locked" => b"age-encryption.org/v1\n-> scrypt abc 18\n".to_vec(),
        )
        .for_each(|bytes| {
            let most = 128 * bytes.len() + (4 << 10);
            let read = || lines_in(bytes.to_vec(), Path::new("keys"));
            let Ok(lines) = cairn_fuzz::within(most, read) else { return };
            let text = std::str::from_utf8(bytes).unwrap();
            assert!(lines.len() <= text.lines().count());
            for (number, line) in &lines {
                assert_eq!(text.lines().nth(number - 1).map(str::trim), Some(line.as_str()));
                if let Ok(key) = recipient(line) {
                    assert!(are_recipients(&[key.to_string()]));
                }
                match identity(line, "keys") {
                    Ok(key) => assert!(recipient(&key.to_public().to_string()).is_ok()),
                    // Shorter ones may be words of the error.
                    Err(why) => assert!(line.len() < 40 || !why.contains(line), "{why}"),
                }
            }
            let texts: Vec<String> = lines.into_iter().map(|(_, line)| line).collect();
            if !texts.is_empty() && are_recipients(&texts) {
                assert_eq!(Recipients::read(&texts).unwrap().texts(), texts);
            }
        });
    }
}
