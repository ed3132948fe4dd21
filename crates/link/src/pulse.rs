//! Signs of life, apart from the messages: a rank that computes for long keeps beating, a rank that
//! is frozen or dead stops.
//!
//! One thread a rank beats to every peer and listens for theirs, four times a second, on a
//! [`Channel`] of its own for each pair. Silence is counted in this rank's *own* beats: time in
//! which the thread itself stood still (the process was stopped, the machine slept) is nobody
//! else's silence, and is remembered, so that a rank which wakes up does not blame the others for
//! having gone on without it.
//!
//! What follows from silence is not decided here: collectives ask [`Vital::silence`].

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Between two beats: a dozen fit the usual limit of 3 s, so that a lost or late one is no loss.
pub const BEAT: Duration = Duration::from_millis(250);

/// A thread that comes this late to its beat did not merely wait for a core.
const STANDSTILL_MIN_MS: u64 = 1000;

/// For so long after a standstill, what others did meanwhile is this rank's own fault.
const STANDSTILL_MEMORY_MS: u64 = 5000;

/// Where the beats of one pair travel.
pub(crate) trait Channel: Send {
    /// Gives a sign of life. Never waits.
    fn beat(&mut self);

    /// Says that no more will come, on purpose. Best effort.
    fn leave(&mut self);

    /// What came since the last look. Never waits.
    fn listen(&mut self) -> Heard;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heard {
    Nothing,
    Beat,
    /// The peer has left on purpose: its silence is no sign of death.
    Goodbye,
}

/// One rank's heart. Dropping it stops the thread and says goodbye.
pub(crate) struct Pulse {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// By rank: for how long nothing was heard, as of the last beat.
    silence_ms: Box<[AtomicU64]>,
    /// When the thread last beat, and the last standstill: its end and its length.
    beat_at_ms: AtomicU64,
    stood_until_ms: AtomicU64,
    stood_ms: AtomicU64,
    peers: Mutex<Vec<Peer>>,
    stop: AtomicBool,
}

struct Peer {
    rank: usize,
    channel: Box<dyn Channel>,
    has_left: bool,
}

impl Pulse {
    /// Starts to beat, to nobody yet.
    pub fn start(ranks: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            silence_ms: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            beat_at_ms: AtomicU64::new(now_ms()),
            stood_until_ms: AtomicU64::new(0),
            stood_ms: AtomicU64::new(0),
            peers: Mutex::new(Vec::with_capacity(ranks)),
            stop: AtomicBool::new(false),
        });
        let beating = shared.clone();
        let thread = std::thread::Builder::new().name("pulse".to_string()).spawn(move || {
            while !beating.stop.load(Ordering::Acquire) {
                beating.beat(now_ms());
                std::thread::park_timeout(BEAT);
            }
            beating.leave();
        })?;
        Ok(Pulse { shared, thread: Some(thread) })
    }

    /// Beats to `rank` too, from now on.
    pub fn add(&self, rank: usize, mut channel: Box<dyn Channel>) {
        channel.beat();
        let mut peers = self.shared.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.push(Peer { rank, channel, has_left: false });
    }
}

impl Drop for Pulse {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It never waits for anybody; a panic of it is nothing the dropping thread can mend.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn beat(&self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.beat_at_ms.load(Ordering::Relaxed));
        if elapsed_ms >= STANDSTILL_MIN_MS {
            self.stood_ms.store(elapsed_ms, Ordering::Relaxed);
            self.stood_until_ms.store(now_ms, Ordering::Release);
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        for peer in peers.iter_mut() {
            peer.channel.beat();
            let heard = peer.channel.listen();
            peer.has_left |= heard == Heard::Goodbye;
            let silence_ms = &self.silence_ms[peer.rank];
            let before_ms = silence_ms.load(Ordering::Relaxed);
            let is_alive = peer.has_left || heard == Heard::Beat;
            silence_ms.store(silence_after(before_ms, elapsed_ms, is_alive), Ordering::Relaxed);
        }
        self.beat_at_ms.store(now_ms, Ordering::Release);
    }

    fn leave(&self) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.iter_mut().for_each(|peer| peer.channel.leave());
    }

    fn standstill(&self, now_ms: u64) -> Option<Duration> {
        let still_ms = now_ms.saturating_sub(self.beat_at_ms.load(Ordering::Acquire));
        if still_ms >= STANDSTILL_MIN_MS {
            return Some(Duration::from_millis(still_ms));
        }
        let until_ms = self.stood_until_ms.load(Ordering::Acquire);
        let is_recent = until_ms > 0 && now_ms.saturating_sub(until_ms) <= STANDSTILL_MEMORY_MS;
        is_recent.then(|| Duration::from_millis(self.stood_ms.load(Ordering::Relaxed)))
    }
}

