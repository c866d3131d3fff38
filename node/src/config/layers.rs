//! The layers of a configuration: defaults, then the file, then the environment, then flags. Later
//! layers override earlier ones.
//!
//! What holds here: every stored value has passed its key's check, and keeps its source.

use super::error::{ConfigError, FORMS};
use super::keys::{self, KEYS, Key};
use super::{members, syntax};
use crate::access::{Entry, check_name};
use cairn_raft::MemberAddress;
use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use toml::Spanned;
use toml::de::{DeArray, DeTable, DeValue};

/// Where a value was given.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Nowhere: the key's default.
    Default,
    /// In a file, at a line.
    File(String, usize),
    /// In an environment variable.
    Environment(String),
    /// By a flag.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => write!(f, "default"),
            Source::File(path, line) => write!(f, "{path}:{line}"),
            Source::Environment(variable) => write!(f, "{variable}"),
            Source::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// One key with its value and source; `None` if a key without a default was not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The key's dotted name.
    pub key: &'static str,
    /// Its value in the key's own notation.
    pub value: Option<String>,
    /// Its source.
    pub source: Source,
    /// The key's meaning, one line.
    pub doc: &'static str,
    /// The environment variable that sets it.
    pub variable: String,
    /// Whether a running node takes another value when it reads its configuration again.
    pub live: bool,
}

impl Setting {
    /// Whether a secret may stand in place of its value, as when somebody mistook one key for another. A
    /// default is none.
    pub fn may_be_secret(&self) -> bool {
        self.source != Source::Default && keys::hides_value(self.key)
    }
}

/// A configuration that is being read.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    values: BTreeMap<&'static str, (String, Source)>,
    /// Variables that Kubernetes made for a Service whose name begins with ours.
    services: Vec<String>,
}

/// The most bytes of a configuration file.
const FILE_BYTES: u64 = 1 << 20;

/// Variables with our prefix that are not server keys, but options of the command line.
const OTHER_VARIABLES: &[&str] = &[
    "CAIRN_ENDPOINTS",
    "CAIRN_CONFIG",
    "CAIRN_TIMEOUT",
    "CAIRN_TOKEN",
    "CAIRN_TOKEN_FILE",
    "CAIRN_CLIENT_TLS_CA",
    "CAIRN_CLIENT_TLS_CERTIFICATE",
    "CAIRN_CLIENT_TLS_KEY",
];

/// A file's text. The file may be anything: one that is not a regular file could make the reader wait
/// for ever, or have no end.
fn read(path: &Path) -> Result<String, ConfigError> {
    let unreadable =
        |reason: String| ConfigError::Read { path: path.display().to_string(), reason };
    let bytes =
        cairn_tls::read_file(path, FILE_BYTES).map_err(|error| unreadable(error.to_string()))?;
    String::from_utf8(bytes).map_err(|error| unreadable(error.to_string()))
}

impl Layers {
    /// Nothing but defaults.
    pub fn new() -> Layers {
        Layers::default()
    }

    /// Adds a TOML file.
    ///
    /// # Errors
    /// `Read`, `Syntax`, `UnknownKey` and `BadValue`, with file and line.
    pub fn add_file(&mut self, path: &Path) -> Result<(), ConfigError> {
        let text = read(path)?;
        self.add_toml(&path.display().to_string(), &text)
    }

    /// The form of the log that a file asks for, also if the rest of it cannot be used.
    pub fn log_format_of(path: &Path) -> Option<String> {
        let text = read(path).ok()?;
        let (table, _) = DeTable::parse_recoverable(&text);
        let mut found = Vec::new();
        flatten("", table.get_ref(), &mut found);
        found.into_iter().find_map(|given| match given {
            Given { name, value: Form::One(format), .. } if name == "log.format" => Some(format),
            _ => None,
        })
    }

    /// A warning about variables of the environment that are ignored, if there are any.
    pub fn ignored(&self) -> Option<String> {
        (!self.services.is_empty()).then(|| {
            format!(
                "ignored, since Kubernetes made them for a Service and they set no key: {}; `enableServiceLinks: false` in the \
                 pod's spec leaves them out",
                self.services.join(", ")
            )
        })
    }

