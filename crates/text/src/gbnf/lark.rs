//! Grammars in Lark, as custom tools have them, as rules of characters.
//!
//! What OpenAI's tools can have: rules, terminals, regular expressions, `%ignore`, and imports of
//! the common terminals. Any division of a text into terminals counts.

use regex_syntax::ParserBuilder;
use regex_syntax::hir::{Class, Hir, HirKind};

use super::error::GbnfError;
use super::parse::{Choice, DEPTH_MAX, Item, Parser, Rules};

/// The terminals that can be imported, of Lark's own grammar `common`.
const COMMON: &[(&str, &str)] = &[
    ("CNAME", "[_A-Za-z][_A-Za-z0-9]*"),
    ("CPP_COMMENT", "//[^\n]*"),
    ("CR", "\r"),
    ("C_COMMENT", r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/"),
    ("DECIMAL", r"[0-9]+\.[0-9]*|\.[0-9]+"),
    ("DIGIT", "[0-9]"),
    ("ESCAPED_STRING", r#""(?:[^"\\]|\\.)*""#),
    ("FLOAT", r"(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"),
    ("HEXDIGIT", "[a-fA-F0-9]"),
    ("INT", "[0-9]+"),
    ("LCASE_LETTER", "[a-z]"),
    ("LETTER", "[A-Za-z]"),
    ("LF", "\n"),
    ("NEWLINE", "(?:\r?\n)+"),
    ("NUMBER", r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SH_COMMENT", "#[^\n]*"),
    (
        "SIGNED_FLOAT",
        r"[+-]?(?:(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+)",
    ),
    ("SIGNED_INT", "[+-]?[0-9]+"),
    ("SIGNED_NUMBER", r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"),
    ("SQL_COMMENT", "--[^\n]*"),
    ("UCASE_LETTER", "[A-Z]"),
    ("WORD", "[A-Za-z]+"),
    ("WS", "[ \t\x0c\r\n]+"),
    ("WS_INLINE", "[ \t]+"),
];

/// What is left out between terminals; no grammar can have a rule of this name.
const IGNORED: &str = "%ignore";

/// # Errors
/// The grammar is malformed, has what is not supported, or lacks a rule.
pub(super) fn parse(source: &str) -> Result<Rules, GbnfError> {
    let mut parser = Parser::new(source, &|_| None);
    parser.rule_number("start");
    let has_ignored = source.contains(IGNORED);
    let mut lark = Lark { parser, ignored: Vec::new(), has_ignored, is_terminal: false };
    lark.blank(true);
    while !lark.parser.rest.is_empty() {
        lark.statement()?;
        lark.blank(true);
    }
    let Lark { mut parser, ignored, .. } = lark;
    if has_ignored {
        let number = parser.rule_number(IGNORED);
        let ignored = Item::Repeat { item: Box::new(Item::Group(ignored)), least: 0, most: None };
        parser.rules[number] = Some(vec![vec![ignored]]);
        if let Some(Some(start)) = parser.rules.first_mut() {
            start.iter_mut().for_each(|sequence| sequence.insert(0, Item::Rule(number)));
        }
    }
    parser.finish()
}

struct Lark<'s> {
    parser: Parser<'s>,
    ignored: Choice,
    has_ignored: bool,
    /// Whether a terminal is read: what is ignored does not stand between its parts.
    is_terminal: bool,
}

impl<'s> Lark<'s> {
    fn error<T>(&self, why: impl Into<String>) -> Result<T, GbnfError> {
        self.parser.error(why)
    }

    fn next(&self) -> Option<char> {
        self.parser.rest.chars().next()
    }

    /// Skips white space and comments; `lines`: over the ends of lines too.
    fn blank(&mut self, lines: bool) {
        loop {
            let rest = self.parser.rest;
            match self.next() {
                Some(' ' | '\t') => _ = self.parser.take(),
                Some('\r' | '\n') if lines => _ = self.parser.take(),
                Some('#') => self.parser.rest = &rest[rest.find('\n').unwrap_or(rest.len())..],
                Some('/') if rest.starts_with("//") => {
                    self.parser.rest = &rest[rest.find('\n').unwrap_or(rest.len())..];
                }
                _ => return,
            }
        }
    }

    fn name(&mut self) -> Option<&'s str> {
        let is_name = |ch: char| ch.is_ascii_alphanumeric() || ch == '_';
        let rest = self.parser.rest;
        let end = rest.find(|ch| !is_name(ch)).unwrap_or(rest.len());
        self.parser.rest = &rest[end..];
        (end > 0).then(|| &rest[..end])
    }

    fn expect(&mut self, mark: &str) -> Result<(), GbnfError> {
        self.blank(false);
        match self.parser.eat(mark) {
            true => Ok(()),
            false => self.error(format!("{mark:?} is expected, and {} found", self.parser.found())),
        }
    }

    fn statement(&mut self) -> Result<(), GbnfError> {
        if self.parser.eat("%") {
            return match self.name().unwrap_or_default() {
                "ignore" => {
                    self.is_terminal = true;
                    let choice = self.choice(false)?;
                    self.ignored.extend(choice);
                    self.end()
                }
                "import" => self.import(),
                word => self.error(format!("%{word} is not supported; %ignore and %import are")),
            };
        }
        let _ = self.parser.eat("?") || self.parser.eat("!");
        let Some(name) = self.name() else {
            let found = self.parser.found();
            return self.error(format!("a rule's name is expected, and {found} found"));
        };
        match self.next() {
            Some('.') => return self.error("priorities are not supported. Leave them out"),
            Some('{') => return self.error("templates are not supported. Write the rules out"),
            _ => {}
        }
        self.expect(":")?;
        let number = self.parser.rule_number(name);
        if self.parser.rules[number].is_some() {
            return self.error(format!("{name} is defined a second time"));
        }
        self.is_terminal = name.starts_with(|ch: char| ch == '_' || ch.is_ascii_uppercase())
            && !name.chars().any(|ch| ch.is_ascii_lowercase());
        let choice = self.choice(false)?;
        self.parser.rules[number] = Some(choice);
        self.end()
    }

    fn end(&mut self) -> Result<(), GbnfError> {
        self.blank(false);
        match self.next() {
            None | Some('\r' | '\n') => Ok(()),
            Some(_) => self.error(format!("{} is not expected", self.parser.found())),
        }
    }

    /// `common.NAME`, `common.NAME -> OTHER`, or `common (NAME, NAME)`.
    fn import(&mut self) -> Result<(), GbnfError> {
        self.blank(false);
        let from = self.name().unwrap_or_default();
        if from != "common" {
            return self.error("only terminals of common can be imported");
        }
        self.blank(false);
        let is_list = self.parser.eat("(");
        if !is_list {
            self.expect(".")?;
        }
        loop {
            self.blank(is_list);
            let name = self.name().unwrap_or_default();
            let Some((_, regex)) = COMMON.iter().find(|(known, _)| *known == name) else {
                return self.error(format!("common has no terminal {name:?}"));
            };
            self.blank(false);
            let other = if self.parser.eat("->") {
                self.blank(false);
                self.name().unwrap_or(name)
            } else {
                name
            };
            let number = self.parser.rule_number(other);
            self.parser.rules[number] = Some(vec![self.regex(regex, "")?]);
            self.blank(is_list);
            if !is_list {
                return self.end();
            }
            if !self.parser.eat(",") {
                self.expect(")")?;
                return self.end();
            }
        }
    }

    fn choice(&mut self, is_nested: bool) -> Result<Choice, GbnfError> {
        let mut choice = vec![self.sequence(is_nested)?];
        loop {
            // An alternative may begin the next line.
            let before = (self.parser.rest, self.parser.line);
            self.blank(true);
            if !self.parser.eat("|") {
                if !is_nested {
                    (self.parser.rest, self.parser.line) = before;
                }
                return Ok(choice);
            }
            choice.push(self.sequence(is_nested)?);
        }
    }

    fn sequence(&mut self, is_nested: bool) -> Result<Vec<Item>, GbnfError> {
        let mut items = Vec::new();
        loop {
            self.blank(is_nested);
            if self.parser.eat("->") {
                self.blank(false);
                self.name();
                return Ok(items);
            }
            let Some(item) = self.item()? else { return Ok(items) };
            items.push(self.repeated(item)?);
        }
    }

    fn item(&mut self) -> Result<Option<Item>, GbnfError> {
        let mut terminal = match self.next() {
            Some('"') => self.text()?,
            Some('/') => self.slashed()?,
            Some(open @ ('(' | '[')) => {
                self.parser.take();
                self.parser.depth += 1;
                if self.parser.depth > DEPTH_MAX {
                    return self.error(format!("groups are nested over {DEPTH_MAX} deep"));
                }
                let group = Item::Group(self.choice(true)?);
                self.parser.depth -= 1;
                self.expect(if open == '(' { ")" } else { "]" })?;
                let maybe = |item| Item::Repeat { item: Box::new(item), least: 0, most: Some(1) };
                return Ok(Some(if open == '(' { group } else { maybe(group) }));
            }
            Some(ch) if ch.is_ascii_alphabetic() || ch == '_' => {
                let name = self.name().unwrap_or_default();
                let item = Item::Rule(self.parser.rule_number(name));
                if name.chars().any(|ch| ch.is_ascii_lowercase()) {
                    return Ok(Some(item));
                }
                vec![item]
            }
            Some(ch @ ('<' | '@' | '&' | '%' | '{')) => {
                return self.error(format!("{ch:?} is not supported here"));
            }
            _ => return Ok(None),
        };
        if self.has_ignored && !self.is_terminal {
            terminal.push(Item::Rule(self.parser.rule_number(IGNORED)));
        }
        Ok(Some(match terminal.len() {
            1 => terminal.remove(0),
            _ => Item::Group(vec![terminal]),
        }))
    }

    /// `*`, `+`, `?`, `~ 3`, `~ 3..5` and `{3,5}`.
    fn repeated(&mut self, mut item: Item) -> Result<Item, GbnfError> {
        for _ in 0..DEPTH_MAX {
            self.blank(false);
            let parser = &mut self.parser;
            let (least, most) = if parser.eat("*") {
                (0, None)
            } else if parser.eat("+") {
                (1, None)
            } else if parser.eat("?") {
                (0, Some(1))
            } else if parser.eat("{") {
                parser.bounds()?
            } else if parser.eat("~") {
                self.blank(false);
                let least = self.parser.number()?;
                self.blank(false);
                let is_range = self.parser.eat("..");
                self.blank(false);
                let most = if is_range { self.parser.number()? } else { least };
                if most < least {
                    return self.error(format!("{least}..{most} is empty"));
                }
                (least, Some(most))
            } else {
                return Ok(item);
            };
            item = Item::Repeat { item: Box::new(item), least, most };
        }
        self.error(format!("over {DEPTH_MAX} repetitions follow each other"))
    }

    /// A text, or a range of two characters.
    fn text(&mut self) -> Result<Vec<Item>, GbnfError> {
        let text = self.quoted()?;
        if self.parser.eat("i") {
            return self.regex(&regex_syntax::escape(&text), "i");
        }
        let before = (self.parser.rest, self.parser.line);
        self.blank(false);
        if !self.parser.eat("..") {
            (self.parser.rest, self.parser.line) = before;
            return Ok(vec![Item::Literal(text)]);
        }
        self.blank(false);
        let last = self.quoted()?;
        let one = |text: &str| Some(text.chars().next()?).filter(|_| text.chars().count() == 1);
        match (one(&text), one(&last)) {
            (Some(first), Some(last)) if first <= last => {
                Ok(vec![Item::Class { is_negated: false, ranges: vec![(first, last)] }])
            }
            _ => self.error(format!("{text:?}..{last:?} is no range of characters")),
        }
    }

    fn quoted(&mut self) -> Result<String, GbnfError> {
        self.expect("\"")?;
        let mut text = String::new();
        while !self.parser.eat("\"") {
            if self.next().is_none_or(|ch| ch == '\n') {
                return self.error("a text does not end");
            }
            text.push(self.parser.character()?);
        }
        Ok(text)
    }

    fn slashed(&mut self) -> Result<Vec<Item>, GbnfError> {
        self.parser.take();
        let mut regex = String::new();
        loop {
            match self.parser.take() {
                None | Some('\n') => return self.error("a regular expression does not end"),
                Some('/') => break,
                Some('\\') => regex.extend(['\\'].into_iter().chain(self.parser.take())),
                Some(ch) => regex.push(ch),
            }
        }
        let rest = self.parser.rest;
        let flags = &rest[..rest.len() - rest.trim_start_matches(|ch| "imslux".contains(ch)).len()];
        self.parser.rest = &rest[flags.len()..];
        self.regex(&regex, flags)
    }

    fn regex(&self, regex: &str, flags: &str) -> Result<Vec<Item>, GbnfError> {
        let has = |flag| flags.contains(flag);
        let mut builder = ParserBuilder::new();
        builder.nest_limit(DEPTH_MAX as u32).case_insensitive(has('i')).multi_line(has('m'));
        builder.dot_matches_new_line(has('s')).ignore_whitespace(has('x'));
        let line = self.parser.line;
        let wrong = |why: String| GbnfError { line, why: format!("/{regex}/ {why}") };
        let hir = builder.build().parse(regex).map_err(|error| {
            let why = match &error {
                regex_syntax::Error::Parse(error) => error.kind().to_string(),
                error => error.to_string(),
            };
            wrong(format!("cannot be used: {why}"))
        })?;
        let mut items = Vec::new();
        add(&hir, &mut items).map_err(|why| wrong(why.to_owned()))?;
        Ok(items)
    }
}

/// Adds an expression to a sequence.
fn add(hir: &Hir, items: &mut Vec<Item>) -> Result<(), &'static str> {
    let group = |parts: &[&Hir]| -> Result<Item, &'static str> {
        let mut choice = Vec::new();
        for part in parts {
            let mut sequence = Vec::new();
            add(part, &mut sequence)?;
            choice.push(sequence);
        }
        Ok(Item::Group(choice))
    };
    match hir.kind() {
        HirKind::Empty => {}
        HirKind::Literal(literal) => {
            let text = std::str::from_utf8(&literal.0).map_err(|_| "matches half a character")?;
            items.push(Item::Literal(text.to_owned()));
        }
        HirKind::Class(Class::Unicode(class)) if !class.ranges().is_empty() => {
            let ranges = class.ranges().iter().map(|range| (range.start(), range.end()));
            let ranges: Vec<(char, char)> = ranges.collect();
            items.push(match ranges[..] {
                [('\0', char::MAX)] => Item::Any,
                _ => Item::Class { is_negated: false, ranges },
            });
        }
        HirKind::Class(_) => return Err("has a class that matches no character"),
        HirKind::Look(_) => return Err("looks at what stands around it, which is not supported"),
        HirKind::Repetition(repetition) => items.push(Item::Repeat {
            item: Box::new(match group(&[&repetition.sub])? {
                Item::Group(mut choice) if choice.len() == 1 && choice[0].len() == 1 => {
                    choice.remove(0).remove(0)
                }
                group => group,
            }),
            least: repetition.min as usize,
            most: repetition.max.map(|most| most as usize),
        }),
        HirKind::Capture(capture) => items.push(group(&[&capture.sub])?),
        HirKind::Concat(parts) => parts.iter().try_for_each(|part| add(part, items))?,
        HirKind::Alternation(parts) => items.push(group(&parts.iter().collect::<Vec<_>>())?),
    }
    Ok(())
}
