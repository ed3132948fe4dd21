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
    pub drawing: Drawing,
    /// Most tokens of the answer; what the context has left is a limit as well.
    pub max_tokens: Option<usize>,
    /// Strings that end the answer and are not part of it.
    pub stops: Vec<String>,
}

/// How tokens are drawn, as far as the client says.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Drawing {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub seed: Option<u64>,
}

impl Drawing {
    /// Fills in what the client leaves open with the defaults of llama-server: temperature 0.8,
    /// top-k 40, top-p 0.95, min-p 0.05, and a new seed each time.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(0.8),
            top_k: self.top_k.unwrap_or(40),
            top_p: self.top_p.unwrap_or(0.95),
            min_p: self.min_p.unwrap_or(0.05),
            seed: self.seed.unwrap_or_else(random_seed),
        }
    }
}

/// Another number each time; no secret. The standard library keys each hasher anew.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}
