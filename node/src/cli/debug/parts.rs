//! The parts of a bundle: each with its text, or with why it is not there.
//!
//! What holds here: a part that fails is a line of `contents.txt`. Every part is cleaned of secrets, has a bound
//! of its own, and is charged to one bound for all; what is too long loses its beginning, and says so.

use super::redact::Redactor;
use serde::Serialize;
use std::sync::Arc;

/// The most bytes of a part, and of all together, before they are compressed.
pub(super) const PART_BYTES: usize = 16 << 20;
const ALL_BYTES: usize = 64 << 20;
/// Less of a part than this is worth nothing.
const LEAST_BYTES: usize = 4 << 10;
/// How much of a reason is kept.
const REASON_BYTES: usize = 500;

/// One file of the bundle.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Part {
    pub(super) name: String,
    /// What it is.
    pub(super) what: String,
    pub(super) bytes: usize,
    /// Why it is not there.
    pub(super) failed: Option<String>,
    #[serde(skip)]
    pub(super) text: String,
}

/// All of them, in the order of their names' adding.
pub(super) struct Parts {
    redactor: Arc<Redactor>,
    left_bytes: usize,
    all: Vec<Part>,
}

impl Parts {
    pub(super) fn new(redactor: Redactor) -> Parts {
        Parts { redactor: Arc::new(redactor), left_bytes: ALL_BYTES, all: Vec::new() }
    }

    /// Adds a part, or why there is none. Cancelled, it adds nothing.
    pub(super) async fn add(&mut self, name: &str, what: &str, text: Result<String, String>) {
        let (text, failed) = match self.cleaned(text).await {
            Ok(text) => (text, None),
            Err(why) => (String::new(), Some(why)),
        };
        let most = PART_BYTES.min(self.left_bytes);
        let (text, failed) = match failed {
            None if text.len() > most && most < LEAST_BYTES => {
                (String::new(), Some("the bundle has no space left for it".to_owned()))
            }
            failed => (ending(text, most), failed),
        };
        self.left_bytes = self.left_bytes.saturating_sub(text.len());
        let line = |text: &str| {
            let text = self.redactor.clean(text);
            let text = cairn_client::shown::excerpt(&text, REASON_BYTES).into_owned();
            cairn_client::shown::one_line(&text).into_owned()
        };
        let (what, failed) = (line(what), failed.as_deref().map(line));
        self.all.push(Part { name: name.to_owned(), what, bytes: text.len(), failed, text });
    }

    /// The text without secrets. On another thread: a long one takes a while, and a signal is seen meanwhile.
    async fn cleaned(&self, text: Result<String, String>) -> Result<String, String> {
        let (text, redactor) = (text?, Arc::clone(&self.redactor));
        let cleaned = tokio::task::spawn_blocking(move || redactor.clean(&text)).await;
        // What the error shows may be of the text.
        cleaned.map_err(|_| "it could not be cleaned of secrets".to_owned())
    }

    /// The parts; the first one lists the others.
    pub(super) fn finish(mut self) -> Vec<Part> {
        let list = listing(&self.all) + "\n";
        let (name, what) = ("contents.txt".to_owned(), "this list".to_owned());
        self.all.insert(0, Part { name, what, bytes: list.len(), failed: None, text: list });
        self.all
    }
}

/// A line for each part.
pub(super) fn listing(parts: &[Part]) -> String {
    let line = |part: &Part| match &part.failed {
        None => format!("{:>10} bytes  {}  {}", part.bytes, part.name, part.what),
        Some(why) => format!("         not there  {}  {}: {why}", part.name, part.what),
    };
    parts.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// At most so many bytes of the text: its end, which is the latest. More may be left out already.
fn ending(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let note = format!("(at least {} bytes before this are left out)\n", text.len() - most);
    let from = text.ceil_char_boundary(text.len() - most.saturating_sub(note.len()));
    note + text.get(from..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_part_that_fails_is_a_line_and_secrets_go_from_reasons_too() {
        let mut parts = Parts::new(Redactor::default());
        parts.add("a.txt", "something", Ok("x password=hunter22".into())).await;
        parts.add("b.txt", "another", Err("no: token=hunter22\u{1b}[2J\nforged".into())).await;
        let all = parts.finish();
        let [list, first, second] = all.as_slice() else { panic!("{all:?}") };
        assert_eq!(
            (list.name.as_str(), first.text.as_str()),
            ("contents.txt", "x password=(hidden)")
        );
        assert_eq!((first.bytes, second.bytes), (19, 0));
        assert!(
            list.text.contains("not there  b.txt  another: no: token=(hidden)"),
            "{}",
            list.text
        );
        assert_eq!(list.text.lines().count(), 2, "{}", list.text);
        assert!(!list.text.contains("hunter22") && !list.text.contains('\u{1b}'), "{}", list.text);
    }

    #[tokio::test]
    async fn a_long_part_keeps_its_end_and_all_together_have_a_bound() {
        let mut parts = Parts::new(Redactor::default());
        let long = format!("{}end", "ß".repeat(PART_BYTES));
        for number in 0..6 {
            parts.add(&format!("{number}.txt"), "long", Ok(long.clone())).await;
        }
        let all = parts.finish();
        let sizes: usize = all.iter().skip(1).map(|part| part.bytes).sum();
        assert!(sizes <= ALL_BYTES, "{sizes}");
        let first = all.get(1).expect("a part");
        assert!(first.bytes <= PART_BYTES && first.text.ends_with("end"), "{}", first.bytes);
        assert!(first.text.starts_with('('), "it says that something is left out");
        let last = all.last().expect("a part");
        assert!(
            last.failed.as_deref().is_some_and(|why| why.contains("no space left")),
            "{last:?}"
        );
    }
}
