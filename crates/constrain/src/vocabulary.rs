//! The bytes of a model's tokens, in the form that the grammar matcher uses.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gguf::Directory;
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{
    ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie, TokenId,
};
use llguidance::{Matcher, ParserFactory};
use protocol::Grammar;
use serde_json::Value;
use text::Tokenizer;

use crate::{ConstrainError, Constraint};

/// The longest grammar.
pub const GRAMMAR_BYTES_MAX: usize = 256 * 1024;

/// The deepest nesting of brackets: parsers of grammars recurse that deep.
const DEPTH_MAX: usize = 100;

/// The most lexer states of one grammar, of 1 to 2 kB each.
const LEXER_STATES_MAX: usize = 20_000;

/// The most work for a grammar's regular expressions while it is compiled; the largest published
/// schemas take about this much.
const LEXER_FUEL: u64 = 500_000;
/// The most symbols in a grammar's rules; the largest published schemas have 200,000.
const SYMBOLS_MAX: usize = 250_000;

/// A longer token is never allowed: it comes from a broken or hostile file.
const TOKEN_BYTES_MAX: usize = 1024;

/// The vocabulary of one model, for all grammars.
pub struct Vocabulary {
    factory: ParserFactory,
    tokens: usize,
}

impl Vocabulary {
    /// # Errors
    /// The file's vocabulary cannot be read.
    pub fn read(header: &Directory) -> Result<Self, ConstrainError> {
        let error = |error: &dyn ToString| ConstrainError::Vocabulary(error.to_string());
        let tokenizer = Tokenizer::from_gguf(header).map_err(|e| error(&e))?;
        let tokens = tokenizer.len();
        let words = (0..tokens as TokenId).map(|id| word(&tokenizer, id));
        // An artificial end token: the request names the real ones.
        let words: Vec<Vec<u8>> = words.chain([marked(b"<end of answer>")]).collect();
        let trie = TokTrie::from(&TokRxInfo::new(words.len() as u32, tokens as TokenId), &words);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&environment, capabilities, &slices).map_err(|e| error(&e))?;
        *factory.quiet().limits_mut() = ParserLimits {
            max_lexer_states: LEXER_STATES_MAX,
            initial_lexer_fuel: LEXER_FUEL,
            max_grammar_size: SYMBOLS_MAX,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(Self { factory, tokens })
    }

    /// # Errors
    /// The grammar is malformed, unsupported, or too large.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, ConstrainError> {
        let (Grammar::JsonSchema(source) | Grammar::Regex(source) | Grammar::Lark(source)) =
            grammar;
        check_size(source)?;
        let grammar = match grammar {
            Grammar::JsonSchema(schema) => {
                let schema: Value = serde_json::from_str(schema)
                    .map_err(|error| ConstrainError::Grammar(error.to_string()))?;
                TopLevelGrammar::from_json_schema(schema)
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(lark) => TopLevelGrammar::from_lark(lark.clone()),
        };
        let compiled = catch_unwind(AssertUnwindSafe(|| self.factory.create_parser(grammar)));
        let parser = match compiled {
            Ok(Ok(parser)) => parser,
            Ok(Err(error)) => return Err(ConstrainError::Grammar(brief(&error.to_string()))),
            Err(_) => return Err(ConstrainError::Grammar("its compiler gave up".to_owned())),
        };
        Ok(Constraint::new(Matcher::new(Ok(parser)), self.tokens))
    }
}

/// A token's text, or its name after a mark that no text contains.
fn word(tokenizer: &Tokenizer, id: TokenId) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    match bytes.len() {
        0 => Vec::new(),
        TOKEN_BYTES_MAX.. => Vec::new(),
        _ if tokenizer.is_special(id) => marked(bytes),
        _ => bytes.to_vec(),
    }
}

fn marked(name: &[u8]) -> Vec<u8> {
    [&[TokTrie::SPECIAL_TOKEN_MARKER], name].concat()
}

fn check_size(source: &str) -> Result<(), ConstrainError> {
    let bytes = source.len();
    if bytes > GRAMMAR_BYTES_MAX {
        return Err(ConstrainError::TooLong { bytes });
    }
    let (mut open, mut depth) = (0_usize, 0);
    for byte in source.bytes() {
        match byte {
            b'(' | b'[' | b'{' => open += 1,
            b')' | b']' | b'}' => open = open.saturating_sub(1),
            _ => {}
        }
        depth = depth.max(open);
    }
    match depth <= DEPTH_MAX {
        true => Ok(()),
        false => Err(ConstrainError::TooDeep { depth, most: DEPTH_MAX }),
    }
}

/// An error's first line; if that only announces the reason, the line with it. Other lines point
/// into the grammar.
pub(crate) fn brief(error: &str) -> String {
    let mut lines = error.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    match lines.find_map(|line| line.strip_prefix("error: ")).filter(|_| first.ends_with(':')) {
        Some(reason) => format!("{first} {reason}"),
        None => first.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_is_announced_is_told() {
        let of_regex = "regex parse error:\n    [0-9\n    ^\nerror: unclosed character class";
        assert_eq!(brief(of_regex), "regex parse error: unclosed character class");
        assert_eq!(brief("unknown name: \"x\"\n  at line 3"), "unknown name: \"x\"");
        assert_eq!(brief(""), "");
    }
}
