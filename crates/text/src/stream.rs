//! Turns generated token ids into text while they arrive.

use std::ops::Deref;

use crate::Tokenizer;

/// Turns token ids into text piece by piece. A piece is always valid UTF-8: bytes that could start
/// a character wait for the next token; bytes that cannot be UTF-8 become U+FFFD. All pieces
/// together equal the decoding of all tokens at once.
///
/// `T` is `&Tokenizer`, `Arc<Tokenizer>` or the like.
#[derive(Debug, Clone)]
pub struct TextStream<T> {
    tokenizer: T,
    /// The start of an incomplete character: at most 3 bytes.
    held: Vec<u8>,
    /// Whether the next token may start with the space that encoding adds to a text.
    strip_space: bool,
    show: Show,
}

/// The control tokens to show by name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Show {
    None,
    /// These, ascending.
    Only(Vec<u32>),
    All,
}

impl<T: Deref<Target = Tokenizer>> TextStream<T> {
    /// For an independent text, such as a chat reply: removes the space that SentencePiece adds to
    /// every text.
    pub fn new(tokenizer: T) -> Self {
        let strip_space = tokenizer.adds_space();
        Self { tokenizer, held: Vec::new(), strip_space, show: Show::None }
    }

    /// For tokens that continue a text: a leading space is part of it.
    pub fn continuing(tokenizer: T) -> Self {
        Self { tokenizer, held: Vec::new(), strip_space: false, show: Show::None }
    }

    /// Shows all control tokens by their names.
    pub fn with_special(mut self) -> Self {
        self.show = Show::All;
        self
    }

    /// Shows these control tokens by name, as a [`crate::ReplyParser`] requires.
    pub fn showing(mut self, mut ids: Vec<u32>) -> Self {
        ids.sort_unstable();
        self.show = Show::Only(ids);
        self
    }

    /// The text completed by the next token, often empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokenizer.is_special(id) && !self.shows(id) {
            return String::new();
        }
        let mut bytes = self.tokenizer.token_bytes(id);
        if bytes.is_empty() {
            return String::new();
        }
        if std::mem::take(&mut self.strip_space) && !self.tokenizer.is_special(id) {
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.held.extend_from_slice(bytes);
        self.take_whole()
    }

    fn shows(&self, id: u32) -> bool {
        match &self.show {
            Show::None => false,
            Show::Only(ids) => ids.binary_search(&id).is_ok(),
            Show::All => true,
        }
    }

    /// Ends the tokens: incomplete bytes become invalid.
    pub fn finish(&mut self) -> String {
        let held = std::mem::take(&mut self.held);
        String::from_utf8_lossy(&held).into_owned()
    }

    /// Takes all text except a character that is still incomplete.
    fn take_whole(&mut self) -> String {
        let mut text = String::with_capacity(self.held.len());
        let (mut at, mut waiting) = (0, 0);
        for chunk in self.held.utf8_chunks() {
            at += chunk.valid().len() + chunk.invalid().len();
            text.push_str(chunk.valid());
            if at == self.held.len() && is_incomplete(chunk.invalid()) {
                waiting = chunk.invalid().len();
            } else if !chunk.invalid().is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.held.drain(..self.held.len() - waiting);
        text
    }
}

/// Whether more bytes could complete these to one character.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}
