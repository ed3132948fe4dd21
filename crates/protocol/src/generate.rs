use serde::{Deserialize, Serialize};

use crate::{
    EmbeddingOptions, Guesses, KeepAlive, LABELS_MAX, PICTURES_MAX, Picture, Pooling, SAMPLERS_MAX,
    Sampling, Token, is_of_picture,
};

/// Identifies a request within one instance; assigned by the daemon that owns the instance.
pub type RequestId = u64;

/// A constraint on an answer, token by token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grammar {
    /// A JSON schema; the answer is a JSON value of it.
    JsonSchema(String),
    Regex(String),
    /// A grammar in `llguidance`'s dialect of Lark.
    Lark(String),
}

/// A tokenized request, as it reaches the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GenerateRequest {
    /// At least one token, and fewer than the context has. Those that stand for rows of a picture
    /// are no tokens of the vocabulary, see [`Picture::row_tokens`].
    pub prompt: Vec<Token>,
    /// The pictures in the prompt, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub pictures: Vec<Picture>,
    /// The part of the answer that the client already has, from an earlier run of the same request
    /// that was cut short. This run continues exactly where that one would have.
    pub answered: Vec<Token>,
    pub sampling: Sampling,
    /// The most tokens of the answer: at least one, and more than are answered. The rest of the
    /// context is a limit as well.
    pub max_tokens: usize,
    /// No end token is drawn before this many tokens.
    pub min_tokens: usize,
    /// Tokens that end the answer; the final one is not part of it.
    pub end_tokens: Vec<Token>,
    /// Return the log-probability of each token of the answer, and of this many of the likeliest.
    pub logprobs: Option<usize>,
    pub grammar: Option<Grammar>,
    /// Compute the prompt's embedding instead of an answer.
    pub embedding: Option<Pooling>,
    #[serde(skip_serializing_if = "EmbeddingOptions::is_plain")]
    pub embedding_options: EmbeddingOptions,
    /// A number that identifies the client: memory and time are shared between clients.
    pub client: u64,
    /// The prefix cache shares pages only between requests with the same salt.
    pub cache_salt: u64,
    /// Sets the model's idle time before it is unloaded, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_alive: Option<KeepAlive>,
    /// Names of parameters that were set and that this version does not know: the request is
    /// refused. Between nodes the names of all that are set, see [`crate::parameters`].
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub must_know: Vec<String>,
}

/// A token of an answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AnswerToken {
    pub token: Token,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<Logprobs>,
    /// [`Sampling::mirostat_mu`] after this token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirostat_mu: Option<f32>,
}

impl From<Token> for AnswerToken {
    fn from(token: Token) -> Self {
        Self { token, logprobs: None, mirostat_mu: None }
    }
}

/// Natural logarithms of probabilities, of the model's own distribution: before temperature,
/// penalties and limits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// Of the token that was drawn.
    pub drawn: f32,
    /// Of the likeliest tokens, likeliest first.
    pub top: Vec<(Token, f32)>,
}

/// The kind of a failure, for the caller.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request is invalid and always will be.
    Invalid,
    /// There are too many requests; later may help.
    Busy,
    /// No capable node is reachable; later may help.
    Away,
    /// The request was lost on the way.
    #[default]
    Lost,
}

/// Why a request is invalid for any model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum InvalidRequest {
    #[error("the prompt is empty")]
    Empty,
    #[error(
        "the prompt has {prompt_tokens} tokens and the model's context {context_tokens}; at least \
         one must be left for the answer. Send less, or serve the model with a larger context"
    )]
    TooLong { prompt_tokens: usize, context_tokens: usize },
    /// Like [`Self::TooLong`], for a text too long to tokenize.
    #[error(
        "the prompt has {bytes} bytes of text, which are {tokens_min} tokens at least, and the \
         model's context {context_tokens}. Send less, or serve the model with a larger context"
    )]
    TooManyBytes { bytes: usize, tokens_min: usize, context_tokens: usize },
    #[error("token {token} is not in the vocabulary of {vocab} tokens")]
    UnknownToken { token: Token, vocab: usize },
    #[error("token {token} at {at} of the prompt stands for a picture, and none is there")]
    NoPicture { token: Token, at: usize },
    #[error("picture {number} is at {at} of a prompt of {prompt_tokens} tokens, and not there")]
    PicturePlace { number: usize, at: usize, prompt_tokens: usize },
    #[error("max_tokens is 0; at least one token must be asked for")]
    NoTokens,
    #[error("all {max_tokens} tokens that are asked for are answered already")]
    Answered { max_tokens: usize },
    #[error("{field} is {value}, and must be {expected}")]
    Sampling { field: &'static str, value: f32, expected: &'static str },
    #[error("{count} {what} are asked for, and {most} are the most")]
    TooMany { what: &'static str, count: usize, most: usize },
    #[error(
        "the node that serves the model is of an older version and does not know {}. Update \
         Sinew there, or leave that out of the request",
        names[..names.len().min(UNKNOWN_NAMED_MAX)].join(", ")
    )]
    UnknownParameters { names: Vec<String> },
}

