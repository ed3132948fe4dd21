//! Shapes of models: what a header says of each tensor, for models that nobody has downloaded.
//!
//! A file of `shapes/models` has the sizes of one published model, taken from the source that it
//! names, and no weights. With a quantisation it becomes the header of a file, which is enough for
//! a plan. Every name of the [`catalogue`] has a shape. The types of tensors are those
//! that `llama-quantize` writes; a publisher's own mix (`UD-`) differs by some per cent.

mod mix;
mod shape;
mod tensor;

use gguf::Directory;

pub use mix::{EXPERTS_ONLY, MIXES, Mix};
pub use shape::Shape;
pub use tensor::{Fill, Tensor};

use crate::{HubError, Name, RemoteFile, Room, Want, catalogue, choose};

/// The type of files that the hub's names mean without one.
const USUAL_TYPE: &str = "q4_k_m";

macro_rules! models {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("shapes/models/", $name, ".json")))),*]
    };
}

/// The shapes' names, and their texts.
const MODELS: &[(&str, &str)] = models![
    "afm-4.5b",
    "bge-m3",
    "bge-reranker-v2-m3",
    "command-r-08-2024",
    "command-r7b",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "devstral-small-2-24b",
    "embeddinggemma-300m",
    "ernie-4.5-21b-a3b",
    "exaone-4.0-32b",
    "gemma-2-27b",
    "gemma-2-2b",
    "gemma-2-9b",
    "gemma-3-12b",
    "gemma-3-1b",
    "gemma-3-27b",
    "gemma-3-4b",
    "gemma-4-26b-a4b",
    "gemma-4-31b",
    "gemma-4-e2b",
    "gemma-4-e4b",
    "glm-4-32b",
    "glm-4.5-air",
    "glm-5.3",
    "glm-5.3-flash",
    "gpt-oss-120b",
    "gpt-oss-20b",
    "granite-4.0-h-micro",
    "granite-4.0-h-small",
    "granite-4.0-h-tiny",
    "hunyuan-a13b",
    "kimi-k2",
    "kimi-k3",
    "kimi-linear-48b-a3b",
    "lfm2-1.2b",
    "lfm2-2.6b",
    "lfm2-24b-a2b",
    "lfm2-8b-a1b",
    "lfm2.5-8b-a1b",
    "llama-3.1-8b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "llama-3.3-70b",
    "llama-4-scout",
    "mimo-v2-flash",
    "minimax-m2",
    "minimax-m3",
    "ministral-3-14b",
    "ministral-3-8b",
    "mistral-7b",
    "muse-glimmer-30b",
    "nemotron-3-nano-30b",
    "nemotron-3-nano-4b",
    "nemotron-3-super-120b",
    "nomic-embed-text-v1.5",
    "olmo-2-13b",
    "olmo-2-7b",
    "olmoe-1b-7b",
    "phi-3.5-moe",
    "phi-4",
    "qwen2.5-0.5b",
    "qwen2.5-1.5b",
    "qwen2.5-14b",
    "qwen2.5-32b",
    "qwen2.5-3b",
    "qwen2.5-72b",
    "qwen2.5-7b",
    "qwen3-0.6b",
    "qwen3-1.7b",
    "qwen3-14b",
    "qwen3-235b-a22b",
    "qwen3-30b-a3b",
    "qwen3-32b",
    "qwen3-4b",
    "qwen3-8b",
    "qwen3-coder-30b",
    "qwen3-embedding-0.6b",
    "qwen3-next-80b",
    "qwen3-vl-30b-a3b",
    "qwen3-vl-8b",
    "qwen3.5-0.8b",
    "qwen3.5-122b-a10b",
    "qwen3.5-27b",
    "qwen3.5-2b",
    "qwen3.5-35b-a3b",
    "qwen3.5-397b-a17b",
    "qwen3.5-4b",
    "qwen3.5-9b",
    "seed-oss-36b",
    "smollm2-1.7b",
    "smollm3-3b",
    "step-3.5-flash",
];

