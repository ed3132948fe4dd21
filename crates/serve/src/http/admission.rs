//! Connection permits: which connection keeps one when they run out.
//!
//! A new connection takes the permit of the connection that has waited longest for its client: one
//! without a request, or one with an answer that the client does not read. A connection with a
//! request in progress keeps its permit. One address gets at most a quarter of all permits. Other
//! machines leave some to this machine, and all clients leave the last few to the node's owner.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::Ends;

/// A client that has read nothing of its answer for this long loses its permit if none are left. A
/// phone in a tunnel is back within that time, or reconnects.
const STALL_MAX: Duration = Duration::from_secs(5);

/// The permits of a server and the connections that hold them.
pub(super) struct Admission {
    shares: Shares,
    open: Mutex<Open>,
}

/// Maximum connections of each kind.
#[derive(Debug, Clone, Copy)]
struct Shares {
    all: usize,
    /// For all clients but the owner.
    anybody: usize,
    elsewhere: usize,
    address: usize,
}

#[derive(Default)]
struct Open {
    next: u64,
    by_number: BTreeMap<u64, Arc<Standing>>,
}

/// One connection's permit, returned on drop.
pub(super) struct Permit {
    admission: Arc<Admission>,
    number: u64,
    pub standing: Arc<Standing>,
}

/// The state of a connection.
pub(super) struct Standing {
    /// Another machine's address, or its IPv6 network; `None` for this machine.
    address: Option<IpAddr>,
    /// One of the last permits: its requests must come from the owner.
    pub is_reserved: bool,
    phase: Mutex<(Phase, Instant)>,
    /// Notified when the permit goes to another connection.
    pub evicted: Notify,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// No request, or an incomplete header.
    Idle,
    /// A request in progress: reading its body, working or answering.
    Busy,
    /// The whole answer is written but not yet sent.
    Ending,
    /// The client reads nothing of what is sent.
    Stalled { is_ending: bool },
}

impl Shares {
    fn of(all: usize) -> Self {
        let elsewhere = all - (all / 8).max(2).min(all);
        let anybody = all - (all / 16).max(1).min(all);
        Self { all, anybody, elsewhere, address: (all / 4).max(1) }
    }
}

impl Admission {
    pub fn new(connections_max: usize) -> Self {
        Self { shares: Shares::of(connections_max), open: Mutex::default() }
    }

    /// A permit for a new connection; `None` if no permit can be taken from another one.
    pub fn take(self: &Arc<Self>, ends: Ends) -> Option<Permit> {
        let (shares, now) = (self.shares, Instant::now());
        let address = (!ends.is_same_machine()).then(|| network(ends.client.ip()));
        let mut open = self.open();
        let is_from_there = |one: &Standing| address.is_some() && one.address == address;
        if open.count(is_from_there) >= shares.address && !open.evict(now, is_from_there) {
            return None;
        }
        let share = if address.is_some() { shares.elsewhere } else { shares.anybody };
        let is_general = |one: &Standing| !one.is_reserved;
        let is_reserved = open.count(is_general) >= share && !open.evict(now, is_general);
        if open.by_number.len() >= shares.all && !open.evict(now, |_| true) {
            return None;
        }
        let phase = Mutex::new((Phase::Idle, now));
        let standing = Standing { address, is_reserved, phase, evicted: Notify::new() };
        let (number, standing) = (open.next, Arc::new(standing));
        open.next += 1;
        open.by_number.insert(number, Arc::clone(&standing));
        Some(Permit { admission: Arc::clone(self), number, standing })
    }

