//! `tojson` as chat templates mean it: like Python's `json.dumps`, with a limit on its length.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};

use super::OUTPUT_BYTES_MAX;

/// The widest indent; more is an attack on memory.
const INDENT_MAX: usize = 16;

/// `value|tojson(indent=, ensure_ascii=, sort_keys=, separators=)`. Unlike Jinja's own filter this
/// one does not escape for HTML, as in Hugging Face's templates; keys keep their order.
pub(super) fn tojson(value: &Value, indent: Option<usize>, kwargs: Kwargs) -> Result<Value, Error> {
    let indent = match kwargs.get::<Option<usize>>("indent")? {
        Some(named) => Some(named),
        None => indent,
    };
    let ensure_ascii = kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let sort_keys = kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    let separators = kwargs.get::<Option<Vec<String>>>("separators")?;
    kwargs.assert_all_used()?;

    let text = match (indent, separators.as_deref()) {
        (Some(width), _) => {
            let indent = " ".repeat(width.min(INDENT_MAX));
            write(value, sort_keys, PrettyFormatter::with_indent(indent.as_bytes()))?
        }
        (None, Some([item, key])) => write(value, sort_keys, Spaced { item, key })?,
        (None, _) => write(value, sort_keys, Spaced { item: ", ", key: ": " })?,
    };
    Ok(Value::from(if ensure_ascii { escape_non_ascii(&text) } else { text }))
}

fn write(value: &Value, sort_keys: bool, formatter: impl Formatter) -> Result<String, Error> {
    let mut out = Limited { bytes: Vec::new() };
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    let written = if sort_keys {
        // The map of the standard library, which keeps keys sorted, is the way in between.
        let sorted = serde_json::to_value(value).map(Sorted);
        sorted.and_then(|sorted| sorted.serialize(&mut serializer))
    } else {
        value.serialize(&mut serializer)
    };
    written.map_err(|error| Error::new(ErrorKind::BadSerialization, error.to_string()))?;
    Ok(String::from_utf8(out.bytes).expect("serde_json writes UTF-8"))
}

struct Sorted(serde_json::Value);

impl Serialize for Sorted {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use serde_json::Value::{Array, Object};
        match &self.0 {
            Object(map) => {
                let mut entries: Vec<_> = map.iter().collect();
                entries.sort_by_key(|(key, _)| *key);
                let entries = entries.into_iter().map(|(key, value)| (key, Sorted(value.clone())));
                serializer.collect_map(entries)
            }
            Array(items) => serializer.collect_seq(items.iter().map(|item| Sorted(item.clone()))),
            other => other.serialize(serializer),
        }
    }
}

/// Python's default: a space behind commas and colons.
struct Spaced<'a> {
    item: &'a str,
    key: &'a str,
}

impl Formatter for Spaced<'_> {
    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(self.item.as_bytes()) }
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { out.write_all(self.item.as_bytes()) }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        out.write_all(self.key.as_bytes())
    }
}

struct Limited {
    bytes: Vec<u8>,
}

impl Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other("the JSON is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn escape_non_ascii(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for ch in text.chars() {
        if ch.is_ascii() {
            out.push(ch);
            continue;
        }
        let mut units = [0; 2];
        for unit in ch.encode_utf16(&mut units) {
            out.push_str(&format!("\\u{unit:04x}"));
        }
    }
    out
}
