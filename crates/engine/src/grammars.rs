//! Requests with a grammar: while it is compiled, and while they run.
//!
//! The tokens that may come next are found beside the steps of the model. An answer whose grammar
//! is slow sits out some steps; no other answer waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use constrain::{ConstrainError, Follower, Followers, Report, Told, Vocabulary, Work};
use gguf::Source;
use protocol::{GenerateRequest, RequestId, Token};

use crate::sight::Placed;

/// The most grammars that wait to be compiled.
const QUEUE_MAX: usize = 64;

/// How long a step waits for an answer's next tokens: far longer than most grammars take, and what
/// all other answers may lose by a hostile one.
const STEP_WAIT: Duration = Duration::from_millis(20);

/// How long an answer waits for its next tokens.
const ANSWER_WAIT: Duration = Duration::from_secs(30);

/// A request that waits for its grammar.
struct Compiling {
    id: RequestId,
    added: Added,
    at: Instant,
    follower: Follower,
}

/// An answer with a grammar.
struct Following {
    follower: Follower,
    next: Next,
    /// Since when the next tokens are looked for.
    since: Instant,
    /// Whether its last ones took longer than a step waits; then no step waits for the next.
    is_slow: bool,
}

/// What is known of an answer's next tokens.
enum Next {
    Taking,
    Looking,
    Allowed { mask: Vec<u32>, is_slow: bool },
    Done,
    Failed(ConstrainError),
}

/// What may come next in an answer.
#[derive(Debug, PartialEq)]
pub(crate) enum Allowed<'g> {
    /// Any token: the answer has no grammar.
    All,
    /// A bit for each allowed token.
    Some(&'g [u32]),
    /// Nothing: the answer is complete.
    Nothing,
    /// It is not known yet.
    Unknown,
}

/// The grammars of one epoch's requests.
pub(crate) struct Grammars {
    followers: Followers,
    compiling: Vec<Compiling>,
    ready: VecDeque<(RequestId, Ready)>,
    following: HashMap<RequestId, Following>,
}

/// A request, and the pictures in its prompt.
pub(crate) type Added = (GenerateRequest, Vec<Placed>);

/// A request with a compiled grammar, and the time of its arrival; or why it cannot be constrained.
pub(crate) type Ready = (Added, Result<Instant, ConstrainError>);

impl Grammars {
    /// `source`: the model's file, which contains the vocabulary.
    pub fn new(source: Arc<dyn Source>) -> Self {
        let followers = Followers::new(move || Vocabulary::read(source.directory()));
        let (compiling, ready, following) = Default::default();
        Self { followers, compiling, ready, following }
    }

    /// Whether no request waits for its grammar.
    pub fn is_idle(&self) -> bool {
        self.compiling.is_empty() && self.ready.is_empty()
    }

    /// Starts to compile a request's grammar, if it has one; else returns the request.
    ///
    /// # Errors
    /// Too many are waiting, or the system refuses a thread.
    pub fn compile(
        &mut self,
        id: RequestId,
        added: Added,
        at: Instant,
    ) -> Result<Option<Added>, ConstrainError> {
        let request = &added.0;
        let Some(grammar) = request.grammar.clone() else { return Ok(Some(added)) };
        if self.compiling.len() >= QUEUE_MAX {
            return Err(ConstrainError::Busy { waiting: QUEUE_MAX });
        }
        let work = Work {
            grammar,
            answered: request.answered.clone(),
            end_tokens: request.end_tokens.clone(),
            client: request.client,
        };
        let follower = self.followers.follow(work);
        let follower = follower.map_err(|error| ConstrainError::Vocabulary(error.to_string()))?;
        self.compiling.push(Compiling { id, added, at, follower });
        Ok(None)
    }

    /// The next request whose grammar is compiled and whose first tokens are known; waits for at
    /// most `wait`.
    pub fn next_ready(&mut self, wait: Duration) -> Option<(RequestId, Ready)> {
        let until = Instant::now() + wait;
        while self.ready.is_empty() && !self.compiling.is_empty() {
            if !self.wait(until.saturating_duration_since(Instant::now())) {
                break;
            }
        }
        self.ready.pop_front()
    }

    /// Waits up to `wait` for news of any answer; returns whether there was some.
    pub fn wait(&mut self, wait: Duration) -> bool {
        let report = self.followers.next(wait);
        let is_news = report.is_some();
        report.into_iter().for_each(|report| self.note(report));
        is_news
    }

