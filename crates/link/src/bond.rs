//! Several links to one peer as one: long payloads go over all of them at once.
//!
//! Each message has a number at its end, inside what the link seals. The sender puts a message on
//! the link that would have it through first, by what the links were measured to do and what they
//! still carry: so the messages of a long payload spread over the links by their speeds, and a
//! short one goes alone on the quickest. The receiver takes messages in the order of their numbers,
//! whichever link they come by, so the two ends need not agree on anything. No thread waits
//! for a link: all are polled, and a full one holds up no other.

use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::error::Sticky;
use crate::link::SLOTS;
use crate::speed::{Patience, Speed};
use crate::waker::Waker;
use crate::{Link, LinkError, LinkInfo, Vital};

/// Bytes of the number at the end of each message.
const NUMBER_BYTES: usize = 8;

/// Bytes by which messages are shorter for it: a cache line, so that full messages stay aligned.
const NUMBER_ROOM: usize = 64;

/// The longest message of a bond, so that payloads from twice of it on are cut over two links.
const BOND_MESSAGE_BYTES_MAX: usize = 32 * 1024;

/// After a message of at least this, the next is looked for on all links at each poll: it is part
/// of a long payload. 8 KiB, the commonest sum, and what comes with it are below.
const LONG_BYTES_MIN: usize = 9 * 1024;

/// Polls without success of the link that last had a message between two looks at the others, which
/// cost a system call each.
const POLLS_PER_ROUND: u32 = 8;

/// How long messages on the other links may take after one link has ended: those of a peer that
/// leaves were sent before, and come within a wire's latency.
const LAST_MESSAGES_MAX: Duration = Duration::from_millis(200);

pub(crate) struct Bond {
    info: LinkInfo,
    vital: Vital,
    strands: Vec<Strand>,
    waker: Waker,
    message_bytes_max: usize,
    /// The strand whose slot is lent, and the number of the message in it.
    lent: Option<usize>,
    next_send: u64,
    /// The strand that has the next message, and the one that had the last.
    ready: Option<usize>,
    last: usize,
    last_was_long: bool,
    next_recv: u64,
    idle_polls: u32,
    end: Option<End>,
    send_error: Sticky,
    recv_error: Sticky,
}

/// One of the links.
struct Strand {
    link: Box<dyn Link>,
    /// For a person who looks for the cable.
    path: String,
    speed: Speed,
    /// Until when it carries what it was given, as far as can be known.
    busy_until: Instant,
    /// The oldest message that has come by it.
    head: Option<Head>,
    has_ended: bool,
}

/// A message that waits for its turn.
#[derive(Debug, Clone, Copy)]
struct Head {
    number: u64,
    len: usize,
}

/// The end of the first link that has ended.
struct End {
    error: LinkError,
    since: Instant,
}

impl Bond {
    /// Bonds two links or more with one peer, each with its way for a person to read, and measures
    /// them together with it.
    pub fn measured(
        links: Vec<(Box<dyn Link>, String)>,
        patience: &Patience<'_>,
    ) -> Result<Self, LinkError> {
        let mut strands = Vec::with_capacity(links.len());
        for (mut link, path) in links {
            let speed = Speed::measure(&mut *link, patience);
            let speed = speed.map_err(|error| error.on_path(&path))?;
            let busy_until = Instant::now();
            strands.push(Strand { link, path, speed, busy_until, head: None, has_ended: false });
        }
        Self::new(strands)
    }

    fn new(strands: Vec<Strand>) -> Result<Self, LinkError> {
        let first = &strands[0].link;
        let info = LinkInfo { links: strands.len(), ..first.info() };
        let vital = first.vital().clone();
        let longest = strands.iter().map(|strand| strand.link.message_bytes_max()).min();
        let message_bytes_max = longest.unwrap_or(0).min(BOND_MESSAGE_BYTES_MAX) - NUMBER_ROOM;
        let waker = Waker::new(strands.iter().map(|strand| strand.link.fd()));
        let waker = waker.map_err(|error| LinkError::lost(info.peer, error.to_string()))?;
        Ok(Bond {
            info,
            vital,
            strands,
            waker,
            message_bytes_max,
            lent: None,
            next_send: 1,
            ready: None,
            last: 0,
            last_was_long: false,
            next_recv: 1,
            idle_polls: 0,
            end: None,
            send_error: Sticky::default(),
            recv_error: Sticky::default(),
        })
    }

