use std::hash::{BuildHasher, Hasher, RandomState};

use protocol::Sampling;

/// A conversation to be continued, in no dialect.
#[derive(Debug, Clone)]
pub(crate) struct Chat {
    /// The name of a served model, or an instance's id.
    pub model: String,
    pub messages: Vec<text::Message>,
    /// What the model may call, each in the form of OpenAI's `tools`.
    pub tools: Vec<serde_json::Value>,
    pub sampling: Sampling,
    /// Most tokens of the answer; what the context has left is a limit as well.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub stops: Vec<String>,
}

/// How tokens are drawn where the client leaves it open, as llama-server does: temperature 0.8,
/// top-k 40, top-p 0.95, min-p 0.05, and a new seed each time.
pub(crate) fn default_sampling() -> Sampling {
    Sampling {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        seed: random_seed(),
        ..Sampling::default()
    }
}

/// Another number each time; no secret. The standard library keys each hasher anew.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
