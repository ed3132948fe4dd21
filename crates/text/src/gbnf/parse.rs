use std::collections::HashMap;

use super::error::GbnfError;

/// The deepest nesting of groups; the parser recurses that deep.
pub(super) const DEPTH_MAX: usize = 50;
/// The most repetitions that a number may ask for, as in llama.cpp.
const REPEATS_MAX: usize = 2000;

/// The rules of a grammar; the first is `root`.
#[derive(Debug)]
pub(super) struct Rules(pub Vec<Choice>);

/// The alternatives of a rule or a group, each a sequence.
pub(super) type Choice = Vec<Vec<Item>>;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    Literal(String),
    Class {
        is_negated: bool,
        ranges: Vec<(char, char)>,
    },
    /// Any character.
    Any,
    Rule(usize),
    Group(Choice),
    /// At least `least` times, and at most `most` times.
    Repeat {
        item: Box<Item>,
        least: usize,
        most: Option<usize>,
    },
    Token {
        id: u32,
        is_negated: bool,
    },
}

impl Rules {
    /// # Errors
    /// The source is malformed, or a rule or token that it names is missing.
    pub fn parse(source: &str, token: &dyn Fn(&str) -> Option<u32>) -> Result<Self, GbnfError> {
        let mut parser = Parser::new(source, token);
        parser.rule_number("root");
        parser.skip(true);
        while !parser.rest.is_empty() {
            parser.rule()?;
            parser.skip(true);
        }
        parser.finish()
    }
}

/// A rule's number, and the line where its name stands first.
struct Known {
    number: usize,
    line: usize,
}

pub(super) struct Parser<'s> {
    pub(super) rest: &'s str,
    pub(super) line: usize,
    pub(super) depth: usize,
    token: &'s dyn Fn(&str) -> Option<u32>,
    names: HashMap<&'s str, Known>,
    pub(super) rules: Vec<Option<Choice>>,
}

impl<'s> Parser<'s> {
    pub(super) fn new(source: &'s str, token: &'s dyn Fn(&str) -> Option<u32>) -> Self {
        let (names, rules) = Default::default();
        Self { rest: source, line: 1, depth: 0, token, names, rules }
    }

    /// The rules, once all are read.
    pub(super) fn finish(self) -> Result<Rules, GbnfError> {
        let missing = self.names.iter().filter(|(_, known)| self.rules[known.number].is_none());
        if let Some((name, known)) = missing.min_by_key(|(_, known)| known.line) {
            let why = format!("there is no rule \"{name}\". Add one");
            return Err(GbnfError { line: known.line, why });
        }
        Ok(Rules(self.rules.into_iter().flatten().collect()))
    }

    pub(super) fn error<T>(&self, why: impl Into<String>) -> Result<T, GbnfError> {
        Err(GbnfError { line: self.line, why: why.into() })
    }

    /// What comes next, for a message.
    pub(super) fn found(&self) -> String {
        match self.rest.chars().next() {
            None => "the end".to_owned(),
            Some(next) => format!("{next:?}"),
        }
    }

