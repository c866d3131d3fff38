//! Takes secrets out of what goes into a bundle.
//!
//! What holds here: every part passes through here. What is known to be a secret goes wherever it stands: this
//! client's token, and variables of the environment whose names say so. What looks like one goes too: private
//! keys in PEM and of age, bearers, and what follows a word such as `password` and `=` or `:`, up to the quote that
//! ends it, or up to a space. More is taken out than had to be; a secret of no known form that somebody logged would
//! stay.

use std::cmp::Reverse;
use std::ffi::OsString;

const HIDDEN: &str = "(hidden)";
/// A shorter text is no secret, and stands in too many places.
const SECRET_BYTES: usize = 6;
/// What stands behind a word in the name of a secret has at most so many bytes.
const NAME_BYTES: usize = 64;
/// The most secrets that are taken out of one line.
const LINE_SECRETS: usize = 16;
/// What the name of a variable has whose value is a secret.
const SECRET_NAMES: [&str; 6] = ["SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIAL", "KEY"];
/// What the name of a variable ends with whose value is the name of a file. A secret may begin with `/` too, so
/// the value does not say which it is.
const FILE_NAMES: [&str; 4] = ["_FILE", "_PATH", "TLS_KEY", "GOOGLE_APPLICATION_CREDENTIALS"];
/// Words that a secret follows, behind `=` or `:`.
const WORDS: [&str; 8] = [
    "secret",
    "password",
    "passwd",
    "token",
    "credential",
    AUTHORIZATION,
    "access_key",
    "account_key",
];
/// What follows it is a secret to the end of the line.
const AUTHORIZATION: &str = "authorization";
/// What a secret begins with, or follows.
const FORMS: [&str; 2] = ["age-secret-key-", "bearer "];

/// What is known to be secret.
#[derive(Default)]
pub(super) struct Redactor {
    secrets: Vec<String>,
}

impl Redactor {
    /// With this client's token, and the variables of this process.
    pub(super) fn new(
        token: Option<String>,
        variables: impl Iterator<Item = (OsString, OsString)>,
    ) -> Redactor {
        let secret = |(name, value): (OsString, OsString)| {
            let name = name.to_string_lossy().to_uppercase();
            let is_secret = SECRET_NAMES.iter().any(|part| name.contains(part));
            let is_file = FILE_NAMES.iter().any(|end| name.ends_with(end));
            value.into_string().ok().filter(|_| is_secret && !is_file)
        };
        let all = token.into_iter().chain(variables.filter_map(secret));
        let all = all.map(|secret| secret.trim().to_owned());
        let all = all.filter(|secret| secret.len() >= SECRET_BYTES);
        let mut secrets: Vec<String> = all.flat_map(|secret| [in_json(&secret), secret]).collect();
        // One that contains another one goes first.
        secrets.sort_by_key(|secret| Reverse(secret.len()));
        secrets.dedup();
        Redactor { secrets }
    }

    /// The text without secrets.
    pub(super) fn clean(&self, text: &str) -> String {
        let known =
            self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, HIDDEN));
        let without_keys = without_private_keys(&known);
        let mut clean = String::with_capacity(without_keys.len());
        for line in without_keys.split_inclusive('\n') {
            clean_line(line, &mut clean);
        }
        clean
    }
}

/// A text as it stands within a text of JSON, where `"` and `\` are escaped.
fn in_json(text: &str) -> String {
    let quoted = serde_json::Value::from(text).to_string();
    let inner = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    inner.unwrap_or_default().to_owned()
}

/// The frame of a text in PEM, and what the name of a private key ends with.
const BEGIN: &str = "-----BEGIN";
const END: &str = "-----END";
const PRIVATE_KEY: &str = "PRIVATE KEY";

/// Takes out each private key, also one whose end is missing, and one whose line ends are escaped.
fn without_private_keys(text: &str) -> String {
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, from)) = rest.split_once(BEGIN) {
        clean.push_str(before);
        let head = from.split_once("-----").map_or(from, |(head, _)| head);
        if !head.contains(PRIVATE_KEY) {
            clean.push_str(BEGIN);
            rest = from;
            continue;
        }
        clean.push_str(HIDDEN);
        let behind = from.split_once(END).map_or("", |(_, behind)| behind);
        rest = behind.split_once("-----").map_or("", |(_, behind)| behind);
    }
    clean.push_str(rest);
    clean
}

