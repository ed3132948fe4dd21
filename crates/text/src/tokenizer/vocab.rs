//! The token table of a GGUF file: bytes, kinds and scores by id, and the special ids.

use gguf::Directory;

use super::byte_level::Alphabet;
use super::fill::FillTokens;
use super::merge::NO_TOKEN;
use crate::TextError;

/// The most tokens of a vocabulary; the largest published ones have about 262,000.
const TOKENS_MAX: usize = 1 << 21;
/// The most bytes of all tokens; the largest published vocabularies have about 3 MB.
const BYTES_MAX: usize = 1 << 26;

/// The space of SentencePiece.
pub(super) const META_SPACE: &str = "\u{2581}";

/// The kind of a token, numbered as in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Normal = 1,
    Unknown = 2,
    Control = 3,
    UserDefined = 4,
    Unused = 5,
    Byte = 6,
    /// Not in the files: a token of a byte-level vocabulary outside its alphabet, which no text
    /// produces.
    Foreign = 7,
}

impl Kind {
    fn new(number: i64) -> Self {
        [Self::Unknown, Self::Control, Self::UserDefined, Self::Unused, Self::Byte]
            .into_iter()
            .find(|kind| *kind as i64 == number)
            .unwrap_or(Self::Normal)
    }
}

/// The encoding of token texts in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// The alphabet of GPT-2.
    ByteLevel,
    /// UTF-8 with U+2581 for a space and `<0x0A>` for a byte.
    SentencePiece,
}

/// The bytes of all tokens, one after the other.
#[derive(Debug, Default)]
pub(super) struct Pieces {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Pieces {
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of token `id`, which must be below [`Self::len`].
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.bytes[start..self.ends[id] as usize]
    }

    fn end_piece(&mut self) {
        // The total was checked against BYTES_MAX, which fits 32 bits.
        self.ends.push(self.bytes.len() as u32);
    }
}

/// The token table.
pub(super) struct Vocab {
    pub(super) pieces: Pieces,
    pub(super) kinds: Vec<Kind>,
    /// Log-probabilities of SentencePiece tokens; empty if the file has none.
    pub(super) scores: Vec<f32>,
    pub(super) bos: Option<u32>,
    pub(super) eos: Option<u32>,
    pub(super) unknown: Option<u32>,
    /// Tokens that end a generation, ascending.
    pub(super) ends: Vec<u32>,
    /// The tokens to fill in text with, if the model has them.
    pub(super) fill: Option<FillTokens>,
    /// Whether every text stands between `bos` and `eos`, whatever the file says (BERT).
    pub(super) is_framed: bool,
}

impl Vocab {
    pub(super) fn from_gguf(
        gguf: &Directory,
        writing: Writing,
        warnings: &mut Vec<String>,
    ) -> Result<Self, TextError> {
        let mut kinds = read_kinds(gguf)?;
        let pieces = read_pieces(gguf, writing, &mut kinds)?;
        let scores = read_scores(gguf, pieces.len())?;
        let mut id = |name: &str| read_id(gguf, name, &pieces, warnings);
        let (bos, eos, unknown) = (id("bos"), id("eos"), id("unknown"));
        let ends = [eos, id("eot"), id("eom")];
        let named = FillTokens::NAMES.map(|names| names.iter().find_map(|name| id(name)));
        let ends = end_ids(&pieces, &mut kinds, ends);
        let fill = FillTokens::find(&pieces, &mut kinds, named);
        let is_framed = false;
        Ok(Self { pieces, kinds, scores, bos, eos, unknown, ends, fill, is_framed })
    }

    /// The same for a model whose texts stand between two tokens: those of the file's keys, or else
    /// with these names.
    pub(super) fn framed(
        self,
        gguf: &Directory,
        names: [&str; 2],
        warnings: &mut Vec<String>,
    ) -> Self {
        let named = |name: &str| {
            let mut ids = 0..self.pieces.len() as u32;
            ids.find(|id| self.pieces.get(*id) == name.as_bytes())
        };
        let mut id = |key: &str| read_id(gguf, key, &self.pieces, warnings);
        let bos = id("cls").or_else(|| named(names[0])).or(self.bos);
        // The converter's own spelling.
        let eos = id("seperator").or_else(|| named(names[1])).or(self.eos);
        Self { bos, eos, is_framed: true, ..self }
    }

    pub(super) fn ids_of(&self, wanted: &[Kind]) -> impl Iterator<Item = u32> {
        let kinds = self.kinds.iter().zip(0u32..);
        kinds.filter(|(kind, _)| wanted.contains(kind)).map(|(_, id)| id)
    }

    /// The token of each single byte (`<0x0A>`); `NO_TOKEN` where there is none.
    pub(super) fn byte_tokens(&self) -> [u32; 256] {
        let mut bytes = [NO_TOKEN; 256];
        for id in self.ids_of(&[Kind::Byte]) {
            if let [byte] = *self.pieces.get(id) {
                bytes[byte as usize] = id;
            }
        }
        bytes
    }
}

/// The kind of each token; empty if the file has none.
fn read_kinds(gguf: &Directory) -> Result<Vec<Kind>, TextError> {
    const KEY: &str = "tokenizer.ggml.token_type";
    let Some(array) = gguf.find_array(KEY)? else { return Ok(Vec::new()) };
    let numbers = array.integers().ok_or(TextError::ArrayType { key: KEY, wanted: "integers" })?;
    Ok(numbers.map(Kind::new).collect())
}