    pub(super) fn take(&mut self) -> Option<char> {
        let next = self.rest.chars().next()?;
        self.rest = &self.rest[next.len_utf8()..];
        self.line += usize::from(next == '\n');
        Some(next)
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let rest = self.rest.strip_prefix(text);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips white space and comments; `lines`: over the ends of lines too.
    fn skip(&mut self, lines: bool) {
        loop {
            match self.rest.chars().next() {
                Some(' ' | '\t') => _ = self.take(),
                Some('\r' | '\n') if lines => _ = self.take(),
                Some('#') => {
                    let end = self.rest.find(['\r', '\n']).unwrap_or(self.rest.len());
                    self.rest = &self.rest[end..];
                }
                _ => return,
            }
        }
    }

    pub(super) fn rule_number(&mut self, name: &'s str) -> usize {
        let (number, line) = (self.rules.len(), self.line);
        let known = self.names.entry(name).or_insert(Known { number, line });
        if known.number == number {
            self.rules.push(None);
        }
        known.number
    }

    fn name(&mut self) -> Option<&'s str> {
        let is_name = |ch: char| ch.is_ascii_alphanumeric() || ch == '-' || ch == '_';
        let end = self.rest.find(|ch| !is_name(ch)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn rule(&mut self) -> Result<(), GbnfError> {
        let Some(name) = self.name() else {
            return self.error(format!("a rule's name is expected, and {} found", self.found()));
        };
        self.skip(false);
        if !self.eat("::=") {
            return self.error(format!("\"::=\" is expected after \"{name}\""));
        }
        let number = self.rule_number(name);
        self.skip(true);
        let choice = self.choice(false)?;
        self.rules[number] = Some(choice);
        match self.rest.chars().next() {
            None | Some('\r' | '\n') => Ok(()),
            Some(_) => self.error(format!("{} is not expected", self.found())),
        }
    }

    fn choice(&mut self, is_nested: bool) -> Result<Choice, GbnfError> {
        let mut choice = vec![self.sequence(is_nested)?];
        while self.eat("|") {
            self.skip(true);
            choice.push(self.sequence(is_nested)?);
        }
        Ok(choice)
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Vec<Item>, GbnfError> {
        let mut items = Vec::new();
        while let Some(item) = self.item()? {
            items.push(self.repeated(item)?);
            self.skip(is_nested);
        }
        Ok(items)
    }

    fn item(&mut self) -> Result<Option<Item>, GbnfError> {
        let is_negated = self.rest.starts_with("!<");
        if self.eat("\"") {
            let mut literal = String::new();
            while !self.eat("\"") {
                literal.push(self.character()?);
            }
            return Ok(Some(Item::Literal(literal)));
        } else if self.eat("[") {
            return self.class().map(Some);
        } else if self.eat("(") {
            self.depth += 1;
            if self.depth > DEPTH_MAX {
                return self.error(format!("groups are nested over {DEPTH_MAX} deep"));
            }
            self.skip(true);
            let choice = self.choice(true)?;
            self.depth -= 1;
            if !self.eat(")") {
                return self.error(format!("\")\" is expected, and {} found", self.found()));
            }
            return Ok(Some(Item::Group(choice)));
        } else if self.eat(".") {
            return Ok(Some(Item::Any));
        } else if is_negated || self.rest.starts_with('<') {
            return self.token_item(is_negated).map(Some);
        }
        // The name of the next rule is not a part of this one.
        let name = self.name();
        Ok(name.map(|name| Item::Rule(self.rule_number(name))))
    }

    fn repeated(&mut self, item: Item) -> Result<Item, GbnfError> {
        let repeat = |item, least, most| Item::Repeat { item: Box::new(item), least, most };
        let mut item = item;
        for _ in 0..DEPTH_MAX {
            self.skip(false);
            item = if self.eat("*") {
                repeat(item, 0, None)
            } else if self.eat("+") {
                repeat(item, 1, None)
            } else if self.eat("?") {
                repeat(item, 0, Some(1))
            } else if self.eat("{") {
                let (least, most) = self.bounds()?;
                repeat(item, least, most)
            } else {
                return Ok(item);
            };
        }
        self.error(format!("over {DEPTH_MAX} repetitions follow each other"))
    }

    /// The numbers of `{m}`, `{m,}` and `{m,n}`, after the brace.
    pub(super) fn bounds(&mut self) -> Result<(usize, Option<usize>), GbnfError> {
        self.skip(false);
        let least = self.number()?;
        self.skip(false);
        let most = if self.eat(",") {
            self.skip(false);
            if self.rest.starts_with('}') { None } else { Some(self.number()?) }
        } else {
            Some(least)
        };
        self.skip(false);
        if !self.eat("}") {
            return self.error(format!("\"}}\" is expected, and {} found", self.found()));
        }
        match most {
            Some(most) if most < least => self.error(format!("{{{least},{most}}} is empty")),
            most => Ok((least, most)),
        }
    }

    pub(super) fn number(&mut self) -> Result<usize, GbnfError> {
        let end = self.rest.find(|ch: char| !ch.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        match digits.parse() {
            Ok(number) if number <= REPEATS_MAX => Ok(number),
            _ => self.error(format!("a number up to {REPEATS_MAX} is expected in the braces")),
        }
    }

    /// A class of characters, after the bracket.
    fn class(&mut self) -> Result<Item, GbnfError> {
        let is_negated = self.eat("^");
        let mut ranges = Vec::new();
        while !self.eat("]") {
            let first = self.character()?;
            let last = if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.take();
                self.character()?
            } else {
                first
            };
            if last < first {
                return self.error(format!("the range {first:?} to {last:?} is empty"));
            }
            ranges.push((first, last));
        }
        if ranges.is_empty() && !is_negated {
            return self.error("a class without characters matches nothing");
        }
        Ok(Item::Class { is_negated, ranges })
    }

    /// A character of a literal or a class.
    pub(super) fn character(&mut self) -> Result<char, GbnfError> {
        let Some(ch) = self.take() else {
            return self.error("a literal or a class does not end");
        };
        if ch != '\\' {
            return Ok(ch);
        }
        let escaped = self.take();
        let digits = match escaped {
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('n') => return Ok('\n'),
            Some('f') => return Ok('\u{c}'),
            Some(ch @ ('\\' | '"' | '\'' | '/' | '[' | ']' | '-' | '^')) => return Ok(ch),
            _ => return self.error("an escape is unknown"),
        };
        let code = self.rest.get(..digits).and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let Some(ch) = code.and_then(char::from_u32) else {
            return self.error(format!("{digits} hexadecimal digits of a character are expected"));
        };
        self.rest = &self.rest[digits..];
        Ok(ch)
    }

    /// `<[7]>`, `<name>`, or one of them after `!`.
    fn token_item(&mut self, is_negated: bool) -> Result<Item, GbnfError> {
        let named = &self.rest[usize::from(is_negated)..];
        let Some(end) = named.find('>') else {
            return self.error("a token does not end with \">\"");
        };
        let name = &named[..=end];
        let number = name.strip_prefix("<[").and_then(|name| name.strip_suffix("]>"));
        let id = match number {
            Some(number) => number.parse().ok(),
            None => (self.token)(name),
        };
        let Some(id) = id else {
            return self.error(format!("the model has no token {name}"));
        };
        self.rest = &named[end + 1..];
        Ok(Item::Token { id, is_negated })
    }
}