    /// Adds the text of a TOML file; `path` is used in messages.
    ///
    /// # Errors
    /// `Syntax`, `UnknownKey` and `BadValue`, with file and line.
    pub fn add_toml(&mut self, path: &str, text: &str) -> Result<(), ConfigError> {
        let table = DeTable::parse(text).map_err(|error| ConfigError::Syntax {
            path: path.into(),
            reason: syntax::reason(text, &error),
        })?;
        let mut found = Vec::new();
        flatten("", table.get_ref(), &mut found);
        let mut listed = MemberTables::default();
        let mut access = AccessTables::default();
        for Given { name, value, offset } in found {
            let line = text.get(..offset).unwrap_or("").matches('\n').count() + 1;
            let source = Source::File(path.to_string(), line);
            if let Some(rest) = name.strip_prefix("members.") {
                listed.add(rest, value, source)?;
            } else if let Some(name) = name.strip_prefix("access.") {
                access.add(name, value, source)?;
            } else {
                self.set_form(&name, value, source)?;
            }
        }
        if let Some((text, source)) = listed.finish()? {
            self.set("members", text, source)?;
        }
        if let Some((text, source)) = access.finish() {
            self.set("access", text, source)?;
        }
        Ok(())
    }

    /// Adds variables that begin with `CAIRN_`. Skips those that Kubernetes creates for a Service
    /// whose name is `cairn` or begins with `cairn-`, and keeps their names.
    ///
    /// # Errors
    /// `UnknownKey` and `BadValue`, naming the variable.
    pub fn add_environment(
        &mut self,
        variables: impl Iterator<Item = (String, String)>,
    ) -> Result<(), ConfigError> {
        for (variable, value) in variables {
            let Some(rest) = variable.strip_prefix("CAIRN_") else {
                continue;
            };
            if OTHER_VARIABLES.contains(&variable.as_str()) {
                continue;
            }
            let Some(key) = KEYS.iter().find(|key| key.variable() == variable) else {
                if is_of_service(rest, &value) {
                    self.services.push(variable);
                    continue;
                }
                let known: Vec<String> = KEYS.iter().map(Key::variable).collect();
                let nearest = keys::nearest(&variable, known.iter().map(String::as_str));
                return Err(ConfigError::UnknownKey {
                    nearest: nearest.map(str::to_string),
                    key: variable,
                    location: "environment".into(),
                });
            };
            self.set(key.name, value, Source::Environment(variable))?;
        }
        Ok(())
    }

    /// Adds `key=value` as given to a flag such as `--set`.
    ///
    /// # Errors
    /// `UnknownKey` and `BadValue`, naming the flag.
    pub fn add_assignment(&mut self, flag: &str, assignment: &str) -> Result<(), ConfigError> {
        let source = Source::Flag(flag.into());
        let Some((name, value)) = assignment.split_once('=') else {
            let reason = "expected KEY=VALUE".into();
            return Err(ConfigError::bad_value(assignment, &source, assignment.into(), reason));
        };
        self.set(name.trim(), value.trim().to_string(), source)
    }

    /// Sets a key of a file. The form of the value must be that of the key: an empty table is not an
    /// empty text.
    fn set_form(&mut self, name: &str, form: Form, source: Source) -> Result<(), ConfigError> {
        let Some(key) = keys::find(name) else {
            // A section whose keys are all left out; else the name is what is wrong.
            let section = form == Form::EmptyTable && keys::is_section(name);
            return if section { Ok(()) } else { self.set(name, String::new(), source) };
        };
        let text = match (form, key.kind) {
            (Form::List(Some(text)), keys::Kind::Addresses) => text,
            (Form::EmptyTable, keys::Kind::Access | keys::Kind::Members) => {
                let reason =
                    "expected at least one entry in the table; remove the key if there is none";
                return Err(ConfigError::bad_value(name, &source, "{}".into(), reason.into()));
            }
            (form, kind) => form.one(name, &source, |text| kind.check(text))?,
        };
        self.set(name, text, source)
    }

