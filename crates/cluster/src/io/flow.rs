//! How many bytes of models are on their way from each member. Bytes that wait in a slow path delay
//! the heartbeats behind them, so readers ask for pieces that the path carries soon, and for the
//! next ones once these have come. Pieces start small, and grow as long as they come in time; on a
//! fast path they soon have no limit that matters.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::NodeId;

/// Time for all pieces under way: a twelfth of the silence that loses a member.
const PIECE_TIME: Duration = Duration::from_millis(250);
/// A piece also gets this many round trips: one for the request, and others in which TCP finds the
/// path's speed.
const PIECE_ROUND_TRIPS: u32 = 4;
/// A far path gets this many, if they are longer: TCP begins slowly again after each pause.
const FAR_ROUND_TRIPS: u32 = 8;
/// Bytes under way before anything is known of a path.
const FIRST_BYTES: u64 = 64 << 10;
/// Fewer would cost more round trips than they save.
const LEAST_BYTES: u64 = 16 << 10;
/// More than all readers of a model ask for at once.
const MOST_BYTES: u64 = 64 << 20;
/// While one piece is asked for, another one comes.
const PIECES: u64 = 2;
/// All bytes that may be under way, as permits: readers that wait get theirs in turn.
const PERMITS: u64 = 1024;
/// A single connect may have been repeated, or have waited behind other bytes; of the last few the
/// fastest counts.
const CONNECTS: usize = 4;
/// More than a cluster has members.
const FLOWS_MAX: usize = 1024;

/// The flows from all members.
#[derive(Debug, Default)]
pub(crate) struct Flows(Mutex<HashMap<NodeId, Arc<Flow>>>);

/// The bytes from one member, for all its readers together.
#[derive(Debug)]
pub(crate) struct Flow {
    window: Mutex<Window>,
    permits: Arc<Semaphore>,
}

#[derive(Debug)]
struct Window {
    /// Bytes that may be under way.
    bytes: u64,
    /// The last times of a TCP handshake.
    connects: VecDeque<Duration>,
}

/// Leave to ask for some bytes. Dropping it means that they did not come.
pub(crate) struct Turn {
    flow: Arc<Flow>,
    bytes: u64,
    has_come: bool,
    _permit: OwnedSemaphorePermit,
}

impl Flows {
    pub(crate) fn of(&self, peer: NodeId) -> Arc<Flow> {
        let mut flows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if flows.len() >= FLOWS_MAX && !flows.contains_key(&peer) {
            flows.clear();
        }
        flows.entry(peer).or_default().clone()
    }
}

impl Default for Flow {
    fn default() -> Self {
        let permits = Arc::new(Semaphore::new(PERMITS as usize));
        Self { window: Mutex::default(), permits }
    }
}

impl Flow {
    /// Records how long a TCP handshake with the member took.
    pub(crate) fn connected(&self, took: Duration) {
        let connects = &mut self.lock().connects;
        if connects.len() == CONNECTS {
            connects.pop_front();
        }
        connects.push_back(took);
    }

    /// Whether the path may have this many bytes under way.
    pub(crate) fn carries(&self, bytes: u64) -> bool {
        self.lock().bytes >= bytes
    }

    /// Waits until bytes may be asked for: at most `wanted`, at least one. `None` at the end of
    /// this program.
    pub(crate) async fn turn(self: &Arc<Self>, wanted: u64) -> Option<Turn> {
        let (bytes, permits) = self.lock().piece(wanted);
        let permit = self.permits.clone().acquire_many_owned(permits).await.ok()?;
        Some(Turn { flow: self.clone(), bytes, has_come: false, _permit: permit })
    }

    /// `Self::turn`, if there is no need to wait.
    pub(crate) fn try_turn(self: &Arc<Self>, wanted: u64) -> Option<Turn> {
        let (bytes, permits) = self.lock().piece(wanted);
        let permit = self.permits.clone().try_acquire_many_owned(permits).ok()?;
        Some(Turn { flow: self.clone(), bytes, has_come: false, _permit: permit })
    }

