//! An EAGLE-3 head (arXiv 2503.01840): a file of one layer that predicts the next tokens of another
//! model, read as a model of its own.
//!
//! A row has a token's embedding and a state before it. At first the state is the model's: its
//! residual stream before three of its layers, which one matrix fuses; then the head's own residual
//! stream takes its place. Both are normalised, and the attention reads them side by side.
//! Files may lack the embedding and the output matrix; they are the model's then.

use gguf::{Directory, TensorInfo, TensorType};

use crate::config::{LAYERS_MAX, WIDTH_MAX};
use crate::metadata::Metadata;
use crate::{Config, Device, Error, Footprint, Outline, names};

/// The architecture's name in files.
const NAME: &str = "eagle3";
/// The token of the model that each token of the head stands for.
const TOKENS: &str = "d2t";

/// Layers that a head may read: published ones read three.
const READ_MAX: usize = 8;

/// What only such a head has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Eagle3 {
    /// The model's layers before which it reads the residual stream; their number stands for the
    /// stream after the last one.
    pub layers: Vec<usize>,
    /// Elements of the model's residual stream.
    pub model_width: usize,
    /// Whether the head's residual stream begins with the normalised state.
    pub normed_residual: bool,
}

impl Eagle3 {
    /// What a file has; `None` for any other architecture.
    pub(crate) fn read(metadata: &Metadata<'_>) -> Result<Option<Self>, Error> {
        const LAYERS: &str = "target_layers";
        if metadata.arch.name != NAME {
            return Ok(None);
        }
        let listed = metadata.get(LAYERS).and_then(|value| value.as_array());
        let listed = listed.and_then(|layers| layers.integers());
        let layers: Vec<i64> =
            listed.map_or(Vec::new(), |layers| layers.take(READ_MAX + 1).collect());
        let is_layer = |at: &i64| (0..=LAYERS_MAX as i64).contains(at);
        if !(1..=READ_MAX).contains(&layers.len()) || !layers.iter().all(is_layer) {
            let what = format!("{} are {layers:?}", metadata.key(LAYERS));
            return Err(Error::Impossible { what });
        }
        Ok(Some(Self {
            layers: layers.into_iter().map(|layer| layer as usize).collect(),
            model_width: metadata.size("target_hidden_size", WIDTH_MAX)?,
            normed_residual: metadata.find_bool("norm_before_residual")?.unwrap_or(false),
        }))
    }

    /// Elements of a row of the model's states.
    pub fn state_width(&self) -> usize {
        self.layers.len() * self.model_width
    }
}

/// A head's file, with what it borrows from its model.
#[derive(Debug, Clone)]
pub struct Eagle3Head {
    /// Tensors from [`BORROWED`](Self::BORROWED) on are in the model's file.
    pub directory: Directory,
    pub outline: Outline,
    /// The model's token for each of the head's, if it has fewer: i64.
    pub tokens: Option<TensorInfo>,
}

impl Eagle3Head {
    /// The offset of the model's tensors, beyond the end of any file.
    pub const BORROWED: u64 = 1 << 60;

    /// Whether a file is such a head.
    pub fn is_one(file: &Directory) -> bool {
        file.find_str("general.architecture").ok().flatten() == Some(NAME)
    }

    /// The head of a file, for the model of `header` and `config`.
    ///
    /// # Errors
    /// It is incomplete, or made for another model.
    pub fn read(file: &Directory, (header, config): (&Directory, &Config)) -> Result<Self, Error> {
        let directory = with_borrowed(file, header)?;
        let outline = Outline::read_block(&directory)?;
        let impossible = |what: String| Err(Error::Impossible { what });
        let Some(head) = &outline.config.eagle3 else {
            return impossible(format!("{NAME} without layers of a model"));
        };
        let (width, layers) = (config.width, config.layers);
        if config.streams.is_some() || config.banks.is_some() {
            let what = "a draft head for a model with several residual streams".to_owned();
            return Err(Error::Unsupported { what });
        }
        if head.model_width != width || head.layers.iter().any(|layer| *layer > layers) {
            return impossible(format!(
                "it reads layers {:?} of {} numbers a row; the model has {layers} of {width}",
                head.layers, head.model_width
            ));
        }
        let (own, due) = (outline.config.vocab, config.vocab);
        let embedded = directory.tensor(names::EMBEDDING)?.rows();
        let tokens = directory.find_tensor(TOKENS).cloned();
        let mapped = match &tokens {
            Some(TensorInfo { ty: TensorType::I64, .. }) => {
                tokens.as_ref().map(TensorInfo::columns)
            }
            Some(TensorInfo { ty, .. }) => {
                return impossible(format!("tensor \"{TOKENS}\" has type {ty}, not i64"));
            }
            None => None,
        };
        if embedded != due || mapped.unwrap_or(due) != own {
            return impossible(format!(
                "it has {own} tokens for {} of {embedded}; the model has {due}",
                mapped.unwrap_or(embedded)
            ));
        }
        Ok(Self { directory, outline, tokens })
    }

    /// Its memory on the rank that has it.
    pub fn footprint(&self, context_tokens: usize, device: Device) -> Footprint {
        self.outline.block_footprint(context_tokens, device)
    }
}