/// Unknown parameters that a message names.
const UNKNOWN_NAMED_MAX: usize = 8;

/// The most likeliest tokens with log-probabilities that a request may ask for.
pub const LOGPROBS_MAX: usize = 20;

/// The most tokens in `logit_bias`; each is applied at every token of the answer.
pub const BIASES_MAX: usize = 1024;

/// The most tokens in `end_tokens`.
pub const END_TOKENS_MAX: usize = 64;

impl GenerateRequest {
    /// Checks the request for a model with this context and a vocabulary of `vocab` tokens.
    ///
    /// # Errors
    /// The first invalid field.
    pub fn check(&self, context_tokens: usize, vocab: usize) -> Result<(), InvalidRequest> {
        if !self.must_know.is_empty() {
            return Err(InvalidRequest::UnknownParameters { names: self.must_know.clone() });
        }
        if self.prompt.is_empty() {
            return Err(InvalidRequest::Empty);
        }
        let prompt_tokens = self.prompt.len() + self.answered.len();
        // An embedding needs no room for an answer.
        let answer_min = usize::from(self.embedding.is_none());
        if prompt_tokens + answer_min > context_tokens {
            return Err(InvalidRequest::TooLong { prompt_tokens, context_tokens });
        }
        self.check_pictures()?;
        let biased = self.sampling.logit_bias.iter().map(|(token, _)| token);
        let prompt = self.prompt.iter().filter(|token| !is_of_picture(**token));
        let known = prompt.chain(&self.answered);
        let labels = &self.embedding_options.labels;
        let mut tokens = known.chain(&self.end_tokens).chain(biased).chain(labels);
        if let Some(token) = tokens.find(|token| **token as usize >= vocab) {
            return Err(InvalidRequest::UnknownToken { token: *token, vocab });
        }
        if self.max_tokens == 0 {
            return Err(InvalidRequest::NoTokens);
        }
        if self.answered.len() >= self.max_tokens {
            return Err(InvalidRequest::Answered { max_tokens: self.max_tokens });
        }
        self.check_counts(vocab)?;
        self.sampling.check().map_err(|unusable| InvalidRequest::Sampling {
            field: unusable.field,
            value: unusable.value,
            expected: unusable.expected,
        })
    }

    /// Whether `answered` is already the complete answer.
    pub fn is_answered(&self, context_tokens: usize) -> bool {
        let known_tokens = self.prompt.len() + self.answered.len();
        let is_full = !self.answered.is_empty() && known_tokens >= context_tokens;
        is_full || (self.max_tokens > 0 && self.answered.len() >= self.max_tokens)
    }

    /// Checks that pictures stand where they are said to, and picture tokens only behind one's
    /// start. The engine compares each token with its picture.
    fn check_pictures(&self) -> Result<(), InvalidRequest> {
        let prompt_tokens = self.prompt.len();
        let mut end = 0;
        for (number, Picture { at, .. }) in self.pictures.iter().enumerate() {
            let is_there = self.prompt.get(*at).is_some_and(|token| is_of_picture(*token));
            if !is_there || *at < end {
                return Err(InvalidRequest::PicturePlace { number, at: *at, prompt_tokens });
            }
            end = at + 1;
        }
        let first = self.pictures.first().map_or(prompt_tokens, |picture| picture.at);
        let mut before = self.prompt[..first].iter().enumerate();
        if let Some((at, token)) = before.find(|(_, token)| is_of_picture(**token)) {
            return Err(InvalidRequest::NoPicture { token: *token, at });
        }
        Ok(())
    }

