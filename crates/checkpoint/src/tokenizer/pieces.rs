//! The table of tokens.

use super::stored::{META_SPACE, Stored};

/// A token's kind; the numbers are those of `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
}

/// All tokens, in the order of their numbers.
#[derive(Debug)]
pub(super) struct Pieces {
    pub texts: Vec<String>,
    pub kinds: Vec<Kind>,
}

impl Pieces {
    /// The first `count` tokens. Numbers without a token get a name that no text has.
    pub fn new(stored: &Stored, count: usize) -> Self {
        let texts = (0..count).map(|id| format!("[PAD{id}]")).collect();
        let mut pieces = Self { texts, kinds: vec![Kind::Unused; count] };
        let has_bytes = stored.has_meta_spaces();
        for (text, id) in &stored.model.vocab {
            let is_byte = has_bytes && is_byte(text);
            pieces.put(*id, text.clone(), if is_byte { Kind::Byte } else { Kind::Normal });
        }
        for added in &stored.added_tokens {
            match added.special || looks_special(&added.content) {
                true => pieces.put(added.id, added.content.clone(), Kind::Control),
                false => {
                    let text = added.content.replace(META_SPACE, " ");
                    pieces.put(added.id, text, Kind::UserDefined);
                }
            }
        }
        pieces
    }

    /// Tokens beyond the model's vocabulary are left out: it cannot produce them.
    fn put(&mut self, id: u64, text: String, kind: Kind) {
        if let Some(known) = self.texts.get_mut(id as usize) {
            *known = text;
            self.kinds[id as usize] = kind;
        }
    }
}

/// Whether a token is `<0x0A>` or another byte.
fn is_byte(text: &str) -> bool {
    let digits = text.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|it| it.len() == 2 && it.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Whether a token is a control token by its text: some files do not mark them.
fn looks_special(text: &str) -> bool {
    let is_between = |start: &str, end: &str| text.starts_with(start) && text.ends_with(end);
    ["<pad>", "<mask>", "<2mass>", "[@BOS@]"].contains(&text)
        || is_between("<|", "|>")
        || is_between("<\u{ff5c}", "\u{ff5c}>")
        || is_between("<unused", ">")
}