/// A peer's silence after one more of our own beats, which came `elapsed_ms` after the last: no
/// more than two beats' time of it counts, because we were not listening for the rest.
fn silence_after(silence_ms: u64, elapsed_ms: u64, is_alive: bool) -> u64 {
    if is_alive { 0 } else { silence_ms + elapsed_ms.min(2 * BEAT.as_millis() as u64) }
}

/// How one peer fares, as seen from this rank.
#[derive(Clone)]
pub struct Vital {
    pulse: Arc<Pulse>,
    peer: usize,
}

impl Vital {
    pub(crate) fn new(pulse: Arc<Pulse>, peer: usize) -> Self {
        Vital { pulse, peer }
    }

    /// For how long the peer has given no sign of life, in steps of [`BEAT`]; zero for one that has
    /// left on purpose. Costs a load.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.pulse.shared.silence_ms[self.peer].load(Ordering::Relaxed))
    }

    /// How long this rank itself stood still, if it did so a moment ago or still comes to its
    /// senses. Whoever finds the peer lost then should suspect itself.
    pub fn own_standstill(&self) -> Option<Duration> {
        self.pulse.shared.standstill(now_ms())
    }
}

/// A clock that goes on while the machine sleeps.
fn now_ms() -> u64 {
    #[cfg(target_os = "linux")]
    let id = ClockId::Boottime;
    #[cfg(not(target_os = "linux"))]
    let id = ClockId::Monotonic;
    let now = clock_gettime(id);
    (now.tv_sec as u64).wrapping_mul(1000).wrapping_add(now.tv_nsec as u64 / 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Hears what the test says, one item a beat; counts beats and goodbyes.
    struct Script {
        heard: VecDeque<Heard>,
        said: Arc<[AtomicU64; 2]>,
    }

    impl Channel for Script {
        fn beat(&mut self) {
            self.said[0].fetch_add(1, Ordering::Relaxed);
        }

        fn leave(&mut self) {
            self.said[1].fetch_add(1, Ordering::Relaxed);
        }

        fn listen(&mut self) -> Heard {
            self.heard.pop_front().unwrap_or(Heard::Nothing)
        }
    }

    fn shared(heard: &[Heard]) -> Shared {
        let channel = Script { heard: heard.iter().copied().collect(), said: Arc::default() };
        Shared {
            silence_ms: (0..2).map(|_| AtomicU64::new(0)).collect(),
            beat_at_ms: AtomicU64::new(10_000),
            stood_until_ms: AtomicU64::new(0),
            stood_ms: AtomicU64::new(0),
            peers: Mutex::new(vec![Peer { rank: 1, channel: Box::new(channel), has_left: false }]),
            stop: AtomicBool::new(false),
        }
    }

    #[test]
    fn silence_is_counted_in_own_beats() {
        use Heard::{Beat, Goodbye, Nothing};
        // What is heard at each beat, when the beats are, and the silence after the last.
        for (heard, at_ms, silence_ms) in [
            (&[Beat, Beat][..], &[250, 500][..], 0),
            (&[Nothing, Nothing], &[250, 500], 500),
            (&[Nothing, Beat, Nothing], &[250, 500, 750], 250),
            // An hour's sleep of our own is no hour's silence of the peer.
            (&[Nothing, Nothing], &[250, 3_600_000], 750),
            (&[Goodbye, Nothing, Nothing], &[250, 500, 9000], 0),
        ] {
            let shared = shared(heard);
            at_ms.iter().for_each(|at_ms| shared.beat(10_000 + at_ms));
            let found = shared.silence_ms[1].load(Ordering::Relaxed);
            assert_eq!(found, silence_ms, "{heard:?} {at_ms:?}");
        }
    }

    #[test]
    fn a_standstill_is_noticed_by_either_thread_and_forgotten_later() {
        let shared = shared(&[]);
        let standstill =
            |at_ms: u64| shared.standstill(10_000 + at_ms).map(|time| time.as_millis());
        assert_eq!(standstill(300), None);
        assert_eq!(standstill(4000), Some(4000), "the pulse has not even woken yet");
        shared.beat(14_100);
        assert_eq!(standstill(4100), Some(4100));
        (1..=20).for_each(|beat| shared.beat(14_100 + beat * 250));
        assert_eq!(standstill(9100), Some(4100));
        shared.beat(19_350);
        assert_eq!(standstill(9350), None);
    }

    #[test]
    fn a_pulse_beats_at_once_and_says_goodbye() {
        let said: Arc<[AtomicU64; 2]> = Arc::default();
        let pulse = Pulse::start(2).unwrap();
        pulse.add(1, Box::new(Script { heard: VecDeque::new(), said: said.clone() }));
        assert!(said[0].load(Ordering::Relaxed) >= 1);
        assert_eq!(said[1].load(Ordering::Relaxed), 0);
        drop(pulse);
        assert_eq!(said[1].load(Ordering::Relaxed), 1);
    }
}
