//! Short names of common models: data that ships with the program (`catalogue.json`).
//!
//! An entry contains the repository of a name, the model's number of parameters and its shape, and
//! nothing about files: the hub lists the quantisations, their lengths and hashes. Sizes derived
//! from the number of parameters are therefore approximate.
//!
//! Each repository's name was found in several public programs that fetch from it, in November
//! 2026, without a query to a hub. `Qwen/Qwen3-0.6B-GGUF` and `Qwen/Qwen3-1.7B-GGUF` have only
//! `Q8_0`, and those of gpt-oss their own MXFP4, so their weights have unusual bits. Rows of
//! Nemotron 3 are no multiple of 256 weights, so finer types replace some of those of `Q4_K_M`.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

use crate::name::shown;
use crate::{HubError, RepoName, Want};

/// Bits of a weight in the usual `Q4_K_M`, including scales and the finer layers.
const BITS_USUAL: f64 = 4.85;
const NEAR_MAX: usize = 3;

/// A model with a short name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// The family; without a tag it means its first entry.
    pub name: String,
    /// The size.
    pub tag: String,
    pub repo: String,
    /// The approximate number of parameters.
    pub parameters: u64,
    /// Average bits of a weight in the default file.
    #[serde(default = "bits_usual")]
    pub bits: f64,
    /// The name of its [shape](crate::shapes).
    pub shape: String,
}

fn bits_usual() -> f64 {
    BITS_USUAL
}

impl Entry {
    /// The approximate size of the default file.
    pub fn about_bytes(&self) -> u64 {
        (self.parameters as f64 * self.bits / 8.0) as u64
    }

    /// The name to type.
    pub fn short_name(&self) -> String {
        format!("{}:{}", self.name, self.tag)
    }
}

/// All entries, the default of each family first.
pub fn entries() -> &'static [Entry] {
    static ENTRIES: OnceLock<Vec<Entry>> = OnceLock::new();
    ENTRIES.get_or_init(|| {
        serde_json::from_str(include_str!("catalogue.json")).expect("a test reads it")
    })
}

/// The repository of a short name: `llama3.2`, `llama3.2:1b`, `qwen3:8b-q8_0`, `qwen3:q8_0`.
///
/// # Errors
/// There is no such name; the text lists similar ones.
pub fn find(text: &str) -> Result<RepoName, HubError> {
    let lower = text.to_ascii_lowercase();
    let (family, tag) = lower.split_once(':').unwrap_or((&lower, "latest"));
    let mut family = entries().iter().filter(|entry| entry.name == family).peekable();
    let Some(default) = family.peek().copied() else { return Err(unknown(text)) };
    let exact = family.clone().find(|entry| entry.tag == tag);
    let sized = || {
        family.clone().find_map(|entry| {
            let quant = tag.strip_prefix(&entry.tag)?.strip_prefix('-')?;
            Some((entry, quant.to_owned()))
        })
    };
    let (entry, quant) = match (exact, tag) {
        (Some(entry), _) => (entry, None),
        (None, "latest") => (default, None),
        (None, tag) => match sized() {
            Some((entry, quant)) => (entry, Some(quant)),
            None if store::quant_of(tag).is_some() => (default, Some(tag.to_owned())),
            None => return Err(no_such_size(text, family.map(Entry::short_name).collect())),
        },
    };
    let want = quant.map_or(Want::Any, |quant| Want::Quant(quant.to_ascii_uppercase()));
    Ok(RepoName { repo: entry.repo.clone(), revision: None, want })
}

/// The entry of a repository.
pub fn of_repo(repo: &str) -> Option<&'static Entry> {
    entries().iter().find(|entry| entry.repo.eq_ignore_ascii_case(repo))
}

/// The short name of a repository, if it has one.
pub fn short_name_of(repo: &str) -> Option<String> {
    of_repo(repo).map(Entry::short_name)
}

/// The model that a name or a file's name stands for, without its quantisation, and the
/// quantisation: `llama3.2:3b` and `Q4_K_M` of `bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M`.
pub fn model_of(name: &str) -> (String, Option<String>) {
    let (base, label) = match name.rsplit_once(':') {
        Some((base, label)) if name.contains('/') => (base, Some(label.to_owned())),
        _ => without_label(name),
    };
    let is_copy = |entry: &&Entry| entry.short_name().replace(':', "-").eq_ignore_ascii_case(base);
    let entry = of_repo(base).or_else(|| entries().iter().find(is_copy));
    (entry.map_or_else(|| base.to_owned(), Entry::short_name), label)
}

