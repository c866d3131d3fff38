//! What an NVMe drive reports about its cache and its atomic writes. Read from the data structures
//! of Identify (NVM Express Base Specification, Identify Controller, and NVM Command Set, Identify
//! Namespace) and from the log page SMART / Health Information.

use cairn_engine::io::NvmeIdentify;

/// The write that must be atomic: one block of the journal.
const BLOCK_BYTES: u64 = 4096;

/// Offsets and bits of Identify Controller.
const AWUN_AT: usize = 526;
const AWUPF_AT: usize = 528;
const VWC_AT: usize = 525;
const VWC_PRESENT: u8 = 1;
/// Offsets and bits of Identify Namespace.
const NSFEAT_AT: usize = 24;
const NSFEAT_ATOMICS: u8 = 1 << 1;
const FLBAS_AT: usize = 26;
const NAWUN_AT: usize = 34;
const NAWUPF_AT: usize = 36;
const NABO_AT: usize = 42;
const NABSPF_AT: usize = 44;
const LBAF_AT: usize = 128;
const LBAF_BYTES: usize = 4;
/// Offsets and bits of the health log.
const CRITICAL_WARNING_AT: usize = 0;
const BACKUP_FAILED: u8 = 1 << 4;
const POWER_CYCLES_AT: usize = 112;
const UNSAFE_SHUTDOWNS_AT: usize = 144;

/// The drive's answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmeFacts {
    /// VWC: it has a volatile cache.
    pub volatile_cache: bool,
    /// Critical Warning, bit 4: the backup power of its cache has failed.
    pub backup_failed: bool,
    /// How often it was switched on, and off without notice; `None` if it does not report that.
    pub power: Option<NvmePower>,
    /// The namespace's logical block.
    pub block_bytes: u64,
    /// NAWUN or AWUN: the largest write that no other command sees in part.
    pub atomic_bytes: u64,
    /// NAWUPF or AWUPF: the largest write that a power cut does not tear.
    pub atomic_power_fail_bytes: u64,
    /// NABSPF and NABO: a write across such a boundary may be torn. Distance and offset of the
    /// first, in bytes.
    pub boundary: Option<(u64, u64)>,
}

/// What a drive counts about its own power, over its whole life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NvmePower {
    /// Power Cycles.
    pub cycles: u128,
    /// Unsafe Shutdowns: losses of power without notice.
    pub unsafe_shutdowns: u128,
}

impl NvmeFacts {
    /// Reads both data structures.
    ///
    /// # Errors
    /// A sentence that says which figure makes no sense.
    pub(super) fn read(identify: &NvmeIdentify) -> Result<NvmeFacts, String> {
        let (controller, namespace) = (Bytes(&identify.controller), Bytes(&identify.namespace));
        let flbas = namespace.byte(FLBAS_AT)?;
        let format = usize::from(flbas & 0xF | (flbas >> 1) & 0x30);
        let shift = namespace.byte(LBAF_AT + LBAF_BYTES * format + 2)?;
        if !(9..=20).contains(&shift) {
            return Err(format!("the drive reports logical blocks of 2^{shift} bytes"));
        }
        let block_bytes = 1u64 << shift;
        // The counts are one less than the number of blocks. A zero of the namespace means that the
        // controller's figure applies.
        let bytes = |count: u16| (u64::from(count) + 1) * block_bytes;
        let own = namespace.byte(NSFEAT_AT)? & NSFEAT_ATOMICS != 0;
        let figure = |own_at: usize, general_at: usize| -> Result<u64, String> {
            match namespace.number(own_at)? {
                count if own && count > 0 => Ok(bytes(count)),
                _ => Ok(bytes(controller.number(general_at)?)),
            }
        };
        let boundary = match namespace.number(NABSPF_AT)? {
            count if own && count > 0 => {
                Some((bytes(count), u64::from(namespace.number(NABO_AT)?) * block_bytes))
            }
            _ => None,
        };
        let (mut backup_failed, mut power) = (false, None);
        if let Some(health) = identify.health.as_deref().map(Bytes) {
            backup_failed = health.byte(CRITICAL_WARNING_AT)? & BACKUP_FAILED != 0;
            power = Some(NvmePower {
                cycles: health.count(POWER_CYCLES_AT)?,
                unsafe_shutdowns: health.count(UNSAFE_SHUTDOWNS_AT)?,
            });
        }
        Ok(NvmeFacts {
            volatile_cache: controller.byte(VWC_AT)? & VWC_PRESENT != 0,
            backup_failed,
            power,
            block_bytes,
            atomic_bytes: figure(NAWUN_AT, AWUN_AT)?,
            atomic_power_fail_bytes: figure(NAWUPF_AT, AWUPF_AT)?,
            boundary,
        })
    }

    /// Whether a power cut never tears an aligned write of 4 KiB.
    pub fn writes_blocks_atomically(&self) -> bool {
        let aligned = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES);
        let boundary =
            self.boundary.is_none_or(|(distance, first)| aligned(distance) && aligned(first));
        self.atomic_power_fail_bytes >= BLOCK_BYTES && boundary
    }
}

struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn byte(&self, at: usize) -> Result<u8, String> {
        self.0.get(at).copied().ok_or_else(|| format!("the drive's answer ends before byte {at}"))
    }

    fn number(&self, at: usize) -> Result<u16, String> {
        Ok(u16::from_le_bytes([self.byte(at)?, self.byte(at + 1)?]))
    }

    /// A number of 16 bytes.
    fn count(&self, at: usize) -> Result<u128, String> {
        (0..16).rev().try_fold(0, |count, byte| Ok(count << 8 | u128::from(self.byte(at + byte)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of 512 bytes, no cache, no atomic writes beyond a block.
    fn plain() -> NvmeIdentify {
        let mut identify = NvmeIdentify {
            controller: vec![0; 4096],
            namespace: vec![0; 4096],
            health: Some(vec![0; 512]),
        };
        identify.namespace[LBAF_AT + 2] = 9;
        identify
    }

    #[test]
    fn the_cache_and_the_controllers_figures_are_read() {
        let mut identify = plain();
        identify.controller[VWC_AT] = 0b111;
        identify.controller[AWUN_AT..AWUN_AT + 2].copy_from_slice(&255u16.to_le_bytes());
        identify.controller[AWUPF_AT..AWUPF_AT + 2].copy_from_slice(&7u16.to_le_bytes());
        let facts = NvmeFacts::read(&identify).expect("good");
        assert!(facts.volatile_cache && facts.writes_blocks_atomically());
        assert_eq!((facts.atomic_bytes, facts.atomic_power_fail_bytes), (128 << 10, 4096));
    }

    #[test]
    fn a_namespaces_own_figures_take_precedence() {
        let mut identify = plain();
        identify.controller[AWUPF_AT] = 63;
        identify.namespace[NAWUPF_AT] = 3;
        assert!(
            NvmeFacts::read(&identify).expect("good").writes_blocks_atomically(),
            "not reported as its own"
        );
        identify.namespace[NSFEAT_AT] = NSFEAT_ATOMICS;
        assert_eq!(NvmeFacts::read(&identify).expect("good").atomic_power_fail_bytes, 2048);
        identify.namespace[NAWUPF_AT] = 0;
        assert_eq!(NvmeFacts::read(&identify).expect("good").atomic_power_fail_bytes, 32 << 10);
    }

    #[test]
    fn the_format_in_use_gives_the_size_of_a_block() {
        let mut identify = plain();
        identify.namespace[FLBAS_AT] = 2;
        identify.namespace[LBAF_AT + 2 * LBAF_BYTES + 2] = 12;
        let facts = NvmeFacts::read(&identify).expect("good");
        assert_eq!((facts.block_bytes, facts.writes_blocks_atomically()), (4096, true));
        identify.namespace[FLBAS_AT] = 0x21;
        identify.namespace[LBAF_AT + 17 * LBAF_BYTES + 2] = 12;
        assert_eq!(NvmeFacts::read(&identify).expect("good").block_bytes, 4096);
    }

    #[test]
    fn a_boundary_inside_a_block_tears_it() {
        let mut identify = plain();
        identify.controller[AWUPF_AT] = 63;
        identify.namespace[NSFEAT_AT] = NSFEAT_ATOMICS;
        identify.namespace[NABSPF_AT] = 255;
        assert!(NvmeFacts::read(&identify).expect("good").writes_blocks_atomically());
        identify.namespace[NABO_AT] = 1;
        assert!(!NvmeFacts::read(&identify).expect("good").writes_blocks_atomically());
    }

    #[test]
    fn a_failed_backup_of_the_cache_is_read_from_the_drives_health() {
        let mut identify = plain();
        let failed =
            |identify: &NvmeIdentify| NvmeFacts::read(identify).map(|facts| facts.backup_failed);
        assert_eq!(failed(&identify), Ok(false));
        identify.health = Some(vec![0b1110_1111; 512]);
        assert_eq!(failed(&identify), Ok(false), "the other warnings are about other things");
        identify.health = Some(vec![0b0001_0000; 512]);
        assert_eq!(failed(&identify), Ok(true));
        identify.health = None;
        assert_eq!(failed(&identify), Ok(false));
        identify.health = Some(Vec::new());
        assert!(failed(&identify).is_err());
    }

    #[test]
    fn the_drives_power_counters_are_read_from_its_health_log() {
        let mut identify = plain();
        let mut health = vec![0; 512];
        health[POWER_CYCLES_AT..POWER_CYCLES_AT + 2].copy_from_slice(&[0x34, 0x12]);
        health[UNSAFE_SHUTDOWNS_AT + 15] = 1;
        identify.health = Some(health);
        let power = NvmePower { cycles: 0x1234, unsafe_shutdowns: 1 << 120 };
        assert_eq!(NvmeFacts::read(&identify).map(|facts| facts.power), Ok(Some(power)));
        identify.health = None;
        assert_eq!(NvmeFacts::read(&identify).map(|facts| facts.power), Ok(None));
    }

    #[test]
    fn answers_that_make_no_sense_are_refused() {
        let mut identify = plain();
        identify.namespace[LBAF_AT + 2] = 0;
        assert!(NvmeFacts::read(&identify).is_err());
        identify = plain();
        identify.controller.truncate(100);
        assert!(NvmeFacts::read(&identify).is_err());
    }
}
