//! The rows of all tables: what each measures, or why this place does not allow it.

use super::clients::{Act, Beside, Deleted, EnginePuts, FilePuts, Store, lay_out_files};
use super::keys::Keys;
use super::{DEPTH, Sizes, rows};
use crate::experiment::{Case, Context, mode_answered_by, small};
use crate::measure::Payloads;
use crate::subject::{
    BlockWrites, Content, Durable, EngineLog, FileState, FileStore, FileSync, Settled, Subject,
    fill_file, sync_filesystem,
};
use anyhow::Result;
use cairn_engine::Mode;
use cairn_engine::io::BLOCK;
use std::iter::repeat_with;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

/// All rows, and what they need at the end.
pub(super) struct Made {
    /// The rows of the first two tables.
    pub puts: Vec<Case>,
    /// The rows of the third.
    pub beside: Vec<Case>,
    /// The deletes per second of each round, for each row of the third.
    pub deletes: Vec<mpsc::Receiver<f64>>,
    /// The engines, by their rows, and how often each had made space when the rounds began.
    pub engines: Vec<(String, Keys, u64)>,
    /// What is to be removed.
    pub folders: Vec<String>,
    /// What was not laid out in time.
    pub laid_out: Vec<String>,
}

/// Makes everything that is to be there before the first round.
///
/// # Errors
/// The system's; the engine's; `Stopped`.
pub(super) async fn make(
    context: &Context<'_>,
    sizes: &Sizes,
    direct: Result<(), String>,
) -> Result<Made> {
    let mut maker = Maker {
        context,
        sizes,
        direct,
        made: Made {
            puts: Vec::new(),
            beside: Vec::new(),
            deletes: Vec::new(),
            engines: Vec::new(),
            folders: Vec::new(),
            laid_out: Vec::new(),
        },
    };
    maker.files().await?;
    maker.engines().await?;
    maker.blocks().await?;
    sync_filesystem(&context.place.path("")).await?;
    Ok(maker.made)
}

struct Maker<'a> {
    context: &'a Context<'a>,
    sizes: &'a Sizes,
    direct: Result<(), String>,
    made: Made,
}

