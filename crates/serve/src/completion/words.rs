//! Converts tokens to thoughts, text and calls.

use std::sync::Arc;
use std::time::Duration;

use protocol::AnswerToken;
use text::{ReplyParser, ReplyPart, StopMatcher, TextStream, ToolCall};

use super::ledger::{Ledger, TokenLogprobs};
use super::lines::Lines;
use super::meter::Finish;
use super::random_seed;

/// A part of an answer. Consecutive parts of the same kind belong together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Part {
    /// The model's thoughts.
    Reasoning(Piece),
    Text(Piece),
    /// A call with its own id begins. Its arguments follow.
    Begin {
        id: String,
        name: String,
    },
    /// The next piece of the arguments of the call that has begun; never empty.
    Arguments(String),
    /// The call that has begun, at its end. The pieces of its arguments add up to
    /// [`ToolCall::arguments_text`].
    Call(ToolCall),
}

/// A piece of text; never empty.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    /// Log-probabilities of the tokens that start in it, if requested.
    pub logprobs: Vec<TokenLogprobs>,
}

/// Parses one answer. Stop strings are matched only in its text.
#[derive(Clone)]
pub(super) struct Words {
    pub tokenizer: Arc<text::Tokenizer>,
    pub stream: TextStream<Arc<text::Tokenizer>>,
    /// `None` if everything is text.
    pub parser: Option<ReplyParser>,
    pub stops: StopMatcher,
    pub stop_strings: Vec<String>,
    pub lines: Lines,
    /// Whether to map pieces of text to their tokens, also without log-probabilities.
    pub tokens: bool,
    pub calls: CallRules,
    pub state: State,
}

/// Rules for parsing calls.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct CallRules {
    /// Whether the model was offered tools. Otherwise anything that looks like a call is text.
    pub offered: bool,
    /// Whether the answer ends after its first call.
    pub single: bool,
    /// Whether ids are nine letters and digits.
    pub short_ids: bool,
}

#[derive(Clone, Default)]
pub(super) struct State {
    ledger: Ledger,
    reasoning_tokens: usize,
    has_called: bool,
    /// The call that has begun and not ended.
    open: Option<OpenCall>,
    /// Why the answer ended before its tokens did.
    ended: Option<Finish>,
}

/// A call in the middle of its arguments.
#[derive(Debug, Clone)]
struct OpenCall {
    id: String,
    /// Bytes of its arguments so far.
    shown: usize,
}

impl Words {
    /// The parts that the next token completes.
    pub fn push(&mut self, answer: &AnswerToken) -> Vec<Part> {
        self.state.ledger.note(answer, &self.tokenizer, self.tokens);
        let piece = self.stream.push(answer.token);
        let Some(parser) = &mut self.parser else { return self.show(vec![ReplyPart::Text(piece)]) };
        self.state.reasoning_tokens += usize::from(parser.is_reasoning());
        let parts = parser.push(&piece);
        self.show(parts)
    }

    /// Ends the tokens and returns the parts held back. `is_cut` if a limit ended them.
    pub fn finish(&mut self, is_cut: bool) -> Vec<Part> {
        let rest = self.stream.finish();
        // A limit may end an answer in the middle of a character.
        let tail = if is_cut { String::new() } else { rest };
        let parts = match &mut self.parser {
            None => vec![ReplyPart::Text(tail)],
            Some(parser) => {
                let mut parts = parser.push(&tail);
                parts.extend(if is_cut { parser.cut() } else { parser.finish() });
                parts
            }
        };
        let mut shown = self.show(parts);
        self.flush(&mut shown);
        shown
    }

    /// Ends the answer if it has a whole line and takes longer than the request allows.
    pub fn check_time(&mut self, since_first: Duration) {
        if self.state.ended.is_none() && self.lines.is_late(since_first) {
            self.state.ended = Some(Finish::Length);
        }
    }

