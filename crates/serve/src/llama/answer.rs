//! Answers in `llama-server`'s format: one object, or events of pieces.

use std::collections::VecDeque;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::error_body;
use super::request::Wants;
use crate::completion::{Finish, Logprob, Outcome, Part, TextModel, TokenLogprobs};
use crate::http::error::ApiError;
use crate::http::stream::Item;
use crate::openai::answers::{Gathered, Write};
use crate::openai::response::{Timings, progress};

/// The value for a token of probability zero: JSON has no infinity.
const LEAST: f32 = -9999.0;

/// What the answers to one request have in common.
pub(super) struct Teller {
    pub wants: Wants,
    pub has_probs: bool,
    pub model_name: String,
    pub context_tokens: usize,
    pub settings: Value,
    /// The prompt of each answer.
    pub prompts: Vec<Arc<[u32]>>,
    pub model: Arc<TextModel>,
}

/// The text of an answer, or a piece of it.
#[derive(Debug, Default)]
struct Content {
    text: String,
    tokens: Vec<TokenLogprobs>,
}

impl Content {
    /// Without a conversation, all parts are text.
    fn add(&mut self, part: Part) {
        if let Part::Text(piece) = part {
            self.text.push_str(&piece.text);
            self.tokens.extend(piece.logprobs);
        }
    }

    fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|token| token.drawn.token).collect()
    }
}

impl Teller {
    /// A complete answer.
    pub fn whole(&self, index: usize, answer: Gathered) -> Value {
        let mut content = Content::default();
        answer.parts.into_iter().for_each(|part| content.add(part));
        let has_new_line = content.text.contains('\n');
        self.last(index, content, has_new_line, &answer.outcome)
    }

    /// The whole answer, or the end of a stream.
    fn last(&self, index: usize, content: Content, has_new_line: bool, outcome: &Outcome) -> Value {
        let only_prompt = self.wants.only_prompt;
        let content = if only_prompt { Content::default() } else { content };
        let predicted = if only_prompt { 0 } else { outcome.generated_tokens };
        let (stop_type, stopping_word) = match &outcome.finish {
            Finish::StopString(word) => ("word", word.as_str()),
            Finish::Length => ("limit", ""),
            Finish::Stop | Finish::ToolCalls if only_prompt => ("limit", ""),
            Finish::Stop | Finish::ToolCalls => ("eos", ""),
        };
        let filled = outcome.prompt_tokens + outcome.generated_tokens;
        let ids = if self.wants.tokens { content.ids() } else { Vec::new() };
        let mut last = json!({
            "index": index,
            "content": content.text,
            "tokens": ids,
            "id_slot": index,
            "stop": true,
            "model": self.model_name,
            "tokens_predicted": predicted,
            "tokens_evaluated": outcome.prompt_tokens,
            "generation_settings": self.settings,
            "has_new_line": has_new_line,
            "truncated": stop_type == "limit" && filled >= self.context_tokens,
            "stop_type": stop_type,
            "stopping_word": stopping_word,
            "tokens_cached": filled,
            "timings": Timings::from(outcome),
        });
        if self.wants.fields.is_empty() || self.wants.fields.iter().any(|name| name == "prompt") {
            last["prompt"] = self.prompt(index).into();
        }
        if self.has_probs && !self.wants.stream {
            last["completion_probabilities"] = probabilities(&content.tokens);
        }
        if self.wants.fields.is_empty() { last } else { chosen(&last, &self.wants.fields) }
    }

    /// The prompt of an answer as text, with its control tokens.
    fn prompt(&self, index: usize) -> String {
        let tokenizer = &*self.model.tokenizer;
        let mut stream = text::TextStream::continuing(tokenizer).with_special();
        let tokens = self.prompts.get(index).map(|prompt| &prompt[..]).unwrap_or_default();
        let mut text: String = tokens.iter().map(|token| stream.push(*token)).collect();
        text.push_str(&stream.finish());
        text
    }
}

