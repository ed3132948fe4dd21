//! Sampling settings: the client's, then those of the model's file, then llama-server's defaults.

use std::hash::{BuildHasher, Hasher, RandomState};

use protocol::{BIASES_MAX, Sampling, SamplingChoice, Token, split_mix};
use text::{Special, Tokenizer};

/// A choice's biases, with those of texts. They end once they are more than a request may have.
pub(super) fn biases(choice: &SamplingChoice, tokenizer: &Tokenizer) -> Vec<(Token, f32)> {
    let mut biases = choice.logit_bias.clone();
    for (text, bias) in &choice.text_bias {
        let room = BIASES_MAX.saturating_sub(biases.len());
        if tokenizer.tokens_min(text) > room {
            biases.resize(BIASES_MAX + 1, (0, *bias));
            break;
        }
        let tokens = tokenizer.encode_some(text, Special::Plain, false, room);
        biases.extend(tokens.into_iter().map(|token| (token, *bias)));
    }
    biases
}

/// A choice without biases; `default`: the settings of the model.
pub(super) fn chosen(choice: &SamplingChoice, default: &Sampling) -> Sampling {
    choice.over(default, choice.seed.unwrap_or_else(random_seed))
}

/// A model's default sampling: its file's values under `general.sampling`, otherwise llama-server's
/// defaults.
pub(super) fn defaults(header: &gguf::Directory) -> Sampling {
    let found = |name: &str, low: f32, high: f32| {
        let found = header.find_f32(&format!("general.sampling.{name}")).ok().flatten()?;
        (low..=high).contains(&found).then_some(found)
    };
    let top_k = header.find_u64("general.sampling.top_k").ok().flatten();
    Sampling {
        temperature: found("temp", 0.0, 2.0).unwrap_or(0.8),
        top_k: top_k.and_then(|top_k| u32::try_from(top_k).ok()).unwrap_or(40),
        top_p: found("top_p", 0.0, 1.0).unwrap_or(0.95),
        min_p: found("min_p", 0.0, 1.0).unwrap_or(0.05),
        repetition_penalty: found("penalty_repeat", 0.01, 10.0).unwrap_or(1.0),
        ..Sampling::default()
    }
}

/// A random number that need not be secret. The standard library keys each hasher anew.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// The seed of the answer at `index` of several to one request; the first one uses the given seed.
pub(super) fn derived_seed(seed: u64, index: usize) -> u64 {
    if index == 0 { seed } else { split_mix(seed, index as u64) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(entries: &[(&str, gguf::Value)]) -> gguf::Directory {
        let mut writer = gguf::Writer::new();
        for (key, value) in entries {
            writer.set(key, value.clone());
        }
        let mut bytes = Vec::new();
        writer.write(&mut bytes, |_, _, _, _| Ok(())).unwrap();
        gguf::Directory::parse(&bytes, bytes.len() as u64).unwrap()
    }

    #[test]
    fn the_client_comes_before_the_file_and_the_file_before_us() {
        let plain = defaults(&header(&[]));
        assert_eq!((plain.temperature, plain.top_k), (0.8, 40));
        assert_eq!((plain.top_p, plain.min_p, plain.repetition_penalty), (0.95, 0.05, 1.0));
        let file = defaults(&header(&[
            ("general.sampling.temp", gguf::Value::F32(0.5)),
            ("general.sampling.top_k", gguf::Value::I32(20)),
            ("general.sampling.top_p", gguf::Value::F32(7.0)),
        ]));
        assert_eq!((file.temperature, file.top_k, file.top_p), (0.5, 20, 0.95));
        let choice = SamplingChoice { top_k: Some(3), seed: Some(7), ..Default::default() };
        let found = chosen(&choice, &file);
        assert_eq!((found.temperature, found.top_k, found.seed), (0.5, 3, 7));
    }

    #[test]
    fn what_is_left_open_gets_a_new_seed_and_several_answers_differ() {
        let seed = || chosen(&SamplingChoice::default(), &Sampling::default()).seed;
        assert_ne!(seed(), seed());
        let seeds: std::collections::HashSet<u64> =
            (0..100).map(|index| derived_seed(11, index)).collect();
        assert_eq!((seeds.len(), derived_seed(11, 0)), (100, 11));
    }
}
