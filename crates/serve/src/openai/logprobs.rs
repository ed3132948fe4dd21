//! Log-probabilities in the formats of chats and of completions.

use serde::{Serialize, Serializer};
use serde_json::{Map, Value};

use crate::completion::{Logprob, TokenLogprobs};

/// The value for a token of probability zero: JSON has no infinity.
const LEAST: f32 = -9999.0;

/// Log-probabilities of a chat's text: `{"content": [...]}`.
#[derive(Debug, Serialize)]
pub(super) struct ChatLogprobs {
    pub content: Vec<ChatToken>,
    pub refusal: Option<()>,
}

#[derive(Debug, Serialize)]
pub(super) struct ChatToken {
    #[serde(flatten)]
    drawn: Entry,
    top_logprobs: Vec<Entry>,
}

#[derive(Debug, Serialize)]
struct Entry {
    token: String,
    #[serde(serialize_with = "finite")]
    logprob: f32,
    bytes: Vec<u8>,
}

impl ChatLogprobs {
    /// `None` unless requested.
    pub fn new(asked: bool, tokens: &[TokenLogprobs]) -> Option<Self> {
        asked.then(|| Self { content: chat_tokens(tokens), refusal: None })
    }
}

pub(super) fn chat_tokens(tokens: &[TokenLogprobs]) -> Vec<ChatToken> {
    let token = |token: &TokenLogprobs| ChatToken {
        drawn: (&token.drawn).into(),
        top_logprobs: token.top.iter().map(Entry::from).collect(),
    };
    tokens.iter().map(token).collect()
}

impl From<&Logprob> for Entry {
    fn from(found: &Logprob) -> Self {
        let (token, bytes) = (text_of(found), found.bytes.clone());
        Self { token, logprob: found.logprob, bytes }
    }
}

/// Log-probabilities of a completion's text: parallel lists.
#[derive(Debug, Default, Serialize)]
pub(super) struct TextLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Map<String, Value>>,
    /// Each token's offset in the text, in characters.
    text_offset: Vec<usize>,
}

impl TextLogprobs {
    /// `offset` is the offset of the first token, in characters; returns that of the next one.
    pub fn push(&mut self, tokens: &[TokenLogprobs], mut offset: usize) -> usize {
        for token in tokens {
            let text = text_of(&token.drawn);
            self.text_offset.push(offset);
            offset += text.chars().count();
            self.tokens.push(text);
            self.token_logprobs.push(number(token.drawn.logprob));
            // The drawn token is listed even if it is not among the likeliest.
            let all = token.top.iter().chain([&token.drawn]);
            self.top_logprobs.push(all.map(|one| (text_of(one), number(one.logprob))).collect());
        }
        offset
    }
}

fn text_of(found: &Logprob) -> String {
    String::from_utf8_lossy(&found.bytes).into_owned()
}

fn number(logprob: f32) -> Value {
    if logprob >= LEAST { logprob.into() } else { LEAST.into() }
}

fn finite<S: Serializer>(logprob: &f32, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f32(if *logprob >= LEAST { *logprob } else { LEAST })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn token(text: &[u8], logprob: f32, top: &[(&str, f32)]) -> TokenLogprobs {
        let one = |text: &[u8], logprob| Logprob { token: 1, bytes: text.to_vec(), logprob };
        let top = top.iter().map(|(text, logprob)| one(text.as_bytes(), *logprob)).collect();
        TokenLogprobs { drawn: one(text, logprob), top }
    }

    #[test]
    fn both_forms_tell_the_same() {
        let tokens =
            [token("é".as_bytes(), -0.5, &[("a", -0.25)]), token(b"\xf0", f32::NEG_INFINITY, &[])];
        let chat = json!(ChatLogprobs::new(true, &tokens));
        assert_eq!(
            chat["content"][0],
            json!({"token": "é", "logprob": -0.5, "bytes": [0xc3, 0xa9],
                "top_logprobs": [{"token": "a", "logprob": -0.25, "bytes": [97]}]})
        );
        assert_eq!(chat["content"][1]["logprob"], json!(-9999.0));
        assert!(ChatLogprobs::new(false, &tokens).is_none());

        let mut text = TextLogprobs::default();
        assert_eq!(text.push(&tokens, 3), 5);
        let text = json!(text);
        assert_eq!(text["tokens"], json!(["é", "\u{fffd}"]));
        assert_eq!(text["token_logprobs"], json!([-0.5, -9999.0]));
        assert_eq!(text["top_logprobs"][0], json!({"a": -0.25, "é": -0.5}));
        assert_eq!(text["text_offset"], json!([3, 4]));
    }
}