    /// Closes the connection that has waited longest for its client. Returns whether there was one.
    pub fn evict(&self) -> bool {
        self.open().evict(Instant::now(), |_| true)
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Open {
    fn count(&self, which: impl Fn(&Standing) -> bool) -> usize {
        self.by_number.values().filter(|one| which(one)).count()
    }

    fn evict(&mut self, now: Instant, which: impl Fn(&Standing) -> bool) -> bool {
        let waiting = self.by_number.iter().filter(|(_, one)| which(one));
        let waiting = waiting.filter_map(|(number, one)| Some((one.waits_since(now)?, *number)));
        let Some((_, number)) = waiting.min() else { return false };
        if let Some(evicted) = self.by_number.remove(&number) {
            evicted.evicted.notify_one();
        }
        true
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.admission.open().by_number.remove(&self.number);
    }
}

impl Standing {
    /// A request's header is complete.
    pub fn begin(&self) {
        self.change(|_| Phase::Busy);
    }

    /// The answer is complete or aborted.
    pub fn end(&self) {
        self.change(|phase| match phase {
            Phase::Stalled { .. } => Phase::Stalled { is_ending: true },
            Phase::Idle => Phase::Idle,
            Phase::Busy | Phase::Ending => Phase::Ending,
        });
    }

    /// The client has stopped reading.
    pub fn stall(&self) {
        self.change(|phase| match phase {
            Phase::Busy => Phase::Stalled { is_ending: false },
            Phase::Ending => Phase::Stalled { is_ending: true },
            phase => phase,
        });
    }

    /// The client has read something.
    pub fn advance(&self) {
        self.change(|phase| match phase {
            Phase::Stalled { is_ending: true } => Phase::Ending,
            Phase::Stalled { is_ending: false } => Phase::Busy,
            phase => phase,
        });
    }

    /// All written bytes are sent.
    pub fn flush(&self) {
        self.advance();
        self.change(|phase| if phase == Phase::Ending { Phase::Idle } else { phase });
    }

    fn change(&self, next: impl FnOnce(Phase) -> Phase) {
        let mut now = self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        let next = next(now.0);
        let goes_on = matches!((now.0, next), (Phase::Stalled { .. }, Phase::Stalled { .. }));
        let since = if next == now.0 || goes_on { now.1 } else { Instant::now() };
        *now = (next, since);
    }

    /// When it started to wait for its client; `None` if it does not wait or has not waited long
    /// enough.
    fn waits_since(&self, now: Instant) -> Option<Instant> {
        let (phase, since) = *self.phase.lock().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Phase::Idle => Some(since),
            Phase::Stalled { .. } => (now.duration_since(since) >= STALL_MAX).then_some(since),
            Phase::Busy | Phase::Ending => None,
        }
    }
}

/// The address range of one client: an IPv4 address, or an IPv6 network of 2^64 addresses.
fn network(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into(),
        ip => ip,
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn from(client: &str) -> Ends {
        let client = SocketAddr::new(client.parse().unwrap(), 50_000);
        Ends { client, server: "192.0.2.1:8080".parse().unwrap(), is_visit: false }
    }

    /// Takes up to `count` permits for connections with a request.
    fn busy(admission: &Arc<Admission>, client: &str, count: usize) -> Vec<Permit> {
        let taken = (0..count).map_while(|_| admission.take(from(client)));
        taken.inspect(|permit| permit.standing.begin()).collect()
    }

    fn is_evicted(permit: &Permit) -> bool {
        !permit.admission.open().by_number.contains_key(&permit.number)
    }

    #[test]
    fn the_longest_idle_makes_room_and_the_busy_do_not() {
        let admission = Arc::new(Admission::new(16));
        let kept = busy(&admission, "127.0.0.1", 13);
        let [first, second] = [0; 2].map(|_| admission.take(from("127.0.0.1")).unwrap());
        // After a request, the other connection has been idle for longer.
        first.standing.begin();
        first.standing.end();
        first.standing.flush();
        let third = admission.take(from("127.0.0.1")).unwrap();
        assert!(is_evicted(&second) && !is_evicted(&first) && !third.standing.is_reserved);
        drop(second);
        assert_eq!(admission.open().by_number.len(), 15, "an evicted permit has nothing to give");
        first.standing.begin();
        third.standing.begin();
        let last = admission.take(from("127.0.0.1")).unwrap();
        assert!(last.standing.is_reserved, "what is left is the owner's");
        last.standing.begin();
        assert!(admission.take(from("127.0.0.1")).is_none());
        assert!(!kept.iter().any(is_evicted));
    }

    #[test]
    fn one_address_and_all_other_machines_leave_some_for_others() {
        let admission = Arc::new(Admission::new(160));
        let mut kept = busy(&admission, "2001:db8::1", 200);
        assert_eq!(kept.len(), 40);
        assert!(admission.take(from("2001:db8::ffff")).is_none(), "it is the same network");
        for client in ["203.0.113.1", "203.0.113.2", "203.0.113.3"] {
            kept.extend(busy(&admission, client, 33));
        }
        assert!(!kept[kept.len() - 1].standing.is_reserved && kept.len() == 139);
        kept.extend(busy(&admission, "203.0.113.4", 1));
        let reserved = busy(&admission, "203.0.113.4", 1);
        assert!(reserved[0].standing.is_reserved);
        drop(reserved);
        let here = busy(&admission, "127.0.0.1", 11);
        assert!(!here[9].standing.is_reserved && here[10].standing.is_reserved);
    }

    #[test]
    fn who_reads_nothing_makes_room_in_time() {
        let admission = Arc::new(Admission::new(2));
        let permits = busy(&admission, "127.0.0.1", 2);
        let standing = &permits[0].standing;
        standing.stall();
        let later = Instant::now() + STALL_MAX;
        assert_eq!(standing.waits_since(Instant::now()), None);
        assert!(standing.waits_since(later).is_some());
        standing.end();
        assert!(standing.waits_since(later).is_some());
        standing.advance();
        assert_eq!(standing.waits_since(later), None, "its answer is still on the way");
        standing.flush();
        assert!(standing.waits_since(later).is_some());
    }
}
