//! The end of a text that may be long, which is its latest part: whole lines, and how much is before them.
//!
//! What holds here: it holds a bounded number of bytes, whatever comes. The rest of a line that is cut is left out
//! with it: it may be the rest of a secret, and would not look like one.

/// The latest bytes of what was pushed.
pub(super) struct Tail {
    most_bytes: usize,
    bytes: Vec<u8>,
    /// How many were before these.
    left_out: usize,
}

impl Tail {
    /// For at most so many bytes, of a text of which so many were left out already.
    pub(super) fn new(most_bytes: usize, left_out: usize) -> Tail {
        Tail { most_bytes, bytes: Vec::new(), left_out }
    }

    /// Whether nothing came.
    pub(super) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What comes next.
    pub(super) fn push(&mut self, more: &[u8]) {
        self.bytes.extend_from_slice(more);
        // Not each time: what stays is moved to the front.
        if self.bytes.len() > self.most_bytes.saturating_mul(2) {
            self.keep_end();
        }
    }

    /// Its lines; the first one says how much is left out, if something is.
    pub(super) fn finish(mut self) -> String {
        self.keep_end();
        if self.left_out > 0 {
            let line_end = self.bytes.iter().position(|byte| *byte == b'\n');
            self.leave_out(line_end.map_or(self.bytes.len(), |at| at + 1));
        }
        let text = String::from_utf8_lossy(&self.bytes);
        match self.left_out {
            0 => text.into_owned(),
            left_out => format!("({left_out} bytes before this are left out)\n{text}"),
        }
    }

    fn keep_end(&mut self) {
        self.leave_out(self.bytes.len().saturating_sub(self.most_bytes));
    }

    fn leave_out(&mut self, bytes: usize) {
        self.bytes.drain(..bytes);
        self.left_out = self.left_out.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(most_bytes: usize, pieces: &[&str]) -> String {
        let mut tail = Tail::new(most_bytes, 0);
        for piece in pieces {
            tail.push(piece.as_bytes());
            assert!(tail.bytes.len() <= 2 * most_bytes, "{}", tail.bytes.len());
        }
        tail.finish()
    }

    /// The story: of a long journal the first 16 MiB were kept. What had just happened was not among them, and
    /// nothing said so.
    #[test]
    fn of_a_long_text_the_latest_lines_stay_and_the_first_one_says_how_much_does_not() {
        assert_eq!(of(10, &["one\n", "two\n"]), "one\ntwo\n");
        assert_eq!(
            of(10, &["one\ntwo\nlast\n"]),
            "(4 bytes before this are left out)\ntwo\nlast\n"
        );
        let many = ["line\n"; 100];
        assert_eq!(of(12, &many), "(490 bytes before this are left out)\nline\nline\n");
        assert_eq!(of(10, &[]), "");
    }

    #[test]
    fn nothing_stays_of_a_line_that_is_cut() {
        let cut = of(10, &["password=hunter22\nend\n"]);
        assert_eq!(cut, "(18 bytes before this are left out)\nend\n");
        assert_eq!(of(10, &["password=hunter22"]), "(17 bytes before this are left out)\n");
        let mut behind = Tail::new(10, 7);
        behind.push(b"er22\nend\n");
        assert_eq!(behind.finish(), "(12 bytes before this are left out)\nend\n");
    }
}
