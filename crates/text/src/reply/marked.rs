//! Replies with marks around thoughts and calls.

use serde_json::Value;

use super::calls::{Block, Offer};
use super::forms::{CallStyle, Form};
use super::read::{End, Read, Reader, Stop, Waiting};
use super::{Held, ReplyFormat, ReplyPart, held_back};

/// Parses a reply with marks.
#[derive(Debug, Clone)]
pub(super) struct Marked {
    format: ReplyFormat,
    held: Held,
    state: State,
    /// The mark at the end of the prompt, which the reply may continue.
    begun: &'static str,
    /// The last emitted character.
    last: Option<char>,
    waiting: Waiting,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// The start of a turn: only white space so far, dropped if `trim`. Thoughts can start only
    /// here; if `whole`, the rest may be one call. `late` may still close a thought that a call
    /// ended, or a block with a repeated mark.
    Start {
        whole: bool,
        trim: bool,
        late: &'static str,
    },
    Text,
    ThoughtStart {
        close: &'static str,
    },
    Thought {
        close: &'static str,
    },
    /// Text, whatever it looks like.
    Verbatim,
}

impl Marked {
    pub(super) fn new(format: &ReplyFormat, prompt: &str, has_tools: bool) -> Self {
        let mut format = format.clone();
        let begun = format.begun(prompt);
        if !has_tools {
            format.forms.clear();
        }
        let prompt = prompt.trim_end();
        let state = match format.open_thought(prompt) {
            Some(close) => State::ThoughtStart { close },
            None => State::Start { whole: has_tools, trim: false, late: "" },
        };
        // A prompt that ends with a closed thought has switched thinking off.
        if format.thinking.iter().any(|(_, close)| prompt.ends_with(close)) {
            format.thinking.clear();
        }
        let waiting = Waiting::default();
        Self { format, held: Held::Free, state, begun, last: None, waiting }
    }

    pub(super) fn hold(&mut self, held: Held) {
        self.held = held;
        match held {
            Held::Whole => self.state = State::Verbatim,
            Held::Text => self.format.forms.clear(),
            Held::Free | Held::Calls | Held::TextOrCalls => {}
        }
    }

    pub(super) fn is_reasoning(&self) -> bool {
        matches!(self.state, State::ThoughtStart { .. } | State::Thought { .. })
    }

    /// Consumes as much of `pending` as possible.
    pub(super) fn run(
        &mut self,
        pending: &mut String,
        tools: &[Value],
        end: End,
        parts: &mut Vec<ReplyPart>,
    ) {
        if end == End::Open && !self.waiting.is_over(pending) {
            return;
        }
        self.waiting = Waiting::default();
        let exact = matches!(self.held, Held::Calls | Held::TextOrCalls);
        let mut run = Run { marked: self, offer: Offer { tools, exact, end }, parts };
        while let Some(next) = run.step(pending) {
            run.marked.state = next;
        }
    }
}

/// The meaning of the first mark in a text.
enum Mark {
    Close(usize),
    /// A meaningless mark: its position and length.
    Around(usize, usize),
    Block(usize, Block),
    /// A possible start of a block.
    Begin(usize),
    /// No mark; the text is searched up to this offset.
    Nothing(usize),
}

/// One pass over the pending text.
struct Run<'a> {
    marked: &'a mut Marked,
    offer: Offer<'a>,
    parts: &'a mut Vec<ReplyPart>,
}

