//! What to measure, and its bounds in space and time.

use cairn_experiments::Limit;
use clap::Parser;
use std::path::PathBuf;
use std::time::Duration;

/// The most keys.
const MOST_KEYS: u64 = 1 << 20;
/// Rounds of a row, at least, for a median to be believed.
pub const LEAST_ROUNDS: usize = 5;
/// Concurrent requests of the tables.
pub const DEPTHS: [usize; 2] = [100, 1];

/// Cairn's engine beside embedded peers, in one run. Prints one JSON document.
#[derive(Parser)]
#[command(name = "cairn-peers", version)]
pub struct Arguments {
    /// A directory on the disk to measure. What the run makes in it is removed afterwards.
    #[arg(long)]
    pub dir: PathBuf,
    /// Few keys, short rounds: under two minutes instead of under ten.
    #[arg(long)]
    pub quick: bool,
    /// Bytes of a value.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub value_bytes: u32,
    /// Different keys, all put before the first round. By default as many as 1 GiB of values has,
    /// and at most 1,048,576; with `--quick` 128 MiB.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub keys: Option<u64>,
    /// Rounds of each row.
    #[arg(long, default_value_t = LEAST_ROUNDS as u64, value_parser = clap::value_parser!(u64).range(1..))]
    pub rounds: u64,
    /// Why RocksDB is not measured.
    #[arg(long)]
    pub without_rocksdb: Option<String>,
}

/// The plan that follows from the arguments.
pub struct Plan {
    /// Where.
    pub dir: PathBuf,
    /// Few keys, short rounds.
    pub quick: bool,
    /// Bytes of a value.
    pub value_bytes: usize,
    /// Different keys.
    pub keys: u64,
    /// Rounds of each row.
    pub rounds: usize,
    /// Why RocksDB is not measured.
    pub without_rocksdb: Option<String>,
    /// The most time for putting all keys into one store.
    pub preload: Duration,
    /// Rounds that would end after this time are left out.
    pub time: Duration,
}

impl From<Arguments> for Plan {
    fn from(arguments: Arguments) -> Plan {
        let Arguments { dir, quick, value_bytes, keys, rounds, without_rocksdb } = arguments;
        let live: u64 = if quick { 128 << 20 } else { 1 << 30 };
        let keys = keys.unwrap_or((live / u64::from(value_bytes)).clamp(1, MOST_KEYS));
        let seconds = |quick_s, full_s| Duration::from_secs(if quick { quick_s } else { full_s });
        Plan {
            dir,
            quick,
            value_bytes: value_bytes as usize,
            keys,
            rounds: usize::try_from(rounds).unwrap_or(usize::MAX),
            without_rocksdb,
            preload: seconds(10, 40),
            time: seconds(105, 560),
        }
    }
}

impl Plan {
    /// One round.
    pub fn limit(&self) -> Limit {
        let ms = Duration::from_millis;
        let (warm_up, measured) = if self.quick { (50, 250) } else { (300, 1200) };
        Limit::Time { warm_up: ms(warm_up), measured: ms(measured) }
    }

    /// Bytes of all values.
    pub fn data_bytes(&self) -> u64 {
        self.keys.saturating_mul(self.value_bytes as u64)
    }

    /// An engine's directory: the values take less than a quarter of it.
    pub fn engine_bytes(&self) -> u64 {
        // A value of less than a block has a record and a key beside it.
        let each = self.value_bytes as u64 + 256;
        self.keys.saturating_mul(each).saturating_mul(4).max(256 << 20).next_multiple_of(1 << 20)
    }

    /// What the engine keeps of its log.
    pub fn retain_bytes(&self) -> u64 {
        (self.engine_bytes() / 16).min(256 << 20)
    }

    /// What the run is expected to take at most. Only the engines and the raw file have a size of
    /// their own: an LSM tree and redb are taken to need three times their values, and 1 GiB for
    /// journals and for what the rounds add.
    pub fn bytes(&self) -> u64 {
        let data = self.keys.saturating_mul(self.value_bytes as u64 + 256);
        let file = (self.value_bytes as u64).next_multiple_of(4096) + 512;
        let journals = if self.quick { 256 << 20 } else { 1 << 30 };
        let stores = (3 * data).saturating_add(journals).saturating_mul(4);
        let files = (self.keys + 512).saturating_mul(file);
        let own = 2 * self.engine_bytes() + self.data_bytes() + (64 << 20);
        stores.saturating_add(files).saturating_add(own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(arguments: &[&str]) -> Plan {
        Arguments::parse_from(["cairn-peers", "--dir", "/d"].iter().chain(arguments)).into()
    }

    #[test]
    fn small_values_have_more_keys_than_large_ones_within_a_bound() {
        assert_eq!(plan(&[]).keys, 262_144);
        assert_eq!(plan(&["--value-bytes", "65536"]).keys, 16_384);
        assert_eq!(plan(&["--value-bytes", "16"]).keys, MOST_KEYS);
        assert_eq!(plan(&["--quick"]).keys, 32_768);
        assert_eq!(plan(&["--keys", "7"]).keys, 7);
    }

    #[test]
    fn values_take_less_than_a_quarter_of_an_engine() {
        for arguments in [&[][..], &["--value-bytes", "1"], &["--value-bytes", "1048576"]] {
            let plan = plan(arguments);
            assert!(plan.data_bytes() * 4 < plan.engine_bytes());
        }
    }

    #[test]
    fn the_bytes_of_a_run_cover_all_that_it_makes_at_full_size() {
        let plan = plan(&[]);
        assert!(plan.bytes() > 2 * plan.engine_bytes() + plan.data_bytes() * 6);
        assert!(plan.bytes() < 40 << 30, "{}", plan.bytes());
    }
}