    /// What may come next in an answer; waits for it a little.
    ///
    /// # Errors
    /// The grammar is too costly, or allows nothing.
    pub fn allowed(&mut self, id: RequestId) -> Result<Allowed<'_>, ConstrainError> {
        self.wait_for(id, |next| !matches!(next, Next::Taking | Next::Looking));
        let Some(following) = self.following.get(&id) else { return Ok(Allowed::All) };
        match &following.next {
            Next::Allowed { mask, .. } => Ok(Allowed::Some(mask)),
            Next::Done => Ok(Allowed::Nothing),
            Next::Failed(error) => Err(error.clone()),
            Next::Taking | Next::Looking if following.since.elapsed() < ANSWER_WAIT => {
                Ok(Allowed::Unknown)
            }
            Next::Taking | Next::Looking => {
                let secs = ANSWER_WAIT.as_secs();
                Err(ConstrainError::Costly(format!("the next tokens were not found in {secs} s")))
            }
        }
    }

    /// Adds an answer's next token; returns whether the answer is known to be complete.
    ///
    /// # Errors
    /// The grammar is too costly.
    pub fn take(&mut self, id: RequestId, token: Token) -> Result<bool, ConstrainError> {
        let Some(following) = self.following.get_mut(&id) else { return Ok(false) };
        following.follower.take(token);
        (following.next, following.since) = (Next::Taking, Instant::now());
        self.wait_for(id, |next| !matches!(next, Next::Taking));
        match self.following.get(&id).map(|following| &following.next) {
            Some(Next::Failed(error)) => Err(error.clone()),
            next => Ok(matches!(next, Some(Next::Done))),
        }
    }

    /// Whether the answer so far is complete.
    pub fn is_done(&self, id: RequestId) -> bool {
        self.following.get(&id).is_some_and(|following| matches!(following.next, Next::Done))
    }

    /// Drops a request and returns it if its grammar was still being compiled.
    pub fn forget(&mut self, id: RequestId) -> Option<GenerateRequest> {
        self.following.remove(&id);
        if let Some(at) = self.ready.iter().position(|(ready, _)| *ready == id) {
            return self.ready.remove(at).map(|(_, (added, _))| added.0);
        }
        let at = self.compiling.iter().position(|compiling| compiling.id == id)?;
        Some(self.compiling.swap_remove(at).added.0)
    }

    /// Takes reports in until an answer's next tokens are as wanted, or a step has waited enough.
    fn wait_for(&mut self, id: RequestId, is_wanted: impl Fn(&Next) -> bool) {
        let is_slow = self.following.get(&id).is_none_or(|following| following.is_slow);
        let until = Instant::now() + if is_slow { Duration::ZERO } else { STEP_WAIT };
        let is_unknown = |following: &Following| !is_wanted(&following.next);
        while self.following.get(&id).is_some_and(is_unknown) {
            if !self.wait(until.saturating_duration_since(Instant::now())) {
                return;
            }
        }
    }

    /// Takes a report in. Those about requests that were cancelled meanwhile are dropped.
    fn note(&mut self, (number, told): Report) {
        let next = match told {
            Ok(Told::Taken { is_done: true }) => Next::Done,
            Ok(Told::Taken { is_done: false }) => Next::Looking,
            Ok(Told::Allowed { mask, took }) => Next::Allowed { mask, is_slow: took > STEP_WAIT },
            Err(error) => Next::Failed(error),
        };
        let mut following = self.following.values_mut();
        if let Some(following) = following.find(|one| one.follower.number() == number) {
            if let Next::Allowed { is_slow, .. } = next {
                following.is_slow = is_slow;
            }
            following.next = next;
            return;
        }
        let is_it = |compiling: &Compiling| compiling.follower.number() == number;
        let Some(at) = self.compiling.iter().position(is_it) else { return };
        if matches!(next, Next::Looking) {
            return;
        }
        let Compiling { id, added, at, follower } = self.compiling.swap_remove(at);
        let ready = match next {
            Next::Failed(error) => Err(error),
            next => {
                let new = Following { follower, next, since: at, is_slow: false };
                self.following.insert(id, new);
                Ok(at)
            }
        };
        self.ready.push_back((id, (added, ready)));
    }
}
