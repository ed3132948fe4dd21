//! Replies with marks around thoughts and calls.

use super::calls::Block;
use super::format::{RESPONSE, RESPONSE_END, ReplyFormat};
use super::forms::{CallStyle, Form};
use super::marks::{form_at, is_quoted, sure, trim_start};
use super::offer::Offer;
use super::part::{Held, ReplyPart};
use super::read::{End, Read, Reader, Stop, Waiting};
use super::told::{Broken, Sent, Told};

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
    /// What has been emitted of the calls in progress.
    sent: Sent,
    has_called: bool,
    /// Marks that end thoughts and calls. At a text's start they are meaningless.
    closes: Vec<&'static str>,
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
    /// A block with a call that is certain, from its opening mark; in a thought with the closing
    /// mark `close`, if there is one.
    Calls {
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
        let thoughts = format.thinking.iter().map(|(_, close)| *close);
        let calls = format.forms.iter().map(|form| form.close).filter(|close| !close.is_empty());
        let closes = thoughts.chain(calls).collect();
        let prompt = prompt.trim_end();
        let state = match format.open_thought(prompt) {
            Some(close) => State::ThoughtStart { close },
            None => State::Start { whole: has_tools, trim: false, late: "" },
        };
        // A prompt that ends with a closed thought has switched thinking off.
        if format.thinking.iter().any(|(_, close)| prompt.ends_with(close)) {
            format.thinking.clear();
        }
        let (waiting, sent) = Default::default();
        let (held, last, has_called) = (Held::Free, None, false);
        Self { format, held, state, begun, last, waiting, sent, has_called, closes }
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
    pub(super) fn run(&mut self, pending: &mut String, offer: Offer, parts: &mut Vec<ReplyPart>) {
        if offer.end == End::Open && !self.waiting.is_over(pending) {
            return;
        }
        self.waiting = Waiting::default();
        let exact = matches!(self.held, Held::Calls | Held::TextOrCalls);
        let mut run = Run { marked: self, offer: Offer { exact, ..offer }, parts };
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
    /// A block with a call that is certain.
    Calls(usize),
    /// A possible start of a block.
    Begin(usize),
    /// The start of a further call, which a limit ended.
    Unfinished(usize),
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
            State::Calls { close } => self.calls(pending, close),
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
        let closes = self.marked.closes.iter().map(|close| (*close, after));
        let marks = opens.chain([(late, after)]).chain(closes);
        for (mark, next) in marks.filter(|(mark, _)| !mark.is_empty()) {
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
                let is_response = self.marked.format.around == RESPONSE;
                if is_response {
                    self.marked.format.around = RESPONSE_END;
                }
                return Some(State::Start { whole, trim: is_response, late });
            }
            if self.is_open() && mark.starts_with(text) {
                return None;
            }
        }
        if text.starts_with(self.marked.begun) && !self.marked.begun.is_empty() {
            return self.prompted(pending, spaces, State::Start { whole, trim, late });
        }
        if whole && self.may_be_bare(text) {
            let text = text.to_owned();
            match self.bare(pending, &text) {
                Ok(state) => return Some(state),
                Err(Stop::More) => return None,
                Err(Stop::Broken) => {}
            }
        }
        let text = pending.trim_start();
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

    /// A call whose opening mark the prompt has written, or else what follows the mark.
    fn prompted(&mut self, pending: &mut String, spaces: usize, other: State) -> Option<State> {
        match self.certain(&pending[spaces..], false) {
            Ok(true) => {
                pending.drain(..spaces);
                return Some(State::Calls { close: "" });
            }
            Err(Stop::More) => return None,
            _ => {}
        }
        pending.drain(..spaces + self.marked.begun.len());
        self.marked.begun = "";
        Some(other)
    }

    /// Emits calls without marks: `text` is `pending` without white space at its start.
    fn bare(&mut self, pending: &mut String, text: &str) -> Read<State> {
        let spaces = pending.len() - text.len();
        let mut told = self.told_bare();
        match self.offer.bare(&self.marked.format.forms, text, &mut told) {
            Ok(block) => Ok(self.take(pending, spaces, block, &told, "")),
            Err(Stop::More) => {
                told.emit(&mut self.marked.sent, self.parts);
                self.wait(pending, "");
                Err(Stop::More)
            }
            Err(Stop::Broken) if !told.is_empty() => {
                let read = |offer: Offer, forms: &[&Form]| {
                    offer.bare(forms, text, &mut self.told_bare()).err()
                };
                let why = if told.is_in_call(text) { self.why_broken(read) } else { Broken::Odd };
                pending.drain(..spaces);
                Ok(self.break_off(pending, text, why, &told, ""))
            }
            Err(Stop::Broken) => Err(Stop::Broken),
        }
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
            Mark::Calls(at) => {
                let before = pending[..at].trim_end().to_owned();
                self.emit(before, part);
                pending.drain(..at);
                Some(State::Calls { close: close.unwrap_or("") })
            }
            Mark::Begin(at) => {
                let before = pending[..at].trim_end().len();
                let rest = pending.split_off(before);
                self.emit(std::mem::replace(pending, rest), part);
                let at = at - before;
                let form = form_at(&self.marked.format.forms, &pending[at..]);
                let is_marked = form.is_some_and(|form| pending[at..].starts_with(form.open));
                let close = form.filter(|_| is_marked).map_or("", |form| form.close);
                self.wait(pending, close);
                None
            }
            Mark::Unfinished(at) => {
                let before = pending[..at].trim_end().to_owned();
                self.emit(before, part);
                pending.clear();
                None
            }
            Mark::Nothing(from) => {
                let marks = self.marks(close);
                let sure = sure(pending, from, &marks, self.offer.end);
                let rest = pending.split_off(sure);
                self.emit(std::mem::replace(pending, rest), part);
                // At a cut the rest is the start of a mark.
                if !self.is_open() {
                    pending.clear();
                }
                None
            }
        }
    }

    /// The first meaningful mark.
    fn find(&self, pending: &str, close: Option<&'static str>) -> Mark {
        let mut from = 0;
        loop {
            let rest = &pending[from..];
            let around = self.around();
            let marks = self.marks(close).into_iter();
            let found = marks.filter_map(|mark| Some((rest.find(mark)?, mark)));
            // Of two marks at one position, the longer one.
            let first = found.min_by_key(|(at, mark)| (*at, std::cmp::Reverse(mark.len())));
            let Some((at, mark)) = first else { return Mark::Nothing(from) };
            let at = from + at;
            if around.contains(&mark) && close != Some(mark) {
                return Mark::Around(at, mark.len());
            }
            let is_close = close == Some(mark);
            let before = pending[..at].chars().next_back().or(self.marked.last);
            let after = &pending[at + mark.len()..];
            match is_quoted(before, Reader::new(after, self.offer.end), is_close) {
                Ok(true) if is_close => {}
                // In a quoted call all marks are quoted.
                Ok(true) => match self.block(&pending[at..], false, &mut Told::mute()) {
                    Ok(block) => {
                        from = at + block.bytes;
                        continue;
                    }
                    Err(Stop::More) => return Mark::Begin(at),
                    Err(Stop::Broken) => {}
                },
                Ok(false) if is_close => return Mark::Close(at),
                Ok(false) => match self.certain(&pending[at..], close.is_some()) {
                    Ok(true) => return Mark::Calls(at),
                    Err(Stop::More) => return Mark::Begin(at),
                    // A limit ended the reply at the start of a further call.
                    _ if self.is_unfinished(&pending[at..]) => return Mark::Unfinished(at),
                    _ => {}
                },
                // The text after the mark decides.
                Err(_) => return Mark::Begin(at),
            }
            from = at + mark.len();
        }
    }

    /// Whether a block here is whole or has a call that is certain.
    fn certain(&self, text: &str, in_thought: bool) -> Read<bool> {
        let mut told = Told::default();
        match self.block(text, in_thought, &mut told) {
            Ok(_) => Ok(true),
            Err(_) if !told.is_empty() => Ok(true),
            Err(Stop::More) => Err(Stop::More),
            Err(Stop::Broken) => Ok(false),
        }
    }

    /// Whether a limit ended the reply in a block, after a call.
    fn is_unfinished(&self, text: &str) -> bool {
        let open = Offer { end: End::Open, ..self.offer };
        let read = |form| open.block(form, text, &mut Told::mute()) == Err(Stop::More);
        let is_cut = self.offer.end == End::Cut && self.marked.has_called;
        is_cut && form_at(&self.marked.format.forms, text).is_some_and(read)
    }

    fn block(&self, text: &str, in_thought: bool, told: &mut Told) -> Read<Block> {
        let form = form_at(&self.marked.format.forms, text).ok_or(Stop::Broken)?;
        let block = self.offer.block(form, text, told)?;
        let offered = || block.calls.iter().all(|call| self.offer.has(&call.name));
        if in_thought && !offered() { Err(Stop::Broken) } else { Ok(block) }
    }

    /// The marks that mean something in a text, or in a thought with the closing mark `close`.
    fn marks(&self, close: Option<&'static str>) -> Vec<&'static str> {
        let starts = self.marked.format.forms.iter().flat_map(|form| form.starts());
        starts.chain(close).chain(self.around().iter().copied()).collect()
    }

    /// The meaningless marks in a text.
    fn around(&self) -> &'static [&'static str] {
        let around = self.marked.format.around;
        if around == RESPONSE { &[] } else { around }
    }

    /// Emits what is certain of the block at the start of `pending`, in a thought that ends with
    /// `close`.
    fn calls(&mut self, pending: &mut String, close: &'static str) -> Option<State> {
        let mut told = Told::default();
        match self.block(pending, !close.is_empty(), &mut told) {
            Ok(block) => Some(self.take(pending, 0, block, &told, close)),
            Err(Stop::More) => {
                told.emit(&mut self.marked.sent, self.parts);
                let form = form_at(&self.marked.format.forms, pending)
                    .filter(|form| pending.starts_with(form.open));
                self.wait(pending, form.map_or("", |form| form.close));
                None
            }
            Err(Stop::Broken) => {
                let form = form_at(&self.marked.format.forms, pending);
                let why = self
                    .why_broken(|offer, _| offer.block(form?, pending, &mut Told::mute()).err());
                let text = pending.clone();
                Some(self.break_off(pending, &text, why, &told, close))
            }
        }
    }

    /// What may be told of calls without marks: they can be the format's own, or a grammar makes
    /// sure that they are calls.
    fn told_bare(&self) -> Told {
        match (self.marked.held, self.marked.format.style) {
            (Held::Calls, _) => Told::default(),
            (_, CallStyle::Bare) => Told::early(),
            _ => Told::mute(),
        }
    }

    fn why_broken(&self, read: impl FnOnce(Offer, &[&Form]) -> Option<Stop>) -> Broken {
        let offer = Offer { end: End::Open, ..self.offer };
        Broken::of(self.offer.end, || read(offer, &self.marked.format.forms))
    }

    /// Ends calls that break off; `text` is theirs, at the start of `pending`.
    fn break_off(
        &mut self,
        pending: &mut String,
        text: &str,
        why: Broken,
        told: &Told,
        late: &'static str,
    ) -> State {
        let late = self.late(text, late);
        let bytes = told.emit_broken(text, why, &mut self.marked.sent, self.parts);
        pending.drain(..bytes);
        self.called(late)
    }

    /// Emits a block's calls.
    fn take(
        &mut self,
        pending: &mut String,
        at: usize,
        block: Block,
        told: &Told,
        late: &'static str,
    ) -> State {
        let late = self.late(&pending[at..], late);
        pending.drain(..at + block.bytes);
        told.emit_all(block.calls, &mut self.marked.sent, self.parts);
        self.called(late)
    }

    /// What may still be closed after a block: a thought around it. If there is none, the block's
    /// own mark may come twice.
    fn late(&self, text: &str, late: &'static str) -> &'static str {
        let form = form_at(&self.marked.format.forms, text).filter(|_| late.is_empty());
        form.map_or(late, |form| form.close)
    }

    fn called(&mut self, late: &'static str) -> State {
        self.marked.sent = Sent::default();
        self.marked.last = None;
        self.marked.has_called = true;
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