impl Maker<'_> {
    fn path(&mut self, name: &str) -> PathBuf {
        self.made.folders.push(name.to_owned());
        self.context.place.path(name)
    }

    fn case(&self, name: &str, answered_by: &str, subject: impl Subject + 'static) -> Case {
        // Also a row that syncs leaves something: files that it removed, an engine's journal.
        let folder = self.context.place.path("");
        Case::new(name, answered_by, Settled { subject: Box::new(subject), folder })
    }

    fn puts(&mut self, name: &str, answered_by: &str, subject: impl Subject + 'static) {
        let case = self.case(name, answered_by, subject);
        self.made.puts.push(case);
    }

    /// Two rows of the third table.
    fn beside(&mut self, who: &str, answered_by: &str, mut store: impl FnMut() -> Store) {
        let objects = self.sizes.others..self.sizes.others + self.sizes.objects;
        for act in [Act::Put, Act::DeleteAndPut] {
            let (deletes, told) = mpsc::channel();
            let beside = Beside {
                store: store(),
                objects: objects.clone(),
                others: 0..self.sizes.others,
                act,
                deleted: repeat_with(Deleted::default).take(DEPTH).collect(),
                deletes,
            };
            let case = self.case(&rows::beside(who, act), answered_by, beside);
            self.made.beside.push(case);
            self.made.deletes.push(told);
        }
    }

    fn beside_not_made(&mut self, who: &str, reason: &str) {
        for act in [Act::Put, Act::DeleteAndPut] {
            self.made.beside.push(Case::not_made(rows::beside(who, act), reason));
            self.made.deletes.push(mpsc::channel().1);
        }
    }

    /// Six stores that keep their objects in the same files. Only one is used at a time.
    async fn files(&mut self) -> Result<()> {
        let folder = self.path("files");
        self.context.step("laying out files")?;
        let store = FileStore::make(&folder, false, FileSync::Nothing)?;
        let (all, time) = (self.sizes.objects + self.sizes.others, self.sizes.files_time);
        let found = lay_out_files(&store, all, time, &self.context.stop).await?;
        sync_filesystem(&folder).await?;
        if found < all {
            self.made.laid_out.push(format!("{found} of {all} files"));
        }
        for direct in [false, true] {
            for sync in [FileSync::Nothing, FileSync::File, FileSync::FileAndFolder] {
                let name = rows::files(direct, sync);
                match (direct, &self.direct) {
                    (true, Err(reason)) => {
                        let case = Case::not_made(name, reason.clone());
                        self.made.puts.push(case);
                    }
                    _ => {
                        let store = FileStore::make(&folder, direct, sync)?;
                        let others = self.sizes.others;
                        let objects = others..others + self.sizes.objects;
                        let answered_by = rows::files_answered_by(direct, sync);
                        self.puts(name, answered_by, FilePuts { store, objects });
                    }
                }
            }
        }
        let store = FileStore::make(&folder, false, FileSync::FileAndFolder)?;
        self.beside(rows::FILES_BESIDE, FileSync::FileAndFolder.answered_by(), || {
            Store::Files(store.clone())
        });
        Ok(())
    }

    async fn engines(&mut self) -> Result<()> {
        // A clone has the same pool of values.
        let payloads = Payloads::new(1, 1);
        let mut refused = Vec::new();
        let mut beside = None;
        let modes = self.context.settings.modes.clone();
        for (mode, reason) in modes {
            let name = rows::cairn(mode);
            let reason = match (&self.direct, reason) {
                (_, Some(reason)) => reason,
                (Err(reason), None) => reason.clone(),
                (Ok(()), None) => {
                    let keys = self.engine(mode, &payloads).await?;
                    let others = self.sizes.others;
                    let objects = others..others + self.sizes.objects;
                    // As durable as the files, if there is such a mode.
                    if mode == Mode::Sync || (mode != Mode::Device && beside.is_none()) {
                        beside = Some((mode, keys.clone()));
                    }
                    self.puts(&name, mode_answered_by(mode), EnginePuts { keys, objects });
                    continue;
                }
            };
            refused.push(format!("{mode}: {reason}"));
            self.made.puts.push(Case::not_made(name, reason));
        }
        match beside {
            Some((mode, keys)) => {
                let name = rows::cairn(mode);
                let answered_by = mode_answered_by(mode);
                self.beside(&name, answered_by, || Store::Engine(keys.clone()));
            }
            None => self.beside_not_made("Cairn", &refused.join("; ")),
        }
        Ok(())
    }

    async fn engine(&mut self, mode: Mode, payloads: &Payloads) -> Result<Keys> {
        let name = format!("engine-{mode}");
        self.path(&name);
        let (bytes, all) = (self.sizes.engine_bytes, self.sizes.objects + self.sizes.others);
        let context = self.context;
        let engine = context.engine(&name, bytes, |boot| small(mode, boot, bytes)).await?;
        let keys = Keys::new(EngineLog::start(engine, bytes / 16), payloads);
        context.step(&format!("laying out the objects of {name}"))?;
        let found = keys.lay_out(all, self.sizes.engine_time, &context.stop).await?;
        if found < all {
            self.made.laid_out.push(format!("{found} of {all} objects in {name}"));
        }
        self.made.engines.push((rows::cairn(mode), keys.clone(), keys.log.waits().await));
        Ok(keys)
    }

    /// The rows that write blocks of one file on threads.
    async fn blocks(&mut self) -> Result<()> {
        let (direct, buffered) = (self.path("direct"), self.path("buffered"));
        let made_each_round = self.path("fresh");
        let bytes = self.sizes.file_bytes;
        let journal = BlockWrites::JOURNAL_BLOCKS * BLOCK as u64;
        self.context.step("zeroing files")?;
        let (stop, zeros) = (&self.context.stop, Content::Zeros);
        fill_file(&buffered, bytes, zeros, false, Duration::MAX, stop).await?;
        if self.direct.is_ok() {
            fill_file(&direct, bytes + journal, zeros, true, Duration::MAX, stop).await?;
        }
        let base = BlockWrites {
            path: direct,
            blocks: self.sizes.objects,
            direct: true,
            durable: Durable::No,
            state: FileState::Written,
            values: 1,
            journal: false,
        };
        let dsync = BlockWrites { durable: Durable::Dsync, ..base.clone() };
        let fdatasync = BlockWrites { durable: Durable::Fdatasync, ..base.clone() };
        let fresh = BlockWrites { path: made_each_round, ..dsync.clone() };
        let in_order = |state, from: &BlockWrites| BlockWrites { state, ..from.clone() };
        let buffered = BlockWrites { path: buffered, direct: false, ..fdatasync.clone() };
        let all = [
            (rows::RAW, base.clone()),
            (rows::DSYNC, dsync.clone()),
            (rows::FDATASYNC, fdatasync),
            (rows::ONE_BY_ONE_JOURNAL, BlockWrites { journal: true, ..base.clone() }),
            (rows::TOGETHER, BlockWrites { values: DEPTH, ..base.clone() }),
            (rows::TOGETHER_JOURNAL, BlockWrites { values: DEPTH, journal: true, ..base }),
            (rows::BUFFERED, buffered),
            (rows::ZEROED, in_order(FileState::WrittenInOrder, &dsync)),
            (rows::UNWRITTEN, in_order(FileState::Unwritten, &fresh)),
            (rows::GROWS, in_order(FileState::Grows, &fresh)),
        ];
        for (name, row) in all {
            match self.refused(&row) {
                Some(reason) => self.made.puts.push(Case::not_made(name, reason)),
                None => {
                    let synced = row.durable != Durable::No;
                    self.puts(name, if synced { "disk" } else { "device" }, row);
                }
            }
        }
        Ok(())
    }

    /// Why this place does not allow a row.
    fn refused(&self, row: &BlockWrites) -> Option<String> {
        if row.direct
            && let Err(reason) = &self.direct
        {
            return Some(reason.clone());
        }
        let prepared = row.prepare().and_then(|()| row.discard());
        prepared.err().map(|error| format!("{error:#}"))
    }
}