/// Further names of shapes.
const ALSO: &[(&str, &str)] = &[
    ("llama-3.1-70b", "llama-3.3-70b"),
    ("qwen3-30b", "qwen3-30b-a3b"),
    ("qwen3-235b", "qwen3-235b-a22b"),
    ("qwen3.6-27b", "qwen3.5-27b"),
    ("qwen3.6-35b-a3b", "qwen3.5-35b-a3b"),
    ("deepseek-v3.1", "deepseek-v3"),
    ("deepseek-r1", "deepseek-v3"),
];

/// A shape's name in its text, and the quantisation that was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The name of the shape.
    pub shape: &'static str,
    /// As typed, such as `q8_0`.
    pub quant: Option<String>,
    /// What to call the model: its repository, or the shape's own name.
    pub label: String,
}

/// A shape with the quantisation that fits.
#[derive(Debug, Clone)]
pub struct Sized {
    /// `org/repo:Q4_K_M`.
    pub name: String,
    /// Bytes of the file, approximately.
    pub bytes: u64,
    /// Why this quantisation was chosen.
    pub why: String,
    pub header: Directory,
}

/// All names of shapes.
pub fn names() -> impl Iterator<Item = &'static str> {
    MODELS.iter().map(|(name, _)| *name)
}

/// The shape of this name.
pub fn shape(name: &str) -> Option<Shape> {
    let own = ALSO.iter().find(|(also, _)| *also == name).map_or(name, |(_, shape)| *shape);
    let (own, text) = MODELS.iter().find(|(found, _)| *found == own)?;
    Some(Shape::parse(own, text).expect("a test reads every shape"))
}

/// The shape that a text names: a short name (`llama3.3`, `llama3.3:70b-q8_0`, `qwen3:8b:q8_0`), a
/// repository of the catalogue (`Qwen/Qwen3-8B-GGUF:Q8_0`), or a shape's own name (`qwen3-8b`,
/// `qwen3-8b:q8_0`).
pub fn find(text: &str) -> Option<Asked> {
    let is_type = |text: &str| Mix::find(text).is_some() || store::quant_of(text).is_some();
    let (first, last) = match text.rsplit_once(':') {
        Some((first, last)) if is_type(last) => (first, Some(last)),
        _ => (text, None),
    };
    // A type may stand after a second colon.
    let found = in_catalogue(text, None).or_else(|| in_catalogue(first, last));
    found.or_else(|| {
        let shape = own_name(&first.to_ascii_lowercase())?;
        Some(Asked { shape, quant: last.map(str::to_owned), label: shape.to_owned() })
    })
}

fn in_catalogue(text: &str, quant: Option<&str>) -> Option<Asked> {
    let Ok(Name::Repo(name)) = Name::parse(text) else { return None };
    if name.revision.is_some() {
        return None;
    }
    let entry = catalogue::of_repo(&name.repo)?;
    let quant = match (name.want, quant) {
        (Want::Any, quant) => quant.map(str::to_owned),
        (Want::Quant(label), None) => Some(label),
        _ => return None,
    };
    Some(Asked { shape: own_name(&entry.shape)?, quant, label: entry.repo.clone() })
}

fn own_name(name: &str) -> Option<&'static str> {
    let own = ALSO.iter().find(|(also, _)| *also == name).map_or(name, |(_, shape)| *shape);
    MODELS.iter().map(|(found, _)| *found).find(|found| *found == own)
}

