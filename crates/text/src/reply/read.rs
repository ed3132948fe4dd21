//! A cursor over text that may be incomplete.
//!
//! Results never depend on how the text was cut into pieces: a read that succeeds or fails on the
//! start of a text does the same on all of it, and an undecided one returns [`Stop::More`]. After
//! the end of the reply, no read waits for more.

/// Why a read did not succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// The text ends too early to decide.
    More,
    /// The text is something else.
    Broken,
}

pub(super) type Read<T> = Result<T, Stop>;

/// Whether more text can come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Open,
    /// The model ended its reply.
    Finished,
    /// A limit ended the reply: an unfinished call is no call.
    Cut,
}

/// The cursor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reader<'t> {
    text: &'t str,
    at: usize,
    end: End,
}

impl<'t> Reader<'t> {
    pub(super) fn new(text: &'t str, end: End) -> Self {
        Self { text, at: 0, end }
    }

    /// Bytes read so far.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.at..]
    }

    /// The text from `start` to the cursor.
    pub(super) fn since(&self, start: usize) -> &'t str {
        &self.text[start..self.at]
    }

    pub(super) fn between(&self, start: usize, end: usize) -> &'t str {
        &self.text[start..end]
    }

    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Whether nothing follows and no more text can come.
    pub(super) fn is_at_end(&self) -> bool {
        self.rest().is_empty() && self.end != End::Open
    }

    pub(super) fn is_cut(&self) -> bool {
        self.end == End::Cut
    }

    /// The error of a read that reached the end of the text.
    pub(super) fn stop(&self) -> Stop {
        if self.end == End::Open { Stop::More } else { Stop::Broken }
    }

    /// The next character.
    pub(super) fn peek(&self) -> Read<char> {
        self.rest().chars().next().ok_or(self.stop())
    }

    pub(super) fn skip(&mut self, skipped: impl Fn(char) -> bool) {
        self.at += self.rest().len() - self.rest().trim_start_matches(skipped).len();
    }

    pub(super) fn skip_space(&mut self) {
        self.skip(char::is_whitespace);
    }

    /// Whether `mark` is next.
    pub(super) fn sees(&self, mark: &str) -> Read<bool> {
        let rest = self.rest();
        if rest.starts_with(mark) {
            return Ok(true);
        }
        if self.end == End::Open && mark.starts_with(rest) { Err(Stop::More) } else { Ok(false) }
    }

    /// Steps over `mark` if it is next.
    pub(super) fn take(&mut self, mark: &str) -> Read<bool> {
        let is_next = self.sees(mark)?;
        self.at += if is_next { mark.len() } else { 0 };
        Ok(is_next)
    }

    pub(super) fn expect(&mut self, mark: &str) -> Read<()> {
        if self.take(mark)? { Ok(()) } else { Err(Stop::Broken) }
    }

    /// The text up to `mark`, which is skipped; at most `max` bytes, on one line.
    pub(super) fn line_until(&mut self, mark: &str, max: usize) -> Read<&'t str> {
        let rest = self.rest();
        let found = rest.find(mark);
        let text = &rest[..found.unwrap_or(rest.len())];
        if text.len() > max || text.contains('\n') {
            return Err(Stop::Broken);
        }
        let at = found.ok_or(self.stop())?;
        self.at += at + mark.len();
        Ok(text)
    }

    /// A run of characters that all are `part` of a word; may be empty.
    pub(super) fn word(&mut self, part: impl Fn(char) -> bool) -> Read<&'t str> {
        let start = self.at;
        self.skip(part);
        if self.rest().is_empty() && self.end == End::Open {
            return Err(Stop::More);
        }
        Ok(self.since(start))
    }
}

/// The number of bytes at the end of `text` that could start one of `marks`.
pub(super) fn held_back<'m>(text: &str, marks: impl Iterator<Item = &'m str>) -> usize {
    let longest = |mark: &str| {
        (1..mark.len().min(text.len() + 1))
            .rev()
            .find(|&len| mark.is_char_boundary(len) && text.ends_with(&mark[..len]))
    };
    marks.filter_map(longest).max().unwrap_or(0)
}

/// A shorter block is read for each of its tokens.
const LONG_BYTES: usize = 16 << 10;

/// A block of calls without its end so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Waiting {
    /// Bytes of the text at the last attempt.
    bytes: usize,
    /// A mark that may end the block.
    close: &'static str,
}

impl Waiting {
    pub(super) fn new(bytes: usize, close: &'static str) -> Self {
        Self { bytes, close }
    }

    /// Whether to read again. A long block is not read for each of its tokens, only when a possible
    /// end has arrived, or 1/256 more of it.
    pub(super) fn is_over(self, text: &str) -> bool {
        let mut from = self.bytes.min(text.len()).saturating_sub(self.close.len());
        while !text.is_char_boundary(from) {
            from -= 1;
        }
        let fresh = &text[from..];
        let ends = match self.close {
            "" => fresh.contains(['}', ']', ')', '>']),
            close => fresh.contains(close),
        };
        let more = text.len() - self.bytes.min(text.len());
        ends || text.len() < LONG_BYTES || more * 256 >= text.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks() {
        let open = |text| Reader::new(text, End::Open);
        assert_eq!(open("</too").sees("</tool>"), Err(Stop::More));
        assert_eq!(open("</toy").sees("</tool>"), Ok(false));
        assert_eq!(open("</tool>x").sees("</tool>"), Ok(true));
        assert_eq!(Reader::new("</too", End::Cut).sees("</tool>"), Ok(false));
        assert_eq!(open("name>x").line_until(">", 8), Ok("name"));
        assert_eq!(open("name").line_until(">", 8), Err(Stop::More));
        assert_eq!(open("na\nme>").line_until(">", 8), Err(Stop::Broken));
        assert_eq!(open("much too long").line_until(">", 8), Err(Stop::Broken));
        assert_eq!(open("ab").word(char::is_alphabetic), Err(Stop::More));
        assert_eq!(Reader::new("ab", End::Finished).word(char::is_alphabetic), Ok("ab"));
    }
}