    /// The strand with a free slot that would have `len` bytes through first; `None` if none has
    /// a free slot.
    fn choose(&mut self, len: usize) -> Result<Option<usize>, LinkError> {
        let now = Instant::now();
        for _ in 0..self.strands.len() {
            let done = |strand: &Strand| strand.done(now, len);
            let by_end =
                |a: &usize, b: &usize| done(&self.strands[*a]).cmp(&done(&self.strands[*b]));
            let Some(at) = (0..self.strands.len()).min_by(by_end) else { break };
            let strand = &mut self.strands[at];
            let slot = strand.link.poll_send(len);
            if slot.map_err(|error| error.on_path(&strand.path))?.is_some() {
                return Ok(Some(at));
            }
            // Whatever it was measured to do, its slots have still to go.
            let full = strand.speed.busy(SLOTS * len);
            strand.busy_until = strand.busy_until.max(now + full);
        }
        Ok(None)
    }

    /// Finds the next message; `false` if it has not come.
    fn find_next(&mut self, everywhere: bool) -> Result<bool, LinkError> {
        self.recv_error.check()?;
        let found = self.look(everywhere);
        self.recv_error.keep(found)
    }

    fn look(&mut self, everywhere: bool) -> Result<bool, LinkError> {
        if self.ready.is_some() {
            return Ok(true);
        }
        let round = self.idle_polls.is_multiple_of(POLLS_PER_ROUND);
        let everywhere = everywhere || round || self.last_was_long || self.end.is_some();
        let looked = if everywhere { self.strands.len() } else { 1 };
        for step in 0..looked {
            let at = (self.last + step) % self.strands.len();
            let head = self.head(at)?;
            if let Some(Head { len, .. }) = head.filter(|head| head.number == self.next_recv) {
                (self.ready, self.last, self.idle_polls) = (Some(at), at, 1);
                self.last_was_long = len >= LONG_BYTES_MIN;
                return Ok(true);
            }
        }
        self.idle_polls = self.idle_polls.wrapping_add(1);
        self.ended().map(|()| false)
    }

    /// The oldest message that has come by a strand.
    fn head(&mut self, at: usize) -> Result<Option<Head>, LinkError> {
        let strand = &mut self.strands[at];
        if strand.head.is_some() || strand.has_ended {
            return Ok(strand.head);
        }
        let head = match strand.link.poll_recv() {
            Ok(None) => return Ok(None),
            Ok(Some(message)) => Head::of(message),
            Err(error) => return self.note_end(at, error).map(|()| None),
        };
        let Some(head) = head.filter(|head| head.number >= self.next_recv) else {
            let text = format!("a message before the due one, which is {}", self.next_recv);
            return Err(LinkError::corrupt(self.info.peer, text).on_path(&strand.path));
        };
        strand.head = Some(head);
        Ok(strand.head)
    }

    /// Remembers that a link has ended; a broken one ends the bond at once.
    fn note_end(&mut self, at: usize, error: LinkError) -> Result<(), LinkError> {
        let strand = &mut self.strands[at];
        let error = error.on_path(&strand.path);
        if !matches!(error, LinkError::Lost { .. }) {
            return Err(error);
        }
        strand.has_ended = true;
        self.end.get_or_insert_with(|| End { error, since: Instant::now() });
        Ok(())
    }

    /// The error of the first link that has ended, unless another one may still bring the message
    /// that is due.
    fn ended(&self) -> Result<(), LinkError> {
        let Some(end) = &self.end else {
            return Ok(());
        };
        let all = self.strands.iter().all(|strand| strand.has_ended);
        if all || end.since.elapsed() >= LAST_MESSAGES_MAX {
            return Err(end.error.clone());
        }
        Ok(())
    }

