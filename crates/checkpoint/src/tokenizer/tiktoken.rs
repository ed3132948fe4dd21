//! `tiktoken.model`: a line `BASE64 RANK` for each token. Merges follow from the ranks.
//!
//! Such a file tells no pattern that cuts words; it is known for Kimi's alone.

use std::collections::HashMap;

use data_encoding::BASE64;
use serde_json::Value;

use super::stored::{Added, Merge, Model, Stored};
use crate::Error;
use crate::config::Config;

/// The most bytes of a token.
const TOKEN_BYTES_MAX: usize = 256;

type Ranks = HashMap<Vec<u8>, u64>;

/// A tokenizer of Kimi's. `own` is the tokenizer's configuration, with the special tokens.
pub(super) fn read(text: &[u8], own: &Config) -> Result<Stored, Error> {
    let class = own.find_str(&["tokenizer_class"])?.unwrap_or_default();
    let is_kimi =
        own.get("auto_map").is_some_and(|map| map.to_string().contains("tokenization_kimi"));
    if !is_kimi {
        let why = format!("it has no tokenizer.json, and its class {class:?} is not Kimi's");
        return Err(Error::tokenizer(why));
    }
    let ranks = ranks(text)?;
    let alphabet = alphabet();
    let written = |bytes: &[u8]| bytes.iter().map(|byte| alphabet[usize::from(*byte)]).collect();
    let mut order: Vec<(&Vec<u8>, u64)> = ranks.iter().map(|(it, rank)| (it, *rank)).collect();
    order.sort_by_key(|(_, rank)| *rank);
    let merges = order.iter().filter_map(|(token, rank)| {
        let (left, right) = halves(&ranks, token, *rank)?;
        Some(Merge(written(left), written(right)))
    });
    let model = Model {
        merges: merges.collect(),
        vocab: ranks.iter().map(|(token, rank)| (written(token), *rank)).collect(),
        byte_fallback: false,
        ignore_merges: false,
        unk_token: None,
    };
    let (normalizer, pre_tokenizer, post_processor) = (Value::Null, Value::Null, Value::Null);
    let (added_tokens, pre) = (specials(own), Some("kimi-k2"));
    Ok(Stored { added_tokens, normalizer, pre_tokenizer, post_processor, model, pre })
}

fn ranks(text: &[u8]) -> Result<Ranks, Error> {
    let parse = |line: &[u8]| {
        let space = line.iter().position(|byte| *byte == b' ')?;
        let token = BASE64.decode(&line[..space]).ok()?;
        let rank = std::str::from_utf8(&line[space + 1..]).ok()?.trim().parse().ok()?;
        (!token.is_empty() && token.len() <= TOKEN_BYTES_MAX).then_some((token, rank))
    };
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let ranks: Option<Ranks> = lines.map(parse).collect();
    ranks.ok_or_else(|| Error::tokenizer("tiktoken.model is not lines of a token and its rank"))
}

/// The two tokens that become `token` in the last merge of its bytes; `None` for single bytes, and
/// for tokens that no merge makes.
fn halves<'t>(ranks: &Ranks, token: &'t [u8], rank: u64) -> Option<(&'t [u8], &'t [u8])> {
    let mut ends: Vec<usize> = (0..=token.len()).collect();
    while ends.len() > 3 {
        let pair = |at: &usize| ranks.get(&token[ends[*at]..ends[*at + 2]]).copied();
        let best = (0..ends.len() - 2).min_by_key(|at| pair(at).unwrap_or(u64::MAX))?;
        if pair(&best)? >= rank {
            return None;
        }
        ends.remove(best + 1);
    }
    (ends.len() == 3).then(|| token.split_at(ends[1]))
}

/// The tokens in `added_tokens_decoder`.
fn specials(own: &Config) -> Vec<Added> {
    let all = own.get("added_tokens_decoder").and_then(Value::as_object);
    let added = all.into_iter().flatten().filter_map(|(id, token)| {
        let (id, content) = (id.parse().ok()?, token["content"].as_str()?.to_owned());
        let special = token["special"].as_bool().unwrap_or(true);
        Some(Added { id, content, special, rstrip: false })
    });
    added.collect()
}

/// GPT-2's alphabet: a printable character for each byte.
fn alphabet() -> [char; 256] {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 0x100;
    std::array::from_fn(|byte| match is_printable(byte as u8) {
        true => char::from(byte as u8),
        false => {
            next += 1;
            char::from_u32(next - 1).expect("below the surrogates")
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_follow_from_ranks() {
        let mut text: Vec<String> =
            (0..=255u8).map(|byte| format!("{} {byte}", BASE64.encode(&[byte]))).collect();
        for (at, token) in ["ab", "cd", "abcd", " abcd", "xyz"].iter().enumerate() {
            text.push(format!("{} {}", BASE64.encode(token.as_bytes()), 256 + at));
        }
        let own = serde_json::json!({
            "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", null]},
            "added_tokens_decoder": {"300": {"content": "[BOS]", "special": true}},
        });
        let own = Config::new(own.as_object().unwrap().clone());
        let stored = read(text.join("\n").as_bytes(), &own).unwrap();
        let merges: Vec<String> = stored.model.merges.iter().map(Merge::written).collect();
        assert_eq!(merges, ["a b", "c d", "ab cd", "\u{120} abcd"], "xyz has no parts");
        assert_eq!(stored.model.vocab["\u{120}abcd"], 259);
        assert_eq!((stored.added_tokens[0].id, stored.pre), (300, Some("kimi-k2")));
        assert!(read(b"YQ== x", &own).is_err());
        let other = read(b"", &Config::new(Default::default())).unwrap_err().to_string();
        assert!(other.contains("not Kimi's"), "{other}");
    }
}
