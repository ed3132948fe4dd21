//! Heartbeats, separate from the messages: a rank in a long computation keeps sending them, a
//! frozen or dead rank stops.
//!
//! One thread a rank sends a heartbeat to every peer and listens for theirs, eight times a second,
//! on one [`Channel`] for each pair. Silence is counted in this rank's *own* heartbeats. Time in
//! which the thread itself stood still (the process was stopped, the machine slept) counts as no
//! peer's silence. The rank remembers such a standstill, so that after waking up it does not blame
//! the others for having gone on without it.
//!
//! A cut network path also makes a rank silent; `way` detects that sooner.
//!
//! Silence is only measured here: collectives read [`Liveness::silence`] and decide.

mod channel;
mod shm;
mod tcp;
mod way;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) use channel::{Channel, Received};
pub(crate) use shm::ShmHeartbeats;
pub(crate) use tcp::{TcpHeartbeats, TcpKeys};
pub use way::Cut;
pub(crate) use way::Way;

use crate::clock::with_sleep_ms as now_ms;

/// Interval of heartbeats. The usual limit of 3 s holds two dozen, so single lost or late ones do
/// no harm; three unacknowledged ones take less than half a second.
const HEARTBEAT: Duration = Duration::from_millis(125);

/// A heartbeat this late means more than a wait for a core.
const STANDSTILL_MIN_MS: u64 = 1000;

/// For this long after a standstill, this rank blames itself for what its peers did meanwhile.
const STANDSTILL_MEMORY_MS: u64 = 5000;

/// Sends the heartbeats of one rank. Dropping it stops the thread and says goodbye.
pub(crate) struct Heartbeats {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    /// By rank: the length of its silence, as of the last heartbeat.
    silence_ms: Box<[AtomicU64]>,
    /// By rank: the cut of its network path.
    cuts: Box<[OnceLock<Cut>]>,
    /// Time of the last heartbeat, and the end and length of the last standstill.
    sent_at_ms: AtomicU64,
    stood_until_ms: AtomicU64,
    stood_ms: AtomicU64,
    peers: Mutex<Vec<Peer>>,
    stop: AtomicBool,
}

struct Peer {
    rank: usize,
    channel: Box<dyn Channel>,
    has_left: bool,
    /// The network path of the link, if the peer has other addresses.
    way: Option<Way>,
}

impl Heartbeats {
    /// Starts the thread, with no peers yet.
    pub fn start(ranks: usize) -> std::io::Result<Self> {
        let shared = Arc::new(Shared {
            silence_ms: (0..ranks).map(|_| AtomicU64::new(0)).collect(),
            cuts: (0..ranks).map(|_| OnceLock::new()).collect(),
            sent_at_ms: AtomicU64::new(now_ms()),
            stood_until_ms: AtomicU64::new(0),
            stood_ms: AtomicU64::new(0),
            peers: Mutex::new(Vec::with_capacity(ranks)),
            stop: AtomicBool::new(false),
        });
        let of_thread = shared.clone();
        let thread =
            std::thread::Builder::new().name("heartbeats".to_string()).spawn(move || {
                while !of_thread.stop.load(Ordering::Acquire) {
                    of_thread.tick(now_ms());
                    std::thread::park_timeout(HEARTBEAT);
                }
                of_thread.say_goodbye();
            })?;
        Ok(Heartbeats { shared, thread: Some(thread) })
    }

    /// Adds `rank` to the peers.
    pub fn add(&self, rank: usize, mut channel: Box<dyn Channel>) {
        channel.send();
        self.shared.peers().push(Peer { rank, channel, has_left: false, way: None });
    }

    /// Also watches the network path to `rank`, which already has a channel.
    pub fn watch(&self, rank: usize, mut way: Option<Way>) {
        let mut peers = self.shared.peers();
        peers.iter_mut().filter(|peer| peer.rank == rank).for_each(|peer| peer.way = way.take());
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // The thread never blocks; the dropping thread can do nothing about a panic.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn tick(&self, now_ms: u64) {
        let elapsed_ms = now_ms.saturating_sub(self.sent_at_ms.load(Ordering::Relaxed));
        if elapsed_ms >= STANDSTILL_MIN_MS {
            self.stood_ms.store(elapsed_ms, Ordering::Relaxed);
            self.stood_until_ms.store(now_ms, Ordering::Release);
        }
        for peer in self.peers().iter_mut() {
            let has_arrived = peer.channel.has_arrived();
            if let Some(cut) = peer.way.as_mut().and_then(|way| way.look(elapsed_ms, has_arrived)) {
                let _ = self.cuts[peer.rank].set(cut);
            }
            peer.channel.send();
            let received = peer.channel.recv();
            peer.has_left |= received == Received::Goodbye;
            let silence_ms = &self.silence_ms[peer.rank];
            let before_ms = silence_ms.load(Ordering::Relaxed);
            let is_alive = peer.has_left || received == Received::Heartbeat;
            silence_ms.store(silence_after(before_ms, elapsed_ms, is_alive), Ordering::Relaxed);
        }
        self.sent_at_ms.store(now_ms, Ordering::Release);
    }

    fn say_goodbye(&self) {
        self.peers().iter_mut().for_each(|peer| peer.channel.say_goodbye());
    }

