use std::collections::VecDeque;
use std::time::Duration;

/// Failures count for two minutes.
const WINDOW: Duration = Duration::from_secs(120);
/// The pause after the first, second, ... failure within the window: one or two may be chance, more
/// are a pattern. A worker that dies at once each time is started three times a minute in the long
/// run.
const BACKOFF: [Duration; 6] = [
    Duration::from_millis(100),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
    Duration::from_secs(20),
];

/// The failures of the last two minutes since the last complete answer, and the number of failures
/// since the last success.
#[derive(Debug, Default)]
pub(super) struct Recent {
    times: VecDeque<Duration>,
    in_a_row: u32,
}

impl Recent {
    /// Records a failure and returns the pause.
    pub(super) fn backoff(&mut self, now: Duration) -> Duration {
        while self.times.front().is_some_and(|at| now.saturating_sub(*at) > WINDOW) {
            self.times.pop_front();
        }
        self.times.push_back(now);
        self.in_a_row += 1;
        BACKOFF[self.times.len().min(BACKOFF.len()) - 1]
    }

    pub(super) fn in_a_row(&self) -> u32 {
        self.in_a_row
    }

    /// Resets the number of failures in a row. The window stays: one success does not end a
    /// pattern.
    pub(super) fn succeeded(&mut self) {
        self.in_a_row = 0;
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Input;
    use super::super::tests::{brief, instance, ms, request, submit};
    use super::*;
    use crate::InstanceState;

    #[test]
    fn pauses_grow_and_are_forgotten() {
        let mut recent = Recent::default();
        let mut now = Duration::ZERO;
        for pause in BACKOFF {
            assert_eq!(recent.backoff(now), pause);
        }
        for _ in 0..100 {
            assert_eq!(recent.backoff(now), BACKOFF[5]);
            now += BACKOFF[5];
        }
        assert!(recent.times.len() <= 8, "old failures are dropped");
        recent.succeeded();
        assert_eq!(recent.backoff(now + 2 * WINDOW), BACKOFF[0]);
        assert_eq!(recent.in_a_row(), 1);
    }

    #[test]
    fn a_crash_loop_is_given_up_and_tried_again_ever_more_slowly_or_when_asked() {
        let mut instance = instance();
        instance.take_effects();
        let mut now = 0;
        for worker in [2, 3, 4] {
            let exited = Input::Exited { worker, how: "exited with status 3".to_owned() };
            let effects = instance.step(exited, ms(now));
            let expected = if worker == 4 { "end1" } else { "" };
            assert_eq!(brief(&effects), expected);
            now += 20_000;
            if worker < 4 {
                assert_eq!(
                    brief(&instance.step(Input::Tick, ms(now))),
                    format!("spawn{}", worker + 1)
                );
            }
        }
        let error = instance.submit(request(), ms(now)).unwrap_err().to_string();
        let expected =
            "node b (rank 1) was lost: its worker exited with status 3 (3 times in a row)";
        assert_eq!(error, format!("m cannot answer: {expected}"));
        assert_eq!(instance.deadline(), None, "a failed instance does not keep the driver busy");
        assert!(matches!(instance.state(), InstanceState::Failed { .. }));
        assert_eq!(brief(&instance.step(Input::Tick, ms(now + 9_999))), "");
        assert_eq!(brief(&instance.step(Input::Tick, ms(now + 10_000))), "spawn5 spawn6");
        assert!(matches!(instance.state(), InstanceState::Recovering { .. }));
        now += 10_000;
        for worker in [6, 7, 8] {
            let exited = Input::Exited { worker, how: "exited with status 3".to_owned() };
            instance.step(exited, ms(now));
            instance.step(Input::Tick, ms(now + 20_000));
            now += 20_000;
        }
        // The second pause lasts a minute, unless a request comes.
        assert_eq!(brief(&instance.step(Input::Tick, ms(now + 39_999))), "");
        let InstanceState::Recovering { reason } = instance.state() else { panic!() };
        assert!(reason.ends_with("(3 times in a row); a request tries it again"), "{reason}");
        assert_eq!(submit(&mut instance, now + 39_999), "spawn9 spawn10 waiting#1");
    }
}
