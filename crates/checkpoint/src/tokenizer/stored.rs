//! `tokenizer.json` as it is stored.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use crate::Error;

/// SentencePiece's mark for a space.
pub(super) const META_SPACE: &str = "\u{2581}";

/// The parts of the file that decide about tokens.
#[derive(Debug, Deserialize)]
pub(super) struct Stored {
    #[serde(default)]
    pub added_tokens: Vec<Added>,
    #[serde(default)]
    pub normalizer: Value,
    #[serde(default)]
    pub pre_tokenizer: Value,
    #[serde(default)]
    pub post_processor: Value,
    pub model: Model,
    /// The name of the pre-tokenizer, where no file spells it out.
    #[serde(skip)]
    pub pre: Option<&'static str>,
}

/// A token beside the vocabulary.
#[derive(Debug, Deserialize)]
pub(super) struct Added {
    pub id: u64,
    pub content: String,
    #[serde(default)]
    pub special: bool,
    /// Whether it swallows the white space after it.
    #[serde(default)]
    pub rstrip: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Model {
    pub vocab: HashMap<String, u64>,
    pub merges: Vec<Merge>,
    #[serde(default)]
    pub byte_fallback: bool,
    #[serde(default)]
    pub ignore_merges: bool,
    pub unk_token: Option<String>,
}

/// Two tokens that become one: `"a b"`, or `["a", "b"]` since 2024.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Merge(pub String, pub String);

impl Stored {
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        serde_json::from_slice(bytes).map_err(|error| {
            let kind = serde_json::from_slice::<Outline>(bytes).ok().and_then(|it| it.model.kind);
            Error::tokenizer(match kind {
                Some(kind) if kind != "BPE" => {
                    format!("it is of the kind {kind}; only byte-pair encoding (BPE) is read")
                }
                _ => format!("tokenizer.json is not as expected: {error}"),
            })
        })
    }

    /// The normalizers, or the parts of the pre-tokenizer, in order.
    pub fn steps<'s>(of: &'s Value, list: &str) -> Vec<&'s Value> {
        match of[list].as_array() {
            Some(steps) => steps.iter().flat_map(|step| Self::steps(step, list)).collect(),
            None if of.is_null() => Vec::new(),
            None => vec![of],
        }
    }

    /// Whether spaces are written as [`META_SPACE`], which makes the vocabulary SentencePiece's.
    pub fn has_meta_spaces(&self) -> bool {
        let normalizers = Self::steps(&self.normalizer, "normalizers");
        let replaces = normalizers.iter().any(|it| it["content"] == META_SPACE);
        self.model.byte_fallback || replaces || self.meta_space().is_some()
    }

    /// Whether a text begins with a space that it does not have.
    pub fn adds_space(&self) -> bool {
        let normalizers = Self::steps(&self.normalizer, "normalizers");
        let prepends = normalizers.iter().any(|it| it["type"] == "Prepend");
        let scheme = self.meta_space().map(|it| {
            let is_old = it["add_prefix_space"].as_bool().unwrap_or(true);
            it["prepend_scheme"].as_str().map_or(is_old, |scheme| scheme != "never")
        });
        prepends || scheme.unwrap_or(false)
    }

    fn meta_space(&self) -> Option<&Value> {
        let steps = Self::steps(&self.pre_tokenizer, "pretokenizers");
        steps.into_iter().find(|it| it["type"] == "Metaspace")
    }

    /// A token's number, by its text.
    pub fn id(&self, text: &str) -> Option<u64> {
        let added = self.added_tokens.iter().find(|added| added.content == text);
        added.map(|added| added.id).or_else(|| self.model.vocab.get(text).copied())
    }
}

/// The file's kind of model, for errors.
#[derive(Deserialize)]
struct Outline {
    model: OutlineOfModel,
}

#[derive(Deserialize)]
struct OutlineOfModel {
    #[serde(rename = "type")]
    kind: Option<String>,
}

impl Merge {
    /// The token that it makes.
    pub fn result(&self) -> String {
        format!("{}{}", self.0, self.1)
    }

    /// GGUF's form: the two tokens with a space between them. A space inside a token becomes the
    /// character that stands for its byte.
    pub fn written(&self) -> String {
        let part = |text: &str| text.replace(' ', "\u{120}");
        format!("{} {}", part(&self.0), part(&self.1))
    }
}

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MergeVisitor)
    }
}

struct MergeVisitor;

impl<'de> Visitor<'de> for MergeVisitor {
    type Value = Merge;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("two tokens")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Merge, E> {
        let (left, right) =
            text.split_once(' ').ok_or_else(|| E::custom("a merge of one token"))?;
        Ok(Merge(left.to_owned(), right.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
        let short = || serde::de::Error::custom("a merge of less than two tokens");
        let left = seq.next_element()?.ok_or_else(short)?;
        let right = seq.next_element()?.ok_or_else(short)?;
        match seq.next_element::<String>()? {
            None => Ok(Merge(left, right)),
            Some(_) => Err(serde::de::Error::custom("a merge of more than two tokens")),
        }
    }
}
