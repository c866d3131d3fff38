//! What tells that a device lost its power while the kernel ran on: a drive that was pulled and pushed back, or a backplane that
//! failed for a moment.
//!
//! What holds here: the same words as at the last start mean that nothing is known to have happened; other words mean that
//! something may have, and count as a power cut. So does a reading that can be had now and could not then, or the other way
//! round: once, at that start.

use super::device::Layer;

/// In words, what the device says of its own history.
pub(super) fn history(layer: &Layer) -> String {
    let told = |name: &str, value: Option<String>| match value {
        Some(value) => format!("{name} {value}"),
        None => format!("{name} not told"),
    };
    let number = |value: Option<u128>| value.map(|value| value.to_string());
    let mut words = vec![
        told("disk sequence", layer.sequence.map(|sequence| sequence.to_string())),
        told("identity", layer.identity.clone()),
    ];
    if let Some(nvme) = &layer.nvme {
        let power = nvme.as_ref().ok().and_then(|facts| facts.power);
        words.push(told("power cycles", number(power.map(|power| power.cycles))));
        words.push(told("unsafe shutdowns", number(power.map(|power| power.unsafe_shutdowns))));
    }
    format!("{}: {}", layer.name, words.join(", "))
}
