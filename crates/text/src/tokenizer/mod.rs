//! Text to token ids and back.

mod bpe;
mod byte_level;
mod index;
mod merge;
mod pair_hash;
mod pretokenizer;
mod schemes;
mod specials;
mod spm;
mod vocab;
mod word_cache;

use std::collections::HashSet;

use gguf::Directory;

use crate::{TextError, TextStream};
use bpe::Bpe;
use pretokenizer::Pretokenizer;
pub(crate) use specials::GUARD;
use specials::{Fragment, Specials};
use spm::Spm;
use vocab::{Kind, Vocab, Writing};

/// Bytes that are encoded at once: symbols are counted in 32 bits. Longer texts are cut, which may
/// change the tokens at the cut.
const PART_BYTES_MAX: usize = 1 << 30;

/// Whether text such as `<|im_end|>` means the control token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// Control tokens are recognised: for rendered chat templates.
    Parse,
    /// They are text like any other: for what a user wrote.
    Plain,
}

/// A model's vocabulary and the way to encode text with it.
///
/// Immutable and shared freely between threads.
pub struct Tokenizer {
    vocab: Vocab,
    specials: Specials,
    algorithm: Algorithm,
    add_bos: bool,
    /// The end-of-sequence token, where the file puts it after every text.
    ending: Option<u32>,
    warnings: Vec<String>,
}

enum Algorithm {
    Bpe(Bpe),
    Spm(Spm),
}

impl Tokenizer {
    /// Builds the tokenizer that the metadata of a GGUF file describes.
    ///
    /// What is odd but harmless (repeated tokens, merges of tokens that are not there) becomes a
    /// line in [`Self::warnings`].
    ///
    /// # Errors
    /// No vocabulary, one past the limits, or a tokenizer that is not known.
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
            found => return Err(TextError::Model { found: found.to_owned() }),
        };
        let (add_bos, ending) = text_bounds(gguf, &vocab, add_bos, &mut warnings)?;
        // Phi-3's tokenizer drops white space after special tokens; GGUF has no key for that.
        let name = gguf.find_str("general.name")?.unwrap_or("").to_ascii_lowercase();
        let strip_after = name.contains("phi-3") || name.contains("phi3");
        let specials = Specials::new(&vocab, strip_after)?;
        Ok(Self { vocab, specials, algorithm, add_bos, ending, warnings })
    }

    /// What was odd about the file, a sentence each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The token ids of `text`. With `add_bos`, the beginning- and end-of-sequence tokens are put
    /// around them if the file says that the model wants them.
    pub fn encode(&self, text: &str, special: Special, add_bos: bool) -> Vec<u32> {
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        if add_bos && self.add_bos {
            ids.extend(self.vocab.bos);
        }
        let mut first = true;
        self.specials.split(text, special == Special::Parse, &mut |fragment| match fragment {
            Fragment::Token(id) => {
                ids.push(id);
                first = true;
            }
            Fragment::Text(text) => {
                let unguarded = text.contains(GUARD).then(|| text.replace(GUARD, ""));
                self.encode_text(unguarded.as_deref().unwrap_or(text), first, &mut ids);
                first = false;
            }
        });
        if add_bos {
            ids.extend(self.ending);
        }
        ids
    }

    /// The token ids of a rendered chat template: control tokens are recognised, and the
    /// beginning-of-sequence token is put in front if the model wants it and the template did not
    /// write it itself.
    pub fn encode_prompt(&self, rendered: &str) -> Vec<u32> {
        let mut ids = self.encode(rendered, Special::Parse, false);
        if let Some(bos) = self.vocab.bos.filter(|bos| self.add_bos && ids.first() != Some(bos)) {
            ids.insert(0, bos);
        }
        ids
    }

    /// What a client wrote, so that it stays text in a prompt: names of control tokens in it are
    /// broken by a character that [`Self::encode`] takes out again once it has looked for them.
    pub(crate) fn guard(&self, text: &str) -> String {
        self.specials.guard(text)
    }

    fn encode_text(&self, mut text: &str, mut first: bool, ids: &mut Vec<u32>) {
        while !text.is_empty() {
            let end = (0..=text.len().min(PART_BYTES_MAX))
                .rev()
                .find(|end| text.is_char_boundary(*end))
                .expect("zero is a boundary");
            let (part, rest) = text.split_at(end);
            match &self.algorithm {
                Algorithm::Bpe(bpe) => bpe.encode(&self.vocab, part, ids),
                Algorithm::Spm(spm) => spm.encode(&self.vocab, part, first, ids),
            }
            (text, first) = (rest, false);
        }
    }

    /// The text of `ids`, control tokens left out, broken UTF-8 replaced by U+FFFD.
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut stream = TextStream::new(self);
        let mut text: String = ids.iter().map(|id| stream.push(*id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The bytes that a token adds to the text; those of control tokens are their name, and an id
    /// outside the vocabulary has none.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        if (id as usize) < self.len() { self.vocab.pieces.get(id) } else { &[] }
    }

    /// The token with exactly these bytes, control tokens included. Walks the whole vocabulary.
    pub fn find_token(&self, text: &str) -> Option<u32> {
        (0..self.len() as u32).find(|id| self.vocab.pieces.get(*id) == text.as_bytes())
    }

    /// The tokens with exactly one of these texts, in order of their ids. Walks the vocabulary
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

    /// Whether prompts begin with [`Self::bos`].
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

    /// Whether the token is no text: a control token, or the one for unknown text.
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

    /// Whether encoding puts a space in front of a text, which decoding then takes away.
    pub(crate) fn adds_space(&self) -> bool {
        match &self.algorithm {
            Algorithm::Bpe(_) => false,
            Algorithm::Spm(spm) => spm.add_space_prefix(),
        }
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("tokens", &self.len()).finish_non_exhaustive()
    }
}

/// Whether a text begins with the beginning-of-sequence token, as the file says or else as
/// `add_bos_default` does if there is such a token; and the token that ends it, if the file asks
/// for one.
fn text_bounds(
    gguf: &Directory,
    vocab: &Vocab,
    add_bos_default: bool,
    warnings: &mut Vec<String>,
) -> Result<(bool, Option<u32>), TextError> {
    let flag = |name: &str| gguf.find_bool(&format!("tokenizer.ggml.add_{name}_token"));
    let add_bos = flag("bos")?.unwrap_or(add_bos_default && vocab.bos.is_some());
    let add_eos = flag("eos")?.unwrap_or(false);
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
