//! Grammars in GBNF, llama.cpp's notation, and in Lark, as custom tools have them, as regexes or as
//! Lark grammars of llguidance.
//!
//! In GBNF, rules consist of characters, and any division of a text counts. llguidance divides a
//! text into terminals first, each as long as possible. So a grammar without recursion becomes one
//! regex, and in any other each terminal is a single character.

mod error;
mod json;
mod lark;
mod parse;
mod write;

use serde_json::{Value, json};

use crate::Tokenizer;
pub use error::GbnfError;
use parse::Rules;

/// The keyword of a schema that has a text's grammar, as a custom tool has it.
pub(crate) const LARK: &str = "x-lark";

/// The longest grammar.
const BYTES_MAX: usize = 256 << 10;

/// The longest grammar of a tool's text, in Lark with a terminal for each character; in JSON some
/// of them are several.
const CHARACTERS_MAX: usize = 32 << 10;

/// A converted grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gbnf {
    Regex(String),
    Lark(String),
}

impl Gbnf {
    /// Converts a grammar; `tokenizer` knows the tokens that it names.
    ///
    /// # Errors
    /// It is malformed or too long, or names a rule or token that is missing.
    pub fn convert(source: &str, tokenizer: &Tokenizer) -> Result<Self, GbnfError> {
        check_size(source)?;
        let token = |name: &str| tokenizer.find_token(name);
        Ok(Self::of(&Rules::parse(source, &token)?))
    }

    /// Converts a grammar of a custom tool, in the part of Lark that OpenAI's tools can have.
    ///
    /// # Errors
    /// It is malformed or too long, has what is not supported, or lacks a rule.
    pub(crate) fn of_lark(source: &str) -> Result<Self, GbnfError> {
        check_size(source)?;
        Ok(Self::of(&lark::parse(source)?))
    }

    /// The JSON schema of the texts of a custom tool's grammar, in the part of Lark that OpenAI's
    /// tools can have.
    ///
    /// # Errors
    /// It is malformed or too long, has what is not supported, or lacks a rule.
    pub fn schema_of_lark(source: &str) -> Result<Value, GbnfError> {
        Ok(match Self::of_lark(source)? {
            Self::Regex(regex) => json!({"type": "string", "pattern": format!("^{regex}$")}),
            Self::Lark(lark) if lark.len() > CHARACTERS_MAX => {
                let bytes = lark.len();
                let why =
                    format!("it has {bytes} bytes by characters; {CHARACTERS_MAX} are the most");
                return Err(GbnfError { line: 1, why });
            }
            Self::Lark(_) => json!({"type": "string", LARK: source}),
        })
    }

    fn of(rules: &Rules) -> Self {
        match write::regex(rules) {
            Some(regex) => Self::Regex(regex),
            None => Self::Lark(write::lark(rules)),
        }
    }
}

/// A string of JSON with a text of a custom tool's grammar, as a Lark grammar.
pub(crate) fn json_of_lark(source: &str) -> Option<String> {
    Some(write::lark(&json::quoted(lark::parse(source).ok()?)?))
}

fn check_size(source: &str) -> Result<(), GbnfError> {
    if source.len() <= BYTES_MAX {
        return Ok(());
    }
    let why = format!("it has {} bytes; {BYTES_MAX} are the most", source.len());
    Err(GbnfError { line: 1, why })
}

#[cfg(test)]
mod tests {
    use regex_automata::meta::Regex;

    use super::*;

    /// The grammar in its new form, for a model with the token 7, `<think>`.
    fn convert(source: &str) -> Result<Gbnf, GbnfError> {
        Ok(Gbnf::of(&Rules::parse(source, &|name| (name == "<think>").then_some(7))?))
    }

