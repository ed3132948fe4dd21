//! Asks other members, through this node's daemon, for parts of pages that are not on this disk.
//!
//! A thread gathers what is wanted and asks member after member, for many records at once. Whatever
//! fails is a miss, and nobody is asked again for a while after a failure.

use std::io::{Error, Read, Write};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use model::{Part, Shared};
use protocol::frame::{self, FrameError};
use protocol::{Heads, RECORDS_BYTES_MAX, RECORDS_MAX, RecordWanted, RecordsAsk, RecordsRelay};

use super::look::{Elsewhere, Look};
use super::record::key_of;
use super::runs::{like, take_shared, without};
use crate::page_orders::PageKey;

/// A member that gives nothing for so long is not waited for.
const SILENCE_MAX: Duration = Duration::from_secs(3);
const CONNECT_PATIENCE: Duration = Duration::from_secs(1);
/// A connection that nobody needs is closed after this time: the members hold lists of their
/// records for it, which also grow old.
const IDLE_MAX: Duration = Duration::from_secs(5);
/// How long nobody is asked after a failure, or if no member has anything.
const PAUSE: Duration = Duration::from_secs(5);

/// Runs of a part's bytes, or nothing if no member has them all.
pub(super) type Given = Option<Vec<(Range<usize>, Vec<u8>)>>;

/// The other members.
#[derive(Clone)]
pub(super) struct Members {
    questions: Sender<Question>,
}

enum Question {
    Want(Want),
    Look(Look),
}

/// Bytes of a part of a page.
struct Want {
    text: PageKey,
    part: Part,
    missing: Vec<Range<usize>>,
    header: Vec<u8>,
    given: Vec<(Range<usize>, Vec<u8>)>,
    /// Those of the members' records that were asked for, in order.
    turn: usize,
    reply: SyncSender<Given>,
}

/// A record that may have what a want lacks.
struct Candidate {
    member: usize,
    record: RecordWanted,
    /// What to take from the bytes that come.
    runs: Vec<Shared>,
}

impl Members {
    pub fn new(relay: RecordsRelay) -> std::io::Result<Self> {
        let (questions, queue) = channel();
        let asker = Asker { relay, open: None, paused_until: None };
        let thread = std::thread::Builder::new().name("disk-members".to_owned());
        thread.spawn(move || asker.run(&queue))?;
        Ok(Self { questions })
    }

    /// Asks which of these pages members have.
    pub fn look(&self, text: Vec<PageKey>, parts: Vec<Part>) -> Receiver<Elsewhere> {
        let (reply, receiver) = sync_channel(1);
        let _ = self.questions.send(Question::Look(Look { text, parts, reply }));
        receiver
    }

    /// Asks for what is missing of a part of a page.
    pub fn want(
        &self,
        text: PageKey,
        part: Part,
        missing: Vec<Range<usize>>,
        header: Vec<u8>,
    ) -> Receiver<Given> {
        let (reply, receiver) = sync_channel(1);
        let want = Want { text, part, missing, header, given: Vec::new(), turn: 0, reply };
        // A thread that has ended drops the sender, which is a miss.
        let _ = self.questions.send(Question::Want(want));
        receiver
    }
}

impl Want {
    /// The next record that has something of what is missing; `None`: there is no other.
    fn candidate(&mut self, members: &[Vec<Heads>]) -> Option<Candidate> {
        let of_member = |(at, known): (usize, &Vec<Heads>)| {
            like(&self.part, known).into_iter().map(move |other| (at, other))
        };
        let all: Vec<(usize, Part)> = members.iter().enumerate().flat_map(of_member).collect();
        for (member, other) in all.into_iter().skip(self.turn) {
            self.turn += 1;
            let mut rest = self.missing.clone();
            let mut runs = match other.heads.is_empty() {
                true => vec![Shared { to: 0..other.bytes, from: 0 }],
                false => take_shared(&self.part, &other, &mut rest),
            };
            let Some(start) = runs.iter().map(|run| run.from).min() else { continue };
            let end = runs.iter().map(|run| run.from + run.to.len()).max().unwrap_or(start);
            runs.iter_mut().for_each(|run| run.from -= start);
            let record = RecordWanted {
                key: key_of(&self.text, &other),
                header: self.header.clone(),
                payload_bytes: other.bytes as u32,
                start: start as u32,
                bytes: (end - start) as u32,
            };
            return Some(Candidate { member, record, runs });
        }
        None
    }

