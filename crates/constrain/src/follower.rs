//! Follows every answer on a thread of its own: compiles its grammar, then computes the tokens that
//! may come next, beside the steps of the model.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use protocol::{Grammar, Token};

use crate::turns::Turns;
use crate::{ConstrainError, Constraint, Vocabulary};

/// The stack for parsers of grammars, which recurse as deep as a grammar is nested. Only used pages
/// are backed by memory.
const STACK_BYTES: usize = 64 << 20;

/// An answer to follow.
#[derive(Debug, Clone)]
pub struct Work {
    pub grammar: Grammar,
    /// The answer so far.
    pub answered: Vec<Token>,
    /// See [`Constraint::allowed`].
    pub end_tokens: Vec<Token>,
    pub client: u64,
}

/// What a grammar says about an answer so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Told {
    /// The last token is taken in. `is_done`: the answer is complete and nothing may follow.
    Taken { is_done: bool },
    /// The tokens that may come next, as [`Constraint::allowed`] returns them, and how long it took
    /// to find them.
    Allowed { mask: Vec<u32>, took: Duration },
}

/// The number of a follower, and what its grammar says.
pub type Report = (u64, Result<Told, ConstrainError>);

type Read = dyn FnOnce() -> Result<Vocabulary, ConstrainError> + Send;

/// What the threads share.
struct Shared {
    /// Read by the first grammar.
    vocabulary: LazyLock<Result<Vocabulary, ConstrainError>, Box<Read>>,
    turns: Turns,
}

/// Starts followers of one model's answers, and has their reports.
pub struct Followers {
    shared: Arc<Shared>,
    reports: Receiver<Report>,
    report: Sender<Report>,
    started: u64,
}

/// One answer's thread; it ends when this is dropped.
pub struct Follower {
    number: u64,
    tokens: Sender<Token>,
}

impl Followers {
    /// `read`: reads the model's vocabulary.
    pub fn new(read: impl FnOnce() -> Result<Vocabulary, ConstrainError> + Send + 'static) -> Self {
        let read: Box<Read> = Box::new(read);
        let shared = Shared { vocabulary: LazyLock::new(read), turns: Turns::default() };
        let (report, reports) = channel();
        Self { shared: Arc::new(shared), reports, report, started: 0 }
    }

    /// Starts to follow an answer. The first reports are those of the answer so far.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn follow(&mut self, work: Work) -> std::io::Result<Follower> {
        let (tokens, taken) = channel();
        let number = self.started;
        self.started += 1;
        let (shared, report) = (Arc::clone(&self.shared), self.report.clone());
        let thread = std::thread::Builder::new().name("grammar".into()).stack_size(STACK_BYTES);
        thread.spawn(move || {
            // A report that nobody wants ends the thread.
            let mut tell = |told| report.send((number, Ok(told))).is_ok();
            if let Err(error) = follow(&shared, &work, &taken, &mut tell) {
                let _ = report.send((number, Err(error)));
            }
        })?;
        Ok(Follower { number, tokens })
    }

    /// The next report; waits for `wait`.
    pub fn next(&self, wait: Duration) -> Option<Report> {
        self.reports.recv_timeout(wait).ok()
    }
}

impl Follower {
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Adds an allowed token that is not an end to the answer.
    pub fn take(&self, token: Token) {
        // If the thread has ended, its last report says why.
        let _ = self.tokens.send(token);
    }
}

/// Reports about an answer until it is done, or nobody wants to know.
fn follow(
    shared: &Shared,
    work: &Work,
    tokens: &Receiver<Token>,
    tell: &mut impl FnMut(Told) -> bool,
) -> Result<(), ConstrainError> {
    let is_gone = || matches!(tokens.try_recv(), Err(TryRecvError::Disconnected));
    let Some(turn) = shared.turns.take(work.client, is_gone) else { return Ok(()) };
    let vocabulary = shared.vocabulary.as_ref().map_err(Clone::clone)?;
    let mut constraint = vocabulary.compile(&work.grammar)?;
    for token in &work.answered {
        constraint.take(*token)?;
    }
    // The first mask is often the dearest, so it belongs to the turn.
    let mut goes_on = tell_next(&mut constraint, &work.end_tokens, tell)?;
    drop(turn);
    while goes_on {
        let Ok(token) = tokens.recv() else { return Ok(()) };
        constraint.take(token)?;
        goes_on = tell_next(&mut constraint, &work.end_tokens, tell)?;
    }
    Ok(())
}

/// Reports what may come next; returns whether anything may.
fn tell_next(
    constraint: &mut Constraint,
    end_tokens: &[Token],
    tell: &mut impl FnMut(Told) -> bool,
) -> Result<bool, ConstrainError> {
    let (is_done, began) = (constraint.is_done(), Instant::now());
    if !tell(Told::Taken { is_done }) || is_done {
        return Ok(false);
    }
    let mask = constraint.allowed(end_tokens)?.to_vec();
    Ok(tell(Told::Allowed { mask, took: began.elapsed() }))
}