    #[test]
    fn rules_without_recursion_become_a_regex() {
        let cases = [
            (r#"root ::= "a"{5,5}"#, "(?:(?:a){5,5})"),
            (r#"root ::= "a" | [b-d] "\n" # a comment"#, r"(?:a|[b-d]\x{A})"),
            (
                "root ::= (\n  x\n  | y)?\nx ::= .\ny ::= [^\"\\\\]*",
                r"(?:(?:(?:(?:(?s:.))|(?:(?:[^\x{22}\x{5C}])*)))?)",
            ),
            ("root ::=\n  | \"a\" |\n \"b\"", "(?:|a|b)"),
            (
                r#"root ::= [a\-z-] "\x41\u00e9\U0001F600\t""#,
                r"(?:[a\x{2D}z\x{2D}]A\x{E9}\x{1F600}\x{9})",
            ),
            (r#"root ::= "a"{2,} "b"{3}"#, "(?:(?:a){2,}(?:b){3,3})"),
        ];
        for (source, regex) in cases {
            assert_eq!(convert(source), Ok(Gbnf::Regex(regex.to_owned())), "{source}");
        }
    }

    #[test]
    fn other_rules_become_a_grammar_of_characters() {
        let cases = [
            ("root ::= \"ab\" root | [0-9]+", "start: \"a\" \"b\" start  | (/[0-9]/ )+ \n"),
            (
                "root ::= <think> t !<[9]>\nt ::= | .",
                "start: <[7]> r1 <[^9]> \nr1: \"\" | /(?s:.)/ \n",
            ),
        ];
        for (source, lark) in cases {
            assert_eq!(convert(source), Ok(Gbnf::Lark(lark.to_owned())), "{source}");
        }
    }

    #[test]
    fn grammars_of_custom_tools() {
        let patch = "start: begin hunk+ end\nbegin: \"*** Begin Patch\" LF\nend: \"*** End\" LF?\n\
                     hunk: \"+\" /(.*)/ LF -> line\n    | \"@@ \" /(.+)/ LF\n\n%import common.LF\n";
        let cases = [
            ("start: /[ab]+/s", vec!["a", "ba"], vec!["", "c"]),
            (
                "?start: A\n     | \"x\"i // end\nA: \"a\"..\"c\" \"\\n\"\n",
                vec!["b\n", "X"],
                vec!["b", "d\n"],
            ),
            ("start: [b] \"c\" -> name\n!b: \"b\" ~ 2..3", vec!["c", "bbc", "bbbc"], vec!["bc"]),
            (
                "%import common (INT, WS -> W)\n%ignore W\nstart: INT \"+\" INT",
                vec!["1+22", " 1 + 2\n"],
                vec!["+", "1 2 + 3"],
            ),
            (
                patch,
                vec!["*** Begin Patch\n+a\n+\n@@ b\n*** End", "*** Begin Patch\n+\n*** End\n"],
                vec!["*** Begin Patch\n*** End", "*** Begin Patch\n@@ \n*** End"],
            ),
        ];
        for (source, good, bad) in cases {
            let Ok(Gbnf::Regex(regex)) = Gbnf::of_lark(source) else { panic!("{source}") };
            let regex = Regex::new(&format!("\\A(?:{regex})\\z")).unwrap();
            good.iter().for_each(|text| assert!(regex.is_match(text), "{source}: {text:?}"));
            bad.iter().for_each(|text| assert!(!regex.is_match(text), "{source}: {text:?}"));
        }
        let nested = "start: \"(\" start \")\" |";
        let lark = "start: \"(\" start \")\"  | \"\"\n".to_owned();
        assert_eq!(Gbnf::of_lark(nested), Ok(Gbnf::Lark(lark)));
        let nested = "start: /[!-$]/ start | \"\\n\\\"\"";
        assert_eq!(
            json_of_lark(nested).unwrap(),
            "start: \"\\\"\" r1 \"\\\"\" \nr1: (\"\\\\\" \"\\\"\"  | /[\\x{21}\\x{23}-\\x{24}]/ ) r1  \
             | \"\\\\\" \"n\" \"\\\\\" \"\\\"\" \n"
        );
    }

    #[test]
    fn what_is_no_grammar_of_a_tool_is_refused_with_its_line() {
        let cases = [
            ("start: a\n\na: b", 3, "no rule \"b\""),
            ("a: \"b\"", 1, "no rule \"start\""),
            ("start: \"a\"\nA.2: \"b\"", 2, "priorities"),
            ("start: t{\"a\"}\n", 1, "number"),
            ("t{x}: x\n", 1, "templates"),
            ("%declare A", 1, "%declare"),
            ("%import python.NAME", 1, "common"),
            ("%import common.NOPE", 1, "NOPE"),
            ("start: \"a\"\n  | /(?=b)c/", 2, "look-around"),
            ("start: /\\bx/", 1, "stands around it"),
            ("start: /a", 1, "does not end"),
            ("start: \"a", 1, "does not end"),
            ("start: <[7]>", 1, "not supported"),
            ("start: %json {}", 1, "not supported"),
            ("start: (\"a\"", 1, "is expected"),
            ("start: \"a\" )", 1, "not expected"),
            ("start: \"b\"..\"a\"", 1, "no range"),
            ("start: \"a\"\nstart: \"b\"", 2, "second time"),
            ("start \"a\"", 1, "is expected"),
        ];
        for (source, line, why) in cases {
            let error = Gbnf::of_lark(source).expect_err(source);
            assert!(error.line == line && error.why.contains(why), "{source}: {error}");
        }
        for hostile in ["(", "[", "\"a\"*"] {
            assert!(Gbnf::of_lark(&format!("start: {}", hostile.repeat(100_000))).is_err());
        }
        let long = format!("start: \"{}\" start?", "a".repeat(10_000));
        let error = Gbnf::schema_of_lark(&long).unwrap_err();
        assert!(error.why.contains("32768 are the most"), "{error}");
        let stars = format!("start: \"a\"{}", "*".repeat(100_000));
        assert!(Gbnf::of_lark(&stars).is_err());
    }

    #[test]
    fn what_is_no_grammar_is_refused_with_its_line() {
        let cases = [
            ("root ::= this is (not valid GBNF", 1, "\")\" is expected"),
            ("root ::= \"a\"\n\nb :: \"c\"", 3, "\"::=\" is expected"),
            ("root ::= a\na ::= b", 2, "no rule \"b\""),
            ("a ::= \"b\"", 1, "no rule \"root\""),
            ("", 1, "no rule \"root\""),
            ("root ::= \"a", 1, "does not end"),
            ("root ::= \"\\q\"", 1, "escape"),
            ("root ::= [z-a]", 1, "empty"),
            ("root ::= [", 1, "does not end"),
            ("root ::= []", 1, "matches nothing"),
            ("root ::= \"a\"{3,2}", 1, "empty"),
            ("root ::= \"a\"{9999}", 1, "2000"),
            ("root ::= \"a\" )", 1, "not expected"),
            ("root ::= <nope>", 1, "no token <nope>"),
            ("root ::= <[nope", 1, "does not end"),
            ("root ::= \"\\uD800\"", 1, "hexadecimal"),
            ("=", 1, "a rule's name"),
        ];
        for (source, line, why) in cases {
            let error = convert(source).expect_err(source);
            assert!(error.line == line && error.why.contains(why), "{source}: {error}");
        }
    }

    #[test]
    fn hostile_grammars_end() {
        let chain = |count: usize| {
            let rules = (0..count).map(|at| format!("r{at} ::= r{}\n", at + 1));
            let rules: String = rules.collect();
            format!("root ::= r0\n{rules}r{count} ::= \"a\"")
        };
        assert!(matches!(convert(&chain(10)), Ok(Gbnf::Regex(_))));
        assert!(matches!(convert(&chain(9000)), Ok(Gbnf::Lark(_))));
        let doubling: String = (0..40).map(|at| format!("r{at} ::= r{0} r{0}\n", at + 1)).collect();
        let doubling = format!("root ::= r0\n{doubling}r40 ::= \"a\"");
        assert!(matches!(convert(&doubling), Ok(Gbnf::Lark(_))));
        assert!(convert(&format!("root ::= {}", "(".repeat(100_000))).is_err());
        assert!(convert(&format!("root ::= \"a\"{}", "*".repeat(100_000))).is_err());
    }
}
