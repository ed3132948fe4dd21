//! Values in models' output: JSON, and variations of it.
//!
//! Beyond JSON it accepts unambiguous deviations: line breaks and tabs in strings, backslashes that
//! escape nothing, single quotes, a comma after the last item, Python's `True`, `False` and `None`,
//! and Gemma's strings between `<|"|>` with unquoted keys.

use serde_json::{Map, Number, Value};

use super::read::{Read, Reader, Stop};
use crate::long_number;

/// The deepest nesting of lists and objects that is read.
const DEPTH_MAX: usize = 100;
/// Gemma 4's quotation mark.
const GEMMA_QUOTE: &str = "<|\"|>";

impl Reader<'_> {
    /// One value. `close` is the mark after the call: objects that lack their last braces end
    /// there.
    pub(super) fn value(&mut self, close: &str) -> Read<Value> {
        self.nested(close, 0)
    }

    fn nested(&mut self, close: &str, depth: usize) -> Read<Value> {
        if depth > DEPTH_MAX {
            return Err(Stop::Broken);
        }
        match self.peek()? {
            '{' => self.object(close, depth),
            '[' => self.array(close, depth),
            '"' | '\'' => self.string().map(Value::String),
            '<' => self.gemma_string().map(Value::String),
            _ => self.scalar(),
        }
    }

    fn object(&mut self, close: &str, depth: usize) -> Read<Value> {
        self.advance(1);
        let mut fields = Map::new();
        loop {
            self.skip_space();
            if self.ends(close, '}')? {
                return Ok(Value::Object(fields));
            }
            let key = self.key()?;
            self.skip_space();
            self.expect(":")?;
            self.skip_space();
            let value = self.nested(close, depth + 1)?;
            fields.insert(key, value);
            self.skip_space();
            if !self.take(",")? && !self.sees("}")? && !self.closes(close)? {
                return Err(Stop::Broken);
            }
        }
    }

    fn array(&mut self, close: &str, depth: usize) -> Read<Value> {
        self.advance(1);
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.ends(close, ']')? {
                return Ok(Value::Array(items));
            }
            items.push(self.nested(close, depth + 1)?);
            self.skip_space();
            if !self.take(",")? && !self.sees("]")? && !self.closes(close)? {
                return Err(Stop::Broken);
            }
        }
    }

    /// Whether a list or an object ends here: by its bracket, or before the mark after the call.
    fn ends(&mut self, close: &str, bracket: char) -> Read<bool> {
        if self.peek()? == bracket {
            self.advance(1);
            return Ok(true);
        }
        self.closes(close)
    }

    fn closes(&self, close: &str) -> Read<bool> {
        if close.is_empty() { Ok(false) } else { self.sees(close) }
    }

    fn key(&mut self) -> Read<String> {
        match self.peek()? {
            '"' | '\'' => self.string(),
            '<' => self.gemma_string(),
            _ => {
                let key = self.word(|ch| ch.is_alphanumeric() || "_-.$".contains(ch))?;
                if key.is_empty() { Err(Stop::Broken) } else { Ok(key.to_owned()) }
            }
        }
    }

    fn gemma_string(&mut self) -> Read<String> {
        self.expect(GEMMA_QUOTE)?;
        let start = self.at();
        loop {
            let end = self.rest().find(GEMMA_QUOTE).ok_or(self.stop())?;
            self.advance(end);
            let at = self.at();
            self.advance(GEMMA_QUOTE.len());
            if self.ends_gemma_string()? {
                return Ok(self.between(start, at).to_owned());
            }
        }
    }

    /// Whether a valid continuation of a value is next: otherwise the quotation mark belongs to the
    /// text.
    fn ends_gemma_string(&self) -> Read<bool> {
        let mut after = *self;
        after.skip_space();
        if after.is_at_end() {
            return Ok(true);
        }
        Ok(",:]}<".contains(after.peek()?) && !after.sees(GEMMA_QUOTE)?)
    }

    /// A string between single or double quotes, or between three of them as in Python.
    pub(super) fn string(&mut self) -> Read<String> {
        let quote = self.peek()?;
        let mut mark = quote.to_string();
        let long = mark.repeat(3);
        // Exactly two quotes are an empty string.
        if self.rest().starts_with(&mark.repeat(2)) && self.sees(&long)? {
            mark = long;
        }
        self.advance(mark.len());
        let mut text = String::new();
        loop {
            let plain = self.rest().find(['\\', quote]).ok_or(self.stop())?;
            text.push_str(&self.rest()[..plain]);
            self.advance(plain);
            if self.rest().starts_with('\\') {
                self.escape(&mut text)?;
            } else if self.ends_string(&mark)? {
                return Ok(text);
            } else {
                text.push(quote);
                self.advance(1);
            }
        }
    }

    /// Steps over a string's end mark. A single quote is one only before a valid continuation of a
    /// value: models write `'it's'`.
    fn ends_string(&mut self, mark: &str) -> Read<bool> {
        let mut ahead = *self;
        if !ahead.take(mark)? {
            return Ok(false);
        }
        if mark == "'" {
            let mut after = ahead;
            after.skip_space();
            if !after.is_at_end() && !",:)]}<".contains(after.peek()?) {
                return Ok(false);
            }
        }
        *self = ahead;
        Ok(true)
    }

    fn escape(&mut self, text: &mut String) -> Read<()> {
        self.advance(1);
        let escaped = self.peek()?;
        self.advance(escaped.len_utf8());
        match escaped {
            'n' => text.push('\n'),
            't' => text.push('\t'),
            'r' => text.push('\r'),
            'b' => text.push('\u{8}'),
            'f' => text.push('\u{c}'),
            '/' | '\\' | '"' | '\'' => text.push(escaped),
            'u' => return self.unicode(text),
            other => text.extend(['\\', other]),
        }
        Ok(())
    }

    /// Four digits after `\u`, and the second surrogate if they are the first.
    fn unicode(&mut self, text: &mut String) -> Read<()> {
        let Some(first) = self.unit()? else {
            text.push_str("\\u");
            return Ok(());
        };
        let mut units = vec![first];
        if (0xD800..0xDC00).contains(&first) && self.sees("\\u")? {
            let mut ahead = *self;
            ahead.advance(2);
            if let Some(second) = ahead.unit()?.filter(|unit| (0xDC00..0xE000).contains(unit)) {
                units.push(second);
                *self = ahead;
            }
        }
        text.push_str(&String::from_utf16_lossy(&units));
        Ok(())
    }

    fn unit(&mut self) -> Read<Option<u16>> {
        let digits = self.rest().bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
        if digits < 4 {
            return if self.rest().len() == digits { Err(self.stop()) } else { Ok(None) };
        }
        let unit = u16::from_str_radix(&self.rest()[..4], 16).map_err(|_| Stop::Broken)?;
        self.advance(4);
        Ok(Some(unit))
    }

    fn scalar(&mut self) -> Read<Value> {
        let word = self.word(|ch| ch.is_ascii_alphanumeric() || "+-._".contains(ch))?;
        match word {
            "true" | "True" => Ok(Value::Bool(true)),
            "false" | "False" => Ok(Value::Bool(false)),
            "null" | "None" => Ok(Value::Null),
            number => match long_number(number) {
                Some(long) => Ok(long),
                None => match number.parse::<Number>() {
                    Ok(number) => Ok(Value::Number(number)),
                    Err(_) => endless(number).ok_or(Stop::Broken),
                },
            },
        }
    }
}

