//! What each mode promises, in one sentence each. `cairn doctor` and `cairn status` print these
//! sentences, and a test compares the documents with them. They are written nowhere else.

use cairn_engine::Mode;

/// The sentence of a mode.
pub const fn sentence(mode: Mode) -> &'static str {
    match mode {
        Mode::Device => {
            "an acknowledged write is on the devices of a majority of the voters, which keep completed \
            writes through a power cut: nothing is lost, even when all machines lose power at once"
        }
        Mode::Replicated => {
            "an acknowledged write is on the devices of a majority of the voters and synced in the \
            background: nothing is lost when one machine loses power, when machines lose it one after another, or when all lose it \
            while idle (1.3 s after the last acknowledgement, with storage.sync_interval at 1s); when a majority loses it within \
            one sync window under load, the cluster stops and says so, and the newest writes, of at most that window, may be lost"
        }
        Mode::Sync => {
            "an acknowledged write is synced on a majority of the voters: nothing is lost, even when all \
            machines lose power at once"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_safety_document_says_the_same_sentences() {
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        let document = words(include_str!("../../docs/safety.md"));
        for mode in [Mode::Device, Mode::Replicated, Mode::Sync] {
            let said = format!("- `{mode}`: {}.", words(sentence(mode)));
            assert!(document.contains(&said), "docs/safety.md does not say: {said}");
        }
    }
}