/// A file's name without its quantisation.
fn without_label(name: &str) -> (&str, Option<String>) {
    let label = store::quant_of(name);
    let cut = label.as_ref().and_then(|label| {
        let at = name.len().checked_sub(label.len())?;
        let base = name.get(..at)?.strip_suffix(['-', '.', ':'])?;
        name.get(at..)?.eq_ignore_ascii_case(label).then_some(base)
    });
    (cut.unwrap_or(name), label)
}

fn no_such_size(text: &str, sizes: Vec<String>) -> HubError {
    let near = format!("; there are {}", sizes.join(", "));
    HubError::Unknown { name: shown(text).to_string(), near }
}

fn unknown(text: &str) -> HubError {
    let asked: String = text.to_ascii_lowercase().chars().filter(|c| c.is_alphanumeric()).collect();
    let mut near: Vec<&str> = Vec::new();
    for entry in entries() {
        let name: String = entry.name.chars().filter(|c| c.is_alphanumeric()).collect();
        let shared = asked.chars().zip(name.chars()).take_while(|(a, b)| a == b).count();
        let is_near = shared >= 4 && shared * 2 >= asked.len().min(name.len());
        if is_near && !near.contains(&entry.name.as_str()) && near.len() < NEAR_MAX {
            near.push(&entry.name);
        }
    }
    let near = match near.is_empty() {
        true => String::new(),
        false => format!("; near are {}", near.join(", ")),
    };
    HubError::Unknown { name: shown(text).to_string(), near }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Name;

    #[test]
    fn files_of_one_model_have_one_name() {
        let label = |text: &str| Some(text.to_owned());
        let repo = &find("llama3.2:3b").unwrap().repo;
        for (name, model, quantisation) in [
            (format!("{repo}:Q4_K_M"), "llama3.2:3b", label("Q4_K_M")),
            ("llama3.2-3b".to_owned(), "llama3.2:3b", None),
            ("llama3.2-3b-q8_0".to_owned(), "llama3.2:3b", label("Q8_0")),
            ("Mine-UD-Q4_K_XL".to_owned(), "Mine", label("UD-Q4_K_XL")),
            ("mine.q4_0".to_owned(), "mine", label("Q4_0")),
            ("org/Mine-GGUF:BF16".to_owned(), "org/Mine-GGUF", label("BF16")),
            ("org/Mine".to_owned(), "org/Mine", None),
            ("q8_0".to_owned(), "q8_0", label("Q8_0")),
            ("Q4_0-of-mine".to_owned(), "Q4_0-of-mine", label("Q4_0")),
        ] {
            assert_eq!(model_of(&name), (model.to_owned(), quantisation), "{name}");
        }
    }

    #[test]
    fn every_entry_is_a_repository_under_a_name_of_its_own() {
        let mut names: Vec<String> = entries().iter().map(Entry::short_name).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for entry in entries() {
            let parsed = Name::parse(&entry.repo).unwrap();
            assert_eq!(parsed.to_string(), entry.repo);
            assert_eq!(find(&entry.short_name()).unwrap().repo, entry.repo);
            assert_eq!(entry.name, entry.name.to_lowercase());
            assert!(entry.about_bytes() > 50 << 20, "{entry:?}");
        }
    }

    #[test]
    fn short_names() {
        for (typed, meant) in [
            ("llama3.2", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
            ("llama3.2:latest", "bartowski/Llama-3.2-3B-Instruct-GGUF"),
            ("Llama3.2:1B", "bartowski/Llama-3.2-1B-Instruct-GGUF"),
            ("llama3.2:1b-q8_0", "bartowski/Llama-3.2-1B-Instruct-GGUF:Q8_0"),
            ("qwen3:q8_0", "Qwen/Qwen3-8B-GGUF:Q8_0"),
            ("qwen3:30b-a3b", "Qwen/Qwen3-30B-A3B-GGUF"),
            ("qwen3.6", "unsloth/Qwen3.6-35B-A3B-GGUF"),
            ("qwen3.6:35b-a3b-ud-q4_k_xl", "unsloth/Qwen3.6-35B-A3B-GGUF:UD-Q4_K_XL"),
            ("nemotron-3-nano", "unsloth/Nemotron-3-Nano-30B-A3B-GGUF"),
            ("granite4:micro-h", "ibm-granite/granite-4.0-h-micro-GGUF"),
        ] {
            assert_eq!(find(typed).unwrap().to_string(), meant, "{typed}");
        }
        let near = find("lama3.2").unwrap_err().to_string();
        assert!(near.contains("sinew list --catalogue"), "{near}");
        let near = find("llama-3").unwrap_err().to_string();
        assert!(near.contains("llama3.2"), "{near}");
        let sizes = find("llama3.2:9b").unwrap_err().to_string();
        assert!(sizes.contains("llama3.2:3b, llama3.2:1b"), "{sizes}");
    }
}
