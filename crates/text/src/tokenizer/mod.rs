//! Converts text to token ids and back.

mod bpe;
mod byte_level;
mod charsmap;
mod fill;
mod index;
mod merge;
mod pair_hash;
mod pretokenizer;
mod schemes;
mod specials;
mod spm;
mod tokens;
mod unigram;
mod vocab;
mod word_cache;
mod wordpiece;

use std::collections::HashSet;

use gguf::Directory;

use crate::{TextError, TextStream};
use bpe::Bpe;
pub use fill::FillTokens;
use pretokenizer::Pretokenizer;
pub(crate) use specials::GUARD;
use specials::{Fragment, Specials};
use spm::Spm;
use tokens::Tokens;
use unigram::Unigram;
use vocab::{Kind, META_SPACE, Vocab, Writing};
use wordpiece::WordPiece;

/// Whether a text such as `<|im_end|>` means the control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Control tokens are recognised: for rendered chat templates.
    Parse,
    /// They are ordinary text: for a user's text.
    Plain,
}

/// A model's vocabulary and its encoding algorithm.
///
/// Immutable and shared freely between threads.
pub struct Tokenizer {
    vocab: Vocab,
    specials: Specials,
    algorithm: Algorithm,
    add_bos: bool,
    /// The end-of-sequence token, if the file appends it to every text.
    ending: Option<u32>,
    /// What stands between the texts of a pair, behind the ending of the first one.
    separator: Option<u32>,
    /// Bytes of the longest token; `None` if some text has no tokens.
    token_bytes_max: Option<usize>,
    warnings: Vec<String>,
}

enum Algorithm {
    Bpe(Bpe),
    Spm(Spm),
    WordPiece(WordPiece),
    Unigram(Unigram),
}

impl Tokenizer {
    /// Builds the tokenizer of a GGUF file from its metadata.
    ///
    /// Harmless oddities (repeated tokens, merges of missing tokens) are listed in
    /// [`Self::warnings`].
    ///
    /// # Errors
    /// There is no vocabulary, it exceeds the limits, or the tokenizer is unknown.
    pub fn from_gguf(gguf: &Directory) -> Result<Self, TextError> {
        let model = gguf.str("tokenizer.ggml.model")?;
        let mut warnings = Vec::new();
        let (vocab, algorithm, add_bos) = match model {
            "gpt2" | "gemma4" => {
                let scheme = Pretokenizer::find(pretokenizer_name(gguf, model, &mut warnings)?)?;
                let pretokenizer = Pretokenizer::new(scheme);
                let vocab = Vocab::from_gguf(gguf, pretokenizer.writing(), &mut warnings)?;
                let bpe = Bpe::from_gguf(gguf, &vocab, pretokenizer, &mut warnings)?;
                (vocab, Algorithm::Bpe(bpe), scheme.add_bos)
            }
            "llama" => {
                let vocab = Vocab::from_gguf(gguf, Writing::SentencePiece, &mut warnings)?;
                let spm = Spm::from_gguf(gguf, &vocab, &mut warnings)?;
                (vocab, Algorithm::Spm(spm), true)
            }
            "bert" => {
                let vocab = Vocab::from_gguf(gguf, Writing::SentencePiece, &mut warnings)?;
                let vocab = vocab.framed(gguf, ["[CLS]", "[SEP]"], &mut warnings);
                let wordpiece = WordPiece::new(&vocab);
                (vocab, Algorithm::WordPiece(wordpiece), true)
            }
            "t5" => {
                let vocab = Vocab::from_gguf(gguf, Writing::SentencePiece, &mut warnings)?;
                let unigram = Unigram::from_gguf(gguf, &vocab, &mut warnings)?;
                (vocab, Algorithm::Unigram(unigram), true)
            }
            found => return Err(TextError::Model { found: found.to_owned() }),
        };
        let (add_bos, ending) = text_bounds(gguf, &vocab, add_bos, &mut warnings)?;
        let separator = separator(gguf, &vocab, ending)?;
        // Phi-3's tokenizer drops white space after special tokens; GGUF has no key for that.
        let name = gguf.find_str("general.name")?.unwrap_or("").to_ascii_lowercase();
        let strip_after = name.contains("phi-3") || name.contains("phi3");
        let specials = Specials::new(&vocab, strip_after)?;
        let loses_text = match &algorithm {
            Algorithm::Bpe(bpe) => bpe.loses_text(&vocab),
            Algorithm::Spm(spm) => spm.loses_text(&vocab),
            Algorithm::WordPiece(_) | Algorithm::Unigram(_) => true,
        };
        let longest = (0..vocab.pieces.len() as u32).map(|id| vocab.pieces.get(id).len()).max();
        // An unknown character of four bytes becomes one token.
        let token_bytes_max =
            longest.map(|bytes| bytes.max(4)).filter(|_| !loses_text && !strip_after);
        Ok(Self {
            vocab,
            specials,
            algorithm,
            add_bos,
            ending,
            separator,
            token_bytes_max,
            warnings,
        })
    }

