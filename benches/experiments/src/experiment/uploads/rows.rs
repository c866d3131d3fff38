//! The rows of the second table: a path on a filesystem of its own, empty or full.

use super::{engine_row, files_row};
use crate::experiment::Settings;
use crate::subject::FileSync;
use cairn_engine::Mode;

/// ext4's commit intervals, in seconds.
pub(super) const COMMITS: [u32; 3] = [1, 5, 30];

/// How full the filesystem is before the replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Empty,
    Full,
}

impl State {
    pub(super) const ALL: [State; 2] = [State::Empty, State::Full];

    pub(super) fn name(self) -> &'static str {
        match self {
            State::Empty => "empty",
            State::Full => "90 % full",
        }
    }
}

/// A path on the filesystem.
#[derive(Clone, Debug)]
pub(super) enum Kind {
    /// Files, with ext4's commit interval in seconds.
    Files(FileSync, u32),
    /// The engine, or why its mode is not justified here.
    Engine(Mode, Option<String>),
}

impl Kind {
    /// The rows of each state, in order.
    pub(super) fn all(settings: &Settings) -> Vec<Kind> {
        let engine = |mode| Kind::Engine(mode, settings.why_not(mode));
        let others =
            [Kind::Files(FileSync::FileAndFolder, 5), engine(Mode::Replicated), engine(Mode::Sync)];
        let unsynced = COMMITS.map(|commit| Kind::Files(FileSync::Nothing, commit));
        unsynced.into_iter().chain(others).collect()
    }

    /// The row's name.
    pub(super) fn row(&self, state: State) -> String {
        match self {
            Kind::Files(sync, commit) => {
                format!("{}, commit={commit}, {}", files_row(*sync), state.name())
            }
            Kind::Engine(mode, _) => format!("{}, {}", engine_row(*mode), state.name()),
        }
    }
}
