//! What is imported: keys and values, from lines of JSON or from a snapshot of etcd.
//!
//! What holds here: an input can be read from its begin again, since all of it is checked before anything
//! is written. What cannot, such as a pipe, is copied to a temporary file without a name first. One key and
//! value are in memory at a time, with their line.

use super::etcd::{self, Found, Snapshot};
use crate::cli::bar;
use crate::cli::exit::UsageError;
use crate::cli::json_lines::{self, End, LINE_BYTES_MAX, Line, Next};
use anyhow::Context;
use bytes::Bytes;
use std::fs::File;
use std::io::{self, BufReader, Seek, SeekFrom};
use std::path::Path;

/// A key with its value, and where it is in the input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) key: Bytes,
    pub(super) value: Bytes,
    /// The number of its line, if it has one.
    pub(super) line: Option<u64>,
}

/// What is next in an input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Read {
    Entry(Entry),
    /// Something that cannot be imported.
    Bad {
        line: Option<u64>,
        what: String,
    },
    /// How many keys and values there should have been.
    End(End),
    /// A last line that is no line: the file was cut in it.
    Cut {
        line: u64,
        what: String,
    },
    Nothing,
}

/// An input under its name.
pub(super) struct Input {
    pub(super) name: String,
    prefix: Vec<u8>,
    source: Source,
}

enum Source {
    Lines(Lines),
    Etcd(Box<Snapshot<File>>),
}

impl Input {
    /// Lines of JSON of a file, or of standard input as `-`. All keys get the prefix.
    pub(super) fn lines(path: &Path, prefix: Vec<u8>) -> anyhow::Result<Input> {
        let (name, file) = match path == Path::new("-") {
            true => {
                let name = "standard input".to_owned();
                let file = copied(&mut io::stdin().lock(), &name)?;
                (name, file)
            }
            false => {
                let name = path.display().to_string();
                let mut file = File::open(path).map_err(|error| unreadable(&name, &error))?;
                let is_file = file.metadata().map_err(|error| unreadable(&name, &error))?.is_file();
                let file = if is_file { file } else { copied(&mut file, &name)? };
                (name, file)
            }
        };
        Ok(Input { name, prefix, source: Source::Lines(Lines::new(file)) })
    }

    /// These lines.
    #[cfg(test)]
    pub(super) fn of_text(text: &str) -> Input {
        let mut file = tempfile::tempfile().expect("a file");
        io::Write::write_all(&mut file, text.as_bytes()).expect("written");
        let mut lines = Lines::new(file);
        lines.rewind().expect("a file");
        Input { name: "lines".into(), prefix: Vec::new(), source: Source::Lines(lines) }
    }

    /// A snapshot of etcd.
    pub(super) fn etcd(path: &Path, prefix: Vec<u8>) -> anyhow::Result<Input> {
        let name = path.display().to_string();
        let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
        let length = file.metadata().map_err(|error| unreadable(&name, &error))?.len();
        let shown = bar::of_bytes(length, "checking the SHA-256");
        let snapshot = Snapshot::open(file, &|bytes| shown.set_position(bytes));
        shown.finish_and_clear();
        let snapshot = snapshot.map_err(|error| UsageError(format!("{name}: {error}")))?;
        Ok(Input { name, prefix, source: Source::Etcd(Box::new(snapshot)) })
    }

    /// How many keys have a lease, and the first ones.
    pub(super) fn leased(&mut self, most: usize) -> anyhow::Result<(u64, Vec<Bytes>)> {
        match &mut self.source {
            Source::Lines(_) => Ok((0, Vec::new())),
            Source::Etcd(snapshot) => {
                snapshot.leased(most).map_err(|error| lost(&self.name, error))
            }
        }
    }

    /// Whether a key may come twice.
    pub(super) fn may_repeat(&self) -> bool {
        matches!(self.source, Source::Lines(_))
    }

    /// Whether it says at its end how many keys there are.
    pub(super) fn has_end(&self) -> bool {
        matches!(self.source, Source::Lines(_))
    }

    /// Begins anew.
    pub(super) fn rewind(&mut self) -> anyhow::Result<()> {
        match &mut self.source {
            Source::Lines(lines) => lines.rewind().with_context(|| self.name.clone()),
            Source::Etcd(snapshot) => {
                snapshot.rewind();
                Ok(())
            }
        }
    }

    /// What is next.
    ///
    /// # Errors
    /// If it cannot be read.
    pub(super) fn next(&mut self) -> anyhow::Result<Read> {
        let read = match &mut self.source {
            Source::Lines(lines) => lines.next().with_context(|| self.name.clone())?,
            Source::Etcd(snapshot) => {
                of_etcd(snapshot.next().map_err(|error| lost(&self.name, error))?)
            }
        };
        Ok(match read {
            Read::Entry(entry) if !self.prefix.is_empty() => {
                let key = [&self.prefix[..], &entry.key].concat().into();
                Read::Entry(Entry { key, ..entry })
            }
            read => read,
        })
    }
}