    fn check_counts(&self, vocab: usize) -> Result<(), InvalidRequest> {
        let counts = [
            ("pictures", self.pictures.len(), PICTURES_MAX),
            ("log-probabilities", self.logprobs.unwrap_or(0), LOGPROBS_MAX),
            ("biased tokens", self.sampling.logit_bias.len(), BIASES_MAX),
            ("end tokens", self.end_tokens.len(), END_TOKENS_MAX),
            ("labels", self.embedding_options.labels.len(), LABELS_MAX),
            ("samplers", self.sampling.samplers.as_ref().map_or(0, Vec::len), SAMPLERS_MAX),
        ];
        let breakers = self.sampling.dry_breakers.counts(vocab);
        match counts.into_iter().chain(breakers).find(|(_, count, most)| count > most) {
            Some((what, count, most)) => Err(InvalidRequest::TooMany { what, count, most }),
            None => Ok(()),
        }
    }
}

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model ended it.
    Stop,
    /// `max_tokens` or the context's end was reached.
    Length,
    /// The client went away.
    Cancelled,
}

/// The account of a finished request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Generation {
    pub request: RequestId,
    pub reason: FinishReason,
    pub prompt_tokens: usize,
    /// Tokens of the whole answer.
    pub generated_tokens: usize,
    /// Tokens that the client had before, see [`GenerateRequest::answered`].
    #[serde(default)]
    pub answered_tokens: usize,
    /// Tokens of the prompt whose keys and values were in the cache already.
    #[serde(default)]
    pub cached_tokens: usize,
    #[serde(default)]
    pub guesses: Guesses,
    /// From the request's arrival in the worker to its first step.
    #[serde(default)]
    pub queue_us: u64,
    /// From its first step to its first token.
    pub prefill_us: u64,
    /// From its first token to its last.
    pub decode_us: u64,
    /// The time that rank 0 waited for each rank, by rank, from the request's first step on; empty
    /// for a single rank.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub waits_us: Vec<u64>,
    /// The embedding, if the request wants one: `[width]`, of length one unless
    /// [`EmbeddingOptions::raw`]; of a pair the scores of its labels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embedding: Option<Vec<f32>>,
}

