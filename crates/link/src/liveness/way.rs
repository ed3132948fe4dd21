//! Distinguishes a cut network path from a silent rank.
//!
//! A machine's kernel acknowledges bytes for its processes, whatever they do: a frozen rank is
//! silent, but bytes sent to it arrive. Unacknowledged bytes mean that the path is cut, or that the
//! whole machine is gone. If the machine accepts a connection at another address meanwhile, the
//! path is cut, and the epoch need not wait for [silence](super::Liveness::silence).
//!
//! Acknowledgements of messages count as well as those of heartbeats, which may be stuck behind a
//! long message for seconds on a slow link.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::HEARTBEAT;
use crate::socket::{arrival, connect_result, start_connect};

/// After this long the other addresses are tried: the second heartbeat in a row is unacknowledged.
const DOUBT_MS: u64 = 2 * HEARTBEAT.as_millis() as u64;

/// Three heartbeats: one or two may be lost by chance, and are retransmitted within that time.
const CUT_MS: u64 = 3 * HEARTBEAT.as_millis() as u64;

/// The network path of a link.
pub(crate) struct Way {
    /// The connection of the link's messages, if it is TCP.
    messages: Option<TcpStream>,
    /// The peer's other addresses.
    others: Vec<SocketAddr>,
    /// The time without an acknowledgement.
    doubt_ms: u64,
    /// Connection attempts to the other addresses.
    calls: Vec<(SocketAddr, TcpStream)>,
}

/// A cut network path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The time without an acknowledgement on this path.
    pub unacknowledged: Duration,
    /// The address that accepted a connection meanwhile.
    pub answers_at: SocketAddr,
}

impl Way {
    /// `None` if the peer has no other address.
    pub fn new(messages: Option<TcpStream>, others: Vec<SocketAddr>) -> Option<Self> {
        let calls = Vec::with_capacity(others.len());
        (!others.is_empty()).then_some(Way { messages, others, doubt_ms: 0, calls })
    }

    /// Records a heartbeat of our own, `elapsed_ms` after the last one, and whether the earlier
    /// ones have arrived.
    pub fn look(&mut self, elapsed_ms: u64, has_arrived: bool) -> Option<Cut> {
        let messages = self.messages.as_ref().and_then(arrival);
        let has_arrived = has_arrived || messages.is_some_and(|it| it.acknowledged_ago < HEARTBEAT);
        self.doubt_ms = super::silence_after(self.doubt_ms, elapsed_ms, has_arrived);
        if self.doubt_ms < DOUBT_MS {
            self.calls.clear();
            return None;
        }
        if self.calls.is_empty() {
            let call = |addr: &SocketAddr| Some((*addr, start_connect(*addr, None).ok()?));
            self.calls.extend(self.others.iter().filter_map(call));
        }
        // A failed address is tried again after all have failed.
        self.calls.retain(|(_, call)| !matches!(connect_result(call), Some(Err(_))));
        if self.doubt_ms < CUT_MS {
            return None;
        }
        let mut calls = self.calls.iter();
        let (answers_at, _) = calls.find(|(_, call)| connect_result(call).is_some())?;
        let unacknowledged = Duration::from_millis(self.doubt_ms);
        Some(Cut { unacknowledged, answers_at: *answers_at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    const TICK_MS: u64 = HEARTBEAT.as_millis() as u64;

    /// Calls `look` at intervals long enough for any address to answer.
    fn looks(way: &mut Way, arrived: &[bool]) -> Vec<bool> {
        let look = |has_arrived: &bool| {
            let cut = way.look(TICK_MS, *has_arrived);
            std::thread::sleep(Duration::from_millis(20));
            cut.is_some()
        };
        arrived.iter().map(look).collect()
    }

    #[test]
    fn a_way_is_cut_where_nothing_arrives_and_the_machine_answers_elsewhere() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let cut = [false, false, false];
        for (others, arrived, expected) in [
            (vec![there], &cut[..], [false, false, true]),
            (vec![nobody, there], &cut, [false, false, true]),
            (vec![nobody], &cut, [false, false, false]),
            (vec![there], &[false, false, true], [false, false, false]),
            (vec![there], &[true, false, false], [false, false, false]),
        ] {
            let mut way = Way::new(None, others.clone()).unwrap();
            assert_eq!(looks(&mut way, arrived), expected, "{others:?} {arrived:?}");
        }
        assert!(Way::new(None, Vec::new()).is_none());
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn messages_that_arrive_are_enough_and_a_process_need_not_read_them() {
        use std::io::Write;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        for is_used in [true, false] {
            let mut messages = TcpStream::connect(there).unwrap();
            let mut way = Way::new(Some(messages.try_clone().unwrap()), vec![there]).unwrap();
            std::thread::sleep(HEARTBEAT * 2);
            let cuts: Vec<bool> = (0..4)
                .map(|_| {
                    if is_used {
                        messages.write_all(&[0; 64]).unwrap();
                    }
                    looks(&mut way, &[false])[0]
                })
                .collect();
            // An idle connection proves nothing about its path.
            assert_eq!(cuts, [false, false, !is_used, !is_used]);
        }
    }
}