    /// Why the answer ended, if it ended before its tokens did.
    pub fn ended(&self) -> Option<&Finish> {
        self.state.ended.as_ref()
    }

    pub fn has_called(&self) -> bool {
        self.state.has_called
    }

    pub fn reasoning_tokens(&self) -> usize {
        self.state.reasoning_tokens
    }

    fn show(&mut self, parts: Vec<ReplyPart>) -> Vec<Part> {
        let mut shown = Vec::new();
        for part in parts {
            if self.state.ended.is_some() {
                break;
            }
            match part {
                ReplyPart::Text(text) => self.text(&text, &mut shown),
                ReplyPart::Reasoning(text) => {
                    self.flush(&mut shown);
                    let logprobs = self.state.ledger.parsed(text.len());
                    shown.push(Part::Reasoning(Piece { text, logprobs }));
                }
                ReplyPart::Begin { id, name } => self.begin(id, name, &mut shown),
                ReplyPart::Arguments(piece) => self.arguments(piece, &mut shown),
                ReplyPart::Call(call) if self.calls.offered => self.call(call, &mut shown),
                ReplyPart::Call(call) => self.text(&call.arguments_text(), &mut shown),
            }
        }
        shown
    }

    fn text(&mut self, text: &str, shown: &mut Vec<Part>) {
        // The tokens of an incomplete character wait for its rest.
        if text.is_empty() {
            return;
        }
        self.state.ledger.wait(text.len());
        let step = self.stops.push(text);
        self.emit(step.text, shown);
        if let Some(index) = step.stopped {
            self.state.ended = Some(Finish::StopString(self.stop_strings[index].clone()));
        }
    }

    /// Returns text held back as a possible stop string before any other part.
    fn flush(&mut self, shown: &mut Vec<Part>) {
        let text = self.stops.finish();
        self.emit(text, shown);
        let rest = self.lines.finish();
        self.push_text(rest, shown);
    }

    fn emit(&mut self, text: String, shown: &mut Vec<Part>) {
        let (text, is_over) = self.lines.push(text);
        self.push_text(text, shown);
        if is_over {
            self.state.ended = Some(Finish::Length);
        }
    }

    fn push_text(&mut self, text: String, shown: &mut Vec<Part>) {
        if !text.is_empty() {
            let logprobs = self.state.ledger.shown(text.len());
            shown.push(Part::Text(Piece { text, logprobs }));
        }
    }

    fn begin(&mut self, id: String, name: String, shown: &mut Vec<Part>) {
        self.flush(shown);
        let id = if id.is_empty() { new_call_id(self.calls.short_ids) } else { id };
        self.state.open = Some(OpenCall { id: id.clone(), shown: 0 });
        self.state.has_called = true;
        shown.push(Part::Begin { id, name });
    }

    fn arguments(&mut self, piece: String, shown: &mut Vec<Part>) {
        if let Some(open) = self.state.open.as_mut().filter(|_| !piece.is_empty()) {
            open.shown += piece.len();
            shown.push(Part::Arguments(piece));
        }
    }

    /// Ends a call, of which all or nothing has been shown before.
    fn call(&mut self, mut call: ToolCall, shown: &mut Vec<Part>) {
        if self.state.open.is_none() {
            self.begin(call.id.clone(), call.name.clone(), shown);
        }
        let text = call.arguments_text();
        let rest = self.state.open.as_ref().and_then(|open| text.get(open.shown..));
        self.arguments(rest.unwrap_or_default().to_owned(), shown);
        if let Some(open) = self.state.open.take() {
            call.id = open.id;
        }
        if self.calls.single {
            self.state.ended = Some(Finish::ToolCalls);
        }
        shown.push(Part::Call(call));
    }
}

fn new_call_id(is_short: bool) -> String {
    let seed = random_seed();
    if is_short { format!("{:09x}", seed >> 28) } else { format!("call_{seed:016x}") }
}
