//! One answer on its way through a grammar.

use llguidance::Matcher;
use llguidance::api::StopReason;
use protocol::Token;

use crate::ConstrainError;
use crate::vocabulary::brief;

/// What one answer is held to.
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

    /// The tokens that may come next, a bit each, token 0 the lowest of the first word. Of
    /// `end_tokens` all may come where the answer may end, and none elsewhere.
    ///
    /// # Errors
    /// Nothing may come, or the grammar is too costly to follow.
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

    /// Goes on by a token that was allowed and is no end.
    ///
    /// # Errors
    /// The grammar is too costly to follow.
    pub fn take(&mut self, token: Token) -> Result<(), ConstrainError> {
        self.matcher.consume_token(token).map_err(|error| stopped(&error))
    }

    /// Whether the answer is whole and nothing may follow.
    pub fn is_done(&self) -> bool {
        self.matcher.is_stopped()
    }
}

/// Why a grammar cannot be followed on.
fn stopped(error: &impl ToString) -> ConstrainError {
    let error = brief(&error.to_string());
    // The library tells this one by its reason's name alone.
    match error == format!("{:?}", StopReason::NoExtensionBias) {
        true => ConstrainError::DeadEnd,
        false => ConstrainError::Costly(error),
    }
}