    fn peers(&self) -> MutexGuard<'_, Vec<Peer>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn standstill(&self, now_ms: u64) -> Option<Duration> {
        let still_ms = now_ms.saturating_sub(self.sent_at_ms.load(Ordering::Acquire));
        if still_ms >= STANDSTILL_MIN_MS {
            return Some(Duration::from_millis(still_ms));
        }
        let until_ms = self.stood_until_ms.load(Ordering::Acquire);
        let is_recent = until_ms > 0 && now_ms.saturating_sub(until_ms) <= STANDSTILL_MEMORY_MS;
        is_recent.then(|| Duration::from_millis(self.stood_ms.load(Ordering::Relaxed)))
    }
}

/// The silence of a peer after another heartbeat of our own, `elapsed_ms` after the last one. At
/// most two heartbeat intervals count, because this rank was not listening for the rest.
fn silence_after(silence_ms: u64, elapsed_ms: u64, is_alive: bool) -> u64 {
    if is_alive { 0 } else { silence_ms + elapsed_ms.min(2 * HEARTBEAT.as_millis() as u64) }
}

/// The liveness of one peer, as seen from this rank.
#[derive(Clone)]
pub struct Liveness {
    heartbeats: Arc<Heartbeats>,
    peer: usize,
}

impl Liveness {
    pub(crate) fn new(heartbeats: Arc<Heartbeats>, peer: usize) -> Self {
        Liveness { heartbeats, peer }
    }

    /// The cut of the path to the peer, if another path works. Costs a load.
    pub fn cut(&self) -> Option<Cut> {
        self.heartbeats.shared.cuts[self.peer].get().copied()
    }

    /// The time since the peer's last heartbeat, in steps of 125 ms; zero for a peer that has left
    /// on purpose. Costs a load.
    pub fn silence(&self) -> Duration {
        Duration::from_millis(self.heartbeats.shared.silence_ms[self.peer].load(Ordering::Relaxed))
    }

    /// The length of this rank's own standstill, if one is going on or ended a moment ago. A caller
    /// that finds the peer lost then should suspect itself.
    pub fn own_standstill(&self) -> Option<Duration> {
        self.heartbeats.shared.standstill(now_ms())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;

    /// Receives scripted items, one a heartbeat; counts heartbeats and goodbyes.
    struct Script {
        incoming: VecDeque<Received>,
        sent: Arc<[AtomicU64; 2]>,
    }

    impl Channel for Script {
        fn send(&mut self) {
            self.sent[0].fetch_add(1, Ordering::Relaxed);
        }

        fn say_goodbye(&mut self) {
            self.sent[1].fetch_add(1, Ordering::Relaxed);
        }

        fn recv(&mut self) -> Received {
            self.incoming.pop_front().unwrap_or(Received::Nothing)
        }
    }

    fn shared(incoming: &[Received]) -> Shared {
        let channel = Script { incoming: incoming.iter().copied().collect(), sent: Arc::default() };
        Shared {
            silence_ms: (0..2).map(|_| AtomicU64::new(0)).collect(),
            cuts: (0..2).map(|_| OnceLock::new()).collect(),
            sent_at_ms: AtomicU64::new(10_000),
            stood_until_ms: AtomicU64::new(0),
            stood_ms: AtomicU64::new(0),
            peers: Mutex::new(vec![Peer {
                rank: 1,
                channel: Box::new(channel),
                has_left: false,
                way: None,
            }]),
            stop: AtomicBool::new(false),
        }
    }

    #[test]
    fn silence_is_counted_in_own_heartbeats() {
        use Received::{Goodbye, Heartbeat, Nothing};
        // Received items, sending times, and the silence after the last.
        for (incoming, at_ms, silence_ms) in [
            (&[Heartbeat, Heartbeat][..], &[250, 500][..], 0),
            (&[Nothing, Nothing], &[250, 500], 500),
            (&[Nothing, Heartbeat, Nothing], &[250, 500, 750], 250),
            // An hour's sleep of our own counts as no hour's silence of the peer.
            (&[Nothing, Nothing], &[250, 3_600_000], 500),
            (&[Goodbye, Nothing, Nothing], &[250, 500, 9000], 0),
        ] {
            let shared = shared(incoming);
            at_ms.iter().for_each(|at_ms| shared.tick(10_000 + at_ms));
            let found = shared.silence_ms[1].load(Ordering::Relaxed);
            assert_eq!(found, silence_ms, "{incoming:?} {at_ms:?}");
        }
    }

    #[test]
    fn a_standstill_is_noticed_by_either_thread_and_forgotten_later() {
        let shared = shared(&[]);
        let standstill =
            |at_ms: u64| shared.standstill(10_000 + at_ms).map(|time| time.as_millis());
        assert_eq!(standstill(300), None);
        assert_eq!(standstill(4000), Some(4000), "the thread has not even woken yet");
        shared.tick(14_100);
        assert_eq!(standstill(4100), Some(4100));
        (1..=20).for_each(|tick| shared.tick(14_100 + tick * 250));
        assert_eq!(standstill(9100), Some(4100));
        shared.tick(19_350);
        assert_eq!(standstill(9350), None);
    }

    #[test]
    fn heartbeats_start_at_once_and_end_with_a_goodbye() {
        let sent: Arc<[AtomicU64; 2]> = Arc::default();
        let heartbeats = Heartbeats::start(2).unwrap();
        heartbeats.add(1, Box::new(Script { incoming: VecDeque::new(), sent: sent.clone() }));
        assert!(sent[0].load(Ordering::Relaxed) >= 1);
        assert_eq!(sent[1].load(Ordering::Relaxed), 0);
        drop(heartbeats);
        assert_eq!(sent[1].load(Ordering::Relaxed), 1);
    }
}