    /// Sets one key.
    ///
    /// # Errors
    /// `UnknownKey` and `BadValue`.
    pub fn set(&mut self, name: &str, value: String, source: Source) -> Result<(), ConfigError> {
        let key = keys::find(name).ok_or_else(|| ConfigError::UnknownKey {
            key: name.into(),
            location: source.to_string(),
            nearest: keys::nearest(name, KEYS.iter().map(|key| key.name)).map(str::to_string),
        })?;
        if let Err(reason) = key.kind.check(&value) {
            return Err(ConfigError::bad_value(name, &source, value, reason));
        }
        self.values.insert(key.name, (value, source));
        Ok(())
    }

    /// Every key with its value and source.
    pub fn settings(&self) -> Vec<Setting> {
        KEYS.iter().map(|key| self.setting(key)).collect()
    }

    /// Where a key's value was given.
    pub(super) fn source(&self, name: &str) -> Source {
        self.values.get(name).map_or(Source::Default, |(_, source)| source.clone())
    }

    fn setting(&self, key: &'static Key) -> Setting {
        let (value, source) = match self.values.get(key.name) {
            Some((value, source)) => (Some(value.clone()), source.clone()),
            None => (key.default.map(str::to_string), Source::Default),
        };
        Setting {
            key: key.name,
            value,
            source,
            doc: key.doc,
            variable: key.variable(),
            live: key.live,
        }
    }

    /// A key's value.
    pub(crate) fn text(&self, name: &'static str) -> Result<String, ConfigError> {
        self.read(name, |text| Ok(text.to_string()))
    }

    /// A key's value, parsed by `parse`. The value passed the key's check, so an error here shows
    /// that key and parser do not match.
    pub(crate) fn read<T>(
        &self,
        name: &'static str,
        parse: impl Fn(&str) -> Result<T, String>,
    ) -> Result<T, ConfigError> {
        let key = keys::find(name);
        let missing = || ConfigError::Missing {
            key: name.into(),
            variable: key.map(Key::variable).unwrap_or_default(),
        };
        let Setting { value, source, .. } = self.setting(key.ok_or_else(missing)?);
        let text = value.ok_or_else(missing)?;
        parse(&text).map_err(|reason| ConfigError::bad_value(name, &source, text, reason))
    }
}

/// Whether a variable, without its first `CAIRN_`, is one that Kubernetes makes for a Service: a host,
/// a port, or one of Docker's links.
fn is_of_service(rest: &str, value: &str) -> bool {
    let ends = |end: &str| rest == end || rest.ends_with(&format!("_{end}"));
    let begins = |begin: &str| {
        let (first, within) = (format!("{begin}_"), format!("_{begin}_"));
        rest.strip_prefix(&first).or_else(|| rest.split_once(&within).map(|(_, rest)| rest))
    };
    let of_port = begins("PORT").is_some_and(|link| {
        let (port, protocol) = link.split_once('_').unwrap_or((link, ""));
        let protocol = protocol.split('_').next().unwrap_or_default();
        port.parse::<u16>().is_ok() && ["TCP", "UDP", "SCTP"].contains(&protocol)
    });
    let url = ends("PORT") && value.contains("://");
    ends("SERVICE_HOST")
        || ends("SERVICE_PORT")
        || begins("SERVICE_PORT").is_some()
        || url
        || of_port
}

/// The form of a value in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    /// One value.
    One(String),
    /// An array: its texts with commas between them, `None` if one of them is no text.
    List(Option<String>),
    /// A table without a key. Of others there are only their keys.
    EmptyTable,
}

/// A dotted name with its value, and its byte offset in a TOML document.
struct Given {
    name: String,
    value: Form,
    offset: usize,
}

fn flatten(prefix: &str, table: &DeTable<'_>, found: &mut Vec<Given>) {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let value = match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => {
                flatten(&format!("{name}."), inner, found);
                continue;
            }
            DeValue::Table(_) => Form::EmptyTable,
            DeValue::Array(items) => Form::List(texts(items)),
            DeValue::String(text) => Form::One(text.to_string()),
            DeValue::Integer(number) => Form::One(number.as_str().to_string()),
            DeValue::Boolean(value) => Form::One(value.to_string()),
            DeValue::Float(number) => Form::One(number.as_str().to_string()),
            DeValue::Datetime(time) => Form::One(time.to_string()),
        };
        found.push(Given { name, value, offset: key.span().start });
    }
}

