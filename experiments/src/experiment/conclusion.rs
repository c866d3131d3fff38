//! What all experiments mean for this disk.

use crate::report::Report;

pub(crate) fn conclusion(_report: &Report) -> Vec<String> {
    Vec::new()
}
