//! The names that the configuration gives roles: each with its roles, and the hash of its token if
//! it has one. `ada = "write:app/ token:5e88…"` in the file, `ada=write:app/ token:5e88…,ci=read`
//! on one line.

use super::roles::Roles;
use super::token::TokenHash;
use std::collections::BTreeMap;
use std::fmt;

/// Names of one configuration. A token is compared with the hash of each.
const MOST_NAMES: usize = 1024;
/// The longest name, in bytes.
const NAME_BYTES: usize = 64;

/// What one name may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its roles, at least one.
    pub roles: Roles,
    /// The hash of its token. Without one only a certificate of the name has the roles.
    pub token: Option<TokenHash>,
}

/// The names with their entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entries(BTreeMap<String, Entry>);

/// Checks the form of a name.
///
/// # Errors
/// A sentence that says what was expected.
pub fn check_name(name: &str) -> Result<(), String> {
    let usual = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
    if (1..=NAME_BYTES).contains(&name.len()) && name.bytes().all(usual) {
        return Ok(());
    }
    Err(format!(
        "`{name}`: expected a name of 1 to {NAME_BYTES} letters, digits, dots, underscores, hyphens or @"
    ))
}

impl Entry {
    /// Reads the roles and the token's hash of one name.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Entry, String> {
        let mut token = None;
        let mut words = Vec::new();
        for word in text.split_whitespace() {
            match word.strip_prefix("token:") {
                None => words.push(word),
                Some(_) if token.is_some() => return Err("expected at most one token".into()),
                Some(hash) => token = Some(TokenHash::parse(hash)?),
            }
        }
        let roles = Roles::parse(words)?;
        match roles.is_empty() {
            true => Err("expected at least one role: read, write or operator".into()),
            false => Ok(Entry { roles, token }),
        }
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.roles)?;
        self.token.iter().try_for_each(|token| write!(f, " token:{token}"))
    }
}

impl Entries {
    /// Reads entries from one line; an empty text means none.
    ///
    /// # Errors
    /// A sentence that says what was expected.
    pub fn parse(text: &str) -> Result<Entries, String> {
        let mut entries = Entries::default();
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        for (number, item) in (1_usize..).zip(items) {
            let (name, entry) = item.split_once('=').ok_or_else(|| {
                format!("entry {number}: expected NAME=ROLES, such as ada=write:app/")
            })?;
            let name = name.trim();
            check_name(name)?;
            let entry = Entry::parse(entry).map_err(|reason| format!("{name}: {reason}"))?;
            let same = |known: &Entry| known.token.is_some() && known.token == entry.token;
            if entries.0.values().any(same) {
                return Err(format!(
                    "{name}: its token is that of another name; make one for each"
                ));
            }
            if entries.0.insert(name.to_string(), entry).is_some() {
                return Err(format!("{name} is given twice"));
            }
            if entries.0.len() > MOST_NAMES {
                return Err(format!("expected at most {MOST_NAMES} names"));
            }
        }
        Ok(entries)
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each name with its entry.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Entry)> {
        self.0.iter().map(|(name, entry)| (name.as_str(), entry))
    }
}

impl fmt::Display for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut between = "";
        for (name, entry) in self.iter() {
            write!(f, "{between}{name}={entry}")?;
            between = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(token: &str) -> TokenHash {
        TokenHash::of(token.as_bytes())
    }

    #[test]
    fn entries_that_are_not_what_they_should_be_are_refused_with_what_was_expected() {
        let (one, two) = (hash("one"), hash("two"));
        for (bad, word) in [
            ("ada".to_string(), "NAME=ROLES"),
            ("=read".to_string(), "a name of 1 to 64"),
            ("a b=read".to_string(), "a name of 1 to 64"),
            ("ada=".to_string(), "at least one role"),
            ("ada=rites".to_string(), "expected read, read:PREFIX"),
            ("ada=read,ada=write".to_string(), "given twice"),
            ("ada=read token:12".to_string(), "64 hexadecimal digits"),
            (format!("ada=read token:{one} token:{two}"), "at most one token"),
            (format!("ada=token:{one}"), "at least one role"),
            (format!("ada=read token:{one},ben=read token:{one}"), "that of another name"),
            ((0..=MOST_NAMES).map(|n| format!("n{n}=read,")).collect(), "at most 1024 names"),
        ] {
            let reason = Entries::parse(&bad).expect_err(&bad);
            assert!(reason.contains(word), "{reason}");
        }
    }

    #[test]
    fn any_bytes_are_entries_that_are_read_as_they_are_written_or_are_refused() {
        let token = hash("one");
        cairn_fuzz::target!(
            "roles" => b"ada=read write:app/%2c,ops=operator read:a".to_vec(),
            "token" => format!("ci@ada.b-1=write token:{token},d=read:%ff").into_bytes(),
        )
        .for_each(|bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let Ok(entries) = Entries::parse(text) else { return };
            assert_eq!(Entries::parse(&entries.to_string()), Ok(entries.clone()), "{entries}");
            assert!(entries.iter().all(|(_, entry)| !entry.roles.is_empty()));
        });
    }
}
