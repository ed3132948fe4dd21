//! The state of one answer in its grammar.

use llguidance::Matcher;
use llguidance::api::StopReason;
use protocol::Token;

use crate::ConstrainError;
use crate::vocabulary::brief;

/// The constraint on one answer.
pub struct Constraint {
    matcher: Matcher,
    /// A bit for each token of the vocabulary.
    allowed: Vec<u32>,
    tokens: usize,
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher, tokens: usize) -> Self {
        Self { matcher, allowed: Vec::new(), tokens }
    }

    /// The tokens that may come next, a bit each, token 0 the lowest of the first word.
    /// `end_tokens` are all allowed where the answer may end, and forbidden elsewhere.
    ///
    /// # Errors
    /// No token is allowed, or the grammar is too costly to follow.
    pub fn allowed(&mut self, end_tokens: &[Token]) -> Result<&[u32], ConstrainError> {
        let mask = self.matcher.compute_mask().map_err(|error| stopped(&error))?;
        self.allowed.clear();
        self.allowed.extend_from_slice(mask.as_slice());
        self.allowed.truncate(self.tokens.div_ceil(32));
        if let (Some(last), rest @ 1..) = (self.allowed.last_mut(), self.tokens % 32) {
            *last &= (1 << rest) - 1;
        }
        let may_end = self.matcher.is_accepting().map_err(|error| stopped(&error))?;
        for token in end_tokens {
            let Some(word) = self.allowed.get_mut(*token as usize / 32) else { continue };
            let bit = 1 << (token % 32);
            *word = if may_end { *word | bit } else { *word & !bit };
        }
        match self.allowed.iter().any(|word| *word != 0) {
            true => Ok(&self.allowed),
            false => Err(ConstrainError::DeadEnd),
        }
    }

    /// Advances by an allowed token that is not an end.
    ///
    /// # Errors
    /// The grammar is too costly to follow.
    pub fn take(&mut self, token: Token) -> Result<(), ConstrainError> {
        self.matcher.consume_token(token).map_err(|error| stopped(&error))
    }

    /// Whether the answer is complete and nothing may follow.
    pub fn is_done(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// Why a grammar cannot be followed any further.
fn stopped(error: &impl ToString) -> ConstrainError {
    let error = brief(&error.to_string());
    // The library reports this reason only by its name.
    match error == format!("{:?}", StopReason::NoExtensionBias) {
        true => ConstrainError::DeadEnd,
        false => ConstrainError::Costly(error),
    }
}