impl Asked {
    /// The header with the quantisation that was asked for, or the usual one that fits: chosen as
    /// among a repository's files.
    ///
    /// # Errors
    /// There is no such quantisation, or none fits.
    pub fn sized(&self, room: Option<&Room>) -> Result<Sized, HubError> {
        let shape = shape(self.shape).expect("it was found");
        let mix = match &self.quant {
            Some(quant) => Some(Mix::find(quant).ok_or_else(|| self.no_type(quant))?),
            None => None,
        };
        if let Some(mix) = mix {
            let (header, why) = (shape.header(mix)?, "as asked".to_owned());
            return Ok(self.with(mix, header, why));
        }
        let known = shape.ty.iter().filter_map(|ty| Mix::find(ty));
        let offered: Vec<&Mix> = match shape.ty {
            Some(_) => known.collect(),
            None => MIXES.iter().filter(|mix| mix.names[0] != EXPERTS_ONLY).collect(),
        };
        let headers = offered.iter().map(|mix| shape.header(mix)).collect::<Result<Vec<_>, _>>()?;
        let files = offered.iter().zip(&headers).map(|(mix, header)| RemoteFile {
            path: format!("{}-{}.gguf", self.shape, mix.label()),
            size: bytes(header),
            sha256: None,
        });
        let files: Vec<RemoteFile> = files.collect();
        let has_experts = shape.number("expert_count").is_some();
        let (at, why) = match choose(&self.label, &files, &Want::Any, room) {
            Err(_) if has_experts => {
                let smallest = (0..files.len()).min_by_key(|at| files[*at].size);
                let why = "the smallest, and its experts do not all fit into memory".to_owned();
                (smallest.unwrap_or(0), why)
            }
            chosen => {
                let (chosen, why) = chosen?;
                let at = files.iter().position(|file| file.path == chosen.files[0].path);
                (at.expect("it is one of them"), why)
            }
        };
        let header = headers.into_iter().nth(at).expect("each has one");
        Ok(self.with(offered[at], header, why))
    }

    fn with(&self, mix: &Mix, header: Directory, why: String) -> Sized {
        let (label, bytes) = (mix.label(), bytes(&header));
        let why = format!("{label}, about {}: {why}", crate::size(bytes));
        Sized { name: format!("{}:{label}", self.label), bytes, why, header }
    }

    fn no_type(&self, quant: &str) -> HubError {
        let all: Vec<&str> = MIXES.iter().map(|mix| mix.names[0]).collect();
        let (name, quant) = (self.label.clone(), quant.to_owned());
        HubError::NoType { name, quant, all: all.join(", "), usual: USUAL_TYPE }
    }
}

