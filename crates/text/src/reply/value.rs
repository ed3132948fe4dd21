//! Values in models' output: JSON, and variations of it.
//!
//! Beyond JSON it accepts unambiguous deviations: line breaks and tabs in strings, backslashes that
//! escape nothing, single quotes, a comma after the last item, Python's `True`, `False` and `None`,
//! and Gemma's strings between `<|"|>` with unquoted keys.

use serde_json::{Map, Number, Value};

use super::read::{End, Read, Reader, Stop, held_back};
use crate::{json_text, long_number};

/// The deepest nesting of lists and objects that is read.
const DEPTH_MAX: usize = 100;
/// Integers of so many digits have 64 bits.
const SHORT_DIGITS: usize = 18;
/// Gemma 4's quotation mark.
const GEMMA_QUOTE: &str = "<|\"|>";

/// The JSON of a value, as [`json_text`] would write it, so far.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) json: String,
    /// Where the reader was at the last writing.
    pub(super) at: usize,
}

impl Written {
    pub(super) fn raw(&mut self, json: &str, at: usize) {
        self.json.push_str(json);
        self.at = at;
    }

    /// A piece of a string.
    pub(super) fn escaped(&mut self, text: &str, at: usize) {
        let json = Value::from(text).to_string();
        self.raw(&json[1..json.len() - 1], at);
    }

    /// The start of an object's field, and of the object before its first one.
    pub(super) fn begin_field(&mut self, key: &str, is_first: bool, at: usize) {
        self.raw(if is_first { "{" } else { "" }, at);
        self.key(key, is_first, at);
    }

    pub(super) fn key(&mut self, key: &str, is_first: bool, at: usize) {
        let comma = if is_first { "" } else { "," };
        self.raw(&format!("{comma}{}:", Value::from(key)), at);
    }
}

