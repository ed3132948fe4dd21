//! Where marks stand in a text.

use super::forms::Form;
use super::read::{End, Read, Reader, held_back};

/// The form of the block that begins here, by the longest mark.
pub(super) fn form_at(forms: &[&'static Form], text: &str) -> Option<&'static Form> {
    let begun = |form: &&Form| {
        form.starts().filter(|mark| text.starts_with(mark)).map(str::len).max().unwrap_or(0)
    };
    forms.iter().copied().max_by_key(begun).filter(|form| begun(form) > 0)
}

/// Whether a mark is in quotes, and so only mentioned: `before` stands before it, `after` after it.
/// For a call's mark only the quote before it counts, since none follows directly.
pub(super) fn is_quoted(before: Option<char>, after: Reader, is_close: bool) -> Read<bool> {
    let Some(quote) = before.filter(|ch| "`\"'".contains(*ch)) else { return Ok(false) };
    if !is_close {
        return Ok(quote == '`');
    }
    if after.is_at_end() { Ok(false) } else { Ok(after.peek()? == quote) }
}

/// The number of bytes that are neither a possible start of a mark nor white space before one; at
/// least `from`. If a limit ends the reply, a mark's first character is text.
pub(super) fn sure(pending: &str, from: usize, marks: &[&'static str], end: End) -> usize {
    let held = held_back(&pending[from..], marks.iter().copied());
    if end == End::Finished || marks.is_empty() || end == End::Cut && held < 2 {
        return pending.len();
    }
    pending[..pending.len() - held].trim_end().len().max(from)
}

pub(super) fn trim_start(text: &mut String) {
    let spaces = text.len() - text.trim_start().len();
    text.drain(..spaces);
}
