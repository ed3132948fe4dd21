//! One connection to a lower rank, from the first try to the end of its greeting.

use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::context::Context;
use crate::greeted::Greeted;
use crate::handshake::{Handshake, Refused, Step};
use crate::hello::Purpose;
use crate::pair::LinkSet;
use crate::socket::{connect_result, prepare, start_connect};
use crate::{MeshConfig, MeshError};

/// Between two tries to dial a rank: doubled each time, so that a rank that starts late is found
/// at once and one that stays away costs little.
const REDIAL_MIN: Duration = Duration::from_millis(5);
const REDIAL_MAX: Duration = Duration::from_millis(200);

pub(crate) struct Dial {
    pub peer: usize,
    addr: SocketAddr,
    purpose: Purpose,
    /// The link's number, or which links are kept.
    index: usize,
    attempt: Attempt,
    pause: Duration,
    /// The last that was heard of this rank, for the error.
    heard: String,
}

enum Attempt {
    Waiting { until: Instant },
    Connecting(TcpStream),
    Greeting(Box<Handshake>),
    Done,
}

impl Dial {
    /// For link `index` with `peer`, which goes to the next of its addresses.
    pub fn new(config: &MeshConfig, peer: usize, purpose: Purpose, index: usize) -> Self {
        let addrs = &config.addrs[peer];
        Dial {
            peer,
            addr: addrs[index % addrs.len()],
            purpose,
            index,
            attempt: Attempt::Waiting { until: Instant::now() },
            pause: REDIAL_MIN,
            heard: "not tried yet".to_string(),
        }
    }

    /// To tell `peer`, by a way that stands, which links this rank goes on with.
    pub fn settle(config: &MeshConfig, peer: usize, chosen: LinkSet) -> Self {
        let by_way = Self::new(config, peer, Purpose::Settle, chosen.first());
        Dial { index: chosen.bits(), ..by_way }
    }

    pub fn index(&self) -> usize {
        self.index
    }

    pub fn is_done(&self) -> bool {
        matches!(self.attempt, Attempt::Done)
    }

    /// Why this rank is not there yet.
    pub fn reason(&self) -> String {
        match self.attempt {
            Attempt::Connecting(_) => format!("{} does not answer", self.addr),
            Attempt::Greeting(_) => format!("{} does not answer the greeting", self.addr),
            _ => format!("{}: {}", self.addr, self.heard),
        }
    }

    /// Starts the connection if it is due, and turns one that stands into a greeting.
    pub fn advance(&mut self, context: &Context, now: Instant) {
        let next = match std::mem::replace(&mut self.attempt, Attempt::Done) {
            Attempt::Waiting { until } if now >= until => {
                start_connect(self.addr).map(Attempt::Connecting)
            }
            Attempt::Connecting(stream) => match connect_result(&stream) {
                None => Ok(Attempt::Connecting(stream)),
                Some(connected) => connected.and_then(|()| prepare(&stream)).map(|()| {
                    let what = (self.purpose, self.index);
                    let handshake = Handshake::dial(context, stream, self.peer, what);
                    Attempt::Greeting(Box::new(handshake))
                }),
            },
            other => Ok(other),
        };
        match next {
            Ok(attempt) => self.attempt = attempt,
            Err(error) => self.retry(now, error.to_string()),
        }
    }

    /// Moves the greeting as far as the bytes allow; what it ends with.
    ///
    /// # Errors
    /// The right rank came, and there is no point in waiting.
    pub fn greet(&mut self, context: &Context, now: Instant) -> Result<Option<Greeted>, MeshError> {
        let Attempt::Greeting(handshake) = &mut self.attempt else {
            return Ok(None);
        };
        match handshake.step(context) {
            Step::Pending => {}
            Step::Done(greeted) => {
                self.attempt = Attempt::Done;
                return Ok(Some(*greeted));
            }
            Step::Refused(Refused::Stranger(reason)) => self.retry(now, reason),
            Step::Refused(Refused::Fatal(error)) => return Err(error),
        }
        Ok(None)
    }

    fn retry(&mut self, now: Instant, heard: String) {
        self.heard = heard;
        self.attempt = Attempt::Waiting { until: now + self.pause };
        self.pause = (self.pause * 2).min(REDIAL_MAX);
    }
}
