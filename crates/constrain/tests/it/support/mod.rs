//! Models whose vocabularies the tests constrain.

use std::path::Path;

use constrain::{ConstrainError, Constraint, Vocabulary};
use gguf::{File, Source};
use protocol::{Grammar, Token};
use text::{Special, Tokenizer};

pub struct Model {
    pub vocabulary: Vocabulary,
    pub tokenizer: Tokenizer,
}

impl Model {
    pub fn all() -> impl Iterator<Item = Self> {
        let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model/sinew-demo.gguf");
        [demo, fixtures::path("models/llama-spm.gguf")].into_iter().map(|path| {
            let file = File::open(path).unwrap();
            let tokenizer = Tokenizer::from_gguf(file.directory()).unwrap();
            Self { vocabulary: Vocabulary::read(file.directory()).unwrap(), tokenizer }
        })
    }

    pub fn end(&self) -> Token {
        self.tokenizer.end_ids()[0]
    }

    pub fn compile(&self, grammar: &Grammar) -> Constraint {
        self.vocabulary.compile(grammar).unwrap_or_else(|error| panic!("{grammar:?}: {error}"))
    }

    /// The allowed next tokens; the end alone if the answer is complete.
    pub fn allowed(&self, constraint: &mut Constraint) -> Vec<Token> {
        if constraint.is_done() {
            return vec![self.end()];
        }
        let mask = constraint.allowed(&[self.end()]).unwrap();
        let is_set = |token: &Token| mask[*token as usize / 32] >> (token % 32) & 1 == 1;
        (0..self.tokenizer.len() as Token).filter(is_set).collect()
    }

    /// Whether the grammar allows exactly this text.
    pub fn allows(&self, grammar: &Grammar, text: &str) -> bool {
        let mut constraint = self.compile(grammar);
        for token in self.tokenizer.encode(text, Special::Plain, false) {
            if constraint.is_done() || !self.allowed(&mut constraint).contains(&token) {
                return false;
            }
            constraint.take(token).unwrap();
        }
        self.allowed(&mut constraint).contains(&self.end())
    }

    /// Draws random allowed tokens until the answer ends.
    pub fn answer(&self, grammar: &Grammar, seed: u64) -> Vec<Token> {
        let mut constraint = self.compile(grammar);
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut answer = Vec::new();
        while !constraint.is_done() {
            let allowed = tokens(constraint.allowed(&[self.end()]).unwrap());
            let token = allowed[rng.usize(..allowed.len())];
            if token == self.end() {
                break;
            }
            constraint.take(token).unwrap();
            answer.push(token);
            assert!(answer.len() < 2000, "{grammar:?} does not end");
        }
        answer
    }

    pub fn text(&self, answer: &[Token]) -> String {
        let bytes = answer.iter().flat_map(|token| self.tokenizer.token_bytes(*token)).copied();
        String::from_utf8(bytes.collect()).unwrap()
    }

    pub fn refuse(&self, grammar: Grammar) -> ConstrainError {
        match self.vocabulary.compile(&grammar) {
            Err(error) => error,
            Ok(mut constraint) => constraint.allowed(&[self.end()]).unwrap_err(),
        }
    }
}

pub fn tokens(mask: &[u32]) -> Vec<Token> {
    let bits = mask.iter().enumerate().flat_map(|(at, word)| {
        (0..32).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at as Token * 32 + bit)
    });
    bits.collect()
}