/// The fields with these paths, under the paths as their names. What is missing is left out.
fn chosen(answer: &Value, paths: &[String]) -> Value {
    let mut fields = Map::new();
    for path in paths {
        if let Some(value) = answer.pointer(&format!("/{path}")) {
            fields.insert(path.clone(), value.clone());
        }
    }
    Value::Object(fields)
}

fn probabilities(tokens: &[TokenLogprobs]) -> Value {
    let one = |found: &Logprob| {
        json!({
            "id": found.token,
            "token": String::from_utf8_lossy(&found.bytes),
            "bytes": found.bytes,
            "logprob": found.logprob.max(LEAST),
        })
    };
    let token = |token: &TokenLogprobs| {
        let mut told = one(&token.drawn);
        told["top_logprobs"] = token.top.iter().map(one).collect();
        told
    };
    tokens.iter().map(token).collect()
}

/// Writes answers as events.
pub(super) struct Events {
    teller: Teller,
    streams: Vec<Stream>,
}

/// The state of one answer.
#[derive(Default)]
struct Stream {
    figures: Option<Outcome>,
    has_new_line: bool,
}

impl Events {
    pub fn new(teller: Teller) -> Self {
        let streams = teller.prompts.iter().map(|_| Stream::default()).collect();
        Self { teller, streams }
    }

    /// A piece of an answer.
    fn piece(&self, index: usize, content: &Content) -> Value {
        let figures = self.streams[index].figures.as_ref();
        let mut piece = json!({
            "index": index,
            "content": content.text,
            "tokens": content.ids(),
            "stop": false,
            "id_slot": index,
            "tokens_predicted": figures.map_or(0, |figures| figures.generated_tokens),
            "tokens_evaluated": self.teller.prompts[index].len(),
        });
        if self.teller.has_probs {
            piece["completion_probabilities"] = probabilities(&content.tokens);
        }
        if let Some(figures) = figures.filter(|_| self.teller.wants.timings_per_token) {
            piece["timings"] = json!(Timings::from(figures));
        }
        piece
    }
}

impl Write for Events {
    fn so_far(&mut self, index: usize, figures: Outcome, out: &mut VecDeque<Item>) {
        let is_first = self.streams[index].figures.is_none();
        if is_first && self.teller.wants.progress {
            for progress in progress(&figures) {
                let mut piece = self.piece(index, &Content::default());
                piece["prompt_progress"] = progress;
                out.push_back(Item::json(&piece));
            }
        }
        self.streams[index].figures = Some(figures);
    }

    fn begin(&mut self, _: &mut VecDeque<Item>) {}

    fn part(&mut self, index: usize, part: Part, out: &mut VecDeque<Item>) {
        let mut content = Content::default();
        content.add(part);
        self.streams[index].has_new_line |= content.text.contains('\n');
        if !self.teller.wants.only_prompt {
            out.push_back(Item::json(&self.piece(index, &content)));
        }
    }

    fn done(&mut self, index: usize, outcome: &Outcome, out: &mut VecDeque<Item>) {
        let has_new_line = self.streams[index].has_new_line;
        let last = self.teller.last(index, Content::default(), has_new_line, outcome);
        out.push_back(Item::json(&last));
    }

    fn end(&mut self, _: &Outcome, _: &mut VecDeque<Item>) {}

    fn fail(&mut self, error: ApiError, out: &mut VecDeque<Item>) {
        out.push_back(Item::Fail(error_body(&error).to_string()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_fields_are_named_by_their_paths() {
        let answer = json!({"content": "a", "timings": {"prompt_n": 3, "prompt_ms": 1.5}});
        let paths = ["content", "timings/prompt_n", "timings/no_such", ""].map(str::to_owned);
        assert_eq!(chosen(&answer, &paths), json!({"content": "a", "timings/prompt_n": 3}));
    }
}