/// Takes what looks like a secret out of one line. Of a line with many of them the rest goes too, so that no
/// line takes long.
fn clean_line(line: &str, clean: &mut String) {
    // In ASCII, so that positions in it are positions in the line.
    let lower = line.to_ascii_lowercase();
    let mut at = 0;
    for _ in 0..LINE_SECRETS {
        let Some((from, to)) = next_secret(&lower, at) else {
            clean.push_str(line.get(at..).unwrap_or_default());
            return;
        };
        clean.push_str(line.get(at..from).unwrap_or_default());
        clean.push_str(HIDDEN);
        at = to;
    }
    clean.push_str(if line.ends_with('\n') { "…\n" } else { "…" });
}

/// Where the next secret from here on begins and ends: of several that begin there, the longest.
fn next_secret(lower: &str, at: usize) -> Option<(usize, usize)> {
    let formed = FORMS.iter().filter_map(|form| {
        let from = at + lower.get(at..)?.find(form)?;
        let rest = lower.get(from + form.len()..)?;
        Some((from, end_of(lower, lower.len() - rest.trim_start_matches(' ').len())))
    });
    let named = WORDS.iter().filter_map(|word| named_secret(lower, at, word));
    formed.chain(named).min_by_key(|(from, to)| (*from, Reverse(*to)))
}

/// The first one that follows this word and `=` or `:`.
fn named_secret(lower: &str, at: usize, word: &str) -> Option<(usize, usize)> {
    let mut from = at;
    loop {
        from += lower.get(from..)?.find(word)? + word.len();
        let rest = lower.get(from..)?;
        // The end of a longer name, a quote, and spaces.
        let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-\"'\\".contains(byte);
        let name_bytes = rest.bytes().take(NAME_BYTES).take_while(is_name).count();
        let behind = rest.get(name_bytes..)?.trim_start_matches(' ');
        let Some(value) = behind.strip_prefix(['=', ':']) else { continue };
        let quoted = value;
        let value = quoted.trim_start_matches([' ', '"', '\'', '\\']);
        // Before anything else is looked for: a line may have very many of them, and a long rest.
        if value.starts_with(HIDDEN) {
            continue;
        }
        let begin = lower.len() - value.len();
        let opening = quoted.get(..quoted.len() - value.len()).unwrap_or_default();
        // The outer one of several.
        let quote = opening.chars().find(|c| "\"'".contains(*c));
        let end = match quote {
            _ if word == AUTHORIZATION => lower.trim_end().len(),
            Some(quote) => end_of_quoted(lower, begin, quote),
            None => end_of(lower, begin),
        };
        if end > begin {
            return Some((begin, end));
        }
    }
}

/// Where the word ends that begins here: at a space. A secret may have any punctuation; what it ends with belongs
/// to the text around it.
fn end_of(lower: &str, begin: usize) -> usize {
    let rest = lower.get(begin..).unwrap_or_default();
    let word = rest.split(char::is_whitespace).next().unwrap_or_default();
    begin + word.trim_end_matches([',', ';', '"', '\'', '}', ']', ')', '\\']).len()
}

