use std::fmt::Write as _;

use super::parse::{Choice, Item, Rules};

/// The longest regex; a longer one is written as a grammar, which names its rules.
const REGEX_BYTES_MAX: usize = 32 << 10;
/// The deepest nesting of brackets in a regex, as rules are written out.
const DEPTH_MAX: usize = 50;

/// The grammar as a regex, if no rule contains itself, none names a token, and the regex is short.
pub(super) fn regex(rules: &Rules) -> Option<String> {
    let mut regex = String::new();
    Regex { rules, open: vec![false; rules.0.len()], depth: 0 }.choice(&rules.0[0], &mut regex)?;
    (regex.len() <= REGEX_BYTES_MAX).then_some(regex)
}

struct Regex<'r> {
    rules: &'r Rules,
    /// The rules that are being written.
    open: Vec<bool>,
    depth: usize,
}

impl Regex<'_> {
    fn choice(&mut self, choice: &Choice, out: &mut String) -> Option<()> {
        if self.depth >= DEPTH_MAX || out.len() > REGEX_BYTES_MAX {
            return None;
        }
        self.depth += 1;
        out.push_str("(?:");
        for (at, sequence) in choice.iter().enumerate() {
            out.push_str(if at > 0 { "|" } else { "" });
            for item in sequence {
                self.item(item, out)?;
            }
        }
        out.push(')');
        self.depth -= 1;
        Some(())
    }

    fn item(&mut self, item: &Item, out: &mut String) -> Option<()> {
        match item {
            Item::Literal(text) => text.chars().for_each(|ch| escaped(ch, out)),
            Item::Class { is_negated, ranges } => class(*is_negated, ranges, out),
            Item::Any => out.push_str("(?s:.)"),
            Item::Group(choice) => self.choice(choice, out)?,
            Item::Rule(number) => {
                if std::mem::replace(&mut self.open[*number], true) {
                    return None;
                }
                let rules = self.rules;
                self.choice(&rules.0[*number], out)?;
                self.open[*number] = false;
            }
            Item::Repeat { item, least, most } => {
                out.push_str("(?:");
                self.item(item, out)?;
                out.push(')');
                times(*least, *most, out);
            }
            Item::Token { .. } => return None,
        }
        Some(())
    }
}

/// The grammar in Lark, with a terminal for each character.
pub(super) fn lark(rules: &Rules) -> String {
    let mut out = String::new();
    for (number, choice) in rules.0.iter().enumerate() {
        out.push_str(&rule_name(number));
        out.push_str(": ");
        lark_choice(choice, &mut out);
        out.push('\n');
    }
    out
}

fn rule_name(number: usize) -> String {
    if number == 0 { "start".to_owned() } else { format!("r{number}") }
}

fn lark_choice(choice: &Choice, out: &mut String) {
    for (at, sequence) in choice.iter().enumerate() {
        out.push_str(if at > 0 { " | " } else { "" });
        if sequence.is_empty() {
            out.push_str("\"\"");
        }
        sequence.iter().for_each(|item| lark_item(item, out));
    }
}

fn lark_item(item: &Item, out: &mut String) {
    match item {
        Item::Literal(text) if text.is_empty() => out.push_str("\"\" "),
        Item::Literal(text) => {
            for ch in text.chars() {
                _ = write!(out, "{} ", serde_json::Value::from(ch.to_string()));
            }
        }
        Item::Class { is_negated, ranges } => {
            let mut regex = String::new();
            class(*is_negated, ranges, &mut regex);
            _ = write!(out, "{} ", crate::lark_regex(&regex));
        }
        Item::Any => out.push_str("/(?s:.)/ "),
        Item::Rule(number) => _ = write!(out, "{} ", rule_name(*number)),
        Item::Group(choice) => {
            out.push('(');
            lark_choice(choice, out);
            out.push_str(") ");
        }
        Item::Repeat { item, least, most } => {
            out.push('(');
            lark_item(item, out);
            out.push(')');
            times(*least, *most, out);
            out.push(' ');
        }
        Item::Token { id, is_negated: false } => _ = write!(out, "<[{id}]> "),
        Item::Token { id, is_negated: true } => _ = write!(out, "<[^{id}]> "),
    }
}

fn times(least: usize, most: Option<usize>, out: &mut String) {
    match (least, most) {
        (0, None) => out.push('*'),
        (1, None) => out.push('+'),
        (0, Some(1)) => out.push('?'),
        (least, None) => _ = write!(out, "{{{least},}}"),
        (least, Some(most)) => _ = write!(out, "{{{least},{most}}}"),
    }
}

/// A class of characters as a regex.
fn class(is_negated: bool, ranges: &[(char, char)], out: &mut String) {
    if ranges.is_empty() {
        return out.push_str("(?s:.)");
    }
    out.push_str(if is_negated { "[^" } else { "[" });
    for (first, last) in ranges {
        escaped(*first, out);
        if last > first {
            out.push('-');
            escaped(*last, out);
        }
    }
    out.push(']');
}

/// A character in a regex.
fn escaped(ch: char, out: &mut String) {
    match ch {
        'a'..='z' | 'A'..='Z' | '0'..='9' | ' ' | '_' => out.push(ch),
        ch => _ = write!(out, "\\x{{{:X}}}", ch as u32),
    }
}