/// The bytes of each token. Fills in `kinds` if the file has none.
fn read_pieces(
    gguf: &Directory,
    writing: Writing,
    kinds: &mut Vec<Kind>,
) -> Result<Pieces, TextError> {
    const KEY: &str = "tokenizer.ggml.tokens";
    let wrong = TextError::ArrayType { key: KEY, wanted: "strings" };
    let Some(array) = gguf.find_array(KEY)? else { return Err(wrong) };
    let limit = TOKENS_MAX;
    if array.is_empty() || array.len() > limit {
        return Err(TextError::TooMany { what: "tokens", found: array.len(), limit });
    }
    if kinds.is_empty() {
        kinds.resize(array.len(), Kind::Normal);
    }
    if kinds.len() != array.len() {
        let key = "tokenizer.ggml.token_type";
        return Err(TextError::ArrayLength { key, found: kinds.len(), wanted: array.len() });
    }
    let alphabet = Alphabet::new();
    let mut pieces = Pieces::default();
    for (text, kind) in array.strings().ok_or(wrong)?.zip(kinds.iter_mut()) {
        push_piece(&mut pieces.bytes, text, kind, writing, &alphabet);
        if pieces.bytes.len() > BYTES_MAX {
            let found = pieces.bytes.len();
            return Err(TextError::TooMany { what: "bytes of tokens", found, limit: BYTES_MAX });
        }
        pieces.end_piece();
    }
    Ok(pieces)
}

/// Bytes that are not UTF-8 stay as they are.
fn push_piece(
    bytes: &mut Vec<u8>,
    written: &[u8],
    kind: &mut Kind,
    writing: Writing,
    alphabet: &Alphabet,
) {
    let text = std::str::from_utf8(written).ok();
    match (writing, *kind) {
        (Writing::ByteLevel, Kind::Normal) => {
            if !text.is_some_and(|text| alphabet.decode(text, bytes)) {
                *kind = Kind::Foreign;
                bytes.extend(written);
            }
        }
        (Writing::SentencePiece, Kind::Byte | Kind::Normal)
            if let Some(byte) = text.and_then(parse_byte) =>
        {
            *kind = Kind::Byte;
            bytes.push(byte);
        }
        (Writing::SentencePiece, Kind::Normal | Kind::UserDefined | Kind::Unused) => {
            for chunk in written.utf8_chunks() {
                bytes.extend(chunk.valid().replace(META_SPACE, " ").as_bytes());
                bytes.extend(chunk.invalid());
            }
        }
        _ => bytes.extend(written),
    }
}

/// The byte of a token such as `<0x0A>`.
fn parse_byte(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

fn read_scores(gguf: &Directory, tokens: usize) -> Result<Vec<f32>, TextError> {
    const KEY: &str = "tokenizer.ggml.scores";
    let Some(array) = gguf.find_array(KEY)? else { return Ok(Vec::new()) };
    let scores: Vec<f32> = match (array.floats(), array.integers()) {
        (Some(floats), _) => floats.collect(),
        (None, Some(integers)) => integers.map(|score| score as f32).collect(),
        (None, None) => return Err(TextError::ArrayType { key: KEY, wanted: "floats" }),
    };
    if scores.len() != tokens {
        return Err(TextError::ArrayLength { key: KEY, found: scores.len(), wanted: tokens });
    }
    Ok(scores)
}

/// A special token. An id outside the vocabulary counts as absent, with a warning.
fn read_id(
    gguf: &Directory,
    name: &str,
    pieces: &Pieces,
    warnings: &mut Vec<String>,
) -> Option<u32> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let len = pieces.len();
    let odd = match gguf.find_u64(&key) {
        Ok(Some(id)) if id < len as u64 => return Some(id as u32),
        Ok(None) => return None,
        Ok(Some(id)) => format!("metadata key \"{key}\" is token {id} of {len}"),
        Err(error) => error.to_string(),
    };
    warnings.push(format!("{odd}; it counts as absent"));
    None
}

/// Texts of tokens that end a turn, a message or a file; files name at most one or two of them.
const END_TEXTS: &[&str] = &[
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "</s>",
    "<eos>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

/// The tokens that end a generation: those the file names and those with a well-known text. All of
/// them become control tokens, since some files mark them as plain text.
fn end_ids(pieces: &Pieces, kinds: &mut [Kind], named: [Option<u32>; 3]) -> Vec<u32> {
    let texts: std::collections::HashSet<&[u8]> =
        END_TEXTS.iter().map(|text| text.as_bytes()).collect();
    let all = 0..pieces.len() as u32;
    let mut ends: Vec<u32> = all.filter(|id| texts.contains(pieces.get(*id))).collect();
    let id_of = |text: &str| ends.iter().copied().find(|id| pieces.get(*id) == text.as_bytes());

    // In gpt-oss <|end|> only ends one message of a reply, and in Gemma 4 </s> is an HTML tag.
    let calls = id_of("<|call|>").or(id_of("<|calls|>")).is_some();
    let replies = id_of("<|return|>").or(id_of("<|flush|>")).is_some();
    let inner_end = if calls && replies { id_of("<|end|>") } else { None };
    let tag = id_of("<|tool_response>").and_then(|_| id_of("</s>"));
    ends.retain(|id| Some(*id) != inner_end && Some(*id) != tag);

    ends.extend(named.into_iter().flatten());
    ends.sort_unstable();
    ends.dedup();
    for id in &ends {
        kinds[*id as usize] = Kind::Control;
    }
    ends
}