    fn take(&mut self, runs: &[Shared], bytes: &[u8]) {
        for Shared { to, from } in runs {
            self.given.push((to.clone(), bytes[*from..][..to.len()].to_vec()));
            self.missing = without(&self.missing, to);
        }
    }
}

/// The connection to the daemon, and the heads of each member's records.
struct Open {
    stream: TcpStream,
    members: Vec<Vec<Heads>>,
}

struct Asker {
    relay: RecordsRelay,
    open: Option<Open>,
    paused_until: Option<Instant>,
}

impl Asker {
    /// Until nobody can want anything.
    fn run(mut self, queue: &Receiver<Question>) {
        loop {
            let first = match queue.recv_timeout(IDLE_MAX) {
                Ok(question) => question,
                Err(RecvTimeoutError::Timeout) => {
                    self.open = None;
                    continue;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let (mut wants, mut looks) = (Vec::new(), Vec::new());
            for question in std::iter::once(first).chain(queue.try_iter()) {
                match question {
                    Question::Want(want) => wants.push(want),
                    Question::Look(look) => looks.push(look),
                }
            }
            if let Err(error) = self.answer(wants, &looks) {
                eprintln!("prompts on disk: other nodes give nothing: {error}");
                self.pause();
            }
        }
    }

    /// Answers all questions; those that a failure leaves are misses, as their senders are dropped.
    fn answer(&mut self, mut wants: Vec<Want>, looks: &[Look]) -> Result<(), FrameError> {
        if self.paused_until.is_some_and(|until| Instant::now() < until) {
            return Ok(());
        }
        let open = match &mut self.open {
            Some(open) => open,
            open => open.insert(Open::new(&self.relay)?),
        };
        if open.members.is_empty() {
            self.pause();
            return Ok(());
        }
        while !wants.is_empty() {
            open.round(&mut wants)?;
        }
        looks.iter().try_for_each(|look| look.answer(&mut open.stream, &open.members))
    }

    fn pause(&mut self) {
        (self.open, self.paused_until) = (None, Some(Instant::now() + PAUSE));
    }
}

impl Open {
    fn new(relay: &RecordsRelay) -> Result<Self, FrameError> {
        let mut stream = TcpStream::connect_timeout(&relay.relay, CONNECT_PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENCE_MAX))?;
        stream.set_write_timeout(Some(SILENCE_MAX))?;
        stream.write_all(&relay.token.0)?;
        let members = frame::read(&mut stream)?;
        Ok(Self { stream, members })
    }

    /// Asks one member for what it may have of what the wants lack, as many at once as one question
    /// has room for; answers the wants that are whole, or that nobody has.
    fn round(&mut self, wants: &mut Vec<Want>) -> Result<(), FrameError> {
        let (mut asked, mut sum) = (Vec::<(usize, Candidate)>::new(), 0);
        let mut at = 0;
        while at < wants.len() && asked.len() < RECORDS_MAX {
            let turn = wants[at].turn;
            let Some(found) = wants[at].candidate(&self.members) else {
                let _ = wants.swap_remove(at).reply.send(None);
                continue;
            };
            let bytes = found.record.bytes as usize;
            let fits = asked.first().is_none_or(|(_, first)| {
                first.member == found.member && sum + bytes <= RECORDS_BYTES_MAX
            });
            match fits {
                true => {
                    sum += bytes;
                    asked.push((at, found));
                }
                false => wants[at].turn = turn,
            }
            at += 1;
        }
        let Some(member) = asked.first().map(|(_, first)| first.member) else { return Ok(()) };
        let wanted = asked.iter().map(|(_, one)| one.record.clone()).collect();
        frame::write(&mut self.stream, &RecordsAsk { member, wanted })?;
        let found: Vec<bool> = frame::read(&mut self.stream)?;
        if found.len() != asked.len() {
            let what = format!("{} answers to {} questions", found.len(), asked.len());
            return Err(Error::other(what).into());
        }
        for ((at, one), _) in asked.iter().zip(found).filter(|(_, is_found)| *is_found) {
            let mut bytes = vec![0; one.record.bytes as usize];
            self.stream.read_exact(&mut bytes)?;
            wants[*at].take(&one.runs, &bytes);
        }
        wants.retain_mut(|want| {
            let is_whole = want.missing.is_empty();
            if is_whole {
                let _ = want.reply.send(Some(std::mem::take(&mut want.given)));
            }
            !is_whole
        });
        Ok(())
    }
}
