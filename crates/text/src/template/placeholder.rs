//! Places in a prompt for tokens that are no text, such as those of pictures.
//!
//! A message holds a placeholder's name where its tokens belong, and the template puts it into the
//! prompt as it puts text. Names hold a noncharacter and a secret, so no client's text has one.

use std::borrow::Cow;

use crate::{Special, TextError, Tokenizer};

/// Stands around the name of a placeholder. A noncharacter of Unicode, which no text contains.
const MARK: char = '\u{FDD1}';

/// What a person reads in the place of tokens that are no text, as in llama-server.
const MEDIA: &str = "<__media__>";

/// A place in the text of a message, and what the prompt has there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placeholder {
    /// The text of the message at this place, see [`Self::name`].
    pub name: String,
    /// Encoded together with the prompt's text in front of it; control tokens are recognised.
    pub before: String,
    pub tokens: Vec<u32>,
    /// As `before`, with the text behind it.
    pub after: String,
}

impl Placeholder {
    /// A name that no client can write: of a number in the request, and of a secret made for it.
    pub fn name(secret: u64, number: usize) -> String {
        // Digits alone: templates change the case of letters.
        format!("{MARK}{secret}.{number}{MARK}")
    }

    /// A text without the names of placeholders.
    pub fn without<'t>(text: &'t str, placeholders: &[Self]) -> Cow<'t, str> {
        if !text.contains(MARK) {
            return Cow::Borrowed(text);
        }
        let text = text.to_owned();
        placeholders.iter().fold(text, |text, one| text.replace(&one.name, "")).into()
    }

    /// A text with what stands around the tokens of placeholders, and a mark for the tokens.
    pub(super) fn shown(text: String, placeholders: &[Self]) -> String {
        placeholders.iter().fold(text, |text, Self { name, before, after, .. }| {
            text.replace(name, &format!("{before}{MEDIA}{after}"))
        })
    }

    /// Whether a text begins or ends with a name, so that no line break belongs there.
    pub fn is_beside(before: &str, after: &str) -> bool {
        before.ends_with(MARK) || after.starts_with(MARK)
    }
}

/// Where a placeholder's tokens stand in a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its index in [`Render::placeholders`](super::Render::placeholders).
    pub number: usize,
    /// The index of its first token in the prompt.
    pub at: usize,
}

/// The place of a placeholder's name in a rendered prompt.
struct Place {
    number: usize,
    start: usize,
    end: usize,
}

/// The places of all placeholders, in the order of the prompt.
///
/// # Errors
/// One is not there exactly once.
fn places(rendered: &str, placeholders: &[Placeholder]) -> Result<Vec<Place>, TextError> {
    let mut places = Vec::with_capacity(placeholders.len());
    for (number, Placeholder { name, .. }) in placeholders.iter().enumerate() {
        let mut found = rendered.match_indices(name.as_str());
        let (first, more) = (found.next(), found.count());
        match first {
            Some((start, _)) if more == 0 => {
                places.push(Place { number, start, end: start + name.len() });
            }
            first => {
                let times = usize::from(first.is_some()) + more;
                return Err(TextError::Placeholder { number, times });
            }
        }
    }
    places.sort_by_key(|place| place.start);
    Ok(places)
}

/// The tokens of a rendered prompt, with those of the placeholders in it, until there are more than
/// `tokens_max`.
///
/// # Errors
/// A placeholder is not there exactly once.
pub(super) fn encode(
    tokenizer: &Tokenizer,
    rendered: &str,
    placeholders: &[Placeholder],
    tokens_max: usize,
) -> Result<(Vec<u32>, Vec<Placed>), TextError> {
    let places = places(rendered, placeholders)?;
    let mut tokens = Vec::new();
    let mut placed = Vec::with_capacity(places.len());
    let (mut after, mut end) = ("", 0);
    for place in &places {
        let Placeholder { before, tokens: own, after: next, .. } = &placeholders[place.number];
        let text = [after, &rendered[end..place.start], before].concat();
        add(tokenizer, &text, tokens_max, &mut tokens);
        if tokens.len() > tokens_max {
            return Ok((tokens, placed));
        }
        placed.push(Placed { number: place.number, at: tokens.len() });
        tokens.extend_from_slice(own);
        (after, end) = (next, place.end);
    }
    let text = [after, &rendered[end..]].concat();
    add(tokenizer, &text, tokens_max, &mut tokens);
    Ok((tokens, placed))
}

/// Appends the tokens of a part of a prompt; only the first starts with the beginning of sequence.
fn add(tokenizer: &Tokenizer, text: &str, tokens_max: usize, tokens: &mut Vec<u32>) {
    if tokens.is_empty() {
        *tokens = tokenizer.encode_prompt_some(text, tokens_max);
    } else {
        let left = tokens_max.saturating_sub(tokens.len());
        tokens.extend(tokenizer.encode_some(text, Special::Parse, false, left));
    }
}