/// Bytes of a file with this header.
fn bytes(header: &Directory) -> u64 {
    let tensors = header.tensors().iter().map(|tensor| tensor.range.end - tensor.range.start);
    header.header_len() + tensors.sum::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalogue::entries;

    fn weights(shape: &Shape) -> u64 {
        shape.tensors.iter().map(|tensor| tensor.dims.iter().product::<u64>()).sum()
    }

    #[test]
    fn every_name_of_the_catalogue_has_a_shape_of_its_size() {
        for entry in entries() {
            let name = entry.short_name();
            let asked = find(&name).unwrap_or_else(|| panic!("{name} has no shape"));
            assert_eq!((asked.shape, &asked.label), (entry.shape.as_str(), &entry.repo), "{name}");
            let weights = weights(&shape(asked.shape).unwrap());
            let ratio = weights as f64 / entry.parameters as f64;
            // The counts of models that see include the tower.
            assert!((0.9..1.05).contains(&ratio), "{name}: {weights} of {}", entry.parameters);
            let sized = asked.sized(None).unwrap();
            let ratio = sized.bytes as f64 / entry.about_bytes() as f64;
            // Finer types stand in for those that no row of 896 numbers takes.
            assert!((0.85..1.35).contains(&ratio), "{name}: {ratio}: {}", sized.why);
        }
        for name in names() {
            let used = entries().iter().any(|entry| entry.shape == name);
            assert!(used, "{name} belongs to no name of the catalogue");
        }
    }

    /// Bytes of files as their publishers list them, or as loaders print them in GiB.
    #[test]
    fn files_have_the_published_sizes() {
        const GIB: f64 = (1u64 << 30) as f64;
        for (name, published) in [
            ("llama3.2:1b-q4_k_m", 807_694_464.0),
            ("llama3.1:8b-q4_k_m", 4_920_734_272.0),
            ("llama3.3:70b-q4_k_m", 42_520_395_584.0),
            ("qwen3:8b-q4_k_m", 5_027_783_488.0),
            ("gemma3:4b-q4_k_m", 2_489_757_856.0),
            ("qwen3:30b-a3b-q4_k_m", 17.28 * GIB),
            ("gpt-oss:20b", 11.27 * GIB),
            ("gpt-oss:120b", 59.02 * GIB),
            ("hunyuan:80b-a13b-q4_k_m", 45.38 * GIB),
            ("lfm2:24b-a2b-q4_0", 12.54 * GIB),
            ("lfm2:8b-a1b-q4_0", 4.41 * GIB),
            ("bge-reranker-v2-m3:568m-f16", 1_159_776_896.0),
            ("bge-reranker-v2-m3:568m-q8_0", 635_676_416.0),
            ("bge-reranker-v2-m3:568m-q4_k_m", 438_376_864.0),
        ] {
            let sized = find(name).unwrap().sized(None).unwrap();
            // A file also has its vocabulary, of some megabytes.
            let ratio = sized.bytes as f64 / published;
            assert!((0.97..1.01).contains(&ratio), "{name}: {ratio} of {published}");
        }
    }

    #[test]
    fn names_and_types() {
        let found = |text: &str| {
            let asked = find(text).unwrap_or_else(|| panic!("{text}"));
            (asked.shape, asked.sized(None).unwrap().name)
        };
        for (typed, shape, name) in [
            ("llama3.3", "llama-3.3-70b", "bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M"),
            ("llama3.3:70b-q8_0", "llama-3.3-70b", "bartowski/Llama-3.3-70B-Instruct-GGUF:Q8_0"),
            ("qwen3:8b:q8_0", "qwen3-8b", "Qwen/Qwen3-8B-GGUF:Q8_0"),
            ("Qwen/Qwen3-8B-GGUF:Q6_K", "qwen3-8b", "Qwen/Qwen3-8B-GGUF:Q6_K"),
            ("gpt-oss:20b", "gpt-oss-20b", "ggml-org/gpt-oss-20b-GGUF:MXFP4"),
            ("kimi-k2", "kimi-k2", "unsloth/Kimi-K2-Instruct-GGUF:Q4_K_M"),
            ("kimi-k2:q4_0-experts", "kimi-k2", "unsloth/Kimi-K2-Instruct-GGUF:Q4_0-EXPERTS"),
            ("gpt-oss-20b", "gpt-oss-20b", "gpt-oss-20b:MXFP4"),
            ("qwen3-235b:q8_0", "qwen3-235b-a22b", "qwen3-235b-a22b:Q8_0"),
        ] {
            assert_eq!(found(typed), (shape, name.to_owned()), "{typed}");
        }
        for unknown in ["llama-900b", "org/Other-GGUF", "nothing.gguf", "llama3.3:71b", ""] {
            assert_eq!(find(unknown), None, "{unknown}");
        }
        let error = find("qwen3:8b-q4_k_xl").unwrap().sized(None).unwrap_err().to_string();
        assert!(error.contains("q4_k_m") && error.contains("Qwen/Qwen3-8B-GGUF"), "{error}");
    }

    #[test]
    fn a_smaller_type_is_taken_where_the_usual_one_does_not_fit() {
        let room = |gib: u64| Room { bytes: gib << 30, whose: "the 2 nodes have".to_owned() };
        let of = |name: &str, gib| find(name).unwrap().sized(Some(&room(gib)));
        assert!(of("llama3.3:70b", 64).unwrap().name.ends_with(":Q4_K_M"));
        let small = of("llama3.3:70b", 32).unwrap();
        assert!(small.why.contains("Q4_K_M would need"), "{}", small.why);
        assert!(small.bytes < 29 << 30, "{}", small.why);
        let none = of("llama3.3:70b", 2).unwrap_err().to_string();
        assert!(none.contains("no variant of"), "{none}");
        // The experts of a mixture may stay on disk.
        let mixture = of("gpt-oss:120b", 32).unwrap();
        assert!(mixture.why.contains("do not all fit"), "{}", mixture.why);
    }
}