impl Form {
    /// The text of one value. `check`: what a text must be.
    fn one(
        self,
        key: &str,
        source: &Source,
        check: impl Fn(&str) -> Result<(), String>,
    ) -> Result<String, ConfigError> {
        let [list, table] = FORMS;
        let (text, reason) = match self {
            Form::One(text) => return Ok(text),
            Form::List(_) => (list, "expected one value, not a list"),
            Form::EmptyTable => (table, "expected one value, not a table"),
        };
        let reason = check(text).err().unwrap_or_else(|| reason.into());
        Err(ConfigError::bad_value(key, source, text.into(), reason))
    }
}

/// The table `[access]` of one file, while it is read.
#[derive(Default)]
struct AccessTables {
    entries: Vec<String>,
    first: Option<Source>,
}

impl AccessTables {
    fn add(&mut self, name: &str, roles: Form, source: Source) -> Result<(), ConfigError> {
        let key = format!("access.{name}");
        let roles = &roles.one(&key, &source, |text| Entry::parse(text).map(drop))?;
        let bad = |reason| ConfigError::bad_value(&key, &source, roles.clone(), reason);
        check_name(name).map_err(bad)?;
        // A comma would end the entry below.
        let unexpected = || "expected spaces between roles, and %2c for a comma in a prefix".into();
        Some(roles).filter(|roles| !roles.contains(',')).ok_or_else(|| bad(unexpected()))?;
        let entry = Entry::parse(roles).map_err(bad)?;
        self.entries.push(format!("{name}={entry}"));
        self.first.get_or_insert(source);
        Ok(())
    }

    fn finish(self) -> Option<(String, Source)> {
        self.first.map(|source| (self.entries.join(","), source))
    }
}

/// An array of texts, with commas between them.
fn texts(items: &DeArray<'_>) -> Option<String> {
    let text = |item: &Spanned<DeValue<'_>>| item.get_ref().as_str().map(str::to_owned);
    Some(items.iter().map(text).collect::<Option<Vec<_>>>()?.join(","))
}

/// `[members.N]` tables of one file, while they are read.
#[derive(Default)]
struct MemberTables {
    members: BTreeMap<u16, (Option<String>, Option<String>)>,
    first: Option<Source>,
}

impl MemberTables {
    fn add(&mut self, rest: &str, value: Form, source: Source) -> Result<(), ConfigError> {
        let key = format!("members.{rest}");
        let (slot, field) = rest.split_once('.').unwrap_or((rest, ""));
        let slot = members::parse_slot(slot)
            .map_err(|reason| ConfigError::bad_value(&key, &source, slot.to_string(), reason))?;
        let member = self.members.entry(slot).or_default();
        self.first.get_or_insert_with(|| source.clone());
        let address = match field {
            "" if value == Form::EmptyTable => return Ok(()),
            "client" => &mut member.0,
            "peer" => &mut member.1,
            _ => {
                let nearest = keys::nearest(field, ["client", "peer"].into_iter());
                let nearest = nearest.map(|field| format!("members.{slot}.{field}"));
                return Err(ConfigError::UnknownKey { key, location: source.to_string(), nearest });
            }
        };
        let value = value.one(&key, &source, members::check_address)?;
        members::check_address(&value)
            .map_err(|reason| ConfigError::bad_value(&key, &source, value.clone(), reason))?;
        *address = Some(value);
        Ok(())
    }

    fn finish(self) -> Result<Option<(String, Source)>, ConfigError> {
        let Some(source) = self.first else { return Ok(None) };
        let mut complete = BTreeMap::new();
        for (slot, member) in self.members {
            let (Some(client), Some(peer)) = member else {
                return Err(ConfigError::Conflict(format!(
                    "{source}: [members.{slot}] needs both `client` and `peer`"
                )));
            };
            complete.insert(slot, MemberAddress { peer, client });
        }
        Ok(Some((members::format(&complete), source)))
    }
}