impl Generation {
    /// The account of a request that never ran.
    pub fn nothing(request: RequestId, reason: FinishReason) -> Self {
        Self {
            request,
            reason,
            prompt_tokens: 0,
            generated_tokens: 0,
            answered_tokens: 0,
            cached_tokens: 0,
            guesses: Guesses::default(),
            queue_us: 0,
            prefill_us: 0,
            decode_us: 0,
            waits_us: Vec::new(),
            embedding: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_model_can_do_is_invalid() {
        let check = |prompt: Vec<Token>, max_tokens| {
            let sampling = Sampling::default();
            GenerateRequest { prompt, sampling, max_tokens, ..Default::default() }.check(32, 100)
        };
        assert_eq!(check(vec![99; 31], 1), Ok(()));
        assert_eq!(check(vec![], 1), Err(InvalidRequest::Empty));
        let too_long = InvalidRequest::TooLong { prompt_tokens: 32, context_tokens: 32 };
        assert_eq!(check(vec![1; 32], 1), Err(too_long));
        let unknown = InvalidRequest::UnknownToken { token: 100, vocab: 100 };
        assert_eq!(check(vec![1, 100], 1), Err(unknown));
        assert_eq!(check(vec![1], 0), Err(InvalidRequest::NoTokens));
    }

    #[test]
    fn pictures_stand_where_they_are_said_to() {
        let picture = |at| Picture { at, detail: Default::default(), file: b"any"[..].into() };
        let rows = picture(0).row_tokens().take(3).collect::<Vec<_>>();
        let check = |prompt: Vec<Token>, places: &[usize]| {
            let pictures = places.iter().map(|at| picture(*at)).collect();
            GenerateRequest { prompt, pictures, max_tokens: 1, ..Default::default() }.check(32, 100)
        };
        let prompt = [vec![1, 2], rows.clone(), vec![3]].concat();
        assert_eq!(check(prompt.clone(), &[2]), Ok(()));
        assert_eq!(check(prompt.clone(), &[2, 3]), Ok(()));
        let none = InvalidRequest::NoPicture { token: rows[0], at: 2 };
        assert_eq!(check(prompt.clone(), &[]), Err(none.clone()));
        assert_eq!(check(prompt.clone(), &[3]), Err(none));
        for (places, number) in [(&[1][..], 0), (&[2, 2], 1), (&[2, 6], 1)] {
            let (at, prompt_tokens) = (places[number], 6);
            let expected = InvalidRequest::PicturePlace { number, at, prompt_tokens };
            assert_eq!(check(prompt.clone(), places), Err(expected));
        }
        let many = InvalidRequest::TooMany { what: "pictures", count: 65, most: 64 };
        let rows = picture(0).row_tokens().take(65).collect::<Vec<_>>();
        let places = (0..65).collect::<Vec<_>>();
        let pictures = places.iter().map(|at| picture(*at)).collect();
        let request =
            GenerateRequest { prompt: rows, pictures, max_tokens: 1, ..Default::default() };
        assert_eq!(request.check(100, 100), Err(many));
    }

    #[test]
    fn an_answer_that_is_as_long_as_it_may_get_does_not_go_on() {
        let request = |answered: Vec<Token>, max_tokens| GenerateRequest {
            prompt: vec![1; 10],
            answered,
            max_tokens,
            ..Default::default()
        };
        for (answered, max_tokens, is_answered) in
            [(0, 1, false), (4, 5, false), (5, 5, true), (21, 99, false), (22, 99, true)]
        {
            let request = request(vec![2; answered], max_tokens);
            assert_eq!(request.is_answered(32), is_answered, "{answered} of {max_tokens}");
            assert_eq!(request.check(32, 100).is_err(), is_answered);
        }
        assert!(matches!(
            request(vec![100], 5).check(32, 100),
            Err(InvalidRequest::UnknownToken { token: 100, .. })
        ));
    }

    #[test]
    fn what_no_sampler_can_use_is_invalid() {
        let check = |change: &dyn Fn(&mut GenerateRequest)| {
            let mut request =
                GenerateRequest { prompt: vec![1], max_tokens: 1, ..Default::default() };
            change(&mut request);
            request.check(32, 100).map_err(|error| error.to_string())
        };
        assert_eq!(check(&|_| {}), Ok(()));
        let wrong = |change: &dyn Fn(&mut Sampling)| check(&|r| change(&mut r.sampling));
        let temperature = wrong(&|s| s.temperature = -1.0);
        let expected = "temperature is -1, and must be a number of at least 0";
        assert_eq!(temperature, Err(expected.to_owned()));
        assert!(wrong(&|s| s.top_p = f32::NAN).is_err());
        assert!(wrong(&|s| s.min_p = f32::INFINITY).is_err());
        assert!(wrong(&|s| s.repetition_penalty = 0.0).is_err());
        assert!(wrong(&|s| s.presence_penalty = f32::NAN).is_err());
        assert!(wrong(&|s| s.mirostat_mu = Some(f32::NAN)).is_err());
        assert!(
            wrong(&|s| s.samplers = Some(vec![crate::Sampler::TopK; SAMPLERS_MAX + 1])).is_err()
        );
        assert_eq!(wrong(&|s| s.mirostat = 1), Err("mirostat is 1, and must be 0 or 2".to_owned()));
        assert!(wrong(&|s| s.logit_bias = vec![(1, f32::INFINITY)]).is_err());
        assert!(wrong(&|s| s.logit_bias = vec![(100, 1.0)]).is_err());
        assert!(wrong(&|s| s.logit_bias = vec![(1, 1.0); BIASES_MAX + 1]).is_err());
        assert!(check(&|r| r.logprobs = Some(LOGPROBS_MAX + 1)).is_err());
        assert!(check(&|r| r.end_tokens = vec![1; END_TOKENS_MAX + 1]).is_err());
        assert!(check(&|r| r.end_tokens = vec![100]).is_err());
    }
}
