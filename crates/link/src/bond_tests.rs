//! A bond over links that hold what the test put there.

use std::collections::VecDeque;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::*;
use crate::Transport;
use crate::pulse::{BEAT, Channel, Heard, Pulse};

const PEER: usize = 1;

/// Gives messages out until there are no more, then is lost; takes so many and is full.
struct Script {
    vital: Vital,
    fd: TcpListener,
    incoming: VecDeque<Vec<u8>>,
    ends: bool,
    slot: Vec<u8>,
    free: usize,
}

impl Link for Script {
    fn info(&self) -> LinkInfo {
        LinkInfo { peer: PEER, transport: Transport::Tcp, links: 1, same_host: false }
    }

    fn vital(&self) -> &Vital {
        &self.vital
    }

    fn message_bytes_max(&self) -> usize {
        self.slot.len()
    }

    fn poll_send(&mut self, _len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        Ok((self.free > 0).then_some(&mut self.slot[..]))
    }

    fn commit(&mut self, _len: usize) -> Result<(), LinkError> {
        self.free -= 1;
        Ok(())
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        Ok(true)
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        match self.incoming.front() {
            None if self.ends => Err(LinkError::lost(PEER, "pulled out")),
            next => Ok(next.map(Vec::as_slice)),
        }
    }

    fn consume(&mut self) {
        self.incoming.pop_front().unwrap();
    }

    fn check(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        Ok(!self.incoming.is_empty())
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A link by which the messages with these numbers come.
fn script(vital: Vital, numbers: &[u64], ends: bool) -> Script {
    let message = |number: &u64| [&[b'm'; 3][..], &number.to_le_bytes()].concat();
    Script {
        vital,
        fd: TcpListener::bind("127.0.0.1:0").unwrap(),
        incoming: numbers.iter().map(message).collect(),
        ends,
        slot: vec![0; 4096],
        free: usize::MAX,
    }
}

/// The same as one of a bond, at this speed in bytes a microsecond.
fn strand(at: usize, numbers: &[u64], ends: bool, bytes_per_us: f64) -> Strand {
    let link = script(Vital::new(Arc::new(Pulse::start(2).unwrap()), PEER), numbers, ends);
    let speed = Speed { latency: Duration::from_micros(10), bytes_per_us };
    let (path, busy_until) = (format!("way {at}"), Instant::now());
    Strand { link: Box::new(link), path, speed, busy_until, head: None, has_ended: false }
}

/// How many messages come, and what ends them, if anything does.
fn drain(strands: Vec<Strand>) -> (usize, Option<LinkError>) {
    let mut bond = Bond::new(strands).unwrap();
    let mut taken = 0;
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < 2 * LAST_MESSAGES_MAX {
        match bond.poll_recv() {
            Ok(None) => continue,
            Ok(Some(message)) => assert_eq!(message, b"mmm"),
            Err(error) => {
                assert_eq!(bond.poll_recv().unwrap_err(), error, "an error is repeated");
                return (taken, Some(error));
            }
        }
        bond.consume();
        (taken, idle_since) = (taken + 1, Instant::now());
    }
    (taken, None)
}

#[test]
fn messages_come_in_order_whichever_way_they_took() {
    for (first, second) in [
        (&[1, 2, 3, 4, 5, 6][..], &[][..]),
        (&[], &[1, 2, 3, 4, 5, 6]),
        (&[1, 3, 5], &[2, 4, 6]),
        (&[4, 5, 6], &[1, 2, 3]),
    ] {
        let strands = vec![strand(0, first, false, 100.0), strand(1, second, false, 100.0)];
        assert_eq!(drain(strands), (6, None), "{first:?} {second:?}");
    }
}

#[test]
fn a_lost_way_is_named_once_the_others_have_brought_what_they_had() {
    // By both ways; does the second end, too? Then how many messages come.
    for (first, second, both, expected) in [
        (&[1, 2][..], &[3, 4][..], true, 4),
        (&[1, 2], &[3, 4], false, 4),
        (&[], &[1, 2], false, 2),
        // What is due was on the lost way.
        (&[1], &[3, 4], false, 1),
        (&[1], &[3, 4], true, 1),
    ] {
        let strands = vec![strand(0, first, true, 100.0), strand(1, second, both, 100.0)];
        let (taken, end) = drain(strands);
        assert_eq!(taken, expected, "{first:?} {second:?}");
        let text = end.unwrap().to_string();
        assert!(text.contains("rank 1 is gone: pulled out (way "), "{text}");
    }
}

#[test]
fn a_number_that_comes_again_is_corrupt() {
    let strands = vec![strand(0, &[1, 1], false, 100.0), strand(1, &[2], false, 100.0)];
    let (taken, end) = drain(strands);
    assert_eq!(taken, 1);
    assert!(matches!(end, Some(LinkError::Corrupt { peer: PEER, .. })), "{end:?}");
}

#[test]
fn long_payloads_spread_by_speed() {
    // Speeds of three links; of 110 messages that are sent at once, how many each gets. So slow
    // that no wire is done before all are sent.
    let speeds = [0.1, 0.05, 0.001];
    let strands = speeds.iter().enumerate().map(|(at, speed)| strand(at, &[], false, *speed));
    let mut bond = Bond::new(strands.collect()).unwrap();
    let mut sent = [0usize; 3];
    let len = bond.message_bytes_max();
    for _ in 0..110 {
        assert!(bond.poll_send(len).unwrap().is_some());
        sent[bond.lent.unwrap()] += 1;
        bond.commit(len).unwrap();
    }
    assert!(sent[0].abs_diff(72) <= 2 && sent[1].abs_diff(36) <= 2, "{sent:?}");
}

/// A peer of which nothing is heard.
struct Mute;

impl Channel for Mute {
    fn beat(&mut self) {}

    fn leave(&mut self) {}

    fn listen(&mut self) -> Heard {
        Heard::Nothing
    }
}

#[test]
fn a_peer_that_falls_silent_while_it_is_measured_is_lost() {
    let pulse = Pulse::start(2).unwrap();
    pulse.add(PEER, 0, String::new(), Box::new(Mute));
    let mut link = script(Vital::new(Arc::new(pulse), PEER), &[], false);
    let until = Instant::now() + Duration::from_secs(20);
    let patience = Patience { until, silence_max: 2 * BEAT, abort: &AtomicBool::new(false) };
    let end = Speed::measure(&mut link, &patience).unwrap_err().to_string();
    assert!(end.contains("no sign of life"), "{end}");
}
