//! When a model with `--replicas auto` gets a further replica, and when it loses one. One alone is
//! split over the nodes that make one answer fastest. More are worth it while several answers are
//! asked for at once.

use std::time::Duration;

/// How long there must be several requests for each replica before one is added.
const GROWS_AFTER: Duration = Duration::from_secs(30);
/// How long a new replica may take until it is given up, unless it loads.
const STARTS_WITHIN: Duration = Duration::from_secs(60);
/// The pause after a replica that came to nothing.
const PAUSE: Duration = Duration::from_secs(300);

/// Since when a model has too many requests, or too few; and when a replica was last added, and
/// came to nothing.
#[derive(Debug, Default)]
pub(crate) struct Crowd {
    busy_since: Option<Duration>,
    quiet_since: Option<Duration>,
    added: Option<Duration>,
    failed: Option<Duration>,
}

/// The requests of all replicas, and how many of these work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Load {
    pub requests: usize,
    pub working: usize,
    pub replicas: usize,
    /// Whether a further one has given up or waits for nodes.
    pub has_failed: bool,
}

/// What to do about the number of replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Stay,
    /// One more, if that pays.
    Grow,
    Shrink,
}

impl Crowd {
    /// Decides about a model that shall have `wanted` replicas now. One of them ends after `keep`
    /// with fewer requests than replicas.
    pub(super) fn judge(
        &mut self,
        load: Load,
        wanted: usize,
        keep: Duration,
        now: Duration,
    ) -> Verdict {
        let since = |since: &mut Option<Duration>, is_so: bool| {
            *since = is_so.then(|| since.unwrap_or(now));
            since.map_or(Duration::ZERO, |since| now.saturating_sub(since))
        };
        let busy = since(&mut self.busy_since, load.requests >= 2 * load.replicas);
        let quiet = since(&mut self.quiet_since, load.requests < load.replicas);
        let is_recent =
            |at: Option<Duration>, most| at.is_some_and(|at| now.saturating_sub(at) < most);
        let is_new = is_recent(self.added, STARTS_WITHIN);
        if wanted > load.working && load.has_failed && !is_new {
            self.failed = Some(now);
            return Verdict::Shrink;
        }
        if wanted > load.replicas && !is_new {
            // No node could start it.
            self.failed = Some(now);
            return Verdict::Shrink;
        }
        let may_grow = load.working == wanted && !is_recent(self.failed, PAUSE);
        match () {
            () if busy >= GROWS_AFTER && may_grow => Verdict::Grow,
            () if wanted > 1 && quiet >= keep => Verdict::Shrink,
            () => Verdict::Stay,
        }
    }

    /// The number of replicas changes.
    pub(super) fn changed(&mut self, has_grown: bool, now: Duration) {
        (self.busy_since, self.quiet_since) = (None, None);
        if has_grown {
            self.added = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(300);

    fn load(requests: usize, working: usize, replicas: usize) -> Load {
        Load { requests, working, replicas, has_failed: false }
    }

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_replica_is_added_after_half_a_minute_with_two_requests_and_ends_after_its_keep_alive() {
        let mut crowd = Crowd::default();
        assert_eq!(crowd.judge(load(2, 1, 1), 1, KEEP, secs(0)), Verdict::Stay);
        assert_eq!(crowd.judge(load(2, 1, 1), 1, KEEP, secs(29)), Verdict::Stay);
        assert_eq!(crowd.judge(load(1, 1, 1), 1, KEEP, secs(30)), Verdict::Stay);
        assert_eq!(crowd.judge(load(3, 1, 1), 1, KEEP, secs(31)), Verdict::Stay);
        assert_eq!(crowd.judge(load(2, 1, 1), 1, KEEP, secs(61)), Verdict::Grow);
        assert_eq!(crowd.judge(load(1, 2, 2), 2, KEEP, secs(100)), Verdict::Stay);
        assert_eq!(crowd.judge(load(1, 2, 2), 2, KEEP, secs(399)), Verdict::Stay);
        assert_eq!(crowd.judge(load(1, 2, 2), 2, KEEP, secs(400)), Verdict::Shrink);
    }

    #[test]
    fn a_replica_that_nobody_can_start_is_given_up_and_not_tried_at_once_again() {
        let mut crowd = Crowd { added: Some(secs(0)), ..Crowd::default() };
        assert_eq!(crowd.judge(load(9, 1, 1), 2, KEEP, secs(59)), Verdict::Stay);
        assert_eq!(crowd.judge(load(9, 1, 1), 2, KEEP, secs(60)), Verdict::Shrink);
        assert_eq!(crowd.judge(load(9, 1, 1), 1, KEEP, secs(200)), Verdict::Stay);
        assert_eq!(crowd.judge(load(9, 1, 1), 1, KEEP, secs(361)), Verdict::Grow);
        let failed = Load { has_failed: true, ..load(9, 1, 2) };
        let mut crowd = Crowd { added: Some(secs(0)), ..Crowd::default() };
        assert_eq!(crowd.judge(failed, 2, KEEP, secs(61)), Verdict::Shrink);
    }

    #[test]
    fn it_does_not_grow_again_before_the_last_one_works() {
        let mut crowd = Crowd { added: Some(secs(0)), ..Crowd::default() };
        crowd.judge(load(9, 1, 2), 2, KEEP, secs(0));
        assert_eq!(crowd.judge(load(9, 1, 2), 2, KEEP, secs(200)), Verdict::Stay);
        assert_eq!(crowd.judge(load(9, 2, 2), 2, KEEP, secs(201)), Verdict::Grow);
    }
}
