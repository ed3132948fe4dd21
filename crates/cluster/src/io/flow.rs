//! How many bytes of models are on their way from each member. Bytes that wait in a slow path delay
//! the heartbeats behind them, so readers ask for pieces that the path carries soon, and for the
//! next ones once these have come. Pieces start small, and grow as long as they come in time; on a
//! fast path they soon have no limit that matters.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::NodeId;

/// Time for all pieces under way: a tenth of the silence that loses a member.
const PIECE_TIME: Duration = Duration::from_millis(300);
/// A piece also gets this many round trips: one for the request, others in which TCP finds the
/// path's speed.
const PIECE_ROUND_TRIPS: u32 = 3;
/// Bytes under way before anything is known of a path.
const FIRST_BYTES: u64 = 64 << 10;
/// Fewer would cost more round trips than they save.
const LEAST_BYTES: u64 = 16 << 10;
/// More than all readers of a model ask for at once.
const MOST_BYTES: u64 = 64 << 20;
/// While one piece is asked for, another one comes.
const PIECES: u64 = 2;
/// A single connect may have been repeated, or have waited behind other bytes; of the last few the
/// fastest counts.
const CONNECTS: usize = 4;
/// More than a cluster has members.
const FLOWS_MAX: usize = 1024;

/// The flows from all members.
#[derive(Debug, Default)]
pub(crate) struct Flows(Mutex<HashMap<NodeId, Arc<Flow>>>);

/// The bytes from one member, for all its readers together.
#[derive(Debug, Default)]
pub(crate) struct Flow {
    window: Mutex<Window>,
    freed: Notify,
}

#[derive(Debug)]
struct Window {
    /// Bytes that may be under way.
    bytes: u64,
    asked: u64,
    /// The last times of a TCP handshake.
    connects: VecDeque<Duration>,
}

/// Leave to ask for some bytes. Dropping it means that they did not come.
pub(crate) struct Turn {
    flow: Arc<Flow>,
    bytes: u64,
    has_come: bool,
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

impl Flow {
    /// Records how long a TCP handshake with the member took.
    pub(crate) fn connected(&self, took: Duration) {
        let connects = &mut self.lock().connects;
        if connects.len() == CONNECTS {
            connects.pop_front();
        }
        connects.push_back(took);
    }

    /// Whether so many bytes may be under way at a time.
    pub(crate) fn carries(&self, bytes: u64) -> bool {
        self.lock().bytes >= bytes
    }

    /// Waits until bytes may be asked for: at most `wanted`, at least one.
    pub(crate) async fn turn(self: Arc<Self>, wanted: u64) -> Turn {
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable();
            if let Some(bytes) = self.lock().take(wanted) {
                return Turn { flow: self.clone(), bytes, has_come: false };
            }
            freed.await;
        }
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
        self.flow.lock().came(took);
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut window = self.flow.lock();
        if !self.has_come {
            window.scale(0.5);
        }
        window.asked -= self.bytes;
        drop(window);
        self.flow.freed.notify_waiters();
    }
}

impl Default for Window {
    fn default() -> Self {
        Self { bytes: FIRST_BYTES, asked: 0, connects: VecDeque::with_capacity(CONNECTS) }
    }
}

impl Window {
    fn take(&mut self, wanted: u64) -> Option<u64> {
        let bytes = wanted.min(self.bytes / PIECES);
        let has_room = self.asked == 0 || self.asked + bytes <= self.bytes;
        has_room.then(|| {
            self.asked += bytes;
            bytes
        })
    }

    /// Adapts to a piece, which counts as under way still.
    fn came(&mut self, took: Duration) {
        let round_trip = self.connects.iter().min().copied().unwrap_or_default();
        let limit = PIECE_TIME + round_trip * PIECE_ROUND_TRIPS;
        let factor = limit.as_secs_f64() / took.as_secs_f64().max(1e-6);
        // The time of a few bytes says nothing of many.
        let is_full = self.asked >= self.bytes / PIECES;
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
            let bytes = (0..PIECES).map(|_| window.take(MOST_BYTES).unwrap()).sum::<u64>();
            window.came(round_trip + Duration::from_secs_f64(bytes as f64 / bytes_per_sec));
            window.asked -= bytes;
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
        assert!(gigabit > 30 << 20, "{gigabit}");
        assert_eq!(settled(1e10, millis(0)), MOST_BYTES);
        // Two round trips of bytes each three.
        let (bytes_per_sec, round_trip) = (2.5e6, millis(400));
        assert!(settled(bytes_per_sec, round_trip) as f64 > bytes_per_sec * 0.8);
    }

    #[test]
    fn one_repeated_connect_does_not_make_a_path_a_far_one() {
        let flow = Flow::default();
        for ms in [1050, 50, 1050, 50, 50] {
            flow.connected(millis(ms));
        }
        let mut window = flow.lock();
        let before = window.bytes;
        window.asked = before;
        window.came(millis(900));
        assert_eq!(window.bytes, before / 2);
    }

    #[tokio::test]
    async fn readers_wait_for_each_other() {
        let flows = Flows::default();
        let flow = flows.of(NodeId([1; 32]));
        let pieces = [flow.clone().turn(1 << 20).await, flow.clone().turn(1 << 20).await];
        assert_eq!(pieces.each_ref().map(|piece| piece.bytes() as u64), [FIRST_BYTES / PIECES; 2]);
        let third = tokio::spawn(flow.clone().turn(100));
        let other = flows.of(NodeId([2; 32])).turn(100).await;
        assert_eq!(other.bytes(), 100, "other members are no matter");
        tokio::task::yield_now().await;
        assert!(!third.is_finished());
        let [first, second] = pieces;
        first.done(millis(1));
        assert_eq!(third.await.unwrap().bytes(), 100);
        assert!(flow.carries(FIRST_BYTES * 2) && !flow.carries(FIRST_BYTES * 2 + 1));
        // What does not come makes the next pieces smaller.
        drop(second);
        assert!(!flow.carries(FIRST_BYTES + 1));
    }
}
