//! A folder's tokenizer as the metadata that GGUF keeps of it.
//!
//! Two kinds are known: byte-pair encoding over bytes in GPT-2's alphabet, and SentencePiece's over
//! characters. Source: the format of Hugging Face's `tokenizers`.

mod pieces;
mod pre;
mod specials;
mod stored;
mod tiktoken;

use std::path::Path;

use gguf::{Array, Value};

use crate::Error;
use crate::config::Config;
use crate::families::Words;
use crate::header::Header;
use crate::json::{CONFIG_BYTES_MAX, TOKENIZER_BYTES_MAX, find, find_json};
use pieces::Pieces;
use specials::Specials;
use stored::{Merge, Stored};

/// The most tokens of a vocabulary; published ones have up to about 262,000.
const TOKENS_MAX: u64 = 1 << 24;

/// Kimi's file has 2.8 MB; its merges take time to find.
const TIKTOKEN_BYTES_MAX: u64 = 8 << 20;

/// Sets a tokenizer's metadata. `vocab` is the number of tokens that the model knows;
/// `configs` are the model's configuration, and that of its generation.
pub(crate) fn read(
    folder: &Path,
    words: Words,
    vocab: u64,
    configs: (&Config, &Config),
    header: &mut Header,
) -> Result<(), Error> {
    if words == Words::OfModel {
        return Ok(());
    }
    if vocab > TOKENS_MAX {
        return Err(Error::tokenizer(format!("{vocab} tokens; at most {TOKENS_MAX} are read")));
    }
    let own: Option<serde_json::Map<_, _>> =
        find_json(&folder.join("tokenizer_config.json"), CONFIG_BYTES_MAX)?;
    let own = Config::new(own.unwrap_or_default());
    let stored = stored(folder, &own)?;
    let pieces = Pieces::new(&stored, vocab as usize);
    let kind = Kind::of(&stored, words);
    match kind {
        Kind::Bytes => {
            set_text(header, "model", "gpt2");
            set_text(header, "pre", pre::name(&stored)?);
        }
        Kind::Characters => {
            set_text(header, "model", "llama");
            set_text(header, "pre", "default");
            set(header, "scores", Value::Array(Array::from_f32s(&scores(&stored, &pieces))));
            if stored.added_tokens.iter().any(|added| added.rstrip) {
                // GGUF has no key for that; readers know Phi-3 by its name.
                header.set_whole("general.name", Value::String("Phi-3".to_owned()));
            }
            set(header, "add_space_prefix", Value::Bool(stored.adds_space()));
        }
        Kind::MergedCharacters => set_text(header, "model", "gemma4"),
    }
    set(header, "tokens", Value::Array(Array::from_strings(&pieces.texts)));
    let kinds: Vec<i32> = pieces.kinds.iter().map(|kind| *kind as i32).collect();
    set(header, "token_type", Value::Array(Array::from_i32s(&kinds)));
    if kind != Kind::Characters {
        let merges: Vec<String> = stored.model.merges.iter().map(Merge::written).collect();
        set(header, "merges", Value::Array(Array::from_strings(&merges)));
    }
    Specials::read(&stored, &own, configs, &pieces)?.set(header, kind == Kind::Bytes);
    template(folder, &own, header)
}

fn stored(folder: &Path, own: &Config) -> Result<Stored, Error> {
    let path = folder.join("tokenizer.json");
    if let Some(bytes) = find(&path, TOKENIZER_BYTES_MAX)? {
        return Stored::parse(&bytes);
    }
    if let Some(bytes) = find(&folder.join("tiktoken.model"), TIKTOKEN_BYTES_MAX)? {
        return tiktoken::read(&bytes, own);
    }
    let has = |name: &str| folder.join(name).is_file();
    let what = match has("tokenizer.model") || has("vocab.json") {
        true => {
            "tokenizer.json, and tokenizer.model and vocab.json are not read: save it anew \
             (transformers: AutoTokenizer.from_pretrained, then save_pretrained), or fetch it"
        }
        false => "tokenizer.json; of tokenizers, only that form is read",
    };
    Err(Error::MissingFile { what })
}

/// Which of GGUF's tokenizers a vocabulary is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Merges over bytes.
    Bytes,
    /// SentencePiece: the piece with the best score is merged first.
    Characters,
    /// Merges over characters.
    MergedCharacters,
}

impl Kind {
    fn of(stored: &Stored, words: Words) -> Self {
        match (words, stored.has_meta_spaces()) {
            (Words::Gemma4, _) => Self::MergedCharacters,
            (Words::Described | Words::OfModel, true) => Self::Characters,
            (Words::Described | Words::OfModel, false) => Self::Bytes,
        }
    }
}

/// The scores that make SentencePiece merge in the order of `merges`: the rank of the first merge
/// that makes a piece, negated.
fn scores(stored: &Stored, pieces: &Pieces) -> Vec<f32> {
    let mut scores = vec![0.0; pieces.texts.len()];
    for (rank, merge) in stored.model.merges.iter().enumerate().rev() {
        if let Some(id) = stored.model.vocab.get(&merge.result())
            && let Some(score) = scores.get_mut(*id as usize)
        {
            *score = -(rank as f32);
        }
    }
    scores
}

fn set(header: &mut Header, key: &str, value: Value) {
    header.set_whole(&format!("tokenizer.ggml.{key}"), value);
}

fn set_text(header: &mut Header, key: &str, text: &str) {
    set(header, key, Value::String(text.to_owned()));
}

/// Sets the chat template: a file of its own, or one in the tokenizer's configuration.
fn template(folder: &Path, own: &Config, header: &mut Header) -> Result<(), Error> {
    let set = |header: &mut Header, key: &str, text: &str| {
        header.set_whole(key, Value::String(text.to_owned()));
    };
    const KEY: &str = "tokenizer.chat_template";
    if let Some(bytes) = find(&folder.join("chat_template.jinja"), CONFIG_BYTES_MAX)? {
        set(header, KEY, &String::from_utf8_lossy(&bytes));
        return Ok(());
    }
    let path = folder.join("chat_template.json");
    let apart: Option<serde_json::Map<_, _>> = find_json(&path, CONFIG_BYTES_MAX)?;
    let apart = Config::new(apart.unwrap_or_default());
    let found = own.get("chat_template").or(apart.get("chat_template"));
    if let Some(text) = found.and_then(serde_json::Value::as_str) {
        set(header, KEY, text);
    }
    for one in found.and_then(serde_json::Value::as_array).into_iter().flatten() {
        match (one["name"].as_str(), one["template"].as_str()) {
            (Some("default"), Some(text)) => set(header, KEY, text),
            (Some(name), Some(text)) => set(header, &format!("{KEY}.{name}"), text),
            _ => {}
        }
    }
    Ok(())
}
