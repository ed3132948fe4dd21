//! Prompts of a given number of tokens, for a tokenizer that only the server knows.
//!
//! Two requests of different lengths show the tokens of a word and the tokens that the server adds
//! around a prompt; the exact count of each measured prompt comes with its answer.

use super::args::ServeArgs;
use crate::error::Error;

use super::server::Server;

/// Common words: of one token each in most vocabularies.
const WORDS: &str = "time year people way day man thing woman life child world school state family \
    student group country problem hand part place case week company system program question work \
    government number night point home water room mother area money story fact month lot right \
    study book eye job word business issue side kind head house service friend father power hour \
    game line end member law car city name team minute idea body information back parent face \
    others level office door health person art war history party result change morning reason \
    research girl guy moment air teacher force education foot boy age policy music market sense \
    nation plan college interest death experience effect use class control field development role \
    effort rate heart drug show leader light voice wife police mind price report decision son view \
    relationship town road arm difference value building action season society tax director";

/// Words of the two calibration requests.
const FEW: usize = 8;
const MANY: usize = 40;

/// The seed's sequences of words, by purpose.
const SHARED: u64 = 0;
const MEASURED: u64 = 1;
const WARMUP: u64 = 2;
const CALIBRATION: u64 = 3;

pub struct Prompts {
    words: Vec<&'static str>,
    seed: u64,
    shared_words: usize,
    own_words: usize,
}

impl Prompts {
    /// Calibrates the server's count of tokens.
    ///
    /// # Errors
    /// The server does not answer, or prompts cannot be as short as requested.
    pub fn measure(server: &Server, args: &ServeArgs) -> Result<Self, Error> {
        let mut prompts = Self {
            words: WORDS.split_whitespace().collect(),
            seed: args.seed,
            shared_words: 0,
            own_words: 0,
        };
        let tokens = |words| -> Result<Option<usize>, Error> {
            let text = prompts.text(CALIBRATION, words as u64, words);
            Ok(server.ask(&text, 1).map_err(Error::Failed)?.prompt_tokens)
        };
        let scale = match (tokens(FEW)?, tokens(MANY)?) {
            (Some(few), Some(many)) if many > few => Scale::new(few, many),
            // A server that does not count: a word is about a token.
            _ => Scale { around: 0.0, per_word: 1.0 },
        };
        let shared = args.shared_prefix_tokens as f64 / scale.per_word;
        let all = (args.input_tokens as f64 - scale.around) / scale.per_word;
        if all < 1.0 {
            let text = format!(
                "--input-tokens {}: this server adds {:.0} tokens around each prompt, and one \
                 word more is the least",
                args.input_tokens, scale.around
            );
            return Err(Error::Usage(text));
        }
        prompts.shared_words = shared.round() as usize;
        prompts.own_words = (all - shared).round().max(1.0) as usize;
        Ok(prompts)
    }

    /// The prompt of a measured request.
    pub fn measured(&self, number: usize) -> String {
        self.prompt(MEASURED, number)
    }

    /// The prompt of a warm-up request.
    pub fn warmup(&self, number: usize) -> String {
        self.prompt(WARMUP, number)
    }

    fn prompt(&self, kind: u64, number: usize) -> String {
        let own = self.text(kind, number as u64, self.own_words);
        match self.shared_words {
            0 => own,
            words => format!("{} {own}", self.text(SHARED, 0, words)),
        }
    }

    fn text(&self, kind: u64, number: u64, words: usize) -> String {
        let mut random = fastrand::Rng::with_seed(self.seed ^ (kind << 62) ^ (number << 20));
        let word = |_| self.words[random.usize(..self.words.len())];
        (0..words).map(word).collect::<Vec<_>>().join(" ")
    }
}

/// Tokens of a prompt: `around + per_word * words`.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Scale {
    around: f64,
    per_word: f64,
}

impl Scale {
    fn new(few: usize, many: usize) -> Self {
        let per_word = (many - few) as f64 / (MANY - FEW) as f64;
        Self { around: (few as f64 - FEW as f64 * per_word).max(0.0), per_word }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn two_lengths_tell_what_a_word_costs() {
        assert_eq!(Scale::new(22, 54), Scale { around: 14.0, per_word: 1.0 });
        assert_eq!(Scale::new(18, 82), Scale { around: 2.0, per_word: 2.0 });
    }

    #[test]
    fn prompts_share_their_start_and_nothing_else() {
        let words = WORDS.split_whitespace().collect();
        let prompts = Prompts { words, seed: 1, shared_words: 8, own_words: 8 };
        let all: Vec<String> =
            (0..50).flat_map(|n| [prompts.measured(n), prompts.warmup(n)]).collect();
        let halves = |text: &String| {
            let words: Vec<&str> = text.split(' ').collect();
            (words[..8].join(" "), words[8..].join(" "))
        };
        let (starts, ends): (BTreeSet<_>, BTreeSet<_>) = all.iter().map(halves).unzip();
        assert_eq!((starts.len(), ends.len()), (1, 100));
        assert_eq!(prompts.measured(3), prompts.measured(3));
    }
}
