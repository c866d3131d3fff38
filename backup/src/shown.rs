//! What others wrote, and what the environment has, in errors.
//!
//! What holds here: a text of a target, of a server or of a backup is cut where it is longer than a person reads, and a
//! part of a URL that may be a secret is hidden: what stands before an `@`, and what follows a `?`. Whoever prints it
//! escapes it.

/// The longest text that is shown whole, in bytes.
const TEXT_BYTES: usize = 1000;
/// The longest key that is shown whole, in bytes: each may take four in text.
const KEY_BYTES: usize = 250;
/// The shortest secret that is hidden wherever it stands: shorter ones are in many words.
const SECRET_BYTES: usize = 4;
const HIDDEN: &str = "…";

/// A key, as text for a person.
pub(crate) fn key_text(key: &[u8]) -> String {
    match key.get(..KEY_BYTES) {
        Some(begin) if key.len() > KEY_BYTES => format!("`{}…`", begin.escape_ascii()),
        _ => format!("`{}`", key.escape_ascii()),
    }
}

/// The text, or the begin of it.
pub(crate) fn excerpt(text: &str) -> String {
    let begin = text.get(..text.floor_char_boundary(TEXT_BYTES)).unwrap_or_default();
    let more = if begin.len() < text.len() { "…" } else { "" };
    format!("{begin}{more}")
}

/// The text without what may be a secret in its URLs.
pub(crate) fn redacted(text: &str) -> String {
    let (mut shown, mut rest) = (String::new(), text);
    while let Some((before, behind)) = rest.split_once("://") {
        let is_end = |c: char| c.is_whitespace() || "\"'`<>".contains(c);
        let (url, after) = behind.split_at(behind.find(is_end).unwrap_or(behind.len()));
        shown.push_str(before);
        shown.push_str("://");
        shown.push_str(&place_of(url));
        rest = after;
    }
    shown.push_str(rest);
    shown
}

/// A text that is one URL, or no URL, without what may be a secret in it.
///
/// The story: somebody gave a password with a quote in it as a part of a target. The quote counted as the end of the URL, so
/// no `@` was behind the password, and the error showed it.
pub(crate) fn redacted_url(text: &str) -> String {
    match text.split_once("://") {
        Some((scheme, url)) => format!("{scheme}://{}", place_of(url)),
        None => text.to_owned(),
    }
}

/// What is behind the `://` of a URL, without what stands before the last `@`, and without what follows a `?`.
fn place_of(url: &str) -> String {
    // A secret may have any character, also one that would end it.
    let (user, place) = match url.rsplit_once('@') {
        Some((_, place)) => (format!("{HIDDEN}@"), place),
        None => (String::new(), url),
    };
    match place.split_once('?') {
        Some((place, _)) => format!("{user}{place}?{HIDDEN}"),
        None => format!("{user}{place}"),
    }
}

/// What the URLs of the environment have that may be a secret. A library may show it without the rest of a URL.
#[derive(Clone, Default)]
pub(crate) struct Secrets(Vec<String>);

impl Secrets {
    /// Those in these values.
    pub(crate) fn of<'a>(values: impl Iterator<Item = &'a str>) -> Secrets {
        let mut found: Vec<&str> = Vec::new();
        for value in values {
            let url = value.split_once("://").map_or(value, |(_, behind)| behind);
            let user = url.rsplit_once('@').map(|(user, _)| user);
            let password = user.and_then(|user| user.split_once(':')).map(|(_, password)| password);
            let query = url.split_once('?').map(|(_, query)| query);
            found.extend([user, password, query].into_iter().flatten());
        }
        found.retain(|secret| secret.len() >= SECRET_BYTES);
        // One that has another one in it goes first.
        found.sort_unstable_by_key(|secret| std::cmp::Reverse(secret.len()));
        Secrets(found.into_iter().map(str::to_owned).collect())
    }

    /// The text without them, and without others in its URLs.
    pub(crate) fn hidden_in(&self, text: &str) -> String {
        let hide = |text: String, secret: &String| text.replace(secret, HIDDEN);
        redacted(&self.0.iter().fold(text.to_owned(), hide))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_cut_between_two_characters_and_a_short_one_is_not() {
        assert_eq!(excerpt("short"), "short");
        let cut = excerpt(&"ß".repeat(TEXT_BYTES));
        assert_eq!(cut, format!("{}…", "ß".repeat(TEXT_BYTES / 2)));
        let odd = excerpt(&format!("a{}", "ß".repeat(TEXT_BYTES)));
        assert_eq!(odd.len(), TEXT_BYTES - 1 + "…".len());
        assert_eq!(key_text(b"a\n"), "`a\\n`");
        assert_eq!(key_text(&[b'k'; KEY_BYTES]).len(), KEY_BYTES + 2);
        let long = key_text(&vec![0; 1 << 20]);
        assert!(long.len() < 5 * KEY_BYTES && long.ends_with("…`"), "{long}");
    }

    #[test]
    fn no_secret_of_a_url_is_shown() {
        for (text, shown) in [
            ("at http://user:secret@host:1/b failed", "at http://…@host:1/b failed"),
            ("(https://secret@host/b)", "(https://…@host/b)"),
            ("https://u:se?c/r#et@host/b", "https://…@host/b"),
            ("https://u:se@cret@host", "https://…@host"),
            ("https://host/b?sig=secret&a=b in 3ms", "https://host/b?… in 3ms"),
            ("\"http://u:secret@a\" and `https://b?secret`", "\"http://…@a\" and `https://b?…`"),
            ("http://host/b: no route", "http://host/b: no route"),
            ("nothing of that", "nothing of that"),
        ] {
            assert_eq!(redacted(text), shown);
        }
        for (text, shown) in [
            ("s3://user:se'cret@bucket", "s3://…@bucket"),
            ("s3://user:se cret@bucket/shop", "s3://…@bucket/shop"),
            ("s3://user:se\"://c@ret@bucket?sig=secret", "s3://…@bucket?…"),
            ("s3://bucket/shop", "s3://bucket/shop"),
            ("/mnt/backups@office", "/mnt/backups@office"),
        ] {
            assert_eq!(redacted_url(text), shown);
        }
    }

    /// A library splits a URL, and shows one of its parts.
    #[test]
    fn a_secret_of_the_environment_is_hidden_wherever_it_stands() {
        let values = ["http://op:p s@s@host", "op:secret@host", "https://host/?sig=abcd", "eu-1"];
        let secrets = Secrets::of(values.into_iter());
        for (text, shown) in [
            ("cannot use http://op:p s@s@host", "cannot use http://…@host"),
            ("port `p s@s` is no number", "port `…` is no number"),
            ("op:secret@host has no scheme, secret", "…@host has no scheme, …"),
            ("query sig=abcd of host", "query … of host"),
            ("region eu-1", "region eu-1"),
        ] {
            assert_eq!(secrets.hidden_in(text), shown);
        }
    }
}
