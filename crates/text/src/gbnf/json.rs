//! Rules of characters, written as in a string of JSON.

use super::parse::{Choice, Item, Rules};

/// The characters that a string of JSON has only as escapes.
const ESCAPED: [(char, char); 3] = [('\0', '\u{1f}'), ('"', '"'), ('\\', '\\')];

/// The rules of a string of JSON with a text of these rules, between its quotation marks. `None` if
/// they name tokens or leave characters out.
pub(super) fn quoted(Rules(mut rules): Rules) -> Option<Rules> {
    let first = rules.len();
    let mark = || Item::Literal("\"".to_owned());
    let start = vec![vec![mark(), Item::Rule(first), mark()]];
    let own = std::mem::replace(rules.first_mut()?, start);
    rules.push(own);
    for choice in &mut rules[1..] {
        escape(choice, first)?;
    }
    Some(Rules(rules))
}

fn escape(choice: &mut Choice, first: usize) -> Option<()> {
    choice.iter_mut().flatten().try_for_each(|item| escape_item(item, first))
}

fn escape_item(item: &mut Item, first: usize) -> Option<()> {
    if *item == Item::Any {
        *item = Item::Class { is_negated: false, ranges: vec![('\0', char::MAX)] };
    }
    match item {
        Item::Literal(text) => *text = escaped(text),
        Item::Class { is_negated: false, ranges } => {
            let mut choice = vec![];
            let mut plain = ranges.clone();
            for (low, high) in ESCAPED {
                let within = ranges.iter().map(|range| (range.0.max(low), range.1.min(high)));
                let letters = within.flat_map(|(low, high)| low..=high);
                choice.extend(letters.map(|ch| vec![Item::Literal(escaped(&ch.to_string()))]));
                plain = plain.into_iter().flat_map(|range| without(range, (low, high))).collect();
            }
            if !plain.is_empty() {
                choice.push(vec![Item::Class { is_negated: false, ranges: plain }]);
            }
            *item = Item::Group(choice);
        }
        Item::Class { is_negated: true, .. } | Item::Any | Item::Token { .. } => return None,
        Item::Rule(number) => *number = if *number == 0 { first } else { *number },
        Item::Group(choice) => escape(choice, first)?,
        Item::Repeat { item, .. } => escape_item(item, first)?,
    }
    Some(())
}

/// A text as it stands in a string of JSON.
fn escaped(text: &str) -> String {
    let json = serde_json::Value::from(text).to_string();
    json[1..json.len() - 1].to_owned()
}

/// What is left of a range of characters without another one.
fn without((low, high): (char, char), other: (char, char)) -> Vec<(char, char)> {
    let near = |ch: char, up: bool| char::from_u32(if up { ch as u32 + 1 } else { ch as u32 - 1 });
    let mut left = Vec::new();
    if low < other.0 {
        left.extend(near(other.0, false).map(|end| (low, end.min(high))));
    }
    if high > other.1 {
        left.extend(near(other.1, true).map(|start| (start.max(low), high)));
    }
    left
}