/// Where the quoted text ends that begins here: at the first quote that no backslash precedes, else with the line.
fn end_of_quoted(lower: &str, begin: usize, quote: char) -> usize {
    let rest = lower.get(begin..).unwrap_or_default();
    let is_escaped = |at: usize| rest.get(..at).is_some_and(|before| before.ends_with('\\'));
    let mut quotes = rest.match_indices(quote).map(|(at, _)| at);
    let end = quotes.find(|at| !is_escaped(*at));
    begin + end.unwrap_or_else(|| rest.trim_end_matches(['\r', '\n']).len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clean(text: &str) -> String {
        Redactor::default().clean(text)
    }

    #[test]
    fn what_is_known_to_be_secret_goes_wherever_it_stands() {
        let variables = [
            ("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI"),
            ("CAIRN_TLS_KEY", "/etc/cairn/key.pem"),
            ("HOME", "somewhere"),
            ("API_TOKEN", "abc"),
            ("AWS_WEB_IDENTITY_TOKEN_FILE", "/run/identity"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let redactor = Redactor::new(Some("mytoken1\n".into()), variables.into_iter());
        let text = "x wJalrXUtnFEMI-y mytoken1 somewhere /etc/cairn/key.pem abc";
        assert_eq!(redactor.clean(text), "x (hidden)-y (hidden) somewhere /etc/cairn/key.pem abc");
        assert_eq!(redactor.clean("/run/identity"), "/run/identity");
    }

    /// The story: a secret that began with `/` was taken for the name of a file, and one with a quote stood in the
    /// parts that are JSON, escaped.
    #[test]
    fn a_known_secret_may_begin_with_a_slash_and_is_found_in_json_too() {
        let variables = [
            ("AWS_SECRET_ACCESS_KEY", "/abcdefgh"),
            ("API_TOKEN", r#"quo"ted\one"#),
            ("CAIRN_CLIENT_TLS_KEY", "/etc/cairn/client.pem"),
        ];
        let variables = variables.map(|(name, value)| (name.into(), value.into()));
        let redactor = Redactor::new(None, variables.into_iter());
        let text = r#"a /abcdefgh quo"ted\one /etc/cairn/client.pem"#;
        assert_eq!(redactor.clean(text), "a (hidden) (hidden) /etc/cairn/client.pem");
        let json = serde_json::json!({ "told": text }).to_string();
        let expected = r#"{"told":"a (hidden) (hidden) /etc/cairn/client.pem"}"#;
        assert_eq!(redactor.clean(&json), expected);
    }

    #[test]
    fn what_looks_like_a_secret_goes_with_its_form() {
        for (text, expected) in [
            ("a password=hunter22, b", "a password=(hidden), b"),
            (r#"{"secret_key": "abc def"}"#, r#"{"secret_key": "(hidden)"}"#),
            ("Authorization: Bearer abc.def\nnext", "Authorization: (hidden)\nnext"),
            ("authorization: Basic abc def\n", "authorization: (hidden)\n"),
            ("send bearer  abc", "send (hidden)"),
            ("id AGE-SECRET-KEY-1QQ end", "id (hidden) end"),
            ("AWS_SECRET_ACCESS_KEY=a/b+c==", "AWS_SECRET_ACCESS_KEY=(hidden)"),
            ("two: token=a token=b", "two: token=(hidden) token=(hidden)"),
            ("(password=ab,cdEF99) next", "(password=(hidden)) next"),
            ("password=ab\"cd'e;f}g next", "password=(hidden) next"),
            (r#"password="ab\"cd ef", next"#, r#"password="(hidden)", next"#),
            (r#"password='ab"cd' next"#, "password='(hidden)' next"),
            (r#"password="'ab' cd" next"#, r#"password="'(hidden)" next"#),
            (r#"password="\\ab cd" next"#, r#"password="\\(hidden)" next"#),
            ("password=\"ab, cd\nnext", "password=\"(hidden)\nnext"),
            (r#"{"m":"x password=\"ab cd\" y"}"#, r#"{"m":"x password=\"(hidden)"}"#),
            ("bearer ab,cd; next", "(hidden); next"),
        ] {
            assert_eq!(clean(text), expected, "{text}");
        }
        for plain in ["the token was refused", "secrets", "Zoë: tokens", "cairn_term 7", "", "\n"]
        {
            assert_eq!(clean(plain), plain);
        }
    }

    #[test]
    fn a_private_key_goes_whole_and_a_certificate_stays() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN PRIVATE KEY-----\nBBBB\nCCCC\n-----END PRIVATE KEY-----";
        let text = format!("a\n{certificate}{key}\nb\n{certificate}");
        assert_eq!(clean(&text), format!("a\n{certificate}(hidden)\nb\n{certificate}"));
        let escaped = key.replace('\n', r"\n");
        assert_eq!(clean(&format!("x=\"{escaped}\" y")), "x=\"(hidden)\" y");
        let cut = "a -----BEGIN EC PRIVATE KEY-----\nBBBB\nCCCC\n";
        assert_eq!(clean(cut), "a (hidden)");
    }

    #[test]
    fn any_text_is_cleaned_without_an_end_that_is_missing() {
        for odd in ["token=", "token:", "token", "bearer ", "-----BEGIN", "é token=ß", "token==="]
        {
            let cleaned = clean(&odd.repeat(3));
            assert!(cleaned.len() < 200, "{cleaned}");
        }
        // Each of them would take minutes, if the rest of the line were read again for each word.
        for word in WORDS {
            let long = word.repeat((1 << 20) / word.len());
            assert_eq!(clean(&long), long, "{word}");
        }
        // The same, of what is hidden already.
        let gap = " ".repeat(8 << 20);
        let hidden = format!("{}{gap}.", "authorization:(hidden)".repeat(360_000));
        assert!(clean(&hidden) == hidden, "it is as it was");
        let many = format!("{}\nnext", "token=a ".repeat(1000));
        let cleaned = clean(&many);
        assert!(cleaned.len() < 500 && !cleaned.contains("=a"), "{cleaned}");
        assert!(cleaned.ends_with("…\nnext"), "{cleaned}");
    }
}
