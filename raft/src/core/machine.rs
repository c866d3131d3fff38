//! The machine on which a member runs.

/// Where a member runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// The same for all members on one running kernel; 0: not known.
    pub kernel: u64,
    /// The failure domain that the configuration names; empty: none.
    pub failure_domain: String,
}

impl Machine {
    /// The longest name of a failure domain, in bytes.
    pub const DOMAIN_BYTES_MAX: usize = 64;
}