/// The largest number, for one that is beyond it.
fn endless(number: &str) -> Option<Value> {
    let digits = number.strip_prefix('-').unwrap_or(number);
    let float: f64 = number.parse().ok().filter(|float: &f64| float.is_infinite())?;
    let is_number = digits.starts_with(|ch: char| ch.is_ascii_digit());
    is_number.then(|| Value::from(f64::MAX.copysign(float)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::read::End;
    use super::*;

    #[test]
    fn values() {
        let cases = [
            (r#"{"a": [1, -2.5e3, "x"], "b": {}}"#, json!({"a": [1, -2500.0, "x"], "b": {}})),
            ("\"line\nnext\t\\d \\\\ \\u00e9\\uD83D\\uDE00\"", json!("line\nnext\t\\d \\ é😀")),
            (r#"{'a': True, 'b': None,}"#, json!({"a": true, "b": null})),
            ("\"\"\"a \"quoted\" word\"\"\"", json!("a \"quoted\" word")),
            ("\"\"", json!("")),
            ("['it's', 'b']", json!(["it's", "b"])),
            ("{a:<|\"|>it's \"x\"<|\"|>,b:[1,2]}", json!({"a": "it's \"x\"", "b": [1, 2]})),
            ("{a:<|\"|>a <|\"|> b<|\"|>}", json!({"a": "a <|\"|> b"})),
            (r#"{"a": {"b": 1}</end>"#, json!({"a": {"b": 1}})),
            ("[1e400, -2E999]", json!([f64::MAX, -f64::MAX])),
        ];
        for (text, expected) in cases {
            let mut reader = Reader::new(text, End::Finished);
            assert_eq!(reader.value("</end>"), Ok(expected), "{text}");
            for (cut, _) in text.char_indices() {
                let start = Reader::new(&text[..cut], End::Open).value("</end>");
                assert_eq!(start, Err(Stop::More), "{}", &text[..cut]);
            }
        }
        for broken in ["{oops}", "{\"a\" 1}", "[1 2]", "tru", "inf", "-Infinity", "nan", "<b>", "&"]
        {
            let mut reader = Reader::new(broken, End::Finished);
            assert_eq!(reader.value(""), Err(Stop::Broken), "{broken}");
        }
        let deep = "[".repeat(1000);
        assert_eq!(Reader::new(&deep, End::Open).value(""), Err(Stop::Broken));
    }
}
