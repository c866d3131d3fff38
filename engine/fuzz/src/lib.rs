//! What the fuzz targets of the other crates have in common.
//!
//! A target is a unit test beside its decoder. `cargo test` runs it on the seeds in `__fuzz__`
//! beside its file, on these with a bit flipped, and on random bytes. `./test fuzz` runs it under libFuzzer.
//!
//! What holds here: this crate replaces the allocator of each program that uses it, in order to
//! measure memory. It is a dependency of unit tests only.
#![forbid(unsafe_code)]

use bolero::TargetLocation;
use std::panic::{AssertUnwindSafe, RefUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

#[doc(hidden)]
pub use bolero;

/// A fuzz target that is named after the test in which it stands, with its seeds: `"name" =>
/// bytes`, one for each kind of input that is valid. Call `for_each` on it, with what must hold for
/// each input.
#[macro_export]
macro_rules! target {
    ($($name:literal => $seed:expr),* $(,)?) => {{
        let location = $crate::bolero::TargetLocation {
            package_name: env!("CARGO_PKG_NAME"),
            manifest_dir: env!("CARGO_MANIFEST_DIR"),
            module_path: module_path!(),
            file: file!(),
            line: line!(),
            item_path: $crate::bolero::__item_path__!(),
            test_name: None,
        };
        if !location.should_run() {
            return;
        }
        $crate::Target::new(location, vec![$(($name, ::std::vec::Vec::<u8>::from($seed))),*])
    }};
}

/// A fuzz target and its seeds.
pub struct Target {
    location: TargetLocation,
    seeds: Vec<(&'static str, Vec<u8>)>,
}

impl Target {
    #[doc(hidden)]
    pub fn new(location: TargetLocation, seeds: Vec<(&'static str, Vec<u8>)>) -> Target {
        check_seeds(&location, &seeds);
        Target { location, seeds }
    }

    /// Runs the test: under libFuzzer on what that makes of the seeds, else on the seeds, on the
    /// seeds with one bit flipped, and on random bytes, which seldom get far.
    pub fn for_each(self, mut test: impl FnMut(&[u8]) + RefUnwindSafe) {
        if std::env::var_os("BOLERO_LIBFUZZER_ARGS").is_none() {
            for (_, seed) in &self.seeds {
                flipped(seed).for_each(|input| test(&input));
            }
        }
        let random = bolero::test(self.location).with_iterations(500);
        random.with_test_time(Duration::from_secs(1)).for_each(test);
    }
}

/// The seed with one bit flipped, for some 500 of its bits.
fn flipped(seed: &[u8]) -> impl Iterator<Item = Vec<u8>> {
    let bits = seed.len() * 8;
    // An odd step meets each bit of a byte.
    (0..bits).step_by((bits / 500) | 1).map(|bit| {
        let mut input = seed.to_vec();
        if let Some(byte) = input.get_mut(bit / 8) {
            *byte ^= 1 << (bit % 8);
        }
        input
    })
}

/// Compares the seeds with their files, which libFuzzer reads. With `CAIRN_SEEDS` set, writes the
/// files first.
fn check_seeds(location: &TargetLocation, seeds: &[(&str, Vec<u8>)]) {
    let folder = location.work_dir().unwrap_or_default().join("corpus");
    let write = std::env::var_os("CAIRN_SEEDS").is_some();
    for (name, seed) in seeds {
        let path = folder.join(name);
        if write {
            let written =
                std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&path, seed));
            assert!(written.is_ok(), "cannot write {path:?}: {written:?}");
        }
        assert!(
            std::fs::read(&path).is_ok_and(|kept| kept == *seed),
            "{path:?} is not what the code encodes; write it with `CAIRN_SEEDS=1 cargo test --workspace --exclude cairn-races any_bytes`"
        );
    }
}

/// A block without its zeros at the end: what a seed needs of it.
pub fn shortened(mut block: Vec<u8>) -> Vec<u8> {
    while block.pop_if(|byte| *byte == 0).is_some() {}
    block
}

/// Decodes, and returns the result.
///
/// # Panics
/// If this thread held more than `most` additional bytes of memory at any moment meanwhile.
pub fn within<T>(most: usize, decode: impl FnOnce() -> T) -> T {
    let mut decoded = None;
    // The counter must leave each measurement that it begins, so a panic waits until it has.
    let used = allocation_counter::measure(|| {
        decoded = Some(catch_unwind(AssertUnwindSafe(decode)));
    });
    match decoded {
        Some(Ok(decoded)) => {
            let held = used.bytes_max;
            assert!(held <= most as u64, "decoding took {held} bytes of memory; allowed: {most}");
            decoded
        }
        Some(Err(panic)) => resume_unwind(panic),
        None => unreachable!("a measurement runs what it measures"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_counts_even_if_it_is_freed_before_the_end() {
        let take = |bytes| drop(std::hint::black_box(vec![0u8; bytes]));
        within(1000, || take(1000));
        within(1000, || (0..10).for_each(|_| take(1000)));
        assert!(catch_unwind(|| within(1000, || take(1001))).is_err());
    }

    #[test]
    fn a_panic_of_the_decoder_is_passed_on_and_leaves_the_counter_intact() {
        for _ in 0..100 {
            assert!(catch_unwind(|| within(1 << 20, || panic!("hostile bytes"))).is_err());
        }
        within(1000, || ());
    }
}
