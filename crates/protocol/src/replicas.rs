//! How many times a model runs on a cluster.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Token, split_mix};

/// The number of replicas of a model: the same model, loaded several times on disjoint nodes. As
/// JSON a number or `"auto"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written", into = "Written")]
pub enum Replicas {
    Count(usize),
    /// One, and more while several answers are asked for at once and more replicas serve them
    /// faster.
    Auto,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Count(usize),
    Word(String),
}

impl Replicas {
    /// As many as a cluster has members.
    pub const MAX: usize = 64;
}

impl TryFrom<Written> for Replicas {
    type Error = String;

    fn try_from(written: Written) -> Result<Self, String> {
        match written {
            Written::Count(count) => count.to_string().parse(),
            Written::Word(word) => word.parse(),
        }
    }
}

impl From<Replicas> for Written {
    fn from(replicas: Replicas) -> Self {
        match replicas {
            Replicas::Count(count) => Self::Count(count),
            Replicas::Auto => Self::Word("auto".to_owned()),
        }
    }
}

impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "{count}"),
            Self::Auto => f.write_str("auto"),
        }
    }
}

impl FromStr for Replicas {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "auto" {
            return Ok(Self::Auto);
        }
        let count = text.parse().ok().filter(|count| (1..=Self::MAX).contains(count));
        count.map(Self::Count).ok_or_else(|| {
            format!("{text:?} is no number of replicas: give 1 to {}, or auto", Self::MAX)
        })
    }
}

/// Identifies the beginnings of a text by whole pages of `page` tokens: a key for each, of all
/// tokens up to its end. Two texts have a key in common if they begin with the same pages and may
/// share them (`salt`). Equal keys of unequal texts only make a worse choice among replicas.
pub fn page_keys(salt: u64, text: &[Token], page: usize) -> impl Iterator<Item = u64> {
    text.chunks_exact(page).scan(first_key(salt), |key, tokens| {
        *key = key_after(*key, tokens);
        Some(*key)
    })
}

/// The key of the empty text.
pub fn first_key(salt: u64) -> u64 {
    split_mix(salt, 1)
}

/// The key of a text that goes on with these tokens.
pub fn key_after(before: u64, tokens: &[Token]) -> u64 {
    tokens.iter().fold(before, |key, token| split_mix(key, u64::from(*token) + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_replicas_is_read_and_written() {
        for (text, json) in [("1", "1"), ("64", "64"), ("auto", "\"auto\"")] {
            let read: Replicas = text.parse().unwrap();
            assert_eq!((read.to_string().as_str(), serde_json::to_string(&read).unwrap()), {
                (text, json.to_owned())
            });
            assert_eq!(serde_json::from_str::<Replicas>(json).unwrap(), read);
        }
        for wrong in ["0", "65", "-1", "two", ""] {
            assert!(wrong.parse::<Replicas>().unwrap_err().contains("1 to 64, or auto"));
        }
        assert!(serde_json::from_str::<Replicas>("0").is_err());
    }

    #[test]
    fn a_key_stands_for_all_tokens_before_it_and_the_salt() {
        let keys = |salt, text: &[Token]| page_keys(salt, text, 4).collect::<Vec<_>>();
        let text: Vec<Token> = (0..11).collect();
        let all = keys(7, &text);
        assert_eq!(all.len(), 2, "only whole pages have one");
        assert_eq!(keys(7, &text[..4]), all[..1]);
        let mut other = text.clone();
        other[0] = 99;
        assert!(keys(7, &other).iter().all(|key| !all.contains(key)));
        assert!(keys(8, &text).iter().all(|key| !all.contains(key)));
        other = text.clone();
        other.swap(5, 6);
        assert!(keys(7, &other)[0] == all[0] && keys(7, &other)[1] != all[1]);
    }
}
