//! A request as it is kept while it runs somewhere, or waits to.

use std::time::Duration;

use protocol::{FinishReason, Guesses, RequestId};
use tokio::sync::mpsc;

use crate::membership::ConnId;
use crate::wire::Offer;
use crate::{GenerateDone, GenerateEvent, GenerateRequest};

/// An owner repeats why a request waits each second or less often; what comes sooner is dropped, as
/// the client may not read it.
const WAITING_PAUSE: Duration = Duration::from_millis(100);

/// A request of a client of this node.
pub(crate) struct Stream {
    /// Where it runs, or ran last: of a model with replicas one of these.
    pub(super) instance: String,
    /// What the client asked for: the first replica.
    pub(super) first: String,
    pub(super) model: String,
    /// With the tokens that the client has.
    pub(super) request: GenerateRequest,
    pub(super) audience: Audience,
    /// How many more nodes may pass it on.
    pub(super) relays: u32,
    pub(super) place: Place,
    /// Losses since its last token.
    pub(super) fruitless: u32,
    pub(super) asked: Duration,
    pub(super) first_token: Option<Duration>,
    /// Of the prompt, at its first run.
    pub(super) cached_tokens: usize,
    pub(super) has_begun: bool,
    pub(super) was_lost: bool,
    /// When an owner last reported that it waits.
    pub(super) waited: Option<Duration>,
}

/// The receiver of a request's events.
pub(super) enum Audience {
    Client(mpsc::UnboundedSender<GenerateEvent>),
    /// A client of a node that does not reach the owner.
    Peer {
        conn: ConnId,
        stream: u64,
    },
}

/// What owners have answered to a request that is about to be placed.
#[derive(Debug)]
pub(super) struct Choice {
    pub since: Duration,
    /// The replicas whose owners have not answered.
    pub open: Vec<String>,
    pub offers: Vec<(String, Offer)>,
}

/// Where a request runs or waits to run.
#[derive(Debug)]
pub(super) enum Place {
    Here {
        request: RequestId,
    },
    Peer {
        conn: ConnId,
    },
    /// Nowhere yet: the owners of replicas are asked.
    Choosing(Choice),
    /// Nowhere, for this reason.
    Lost {
        reason: String,
        since: Duration,
        told: Duration,
    },
}

impl Stream {
    /// A stream that has just been asked for: at which replica, by which first one and by which
    /// model's name; for whom, and how many more nodes may pass it on.
    pub(super) fn new(
        (instance, first, model): (String, String, String),
        request: GenerateRequest,
        (audience, relays): (Audience, u32),
        place: Place,
        now: Duration,
    ) -> Self {
        Self {
            instance,
            first,
            model,
            request,
            audience,
            relays,
            place,
            fruitless: 0,
            asked: now,
            first_token: None,
            cached_tokens: 0,
            has_begun: false,
            was_lost: false,
            waited: None,
        }
    }

    /// Since when a client waits for its first token, and the instance.
    pub(crate) fn waits_since(&self) -> Option<(Duration, &str)> {
        let waits = matches!(self.audience, Audience::Client(_)) && self.first_token.is_none();
        (waits && self.request.answered.is_empty()).then_some((self.asked, &self.instance))
    }

    /// Whether it runs at this replica.
    pub(super) fn runs_at(&self, id: &str) -> bool {
        let runs = matches!(self.place, Place::Here { .. } | Place::Peer { .. });
        runs && self.instance == id
    }

    #[cfg(test)]
    pub(crate) fn instance(&self) -> &str {
        &self.instance
    }

    #[cfg(test)]
    pub(crate) fn place_in_words(&self) -> String {
        let Self { instance, first, place, .. } = self;
        format!("{instance} of {first}: {place:?}")
    }

    #[cfg(test)]
    pub(crate) fn is_of_a_client(&self) -> bool {
        matches!(self.audience, Audience::Client(_))
    }

    /// The most tokens that may still come.
    pub(super) fn left(&self) -> usize {
        self.request.max_tokens.saturating_sub(self.request.answered.len())
    }

    /// Whether its client hears now that it waits; notes that it does.
    pub(super) fn may_wait(&mut self, now: Duration) -> bool {
        let is_due = self.waited.is_none_or(|at| now.saturating_sub(at) >= WAITING_PAUSE);
        if is_due {
            self.waited = Some(now);
        }
        is_due
    }

    /// If a request ran in several pieces, this node computes its report itself.
    pub(super) fn account(&self, done: GenerateDone, now: Duration) -> GenerateDone {
        if !self.was_lost {
            return done;
        }
        let first_token = self.first_token.unwrap_or(now);
        let (prefill, decode) = (first_token - self.asked, now - first_token);
        let cached_tokens = self.cached_tokens;
        let (queue, waits) = Default::default();
        GenerateDone { cached_tokens, queue, prefill, decode, waits, ..done }
    }

    /// The request was lost between its last token and its end.
    pub(super) fn answered_in_full(&self, now: Duration) -> GenerateDone {
        let done = GenerateDone {
            reason: FinishReason::Length,
            prompt_tokens: self.request.prompt.len(),
            generated_tokens: self.request.answered.len(),
            cached_tokens: 0,
            guesses: Guesses::default(),
            queue: Duration::ZERO,
            prefill: Duration::ZERO,
            decode: Duration::ZERO,
            waits: Vec::new(),
            embedding: None,
        };
        self.account(done, now)
    }
}