    fn lock(&self) -> MutexGuard<'_, Window> {
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// The bytes have come, so long after they were asked for.
    pub(crate) fn done(mut self, took: Duration) {
        self.has_come = true;
        // The time of a few bytes says nothing of many.
        let is_full = self.flow.permits.available_permits() as u64 <= PERMITS / PIECES;
        self.flow.lock().came(took, is_full);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_come {
            self.flow.lock().scale(0.5);
        }
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: FIRST_BYTES, connects: VecDeque::with_capacity(CONNECTS) }
    }
}

impl Window {
    /// The bytes of the next piece, and their part of all that may be under way.
    fn piece(&self, wanted: u64) -> (u64, u32) {
        let bytes = wanted.min(self.bytes / PIECES);
        (bytes, (bytes * PERMITS / self.bytes).max(1) as u32)
    }

    /// Adapts to the time of a piece. `is_full`: as much was under way as may be.
    fn came(&mut self, took: Duration, is_full: bool) {
        let round_trip = self.connects.iter().min().copied().unwrap_or_default();
        let limit = PIECE_TIME + round_trip * PIECE_ROUND_TRIPS;
        let limit = limit.max(round_trip * FAR_ROUND_TRIPS);
        let factor = limit.as_secs_f64() / took.as_secs_f64().max(1e-6);
        if factor < 1.0 || is_full {
            self.scale(factor.clamp(0.5, 2.0));
        }
    }

    fn scale(&mut self, factor: f64) {
        self.bytes = ((self.bytes as f64 * factor) as u64).clamp(LEAST_BYTES, MOST_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    /// The bytes under way once many pieces have come over a path of this speed.
    fn settled(bytes_per_sec: f64, round_trip: Duration) -> u64 {
        let mut window = Window::default();
        window.connects.push_back(round_trip);
        for _ in 0..64 {
            let secs = window.bytes as f64 / bytes_per_sec;
            window.came(round_trip + Duration::from_secs_f64(secs), true);
        }
        window.bytes
    }

    #[test]
    fn a_slow_path_has_less_than_half_a_second_of_bytes_under_way() {
        for (kbit, round_trip_ms) in [(300.0, 50), (1000.0, 10), (3000.0, 10)] {
            let bytes_per_sec = kbit * 125.0;
            let secs = settled(bytes_per_sec, millis(round_trip_ms)) as f64 / bytes_per_sec;
            assert!((0.2..0.5).contains(&secs), "{kbit} kbit/s: {secs} s");
        }
    }

    #[test]
    fn a_fast_path_has_many_groups_under_way_and_a_far_one_is_filled() {
        let gigabit = settled(1.2e8, millis(0));
        assert!(gigabit > 20 << 20, "{gigabit}");
        assert_eq!(settled(1e10, millis(0)), MOST_BYTES);
        let (bytes_per_sec, secs) = (2.5e6, 0.4);
        assert!(settled(bytes_per_sec, millis(400)) as f64 > bytes_per_sec * secs * 1.5);
    }

    #[test]
    fn one_repeated_connect_does_not_make_a_path_a_far_one() {
        let flow = Flow::default();
        for ms in [1050, 50, 1050, 50, 50] {
            flow.connected(millis(ms));
        }
        flow.lock().came(millis(900), false);
        assert!(!flow.carries(FIRST_BYTES / 2 + 1));
    }

    #[tokio::test]
    async fn readers_wait_for_each_other_in_turn() {
        let flows = Flows::default();
        let flow = flows.of(NodeId([1; 32]));
        let first = flow.turn(1 << 20).await.unwrap();
        let second = flow.try_turn(1 << 20).unwrap();
        assert_eq!([first.bytes(), second.bytes()], [FIRST_BYTES as usize / 2; 2]);
        assert!(flow.try_turn(100).is_none());
        let waiting = flow.clone();
        let third = tokio::spawn(async move { waiting.turn(1 << 20).await.unwrap().bytes() });
        tokio::task::yield_now().await;
        assert!(!third.is_finished());
        let other = flows.of(NodeId([2; 32])).turn(100).await.unwrap();
        assert_eq!(other.bytes(), 100, "other members are no matter");
        first.done(millis(1));
        assert!(flow.try_turn(100).is_none(), "it is another one's turn");
        assert_eq!(third.await.unwrap() as u64, FIRST_BYTES / 2);
        assert!(flow.carries(FIRST_BYTES) && !flow.carries(FIRST_BYTES + 1), "it did not come");
    }
}
