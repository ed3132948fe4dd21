//! Arguments of calls that are not JSON, as parts of a grammar: marked fields, and Python's.

use serde_json::{Map, Value};

use super::counts::counted;
use super::json::lark_json;
use super::lark::Lark;
use super::object::Shape;
use super::refs::with_definitions;
use super::terms::{ANY, lark_regex, quote};
use super::texts::{Text, texts};

/// The name of a field without a schema.
const KEY: &str = "/[A-Za-z_][0-9A-Za-z_.-]{0,63}/";

/// The most bytes of one call's fields.
const BYTES_MAX: usize = 1 << 20;

impl Lark<'_> {
    /// The fields of a call, each between `marks`: before its name, before its value and after it.
    pub(super) fn fields(&mut self, schema: &Value, marks: [&str; 3]) -> String {
        self.in_shapes(schema, |lark, shape| lark.marked(schema, shape, marks))
    }

    /// Python's `KEY=VALUE`, separated by commas.
    pub(super) fn named_values(&mut self, schema: &Value) -> String {
        self.in_shapes(schema, |_, shape| named(schema, shape))
    }

    /// One alternative for each shape that a schema allows.
    fn in_shapes(
        &mut self,
        schema: &Value,
        mut write: impl FnMut(&mut Self, &Shape) -> String,
    ) -> String {
        let mut shapes: Vec<String> = Vec::new();
        for shape in Shape::all(schema) {
            let written = write(self, &shape);
            shapes.push(written);
        }
        match &shapes[..] {
            [one] => one.clone(),
            many => {
                let rules: Vec<String> = many.iter().map(|body| self.rule("", body)).collect();
                format!("({})", rules.join(" | "))
            }
        }
    }

    /// Each of a shape's properties, in their order, then any additional ones.
    fn marked(&mut self, root: &Value, shape: &Shape, marks: [&str; 3]) -> String {
        let mut fields = Vec::new();
        let (mut bytes, mut more) = (0, None);
        for (key, property) in &shape.properties {
            // A longer grammar would be refused, so the rest need not be written.
            if bytes > BYTES_MAX {
                break;
            }
            let head = quote(&format!("{}{key}{}", marks[0], marks[1]));
            let value = self.value(root, property, marks[2]);
            let optional = if shape.required.contains(key) { "" } else { "?" };
            fields.push((format!("({head} {value})"), optional));
            bytes += head.len() + value.len();
        }
        if let Some(schema) = shape.more() {
            let known = shape.properties.keys().map(|key| quote(key)).collect::<Vec<_>>();
            let key = match &known[..] {
                [] => KEY.to_owned(),
                known => format!("{KEY} & ~({})", known.join(" | ")),
            };
            let key = self.terminal(&key);
            let value = match schema.as_object().is_some_and(Map::is_empty) {
                // Without a type in the schema, the text decides it.
                true => self.free(marks[2]),
                false => self.value(root, &schema, marks[2]),
            };
            more = Some(format!("({} {key} {} {value})", quote(marks[0]), quote(marks[1])));
        }
        let mut rule = |body: &str| self.rule("", body);
        if let Some(counted) = counted(shape, &fields, more.as_deref(), "", &mut rule) {
            return counted;
        }
        let mut all: Vec<String> =
            fields.into_iter().map(|(field, optional)| field + optional).collect();
        all.extend(more.map(|more| more + "*"));
        all.join(" ")
    }

    /// A value and the mark after it: strings are written literally, anything else as JSON.
    fn value(&mut self, root: &Value, property: &Value, end: &str) -> String {
        let mut ways = Vec::new();
        for text in texts(root, property) {
            ways.push(match text {
                Text::Free => self.free(end),
                Text::Literal(text) => format!("{} {}", quote(&text), quote(end)),
                Text::Json(schema) => {
                    format!("{} {}", lark_json(&with_definitions(root, &schema)), quote(end))
                }
                // A terminal for each character, as the grammar has them.
                Text::Grammar(grammar) => {
                    let end = end.chars().map(|ch| quote(&ch.to_string()));
                    format!("%lark {{\n{grammar}}} {}", end.collect::<Vec<_>>().join(" "))
                }
                Text::Held(all) => {
                    let all: Vec<String> = all.iter().map(|one| lark_regex(one)).collect();
                    self.rule("[lazy]", &format!("({}) {}", all.join(" & "), quote(end)))
                }
            });
        }
        format!("({})", ways.join(" | "))
    }

    /// Any text, up to the mark after it.
    fn free(&mut self, end: &str) -> String {
        self.rule("[lazy]", &format!("{ANY} {}", quote(end)))
    }
}

/// `KEY=VALUE` for each required property of a shape, separated by commas, then for the others.
fn named(root: &Value, shape: &Shape) -> String {
    let value = |(key, property): (&String, &Value)| {
        let json = lark_json(&with_definitions(root, property));
        format!("{} {json}", quote(&format!("{key}=")))
    };
    let (required, others): (Vec<_>, Vec<_>) =
        shape.properties.iter().partition(|(key, _)| shape.required.contains(key));
    let required: Vec<String> = required.into_iter().map(value).collect();
    let others: Vec<String> = others.into_iter().map(value).collect();
    let rest = |others: &[String]| {
        let others = others.iter().map(|other| format!("(\", \" {other})?"));
        others.collect::<Vec<_>>().join(" ")
    };
    if !required.is_empty() {
        return format!("{} {}", required.join(" \", \" "), rest(&others));
    }
    // The first present field has no comma before it.
    let choices =
        (0..others.len()).map(|first| format!("{} {}", others[first], rest(&others[first + 1..])));
    let choices: Vec<String> = choices.collect();
    if choices.is_empty() { String::new() } else { format!("({})?", choices.join(" | ")) }
}
