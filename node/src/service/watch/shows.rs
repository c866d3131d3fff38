//! How far the watches of a stream are, as its client is told.
//!
//! What holds here: a mark says that everything up to an entry was told. It goes out behind all of that, and only behind a
//! barrier.

use super::position;
use super::stream::Watching;
use cairn_client::proto::{self, watch_part};
use cairn_engine::LogId;

/// Watches that get a mark of their own with one message.
const MARKS: usize = 512;

impl Watching {
    /// A message of how far the watches are, if that can be said. Call it behind a barrier.
    pub(super) fn how_far(&mut self) -> proto::WatchResponse {
        let mut message = proto::WatchResponse { parts: Vec::new(), through: None };
        self.mark(&mut message);
        self.marks.hears();
        message
    }

    /// Adds to a message how far the watches are behind it, if that can be said. Call it behind a barrier.
    pub(super) fn mark(&mut self, message: &mut proto::WatchResponse) {
        // The client does not know yet which watches have begun, and which have ended: it would take the mark for one of a
        // watch that is none of the stream's any more, and go on behind what that was not told.
        if self.has_parts() {
            return;
        }
        if let Some(at) = self.hub.is_told() {
            // One that began behind the hub would be told that it is further back than it began.
            if at.index >= self.begun_at && self.may_mark(at) {
                message.through = Some(position(at));
                self.marks.shows_all(at);
            }
        } else if self.marks.may_show_some() {
            self.mark_idle(message);
        }
    }

    /// The same of the watches alone that have nothing to be told.
    fn mark_idle(&mut self, message: &mut proto::WatchResponse) {
        // Also where there is none: looking for them takes time that grows with the watches.
        self.marks.hears();
        let (at, idle) = self.hub.idle(self.marks.in_turn(&self.watches), MARKS);
        let Some(last) = idle.last().copied().filter(|_| self.may_mark(at)) else { return };
        let watches = idle.iter().filter_map(|number| self.watches.get(number));
        message.parts.extend(watches.map(|watch| {
            let (changes, through) = (Vec::new(), Some(position(at)));
            let mark = watch_part::Kind::Changes(proto::WatchChanges { changes, through });
            proto::WatchPart { id: watch.id, kind: Some(mark) }
        }));
        self.marks.shows_some(at, last);
    }

    /// Whether an entry is one of the history, and no earlier one than the last mark.
    fn may_mark(&mut self, at: LogId) -> bool {
        self.marks.go_on(at) && self.inner.replica.follows(at).is_ok()
    }
}
