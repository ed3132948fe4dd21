//! Grammars in GBNF, llama.cpp's notation, as regexes or as Lark grammars of llguidance.
//!
//! In GBNF, rules consist of characters, and any division of a text counts. llguidance divides a
//! text into terminals first, each as long as possible. So a grammar without recursion becomes one
//! regex, and in any other each terminal is a single character.

mod parse;
mod write;

use crate::Tokenizer;
use parse::Rules;

/// The longest grammar.
const BYTES_MAX: usize = 256 << 10;

/// A converted grammar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Gbnf {
    Regex(String),
    Lark(String),
}

/// Why a grammar cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct GbnfError {
    /// From 1.
    pub line: usize,
    pub why: String,
}

impl Gbnf {
    /// Converts a grammar; `tokenizer` knows the tokens that it names.
    ///
    /// # Errors
    /// It is malformed or too long, or names a rule or token that is missing.
    pub fn convert(source: &str, tokenizer: &Tokenizer) -> Result<Self, GbnfError> {
        if source.len() > BYTES_MAX {
            let why = format!("it has {} bytes; {BYTES_MAX} are the most", source.len());
            return Err(GbnfError { line: 1, why });
        }
        let token = |name: &str| tokenizer.find_token(name);
        let rules = Rules::parse(source, &token)?;
        Ok(match write::regex(&rules) {
            Some(regex) => Self::Regex(regex),
            None => Self::Lark(write::lark(&rules)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The grammar in its new form, for a model with the token 7, `<think>`.
    fn convert(source: &str) -> Result<Gbnf, GbnfError> {
        let rules = Rules::parse(source, &|name| (name == "<think>").then_some(7))?;
        Ok(match write::regex(&rules) {
            Some(regex) => Gbnf::Regex(regex),
            None => Gbnf::Lark(write::lark(&rules)),
        })
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