    /// Acts on the links that have not ended, and remembers those that turn out to have.
    fn on_each(
        &mut self,
        mut act: impl FnMut(&mut dyn Link) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        for at in 0..self.strands.len() {
            if self.strands[at].has_ended {
                continue;
            }
            if let Err(error) = act(&mut *self.strands[at].link) {
                self.note_end(at, error)?;
            }
        }
        self.ended()
    }

    /// Keeps the first error of sending. A peer that takes no more may have left, and then its last
    /// message is looked for on all links.
    fn keep_send<T>(&mut self, result: Result<T, LinkError>) -> Result<T, LinkError> {
        if let Err(error) = &result {
            let (error, since) = (error.clone(), Instant::now());
            self.end.get_or_insert(End { error, since });
        }
        self.send_error.keep(result)
    }

    fn push(&mut self) -> Result<bool, LinkError> {
        let mut all_left = true;
        for strand in &mut self.strands {
            let left = strand.link.progress();
            all_left &= left.map_err(|error| error.on_path(&strand.path))?;
        }
        Ok(all_left)
    }
}

impl Head {
    fn of(message: &[u8]) -> Option<Self> {
        let (message, number) = message.split_last_chunk::<NUMBER_BYTES>()?;
        Some(Head { number: u64::from_le_bytes(*number), len: message.len() })
    }
}

impl Strand {
    /// When a message of `len` bytes that it is given now would be there.
    fn done(&self, now: Instant, len: usize) -> Instant {
        self.busy_until.max(now) + self.speed.busy(len) + self.speed.latency
    }
}

impl Link for Bond {
    fn info(&self) -> LinkInfo {
        self.info
    }

    fn vital(&self) -> &Vital {
        &self.vital
    }

    fn message_bytes_max(&self) -> usize {
        self.message_bytes_max
    }

    fn poll_send(&mut self, len: usize) -> Result<Option<&mut [u8]>, LinkError> {
        self.send_error.check()?;
        if self.lent.is_none() {
            let chosen = self.choose(len + NUMBER_BYTES);
            self.lent = self.keep_send(chosen)?;
        }
        let Some(at) = self.lent else {
            return Ok(None);
        };
        let slot = self.strands[at].link.poll_send(len + NUMBER_BYTES)?;
        Ok(slot.map(|slot| &mut slot[..self.message_bytes_max]))
    }

    fn commit(&mut self, len: usize) -> Result<(), LinkError> {
        let strand = &mut self.strands[self.lent.take().expect("commit without a lent slot")];
        let len = len + NUMBER_BYTES;
        let slot = strand.link.poll_send(len)?.expect("a lent slot stays lent");
        slot[len - NUMBER_BYTES..len].copy_from_slice(&self.next_send.to_le_bytes());
        self.next_send += 1;
        strand.busy_until = strand.busy_until.max(Instant::now()) + strand.speed.busy(len);
        let sent = strand.link.commit(len).map_err(|error| error.on_path(&strand.path));
        self.keep_send(sent)
    }

    fn progress(&mut self) -> Result<bool, LinkError> {
        self.send_error.check()?;
        let pushed = self.push();
        self.keep_send(pushed)
    }

    fn poll_recv(&mut self) -> Result<Option<&[u8]>, LinkError> {
        self.find_next(false)?;
        let Some(at) = self.ready else {
            return Ok(None);
        };
        let message = self.strands[at].link.poll_recv()?;
        Ok(message.map(|message| &message[..message.len() - NUMBER_BYTES]))
    }

    fn consume(&mut self) {
        let strand = &mut self.strands[self.ready.take().expect("consume without a lent message")];
        strand.link.consume();
        strand.head = None;
        self.next_recv += 1;
    }

    fn check(&mut self) -> Result<(), LinkError> {
        self.recv_error.check()?;
        self.on_each(|link| link.check())
    }

    fn arm(&mut self) -> Result<bool, LinkError> {
        if self.find_next(true)? {
            return Ok(true);
        }
        let mut something_came = false;
        let armed = self.on_each(|link| {
            something_came |= link.arm()?;
            Ok(())
        });
        self.recv_error.keep(armed)?;
        Ok(something_came)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.waker.fd()
    }
}

#[cfg(test)]
#[path = "bond_tests.rs"]
mod tests;
