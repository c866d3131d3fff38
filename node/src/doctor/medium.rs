//! The history of a device: what shows that it lost power while the kernel ran on, such as a drive
//! that was pulled and pushed back, or a backplane that failed for a moment.
//!
//! What holds here: the same history as at the last start means that nothing is known to have
//! happened. Another history means that something may have happened, and counts as a power cut. A
//! figure that is readable now and was not then, or the reverse, changes the history too: it counts
//! once, at that start.

use super::device::Layer;

/// The device's report of its own history, as text. A change of this text counts as a power cut, so
/// its form must stay.
pub(super) fn history(layer: &Layer) -> String {
    let figure = |name: &str, value: Option<String>| match value {
        Some(value) => format!("{name} {value}"),
        None => format!("{name} not told"),
    };
    let number = |value: Option<u128>| value.map(|value| value.to_string());
    let mut words = vec![
        figure("disk sequence", layer.sequence.map(|sequence| sequence.to_string())),
        figure("identity", layer.identity.clone()),
    ];
    if let Some(nvme) = &layer.nvme {
        let power = nvme.as_ref().ok().and_then(|facts| facts.power);
        words.push(figure("power cycles", number(power.map(|power| power.cycles))));
        words.push(figure("unsafe shutdowns", number(power.map(|power| power.unsafe_shutdowns))));
    }
    format!("{}: {}", layer.name, words.join(", "))
}
