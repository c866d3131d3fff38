//! How often one place in the code may log.
//!
//! What holds here: every place that logs ERROR, WARN or INFO, in our code or in a library, has a bucket
//! of its own. Only events with the name [`UNLIMITED`] have none: the lines of operators' calls that
//! were allowed, and those that say what was left out. DEBUG and TRACE are not limited, since whoever
//! turns them on asks for everything; the queue bounds them.

use super::SUPPRESSED;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

/// The name of events that are not limited. The caller answers for their number.
pub const UNLIMITED: &str = "unlimited";
/// Lines that one place may log at once.
const BURST: u32 = 64;
/// One more after each of these.
const REFILL: Duration = Duration::from_secs(2);

/// A bucket for each place that logs. Clones share them.
#[derive(Clone, Default)]
pub struct CallSiteLimit {
    sites: Arc<Mutex<HashMap<Identifier, Bucket>>>,
}

struct Bucket {
    site: &'static Metadata<'static>,
    left: u32,
    /// The time up to which refills are counted.
    counted: Instant,
    /// Lines left out that nobody was told of.
    untold: u64,
}

/// Lines of one place that were left out.
pub(super) struct LeftOut {
    pub(super) site: &'static Metadata<'static>,
    pub(super) lines: u64,
}

impl CallSiteLimit {
    /// Whether this place may log now.
    fn admits(&self, site: &'static Metadata<'static>, now: Instant) -> bool {
        if *site.level() > Level::INFO || site.name() == UNLIMITED {
            return true;
        }
        let mut sites = self.sites.lock();
        let full = Bucket { site, left: BURST, counted: now, untold: 0 };
        let bucket = sites.entry(site.callsite()).or_insert(full);
        let passed = now.saturating_duration_since(bucket.counted).as_millis() / REFILL.as_millis();
        let refills = u32::try_from(passed).unwrap_or(u32::MAX);
        match bucket.left.saturating_add(refills) {
            left if left >= BURST => (bucket.left, bucket.counted) = (BURST, now),
            left => (bucket.left, bucket.counted) = (left, bucket.counted + REFILL * refills),
        }
        let admitted = bucket.left > 0;
        match admitted {
            true => bucket.left -= 1,
            false => {
                bucket.untold += 1;
                SUPPRESSED.fetch_add(1, Ordering::Relaxed);
            }
        }
        admitted
    }

    /// What was left out since the last call, by place.
    pub(super) fn take_left_out(&self) -> Vec<LeftOut> {
        let mut sites = self.sites.lock();
        let untold = sites.values_mut().filter(|bucket| bucket.untold > 0);
        untold
            .map(|bucket| LeftOut { site: bucket.site, lines: std::mem::take(&mut bucket.untold) })
            .collect()
    }
}

impl<S: Subscriber> Filter<S> for CallSiteLimit {
    fn enabled(&self, _: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        true
    }

    // What the level filter beside this one hides costs nothing.
    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn event_enabled(&self, event: &Event<'_>, _: &Context<'_, S>) -> bool {
        self.admits(event.metadata(), Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing_subscriber::layer::SubscriberExt;

    /// The metadata of two places that log, by what a subscriber sees.
    fn sites() -> [&'static Metadata<'static>; 4] {
        #[derive(Clone, Default)]
        struct Seen(Arc<Mutex<Vec<&'static Metadata<'static>>>>);
        impl<S: Subscriber> tracing_subscriber::Layer<S> for Seen {
            fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
                self.0.lock().push(event.metadata());
            }
        }
        let seen = Seen::default();
        tracing::subscriber::with_default(
            tracing_subscriber::registry().with(seen.clone()),
            || {
                tracing::warn!("one");
                tracing::info!("two");
                tracing::info!(name: UNLIMITED, "three");
                tracing::debug!("four");
            },
        );
        let seen = seen.0.lock().clone();
        seen.try_into().expect("four places")
    }

    /// The story: one client made a library write 52 MB of WARN lines in 0.8 s.
    #[test]
    fn a_place_that_logs_too_much_is_limited_told_of_and_let_through_again_and_others_are_not() {
        let (limit, [one, two, unlimited, debug]) = (CallSiteLimit::default(), sites());
        let began = Instant::now();
        let admitted =
            |site, number: u32, now| (0..number).filter(|_| limit.admits(site, now)).count();
        assert_eq!(admitted(one, 100_000, began), BURST as usize);
        assert_eq!(admitted(two, BURST, began), BURST as usize, "another place");
        assert_eq!(admitted(unlimited, 1000, began), 1000);
        assert_eq!(admitted(debug, 1000, began), 1000);
        let left_out = limit.take_left_out();
        assert_eq!(left_out.len(), 1);
        assert_eq!(left_out[0].lines, 100_000 - u64::from(BURST));
        assert_eq!(left_out[0].site.callsite(), one.callsite());
        assert!(limit.take_left_out().is_empty(), "said once");

        assert_eq!(admitted(one, 10, began + REFILL - Duration::from_millis(1)), 0);
        assert_eq!(admitted(one, 10, began + REFILL), 1);
        assert_eq!(admitted(one, 10, began + 3 * REFILL + REFILL / 2), 2);
        assert_eq!(admitted(one, 10, began + 4 * REFILL), 1, "the rest of a refill counts");
        assert_eq!(admitted(one, 10, began), 0, "a clock that stands still");
        let later = began + Duration::from_secs(86_400);
        assert_eq!(admitted(one, 100_000, later), BURST as usize, "never more than a burst");
    }
}
