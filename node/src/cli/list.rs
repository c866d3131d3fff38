//! `cairn list`.

use super::ConnectOptions;
use super::bytes_text::{escape, item_json, item_text, key_bytes};
use super::connect::time;
use super::exit::Exit;
use super::output::{Output, tell};
use cairn_client::{ListOptions, Range};
use clap::Args;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::time::Duration;

/// Items of one request, if more are asked for.
const PAGE_ITEMS: usize = 1000;

#[derive(Args)]
pub(crate) struct ListArgs {
    /// Only keys that begin with this
    #[arg(default_value = "")]
    prefix: OsString,

    /// Only keys after this one (before it, with --reverse)
    #[arg(long, default_value = "")]
    start_after: OsString,

    /// Only keys before this one, in whichever direction
    #[arg(long, value_name = "KEY", default_value = "")]
    end: OsString,

    /// At most this many keys; 0: all, page by page
    #[arg(long, default_value_t = 1000)]
    limit: usize,

    /// From the last key to the first
    #[arg(long)]
    reverse: bool,

    /// Leave the values out
    #[arg(short, long)]
    keys_only: bool,

    /// Ask any node for what it has, which may be out of date
    #[arg(long, conflicts_with = "max_stale")]
    stale: bool,

    /// Ask any node for what was acknowledged longer ago than this, and perhaps for later writes too
    #[arg(long, value_name = "TIME", value_parser = time)]
    max_stale: Option<Duration>,

    /// Only say how many keys there are, at one log index; --limit does not apply
    #[arg(long, conflicts_with_all = ["limit", "reverse", "keys_only", "stale"])]
    count: bool,

    /// PREFIX, --start-after and --end are escaped as this command prints keys, such as \x00\xff
    #[arg(long)]
    escaped: bool,

    #[command(flatten)]
    connect: ConnectOptions,
}

/// Text: a line per key, key and value escaped, with a tab between them. JSON: one document with
/// all `items`, and `more`: whether keys follow the last one.
pub(crate) async fn run(args: ListArgs, output: &Output) -> anyhow::Result<Exit> {
    let mut printed = Printed { output, items: 0 };
    let client = args.connect.client()?.with_max_staleness(args.max_stale.unwrap_or_default());
    let mut start_after = key_bytes(args.start_after, args.escaped)?;
    let prefix = key_bytes(args.prefix, args.escaped)?;
    let end = key_bytes(args.end, args.escaped)?;
    if args.count {
        let found = match range(&prefix, &start_after, &end) {
            Some(range) => client.count(range).await?,
            None => 0,
        };
        output.either(|| json!({ "count": found }), || found.to_string())?;
        return Ok(Exit::Done);
    }
    let mut left = if args.limit == 0 { usize::MAX } else { args.limit };
    loop {
        let mut options = ListOptions::prefix(prefix.clone())
            .start_after(start_after)
            .end(end.clone())
            .limit(u32::try_from(left.min(PAGE_ITEMS))?);
        options.reverse = args.reverse;
        options.keys_only = args.keys_only;
        options.stale = args.stale;
        let page = client.list(options).await?;
        for item in &page.items {
            let value = (!args.keys_only).then_some(&item.value[..]);
            printed.item(
                || item_json(&item.key, value, item.version),
                || item_text(&item.key, value),
            )?;
        }
        left -= page.items.len().min(left);
        let Some(last) = page.items.last().filter(|_| page.more) else {
            return printed.end(false);
        };
        start_after = last.key.to_vec();
        if left == 0 {
            if args.limit != 0 && !output.is_json() {
                let last = escape(&start_after);
                tell(&format!(
                    "more keys follow; continue with --escaped --start-after '{last}', or list all with --limit 0"
                ));
            }
            return printed.end(true);
        }
    }
}

/// The keys that begin with `prefix`, are behind `start_after` and before `end`; the last two may be empty.
/// `None`: there can be none.
fn range(prefix: &[u8], start_after: &[u8], end: &[u8]) -> Option<Range> {
    let with_prefix = Range::prefix(prefix.to_vec());
    let behind = [start_after, &[0]].concat();
    let start = if start_after.is_empty() { prefix.to_vec() } else { behind.max(prefix.to_vec()) };
    let given = Some(end.to_vec()).filter(|end| !end.is_empty());
    match [with_prefix.end().map(|end| end.to_vec()), given].into_iter().flatten().min() {
        Some(end) if end <= start => None,
        Some(end) => Some(Range::from(start..end)),
        None => Some(Range::from(start..)),
    }
}

/// Items as they come, so that no list is too long to be printed.
struct Printed<'a> {
    output: &'a Output,
    items: u64,
}

impl Printed<'_> {
    fn item(
        &mut self,
        value: impl FnOnce() -> Value,
        text: impl FnOnce() -> String,
    ) -> std::io::Result<()> {
        self.items += 1;
        match (self.output.is_json(), self.items) {
            (false, _) => self.output.line(&text()),
            (true, 1) => self.output.part(&format!("{{\"items\":[{}", value())),
            (true, _) => self.output.part(&format!(",{}", value())),
        }
    }

    fn end(self, more: bool) -> anyhow::Result<Exit> {
        if self.output.is_json() {
            let begin = if self.items == 0 { "{\"items\":[" } else { "" };
            self.output.line(&format!("{begin}],\"more\":{more}}}"))?;
        }
        Ok(Exit::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_counted_range_has_the_keys_that_a_list_of_the_same_options_has() {
        let of = |prefix: &str, start_after: &str, end: &str| {
            range(prefix.as_bytes(), start_after.as_bytes(), end.as_bytes())
        };
        assert_eq!(of("", "", ""), Some(Range::all()));
        assert_eq!(of("a/", "", ""), Some(Range::prefix("a/")));
        assert_eq!(of("a/", "a/3", ""), Some(Range::from("a/3\0".."a0")));
        assert_eq!(of("a/", "A", "b"), Some(Range::prefix("a/")));
        assert_eq!(of("a/", "", "a/5"), Some(Range::from("a/".."a/5")));
        assert_eq!(of("", "x", ""), Some(Range::from("x\0"..)));
        for none in [of("a/", "b", ""), of("a/", "", "a"), of("", "b", "a"), of("", "a", "a\0")] {
            assert_eq!(none, None);
        }
    }
}
