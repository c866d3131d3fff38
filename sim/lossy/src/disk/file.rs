//! One file of the disk: its synced image, and what was written since.

use super::overlay::{BLOCK, Block, Overlay, SECTOR, Survivor};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

#[derive(Debug)]
pub(super) struct Stored {
    pub(super) image: File,
    pub(super) overlay: Overlay,
}

impl Stored {
    pub(super) fn size(&self) -> io::Result<u64> {
        Ok(self.image.metadata()?.len())
    }

    pub(super) fn extend(&mut self, size: u64) -> io::Result<()> {
        if size > self.size()? {
            self.image.set_len(size)?;
        }
        Ok(())
    }

    /// The synced image of a block; zeros after the end of the file.
    fn synced_block(&self, number: u64) -> io::Result<[u8; BLOCK]> {
        let mut block = [0; BLOCK];
        let mut done = 0;
        while let Some(rest) = block.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.image.read_at(rest, number * BLOCK as u64 + done as u64)? {
                0 => break,
                part => done += part,
            }
        }
        Ok(block)
    }

    /// The content that a read of the block returns.
    pub(super) fn block(&self, number: u64) -> io::Result<[u8; BLOCK]> {
        match self.overlay.newest(number) {
            Some(block) => Ok(**block),
            None => self.synced_block(number),
        }
    }

    pub(super) fn read(&mut self, offset: u64, size: usize) -> io::Result<Vec<u8>> {
        let end = offset.saturating_add(size as u64).min(self.size()?);
        let mut bytes =
            vec![0; usize::try_from(end.saturating_sub(offset)).map_err(io::Error::other)?];
        self.image.read_exact_at(&mut bytes, offset)?;
        let blocks = offset / BLOCK as u64..end.div_ceil(BLOCK as u64);
        if blocks.is_empty() {
            return Ok(bytes);
        }
        for (number, block) in self.overlay.within(blocks) {
            copy_overlap(&mut bytes, offset, block.as_slice(), number * BLOCK as u64);
        }
        Ok(bytes)
    }

    pub(super) fn write(&mut self, number: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let end = offset + bytes.len() as u64;
        self.extend(end)?;
        for at in offset / BLOCK as u64..end.div_ceil(BLOCK as u64) {
            let start = at * BLOCK as u64;
            let whole = offset <= start && start + BLOCK as u64 <= end;
            let mut block = if whole { [0; BLOCK] } else { self.block(at)? };
            copy_overlap(&mut block, start, bytes, offset);
            self.overlay.put(at, number, Arc::new(block));
        }
        Ok(())
    }

    pub(super) fn sync(&mut self, through: u64) -> io::Result<()> {
        for (number, block) in self.overlay.take_through(through) {
            self.store(number, &block)?;
        }
        Ok(())
    }

    pub(super) fn land(&mut self, survivor: &Survivor) -> io::Result<()> {
        let Some((new, landed)) = &survivor.torn else {
            return match &survivor.base {
                Some(block) => self.store(survivor.number, block),
                None => Ok(()),
            };
        };
        let mut mixed = match &survivor.base {
            Some(block) => **block,
            None => self.synced_block(survivor.number)?,
        };
        let sectors = mixed.chunks_mut(SECTOR).zip(new.chunks(SECTOR)).zip(landed);
        for ((target, source), _) in sectors.filter(|(_, landed)| **landed) {
            target.copy_from_slice(source);
        }
        self.store(survivor.number, &Arc::new(mixed))
    }

    /// Makes a block part of the synced image, without making the file longer.
    fn store(&self, number: u64, block: &Block) -> io::Result<()> {
        let start = number * BLOCK as u64;
        let inside = self.size()?.saturating_sub(start).min(BLOCK as u64) as usize;
        self.image.write_all_at(block.get(..inside).unwrap_or_default(), start)
    }
}

/// Copies the part that two ranges of a file share: `target` lies at `to`, `source` at `from`.
fn copy_overlap(target: &mut [u8], to: u64, source: &[u8], from: u64) {
    let skip_target = usize::try_from(from.saturating_sub(to)).unwrap_or(usize::MAX);
    let skip_source = usize::try_from(to.saturating_sub(from)).unwrap_or(usize::MAX);
    let target = target.get_mut(skip_target..).unwrap_or_default();
    let source = source.get(skip_source..).unwrap_or_default();
    let length = target.len().min(source.len());
    if let (Some(target), Some(source)) = (target.get_mut(..length), source.get(..length)) {
        target.copy_from_slice(source);
    }
}

/// Opens a file of the synced image.
pub(super) fn open_image(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_overlap_in_part_are_copied_in_part() {
        let mut target = [0; 4];
        copy_overlap(&mut target, 10, &[1, 2, 3], 8);
        assert_eq!(target, [3, 0, 0, 0]);
        copy_overlap(&mut target, 10, &[1, 2, 3], 12);
        assert_eq!(target, [3, 0, 1, 2]);
        copy_overlap(&mut target, 10, &[9], 20);
        copy_overlap(&mut target, 10, &[9], 0);
        assert_eq!(target, [3, 0, 1, 2]);
    }
}