/// Whether tensor `name` of a model with `config` holds its tokens.
pub(crate) fn holds_tokens(name: &str, config: &Config) -> bool {
    config.eagle3.is_some() && name == TOKENS
}

/// A head's header, with the matrices that its file lacks from the model's.
fn with_borrowed(file: &Directory, model: &Directory) -> Result<Directory, Error> {
    let mut tensors = file.tensors().to_vec();
    let of_model = |name: &str| model.find_tensor(name);
    let output = of_model(names::OUTPUT).or(of_model(names::EMBEDDING));
    for (name, found) in [(names::EMBEDDING, of_model(names::EMBEDDING)), (names::OUTPUT, output)] {
        if file.find_tensor(name).is_some() {
            continue;
        }
        let found = found.ok_or_else(|| Error::Impossible { what: format!("no {name}") })?;
        let moved = |at: u64| at.checked_add(Eagle3Head::BORROWED);
        let (Some(start), Some(end)) = (moved(found.range.start), moved(found.range.end)) else {
            let what = format!("tensor \"{name}\" ends at byte {}", found.range.end);
            return Err(Error::Impossible { what });
        };
        tensors.push(TensorInfo { name: name.to_owned(), range: start..end, ..found.clone() });
    }
    let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
    Ok(file.with(metadata.collect(), tensors))
}

#[cfg(test)]
mod tests {
    use gguf::{Array, File, Source, Value};

    use super::*;

    fn open(name: &str) -> Directory {
        let path = format!("{}/../../fixtures/{name}.gguf", env!("CARGO_MANIFEST_DIR"));
        File::open(path).unwrap().directory().as_ref().clone()
    }

    type Change = fn(&mut Vec<(String, Value)>, &mut Vec<TensorInfo>);

    /// The head with other metadata or tensors, for qwen3.
    fn read(change: Change) -> Result<Eagle3Head, Error> {
        let (file, model) = (open("heads/qwen3-eagle3"), open("models/qwen3"));
        let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let (mut metadata, mut tensors) = (metadata.collect(), file.tensors().to_vec());
        change(&mut metadata, &mut tensors);
        let config = Config::read(&model).unwrap();
        Eagle3Head::read(&file.with(metadata, tensors), (&model, &config))
    }

    fn set(metadata: &mut [(String, Value)], key: &str, value: Value) {
        metadata.iter_mut().find(|(own, _)| own == key).unwrap().1 = value;
    }

    fn tensor<'a>(tensors: &'a mut [TensorInfo], name: &str) -> &'a mut TensorInfo {
        tensors.iter_mut().find(|tensor| tensor.name == name).unwrap()
    }

    #[test]
    fn a_head_borrows_what_its_file_lacks() {
        let head = read(|_, _| {}).unwrap();
        let start = |name: &str| head.directory.find_tensor(name).unwrap().range.start;
        assert!(start(names::EMBEDDING) > Eagle3Head::BORROWED);
        assert!(start(names::OUTPUT) < Eagle3Head::BORROWED);
        assert_eq!((head.outline.config.vocab, head.tokens.is_some()), (300, true));
        let without = read(|_, tensors| {
            tensors.retain(|tensor| ![names::OUTPUT, TOKENS].contains(&tensor.name.as_str()));
        });
        let without = without.unwrap();
        // The model has no output matrix either: its embedding is one.
        let output = without.directory.find_tensor(names::OUTPUT).unwrap();
        assert!(output.range.start > Eagle3Head::BORROWED);
        assert_eq!(without.outline.config.vocab, 512);
        let bytes = |head: &Eagle3Head| head.footprint(1024, Device::Cpu).bytes();
        let (own, more) = (bytes(&head), bytes(&without));
        assert!(more > own, "{more} of {own}");
    }

    #[test]
    fn a_head_for_another_model_or_a_broken_one_is_refused() {
        let refusals: [(&str, Change); 7] = [
            ("reads layers [0, 1, 3]", |metadata, _| {
                set(metadata, "eagle3.target_layers", Value::Array(Array::from_i32s(&[0, 1, 3])));
            }),
            ("target_layers are []", |metadata, _| {
                set(metadata, "eagle3.target_layers", Value::U32(1));
            }),
            ("of 65 numbers a row", |metadata, tensors| {
                set(metadata, "eagle3.target_hidden_size", Value::U32(65));
                tensor(tensors, names::FUSION).dims[0] = 3 * 65;
            }),
            ("\"fc.weight\"", |metadata, _| {
                set(metadata, "eagle3.target_hidden_size", Value::U32(65));
            }),
            ("type F32, not i64", |_, tensors| tensor(tensors, TOKENS).ty = TensorType::F32),
            ("300 tokens for 299 of 512", |_, tensors| tensor(tensors, TOKENS).dims[0] = 299),
            ("300 tokens for 512 of 512", |_, tensors| {
                tensors.retain(|tensor| tensor.name != TOKENS);
            }),
        ];
        for (due, change) in refusals {
            let error = read(change).unwrap_err().to_string();
            assert!(error.contains(due), "{due}: {error}");
        }
        let error = Outline::read(&open("heads/qwen3-eagle3")).unwrap_err().to_string();
        assert!(error.contains("--draft"), "{error}");
    }
}