impl Run<'_> {
    fn is_open(&self) -> bool {
        self.offer.end == End::Open
    }

    /// The next state, or `None` if more text is needed.
    fn step(&mut self, pending: &mut String) -> Option<State> {
        match self.marked.state {
            State::Start { whole, trim, late } => self.start(pending, whole, trim, late),
            State::Text => self.search(pending, None),
            State::ThoughtStart { close } => {
                trim_start(pending);
                (!pending.is_empty()).then_some(State::Thought { close })
            }
            State::Thought { close } => self.search(pending, Some(close)),
            State::Verbatim => {
                self.emit(std::mem::take(pending), ReplyPart::Text);
                None
            }
        }
    }

    fn start(
        &mut self,
        pending: &mut String,
        whole: bool,
        trim: bool,
        late: &'static str,
    ) -> Option<State> {
        if trim {
            trim_start(pending);
        }
        let text = pending.trim_start();
        let spaces = pending.len() - text.len();
        if text.is_empty() {
            return (!self.is_open()).then_some(State::Text);
        }
        let thinking = self.marked.format.thinking.iter();
        let opens = thinking.map(|&(open, close)| (open, State::ThoughtStart { close }));
        let after = State::Start { whole, trim: true, late: "" };
        for (mark, next) in opens.chain([(late, after)]).filter(|(mark, _)| !mark.is_empty()) {
            if text.starts_with(mark) {
                pending.drain(..spaces + mark.len());
                return Some(next);
            }
            if self.is_open() && mark.starts_with(text) {
                return None;
            }
        }
        for mark in self.marked.format.around {
            if text.starts_with(mark) {
                pending.drain(..spaces + mark.len());
                self.marked.begun = "";
                return Some(State::Start { whole, trim: false, late });
            }
            if self.is_open() && mark.starts_with(text) {
                return None;
            }
        }
        if text.starts_with(self.marked.begun) && !self.marked.begun.is_empty() {
            match self.block(text, false) {
                Ok(block) => return Some(self.take(pending, spaces, block, "")),
                Err(Stop::More) => return None,
                Err(Stop::Broken) => {}
            }
            pending.drain(..spaces + self.marked.begun.len());
            self.marked.begun = "";
            return Some(State::Start { whole, trim, late });
        }
        if whole && self.may_be_bare(text) {
            match self.offer.bare(&self.marked.format.forms, text) {
                Ok(block) => return Some(self.take(pending, spaces, block, "")),
                Err(Stop::More) => {
                    self.wait(pending, "");
                    return None;
                }
                Err(Stop::Broken) => {}
            }
        }
        Some(match self.marked.held {
            Held::Text => State::Verbatim,
            Held::TextOrCalls => match self.may_be_block(text) {
                Ok(true) => State::Text,
                Ok(false) => State::Verbatim,
                Err(_) => return None,
            },
            Held::Free | Held::Calls | Held::Whole => State::Text,
        })
    }

    /// Whether this text can start a call without a mark. A grammar allows that in one style.
    fn may_be_bare(&self, text: &str) -> bool {
        let format = &self.marked.format;
        let is_free = self.marked.held == Held::Free || format.style == CallStyle::Bare;
        is_free && !format.forms.is_empty() && text.starts_with(['{', '[', '`', '<'])
    }

    fn may_be_block(&self, text: &str) -> Read<bool> {
        let mut starts = self.marked.format.forms.iter().flat_map(|form| form.starts());
        let reader = Reader::new(text, self.offer.end);
        starts.try_fold(false, |found, mark| Ok(found || reader.sees(mark)?))
    }

    /// Searches for marks in a text, or in a thought with the closing mark `close`.
    fn search(&mut self, pending: &mut String, close: Option<&'static str>) -> Option<State> {
        let part = if close.is_some() { ReplyPart::Reasoning } else { ReplyPart::Text };
        match self.find(pending, close) {
            Mark::Close(at) => {
                // White space next to a mark is only a separator.
                let thought = pending[..at].trim_end().to_owned();
                self.emit(thought, part);
                pending.drain(..at + close.map_or(0, str::len));
                self.marked.last = None;
                let whole = !self.marked.format.forms.is_empty();
                Some(State::Start { whole, trim: true, late: "" })
            }
            Mark::Around(at, bytes) => {
                let rest = pending.split_off(at);
                self.emit(std::mem::replace(pending, rest), part);
                pending.drain(..bytes);
                Some(self.marked.state)
            }
            Mark::Block(at, block) => {
                let before = pending[..at].trim_end().to_owned();
                self.emit(before, part);
                Some(self.take(pending, at, block, close.unwrap_or("")))
            }
            Mark::Begin(at) => {
                let before = pending[..at].trim_end().len();
                let rest = pending.split_off(before);
                self.emit(std::mem::replace(pending, rest), part);
                let at = at - before;
                let form = self.form_at(&pending[at..]);
                let is_marked = form.is_some_and(|form| pending[at..].starts_with(form.open));
                let close = form.filter(|_| is_marked).map_or("", |form| form.close);
                self.wait(pending, close);
                None
            }
            Mark::Nothing(from) => {
                let sure = self.sure(pending, from, close);
                let rest = pending.split_off(sure);
                self.emit(std::mem::replace(pending, rest), part);
                None
            }
        }
    }

    /// The first meaningful mark.
    fn find(&self, pending: &str, close: Option<&'static str>) -> Mark {
        let mut from = 0;
        loop {
            let rest = &pending[from..];
            let starts = self.marked.format.forms.iter().flat_map(|form| form.starts());
            let around = self.marked.format.around;
            let marks = starts.chain(close).chain(around.iter().copied());
            let found = marks.filter_map(|mark| Some((rest.find(mark)?, mark)));
            // Of two marks at one position, the longer one.
            let first = found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())));
            let Some((at, mark)) = first else { return Mark::Nothing(from) };
            let at = from + at;
            if around.contains(&mark) && close != Some(mark) {
                return Mark::Around(at, mark.len());
            }
            let is_close = close == Some(mark);
            match self.is_quoted(pending, at, mark, is_close) {
                Ok(true) if is_close => {}
                // In a quoted call all marks are quoted.
                Ok(true) => match self.block(&pending[at..], false) {
                    Ok(block) => {
                        from = at + block.bytes;
                        continue;
                    }
                    Err(Stop::More) => return Mark::Begin(at),
                    Err(Stop::Broken) => {}
                },
                Ok(false) if is_close => return Mark::Close(at),
                Ok(false) => match self.block(&pending[at..], close.is_some()) {
                    Ok(block) => return Mark::Block(at, block),
                    Err(Stop::More) => return Mark::Begin(at),
                    Err(Stop::Broken) => {}
                },
                // The text after the mark decides.
                Err(_) => return Mark::Begin(at),
            }
            from = at + mark.len();
        }
    }

    fn block(&self, text: &str, in_thought: bool) -> Read<Block> {
        let form = self.form_at(text).ok_or(Stop::Broken)?;
        let block = self.offer.block(form, text)?;
        let offered = || block.calls.iter().all(|call| self.offer.has(&call.name));
        if in_thought && !offered() { Err(Stop::Broken) } else { Ok(block) }
    }

    fn form_at(&self, text: &str) -> Option<&'static Form> {
        let forms = self.marked.format.forms.iter().copied();
        let begun = |form: &&Form| {
            form.starts().filter(|mark| text.starts_with(mark)).map(str::len).max().unwrap_or(0)
        };
        forms.max_by_key(begun).filter(|form| begun(form) > 0)
    }

    /// Whether a mark is in quotes, and so only mentioned. For a call's mark only the quote before
    /// it counts, since none follows directly.
    fn is_quoted(&self, pending: &str, at: usize, mark: &str, is_close: bool) -> Read<bool> {
        let before = pending[..at].chars().next_back().or(self.marked.last);
        let Some(quote) = before.filter(|ch| "`\"'".contains(*ch)) else { return Ok(false) };
        if !is_close {
            return Ok(quote == '`');
        }
        match pending[at + mark.len()..].chars().next() {
            Some(after) => Ok(after == quote),
            None if self.is_open() => Err(Stop::More),
            None => Ok(false),
        }
    }

    /// The number of bytes that are neither a possible start of a mark nor white space before one;
    /// at least `from`.
    fn sure(&self, pending: &str, from: usize, close: Option<&'static str>) -> usize {
        let ReplyFormat { forms, around, .. } = &self.marked.format;
        if !self.is_open() || (forms.is_empty() && close.is_none() && around.is_empty()) {
            return pending.len();
        }
        let marks = forms.iter().flat_map(|form| form.starts()).chain(close);
        let marks = marks.chain(around.iter().copied());
        let held = held_back(&pending[from..], marks);
        pending[..pending.len() - held].trim_end().len().max(from)
    }

    /// Emits a block's calls.
    fn take(&mut self, pending: &mut String, at: usize, block: Block, late: &'static str) -> State {
        // If nothing else can be closed, the block's own mark may come twice.
        let form = self.form_at(&pending[at..]).filter(|_| late.is_empty());
        let late = form.map_or(late, |form| form.close);
        pending.drain(..at + block.bytes);
        self.parts.extend(block.calls.into_iter().map(ReplyPart::Call));
        self.marked.last = None;
        State::Start { whole: false, trim: true, late }
    }

    fn wait(&mut self, pending: &str, close: &'static str) {
        self.marked.waiting = Waiting::new(pending.len(), close);
    }

    fn emit(&mut self, text: String, part: fn(String) -> ReplyPart) {
        if !text.is_empty() {
            self.marked.last = text.chars().next_back();
            self.parts.push(part(text));
        }
    }
}

fn trim_start(text: &mut String) {
    let spaces = text.len() - text.trim_start().len();
    text.drain(..spaces);
}
