//! One connection to a lower rank, from the first attempt to the end of its handshake.

use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::MeshError;
use crate::handshake::{Context, Established, Handshake, Progress, Purpose, Refused};
use crate::socket::{connect_result, prepare, start_connect};

/// The pause between two rounds of attempts at a rank's addresses. It doubles each time, so that a
/// rank that starts late is found at once and one that stays away costs little.
const REDIAL_MIN: Duration = Duration::from_millis(5);
const REDIAL_MAX: Duration = Duration::from_millis(200);

/// The time for one of several addresses to answer before the next is tried: a live machine's
/// kernel accepts a connection at once. It doubles with each round, for paths that are far or full.
const CONNECT_MAX: Duration = Duration::from_millis(200);
/// The same for the rank behind it, which may have to finish a step first.
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// Both double this many times.
const DOUBLINGS_MAX: u32 = 4;

pub(super) struct Dial {
    pub peer: usize,
    pub purpose: Purpose,
    /// The rank's addresses, the best first, each with its last failure.
    tries: Vec<(SocketAddr, Option<String>)>,
    segments: Vec<(IpAddr, u16)>,
    /// Index of the address being tried.
    at: usize,
    attempt: Attempt,
    /// The start of the attempt.
    since: Instant,
    pause: Duration,
    /// How often all addresses have failed.
    rounds: u32,
}

enum Attempt {
    Waiting { until: Instant },
    Connecting(TcpStream),
    Handshake(Box<Handshake>),
    Done,
}

impl Dial {
    pub fn new(
        peer: usize,
        purpose: Purpose,
        addrs: &[SocketAddr],
        segments: &[(IpAddr, u16)],
    ) -> Self {
        let now = Instant::now();
        Dial {
            peer,
            purpose,
            tries: addrs.iter().map(|addr| (*addr, None)).collect(),
            segments: segments.to_vec(),
            at: 0,
            attempt: Attempt::Waiting { until: now },
            since: now,
            pause: REDIAL_MIN,
            rounds: 0,
        }
    }

    pub fn is_done(&self) -> bool {
        matches!(self.attempt, Attempt::Done)
    }

    /// The address being tried, or the one that succeeded.
    pub fn addr(&self) -> SocketAddr {
        self.tries[self.at].0
    }

    fn segment(&self) -> Option<u16> {
        let ip = self.addr().ip();
        self.segments.iter().find(|(address, _)| *address == ip).map(|(_, segment)| *segment)
    }

    /// Once done, the reason why each earlier address is not used; before that, the reason of each
    /// failure.
    pub fn reasons(&self) -> Vec<String> {
        let count = if self.is_done() { self.at } else { self.tries.len() };
        let tries = self.tries[..count].iter().enumerate();
        let reason = |(at, (addr, failure)): (usize, &(SocketAddr, Option<String>))| {
            let waits = if at == self.at { self.silence() } else { None };
            match (waits, failure) {
                (Some(waits), _) => format!("{addr} {waits}"),
                (None, Some(failure)) => format!("{addr}: {failure}"),
                (None, None) => format!("{addr}: not tried yet"),
            }
        };
        tries.map(reason).collect()
    }

    /// What the present address fails to do.
    fn silence(&self) -> Option<&'static str> {
        match self.attempt {
            Attempt::Connecting(_) => Some("does not answer"),
            Attempt::Handshake(_) => Some("does not answer the handshake"),
            Attempt::Waiting { .. } | Attempt::Done => None,
        }
    }

    /// Starts the connection if it is due, and turns an established one into a handshake.
    pub fn advance(&mut self, context: &Context, now: Instant) {
        let next = match std::mem::replace(&mut self.attempt, Attempt::Done) {
            Attempt::Waiting { until } if now >= until => {
                self.since = now;
                start_connect(self.addr(), self.segment()).map(Attempt::Connecting)
            }
            Attempt::Connecting(stream) => match connect_result(&stream) {
                None => Ok(Attempt::Connecting(stream)),
                Some(connected) => connected.and_then(|()| prepare(&stream)).map(|()| {
                    let handshake = Handshake::dial(context, stream, self.peer, self.purpose);
                    Attempt::Handshake(Box::new(handshake))
                }),
            },
            other => Ok(other),
        };
        match next {
            Ok(attempt) => self.attempt = attempt,
            Err(error) => return self.retry(now, error.to_string()),
        }
        let is_connected = !matches!(self.attempt, Attempt::Connecting(_));
        let limit = if is_connected { ANSWER_MAX } else { CONNECT_MAX };
        let limit = limit * 2_u32.pow(self.rounds.min(DOUBLINGS_MAX));
        let has_next = self.tries.len() > 1 && now >= self.since + limit;
        if let Some(silence) = self.silence().filter(|_| has_next && !self.is_answered()) {
            self.retry(now, silence.to_string());
        }
    }

    fn is_answered(&self) -> bool {
        matches!(&self.attempt, Attempt::Handshake(handshake) if handshake.is_answered())
    }

    /// Advances the handshake as far as the bytes allow and returns its result.
    ///
    /// # Errors
    /// The right rank came and cannot be linked; waiting is pointless.
    pub fn shake_hands(
        &mut self,
        context: &Context,
        now: Instant,
    ) -> Result<Option<Established>, MeshError> {
        let Attempt::Handshake(handshake) = &mut self.attempt else {
            return Ok(None);
        };
        match handshake.step(context) {
            Progress::Pending => {}
            Progress::Done(established) => {
                self.attempt = Attempt::Done;
                return Ok(Some(*established));
            }
            Progress::Refused(Refused::Stranger(reason)) => self.retry(now, reason),
            Progress::Refused(Refused::Fatal(error)) => return Err(error),
        }
        Ok(None)
    }

    /// Goes on to the next address, after a pause if all have been tried.
    fn retry(&mut self, now: Instant, failure: String) {
        self.tries[self.at].1 = Some(failure);
        self.at = (self.at + 1) % self.tries.len();
        let mut until = now;
        if self.at == 0 {
            until += self.pause;
            self.rounds += 1;
            self.pause = (self.pause * 2).min(REDIAL_MAX);
        }
        self.attempt = Attempt::Waiting { until };
    }
}