    /// The file's oddities, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The token ids of `text`. With `add_bos`, it adds the beginning- and end-of-sequence tokens
    /// that the file asks for.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Vec<u32> {
        self.encode_some(text, special, add_bos, usize::MAX)
    }

    /// Like [`Self::encode`], but stops after more than `tokens_max` tokens.
    pub fn encode_some(
        &self,
        text: &str,
        special: Special,
        add_bos: bool,
        tokens_max: usize,
    ) -> Vec<u32> {
        let mut ids = Vec::with_capacity((text.len() / 4).min(tokens_max) + 2);
        if add_bos && self.add_bos {
            ids.extend(self.vocab.bos);
        }
        let mut first = true;
        self.specials.split(text, special == Special::Parse, &mut |fragment| match fragment {
            _ if ids.len() > tokens_max => {}
            Fragment::Token(id) => {
                ids.push(id);
                first = true;
            }
            Fragment::Text(text) => {
                let unguarded = text.contains(GUARD).then(|| text.replace(GUARD, ""));
                let text = unguarded.as_deref().unwrap_or(text);
                let mut out = Tokens { ids: &mut ids, max: tokens_max };
                match &self.algorithm {
                    Algorithm::Bpe(bpe) => bpe.encode(&self.vocab, text, &mut out),
                    Algorithm::Spm(spm) => spm.encode(&self.vocab, text, first, &mut out),
                    Algorithm::WordPiece(words) => words.encode(&self.vocab, text, &mut out),
                    Algorithm::Unigram(own) => own.encode(&self.vocab, text, first, &mut out),
                }
                first = false;
            }
        });
        if add_bos {
            ids.extend(self.ending);
        }
        ids
    }

    /// The token ids of a pair of texts, as an encoder reads them, and how many of them are before
    /// the second text. Each text stops after more than `tokens_max` tokens.
    pub fn encode_pair(&self, [first, second]: [&str; 2], tokens_max: usize) -> (Vec<u32>, usize) {
        let mut ids = self.encode_some(first, Special::Plain, true, tokens_max);
        ids.extend(self.separator);
        let first_tokens = ids.len();
        ids.extend(self.encode_some(second, Special::Plain, false, tokens_max));
        ids.extend(self.ending);
        (ids, first_tokens)
    }

    /// The token ids of a template in which `{name}` stands for each of `texts`: control tokens of
    /// the template are recognised, and those that a text names are not.
    pub fn encode_filled(
        &self,
        template: &str,
        texts: &[(&str, &str)],
        tokens_max: usize,
    ) -> Vec<u32> {
        let mut filled = String::new();
        let mut rest = template;
        let place = |rest: &str| {
            let found = texts.iter().filter_map(|(name, text)| {
                let mark = format!("{{{name}}}");
                rest.find(&mark).map(|at| (at, mark.len(), *text))
            });
            found.min_by_key(|(at, ..)| *at)
        };
        while let Some((at, len, text)) = place(rest) {
            filled.push_str(&rest[..at]);
            filled.push_str(&self.guard(text));
            rest = &rest[at + len..];
        }
        filled.push_str(rest);
        self.encode_prompt_some(&filled, tokens_max)
    }

    /// The token that ends every text, if the model expects one.
    pub fn ending(&self) -> Option<u32> {
        self.ending
    }

    /// The token ids of a rendered chat template: control tokens are recognised, and the
    /// beginning-of-sequence token is added if the model needs it and the template did not write
    /// it.
    pub fn encode_prompt(&self, rendered: &str) -> Vec<u32> {
        self.encode_prompt_some(rendered, usize::MAX)
    }

    /// Like [`Self::encode_prompt`], but stops after more than `tokens_max` tokens.
    pub fn encode_prompt_some(&self, rendered: &str, tokens_max: usize) -> Vec<u32> {
        let mut ids = self.encode_some(rendered, Special::Parse, false, tokens_max);
        if let Some(bos) = self.vocab.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// Marks a client's text so that it stays text in a prompt: a character breaks names of control
    /// tokens, and [`Self::encode`] removes it after the search for them.
    pub(crate) fn guard(&self, text: &str) -> String {
        self.specials.guard(text)
    }

    /// A lower bound of the tokens of `text`, from the length of the longest token: immediate, and
    /// without memory. The sum of the bounds of a text's parts is a bound too.
    pub fn tokens_min(&self, text: &str) -> usize {
        let Some(token_bytes_max) = self.token_bytes_max else { return 0 };
        // Both become shorter before tokenization.
        let shrinks = |ch: &char| *ch == GUARD || META_SPACE.starts_with(*ch);
        let shrunk = if text.is_ascii() { 0 } else { text.chars().filter(shrinks).count() };
        (text.len() - shrunk * GUARD.len_utf8()) / token_bytes_max
    }

    /// The text of `ids`, without control tokens; invalid UTF-8 becomes U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = TextStream::new(self);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The bytes that a token adds to the text. Those of control tokens are their name, and an id
    /// outside the vocabulary has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        if (id as usize) < self.len() { self.vocab.pieces.get(id) } else { &[] }
    }

    /// The token with exactly these bytes, including control tokens. Scans the whole vocabulary.
    pub fn find_token(&self, text: &str) -> Option<u32> {
        (0..self.len() as u32).find(|id| self.vocab.pieces.get(*id) == text.as_bytes())
    }

    /// The tokens with exactly one of these texts, in order of their ids. Scans the vocabulary
    /// once.
    pub fn find_tokens<'a>(&self, texts: impl IntoIterator<Item = &'a str>) -> Vec<u32> {
        let texts: HashSet<&[u8]> =
            texts.into_iter().filter(|text| !text.is_empty()).map(str::as_bytes).collect();
        (0..self.len() as u32).filter(|id| texts.contains(self.vocab.pieces.get(*id))).collect()
    }

    /// The beginning-of-sequence token.
    pub fn bos(&self) -> Option<u32> {
        self.vocab.bos
    }

    /// The end-of-sequence token.
    pub fn eos(&self) -> Option<u32> {
        self.vocab.eos
    }

    /// Whether prompts start with [`Self::bos`].
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Whether a generation ends with this token: end of sequence, turn or message.
    pub fn is_end(&self, id: u32) -> bool {
        self.vocab.ends.binary_search(&id).is_ok()
    }

    /// All tokens that end a generation, ascending.
    pub fn end_ids(&self) -> &[u32] {
        &self.vocab.ends
    }

    /// The tokens with which the model fills in text; `None` if it cannot.
    pub fn fill_tokens(&self) -> Option<FillTokens> {
        self.vocab.fill
    }

    /// Whether the token is no text: a control token, or the unknown token.
    pub fn is_special(&self, id: u32) -> bool {
        let kind = self.vocab.kinds.get(id as usize);
        matches!(kind, Some(Kind::Control | Kind::Unknown))
    }

    /// Tokens in the vocabulary.
    pub fn len(&self) -> usize {
        self.vocab.pieces.len()
    }

    /// Never true: a file without tokens is refused.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether encoding adds a space in front of a text, which decoding then removes.
    pub(crate) fn adds_space(&self) -> bool {
        match &self.algorithm {
            Algorithm::Bpe(_) => false,
            Algorithm::Spm(spm) => spm.add_space_prefix(),
            Algorithm::WordPiece(_) => true,
            Algorithm::Unigram(own) => own.add_space_prefix(),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.len()).finish_non_exhaustive()
    }
}