impl Reader<'_> {
    /// One value. `close` is the mark after the call: objects that lack their last braces end
    /// there.
    pub(super) fn value(&mut self, close: &str) -> Read<Value> {
        self.written_value(close, &mut Written::default())
    }

    /// The same, written as JSON while it is read. If it ends too early, what is written is the
    /// start of the value's JSON.
    pub(super) fn written_value(&mut self, close: &str, out: &mut Written) -> Read<Value> {
        self.nested(close, 0, out)
    }

    fn nested(&mut self, close: &str, depth: usize, out: &mut Written) -> Read<Value> {
        if depth > DEPTH_MAX {
            return Err(Stop::Broken);
        }
        match self.peek()? {
            '{' => self.object(close, depth, out),
            '[' => self.array(close, depth, out),
            '"' | '\'' => self.written_string(out).map(Value::String),
            '<' => self.gemma_string(out).map(Value::String),
            _ => {
                let value = self.scalar()?;
                out.raw(&json_text(&value), self.at());
                Ok(value)
            }
        }
    }

    /// Of several fields with one name the first counts: the others come after it was written.
    fn object(&mut self, close: &str, depth: usize, out: &mut Written) -> Read<Value> {
        out.raw("{", self.at() + 1);
        let fields = self.members(close, |reader, key, fields| {
            if fields.contains_key(key) {
                return reader.nested(close, depth + 1, &mut Written::default());
            }
            out.key(key, fields.is_empty(), reader.at());
            reader.nested(close, depth + 1, out)
        })?;
        out.raw("}", self.at());
        Ok(Value::Object(fields))
    }

    /// The fields of an object. `value` reads one, and gets its name and the fields before it.
    pub(super) fn members(
        &mut self,
        close: &str,
        mut value: impl FnMut(&mut Self, &str, &Map<String, Value>) -> Read<Value>,
    ) -> Read<Map<String, Value>> {
        self.expect("{")?;
        let mut fields = Map::new();
        loop {
            self.skip_space();
            if self.ends(close, '}')? {
                return Ok(fields);
            }
            let key = self.key()?;
            self.skip_space();
            self.expect(":")?;
            self.skip_space();
            let value = value(self, &key, &fields)?;
            fields.entry(key).or_insert(value);
            self.skip_space();
            if !self.take(",")? && !self.sees("}")? && !self.closes(close)? {
                return Err(Stop::Broken);
            }
        }
    }

    fn array(&mut self, close: &str, depth: usize, out: &mut Written) -> Read<Value> {
        self.advance(1);
        out.raw("[", self.at());
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if self.ends(close, ']')? {
                out.raw("]", self.at());
                return Ok(Value::Array(items));
            }
            if !items.is_empty() {
                out.raw(",", self.at());
            }
            items.push(self.nested(close, depth + 1, out)?);
            self.skip_space();
            if !self.take(",")? && !self.sees("]")? && !self.closes(close)? {
                return Err(Stop::Broken);
            }
        }
    }

    /// Whether a list or an object ends here: by its bracket, or before the mark after the call.
    pub(super) fn ends(&mut self, close: &str, bracket: char) -> Read<bool> {
        if self.peek()? == bracket {
            self.advance(1);
            return Ok(true);
        }
        self.closes(close)
    }

    pub(super) fn closes(&self, close: &str) -> Read<bool> {
        if close.is_empty() { Ok(false) } else { self.sees(close) }
    }

    fn key(&mut self) -> Read<String> {
        match self.peek()? {
            '"' | '\'' => self.string(),
            '<' => self.gemma_string(&mut Written::default()),
            _ => {
                let key = self.word(|ch| ch.is_alphanumeric() || "_-.$".contains(ch))?;
                if key.is_empty() { Err(Stop::Broken) } else { Ok(key.to_owned()) }
            }
        }
    }

    pub(super) fn gemma_string(&mut self, out: &mut Written) -> Read<String> {
        self.expect(GEMMA_QUOTE)?;
        let start = self.at();
        out.raw("\"", start);
        let mut told = start;
        loop {
            let rest = self.rest();
            let Some(end) = rest.find(GEMMA_QUOTE) else {
                let sure = rest.len() - held_back(rest, std::iter::once(GEMMA_QUOTE));
                let end = self.at() + sure;
                out.escaped(self.between(told, end), end);
                return Err(self.stop());
            };
            self.advance(end);
            let at = self.at();
            out.escaped(self.between(told, at), at);
            told = at;
            self.advance(GEMMA_QUOTE.len());
            if self.ends_gemma_string()? {
                out.raw("\"", self.at());
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
        self.written_string(&mut Written::default())
    }

    fn written_string(&mut self, out: &mut Written) -> Read<String> {
        let quote = self.peek()?;
        let mut mark = quote.to_string();
        let long = mark.repeat(3);
        // Exactly two quotes are an empty string.
        if self.rest().starts_with(&mark.repeat(2)) && self.sees(&long)? {
            mark = long;
        }
        self.advance(mark.len());
        out.raw("\"", self.at());
        let mut text = String::new();
        loop {
            let rest = self.rest();
            let Some(plain) = rest.find(['\\', quote]) else {
                out.escaped(rest, self.at() + rest.len());
                return Err(self.stop());
            };
            text.push_str(&rest[..plain]);
            self.advance(plain);
            out.escaped(&rest[..plain], self.at());
            let before = text.len();
            if self.rest().starts_with('\\') {
                self.escape(&mut text)?;
            } else if self.ends_string(&mark)? {
                out.raw("\"", self.at());
                return Ok(text);
            } else {
                text.push(quote);
                self.advance(1);
            }
            out.escaped(&text[before..], self.at());
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

/// A text that is exactly one value.
pub(crate) fn whole_value(text: &str) -> Option<Value> {
    let mut reader = Reader::new(text.trim(), End::Finished);
    reader.value("").ok().filter(|_| reader.rest().is_empty())
}

/// The value of a JSON text, with the digits of long integers.
pub fn exact_value(text: &str) -> Option<Value> {
    let value = serde_json::from_str(text).ok()?;
    let is_digit = |byte: &u8| byte.is_ascii_digit();
    let has_long = text.as_bytes().chunk_by(|one, other| is_digit(one) == is_digit(other));
    let has_long = has_long.into_iter().any(|run| run.len() > SHORT_DIGITS && is_digit(&run[0]));
    if has_long { whole_value(text).or(Some(value)) } else { Some(value) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

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
        let long = long_number("98765432109876543210987").unwrap();
        let exact = json!({"a": [long, 1], "b": {"c": "98765432109876543210987"}});
        assert_eq!(exact_value(&json_text(&exact)), Some(exact));
        assert_eq!((exact_value("[1,]"), exact_value("['a']")), (None, None));
        let deep = "[".repeat(1000);
        assert_eq!(Reader::new(&deep, End::Open).value(""), Err(Stop::Broken));
    }
}