fn of_etcd(found: Option<Found>) -> Read {
    match found {
        None => Read::Nothing,
        Some(Found::Item { key, value }) => Read::Entry(Entry { key, value, line: None }),
        Some(Found::TooLarge { key, bytes }) => {
            let key = key.escape_ascii();
            let what =
                format!("key `{key}`: its value takes {bytes} bytes, more than any server takes");
            Read::Bad { line: None, what }
        }
    }
}

fn lost(name: &str, error: etcd::Error) -> anyhow::Error {
    anyhow::Error::new(error).context(name.to_owned())
}

fn unreadable(name: &str, error: &io::Error) -> UsageError {
    UsageError(format!("cannot read {name}: {error}"))
}

/// A copy that can be read more than once.
fn copied(from: &mut impl io::Read, name: &str) -> anyhow::Result<File> {
    let folder = std::env::temp_dir();
    let failed =
        || format!("cannot copy {name} to {} (TMPDIR names another folder)", folder.display());
    let mut file = tempfile::tempfile_in(&folder).with_context(failed)?;
    io::copy(from, &mut file).with_context(failed)?;
    Ok(file)
}

/// Lines of a file.
struct Lines {
    input: BufReader<File>,
    line: Vec<u8>,
    number: u64,
}

impl Lines {
    fn new(file: File) -> Lines {
        Lines { input: BufReader::new(file), line: Vec::new(), number: 0 }
    }

    fn rewind(&mut self) -> io::Result<()> {
        self.number = 0;
        self.input.seek(SeekFrom::Start(0)).map(drop)
    }

    /// The next line that is not empty.
    fn next(&mut self) -> io::Result<Read> {
        loop {
            let next = json_lines::next_line(&mut self.input, &mut self.line)?;
            self.number += 1;
            let number = self.number;
            let ended = match next {
                Next::Nothing => return Ok(Read::Nothing),
                Next::TooLong => {
                    let what = format!("it is longer than {LINE_BYTES_MAX} bytes");
                    return Ok(Read::Bad { line: Some(number), what });
                }
                Next::Line { ended } => ended,
            };
            if self.line.trim_ascii().is_empty() {
                continue;
            }
            return Ok(match json_lines::read(&self.line) {
                Ok(Line::End(end)) => Read::End(end),
                Ok(Line::Item { key, value }) => {
                    Read::Entry(Entry { key, value, line: Some(number) })
                }
                Err(what) if ended => Read::Bad { line: Some(number), what },
                Err(what) => Read::Cut { line: number, what },
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(key: &'static str, value: &'static str, line: u64) -> Read {
        Read::Entry(Entry { key: key.into(), value: value.into(), line: Some(line) })
    }

    #[test]
    fn lines_are_read_with_their_numbers_over_and_over() {
        let mut input = Input::of_text(concat!(
            "{\"key\":\"a\",\"value\":\"1\",\"version\":4}\n\n  \r\n",
            "{\"key\":\"b\"}\n{\"value\":\"2\",\"key\":\"b\"}\r\n{\"end\":{\"keys\":2}}\n{\"key\":\"c",
        ));
        for prefix in ["", "p/"] {
            input.prefix = prefix.into();
            input.rewind().expect("a file");
            let mut next = || input.next().expect("it is read");
            let name = |key: &str| Bytes::from(format!("{prefix}{key}"));
            let Read::Entry(first) = next() else { panic!("no entry") };
            assert_eq!((first.key, first.value, first.line), (name("a"), "1".into(), Some(1)));
            assert!(matches!(next(), Read::Bad { line: Some(4), what } if what.contains("value")));
            let Read::Entry(second) = next() else { panic!("no entry") };
            assert_eq!((second.key, second.line), (name("b"), Some(5)));
            assert_eq!(next(), Read::End(End { keys: 2, index: None }));
            assert!(matches!(next(), Read::Cut { line: 7, what } if what.contains("EOF")));
            assert_eq!(next(), Read::Nothing);
        }
    }

    #[test]
    fn a_last_line_without_an_end_counts_if_it_is_one() {
        let mut input = Input::of_text("{\"key\":\"a\",\"value\":\"\"}");
        assert_eq!(input.next().expect("it is read"), entry("a", "", 1));
        assert_eq!(input.next().expect("it is read"), Read::Nothing);
    }

    #[test]
    fn what_can_be_read_once_is_copied() {
        let line = "{\"key\":\"a\",\"value\":\"1\"}\n";
        let file = copied(&mut line.as_bytes(), "a pipe").expect("a copy");
        let mut lines = Lines::new(file);
        for _ in 0..2 {
            lines.rewind().expect("a file");
            assert_eq!(lines.next().expect("it is read"), entry("a", "1", 1));
            assert_eq!(lines.next().expect("it is read"), Read::Nothing);
        }
    }
}