/// Whether a text starts with the beginning-of-sequence token, by the file or else by
/// `add_bos_default` if there is such a token; and the token that ends it, if the file asks for
/// one.
fn text_bounds(
    gguf: &Directory,
    vocab: &Vocab,
    add_bos_default: bool,
    warnings: &mut Vec<String>,
) -> Result<(bool, Option<u32>), TextError> {
    let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.add_{name}_token"));
    let add_bos = flag("bos")?.unwrap_or(add_bos_default && vocab.bos.is_some());
    let add_eos = flag("eos")?.unwrap_or(vocab.is_framed);
    for (is_wanted, id, name) in [
        (add_bos, vocab.bos, "beginning-of-sequence token before"),
        (add_eos, vocab.eos, "end-of-sequence token after"),
    ] {
        if is_wanted && id.is_none() {
            warnings.push(format!("the file asks for a {name} every text, and names none"));
        }
    }
    Ok((add_bos, vocab.eos.filter(|_| add_eos)))
}

/// What stands between the texts of a pair behind `ending`: RoBERTa and XLM-RoBERTa have two
/// tokens there, and the file says so.
fn separator(
    gguf: &Directory,
    vocab: &Vocab,
    ending: Option<u32>,
) -> Result<Option<u32>, TextError> {
    let said = gguf.find_bool("tokenizer.ggml.add_sep_token")?;
    let is_roberta = gguf.find_str("tokenizer.ggml.model")? == Some("t5");
    let has_one = !vocab.is_framed && said.unwrap_or(is_roberta);
    Ok(ending.filter(|_| has_one))
}

fn pretokenizer_name<'g>(
    gguf: &'g Directory,
    model: &str,
    warnings: &mut Vec<String>,
) -> Result<&'g str, TextError> {
    if model == "gemma4" {
        return Ok("gemma4");
    }
    let found = gguf.find_str("tokenizer.ggml.pre")?;
    if found.is_none() {
        warnings.push(
            "the file does not name its pre-tokenizer, so the default is used; some tokens may \
             differ from the model's own. Convert the model again to be sure"
                .to_owned(),
        );
    }
    Ok(found.unwrap_or("default"))
}
