//! A file that guesses for another model: an EAGLE-3 head, Gemma 4's assistant, or an MTP block
//! without its model.
//!
//! It is read as a model of its own. What it lacks is read from the model's file.

use gguf::{Directory, TensorInfo, TensorType};

use super::assistant::{self, is_assistant};
use super::eagle3::{is_head, with_defaults};
use super::mtp::{self, MtpBlock, is_alone};
use crate::config::Config;
use crate::file::{Error, names};
use crate::outline::Outline;
use crate::parts::eagle3::TOKENS;
use crate::{Device, Footprint};

#[derive(Debug, Clone)]
pub struct BlockFile {
    /// Tensors from [`BORROWED`](Self::BORROWED) on are in the model's file.
    pub directory: Directory,
    pub outline: Outline,
    /// The model's token for each of the block's, if it has fewer: i64.
    pub tokens: Option<TensorInfo>,
}

impl BlockFile {
    /// The offset of the model's tensors, beyond the end of any file.
    pub const BORROWED: u64 = 1 << 60;

    /// Whether a file is one.
    pub fn is_one(file: &Directory) -> bool {
        is_head(file) || is_assistant(file) || is_alone(file)
    }

    /// Whether a file reads layers of its model, of which rank 0 lacks some in a pipeline.
    pub fn reads_layers(file: &Directory) -> bool {
        is_head(file) || is_assistant(file)
    }

    /// Whether it reads what they cache.
    pub fn reads_cache(file: &Directory) -> bool {
        is_assistant(file)
    }

    /// The block of a file, for the model of `header` and `config`.
    ///
    /// # Errors
    /// It is incomplete, or made for another model.
    pub fn read(file: &Directory, (header, config): (&Directory, &Config)) -> Result<Self, Error> {
        let directory = match () {
            () if is_assistant(file) => assistant::header(file),
            () if is_head(file) => with_borrowed(&with_defaults(file, config), header)?,
            () => with_borrowed(mtp::header(file)?.as_ref().unwrap_or(file), header)?,
        };
        let MtpBlock { directory, outline } = MtpBlock::of(directory)?;
        match (&outline.config.eagle3, outline.config.assistant) {
            (Some(eagle3), _) => eagle3.check(config)?,
            (None, Some(assistant)) => assistant.check(&outline.config, config)?,
            (None, None) => check_like(&outline.config, config)?,
        }
        let impossible = |what: String| Err(Error::Impossible { what });
        if outline.config.layers != 1 && outline.config.assistant.is_none() {
            return impossible(format!("a head of {} layers", outline.config.layers));
        }
        let (own, due) = (outline.config.vocab, config.vocab);
        let embedded = directory.tensor(names::EMBEDDING)?.rows();
        let tokens = directory.find_tensor(TOKENS).cloned();
        let mapped = match &tokens {
            Some(found) if found.ty != TensorType::I64 => {
                return impossible(format!("tensor \"{TOKENS}\" has type {}, not i64", found.ty));
            }
            found => found.as_ref().map(TensorInfo::columns),
        };
        if embedded != due || mapped.unwrap_or(due) != own {
            let of = mapped.unwrap_or(embedded);
            return impossible(format!(
                "it has {own} tokens for {of} of {embedded}; the model has {due}"
            ));
        }
        Ok(Self { directory, outline, tokens })
    }

    /// Its memory on the rank that has it.
    pub fn footprint(&self, context_tokens: usize, device: Device) -> Footprint {
        self.outline.block_footprint(context_tokens, device)
    }
}

/// Refuses an MTP block of another kind of model than that of `config`.
fn check_like(block: &Config, config: &Config) -> Result<(), Error> {
    let sizes = |config: &Config| (config.arch.name, config.stream_width());
    let ((own, own_width), (due, due_width)) = (sizes(block), sizes(config));
    if (own, own_width) == (due, due_width) {
        return Ok(());
    }
    let what = format!("an MTP block of {own} with states of {own_width} numbers");
    Err(Error::Impossible { what: format!("{what}; the model is {due}, and its have {due_width}") })
}

/// The header of a block, with what it lacks from the model's: the embedding and the output matrix,
/// and for an MTP block all else that is in no layer.
fn with_borrowed(block: &Directory, model: &Directory) -> Result<Directory, Error> {
    let mut tensors = block.tensors().to_vec();
    let output = model.find_tensor(names::OUTPUT).or(model.find_tensor(names::EMBEDDING));
    let output = output.map(|output| (names::OUTPUT, output));
    let of_model = model.tensors().iter().filter(|tensor| names::layer_of(&tensor.name).is_none());
    let of_model = of_model.map(|tensor| (tensor.name.as_str(), tensor));
    let is_wanted = |name: &str| !is_head(block) || name == names::EMBEDDING;
    let of_model = of_model.filter(|(name, _)| *name != names::OUTPUT && is_wanted(name));
    for (name, found) in of_model.chain(output) {
        if block.find_tensor(name).is_some() {
            continue;
        }
        let moved = |at: u64| at.checked_add(BlockFile::BORROWED);
        let (Some(start), Some(end)) = (moved(found.range.start), moved(found.range.end)) else {
            let what = format!("tensor \"{name}\" ends at byte {}", found.range.end);
            return Err(Error::Impossible { what });
        };
        tensors.push(TensorInfo { name: name.to_owned(), range: start..end, ..found.clone() });
    }
    let metadata = block.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
    Ok(block.with(metadata.collect(), tensors))
}

#[cfg(test)]
mod tests {
    use gguf::{Array, File, Source, Value};

    use super::*;

    fn open(name: &str) -> Directory {
        let path = fixtures::path(&format!("{name}.gguf"));
        File::open(path).unwrap().directory().as_ref().clone()
    }

    /// An assistant with other metadata or tensors, for `model`.
    fn assistant(name: &str, model: &str, change: Change) -> Result<BlockFile, Error> {
        let (file, model) = (open(&format!("heads/{name}-assistant")), open(model));
        let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let (mut metadata, mut tensors) = (metadata.collect(), file.tensors().to_vec());
        change(&mut metadata, &mut tensors);
        let config = Config::read(&model).unwrap();
        BlockFile::read(&file.with(metadata, tensors), (&model, &config))
    }

    type Change = fn(&mut Vec<(String, Value)>, &mut Vec<TensorInfo>);

    /// The head with other metadata or tensors, for qwen3.
    fn read(change: Change) -> Result<BlockFile, Error> {
        let (file, model) = (open("heads/qwen3-eagle3"), open("models/qwen3"));
        let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let (mut metadata, mut tensors) = (metadata.collect(), file.tensors().to_vec());
        change(&mut metadata, &mut tensors);
        let config = Config::read(&model).unwrap();
        BlockFile::read(&file.with(metadata, tensors), (&model, &config))
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
        assert!(start(names::EMBEDDING) > BlockFile::BORROWED);
        assert!(start(names::OUTPUT) < BlockFile::BORROWED);
        assert_eq!((head.outline.config.vocab, head.tokens.is_some()), (300, true));
        let without = read(|_, tensors| {
            tensors.retain(|tensor| ![names::OUTPUT, TOKENS].contains(&tensor.name.as_str()));
        });
        let without = without.unwrap();
        // The model has no output matrix either: its embedding is one.
        let output = without.directory.find_tensor(names::OUTPUT).unwrap();
        assert!(output.range.start > BlockFile::BORROWED);
        assert_eq!(without.outline.config.vocab, 512);
        let bytes = |head: &BlockFile| head.footprint(1024, Device::Cpu).bytes();
        let (own, more) = (bytes(&head), bytes(&without));
        assert!(more > own, "{more} of {own}");
    }

    #[test]
    fn a_head_for_another_model_or_a_broken_one_is_refused() {
        let refusals: [(&str, Change); 8] = [
            ("a head of 2 layers", |metadata, tensors| {
                set(metadata, "eagle3.block_count", Value::U32(2));
                let second = |one: &TensorInfo| {
                    let name = one.name.replace("blk.0.", "blk.1.");
                    TensorInfo { name, ..one.clone() }
                };
                let of_layer = |one: &&TensorInfo| {
                    one.name.starts_with("blk.0.") && !one.name.contains("attn_norm")
                };
                let more: Vec<_> = tensors.iter().filter(of_layer).map(second).collect();
                tensors.extend(more);
            }),
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

    #[test]
    fn an_assistant_keeps_nothing_and_reads_what_its_model_keeps() {
        for name in ["gemma4", "gemma4-e"] {
            // What chooses some tokens before their logits are computed is left out.
            let found = assistant(name, &format!("models/{name}"), |_, tensors| {
                let choice = TensorInfo {
                    name: "masked_embd_centroids.weight".into(),
                    ..tensors[0].clone()
                };
                tensors.push(choice);
            });
            let found = found.unwrap();
            let Footprint { cache_bytes, .. } = found.footprint(4096, Device::Cpu);
            assert_eq!(cache_bytes, 0, "{name}");
            let config = &found.outline.config;
            assert!((0..config.layers).all(|layer| !config.keeps(layer)), "{name}");
            assert_eq!(config.logit_cap, None, "{name}");
            let bare = Outline::read(&open(&format!("heads/{name}-assistant"))).unwrap_err();
            assert!(bare.to_string().contains("--draft"), "{name}: {bare}");
        }
    }

    #[test]
    fn an_assistant_for_another_model_or_a_broken_one_is_refused() {
        const OF: &str = "gemma4-assistant";
        let refusals: [(&str, &str, Change); 6] = [
            ("models/gemma4-moe", "states of 48 numbers; the model's have 56", |_, _| {}),
            ("models/gemma4-e", "its layer 0 reads 2 keys", |_, _| {}),
            ("models/qwen3", "states of 48 numbers", |_, _| {}),
            ("models/gemma4", "over 9 positions; layer 3 of the model caches", |metadata, _| {
                set(metadata, &format!("{OF}.attention.sliding_window"), Value::U32(9));
            }),
            ("models/gemma4", "a window of 1", |metadata, _| {
                set(metadata, &format!("{OF}.attention.sliding_window"), Value::U32(1));
            }),
            ("models/gemma4", "nextn.pre_projection", |_, tensors| {
                tensors.retain(|tensor| tensor.name != names::ASSISTANT_ENTRY);
            }),
        ];
        for (model, due, change) in refusals {
            let error = assistant("gemma4", model, change).unwrap_err().to_string();
            assert!(error.contains(due), "{due}: {error}");
        }
    }

    #[test]
    fn an_mtp_block_for_another_model_is_refused() {
        let file = open("models/step35-mtp");
        let metadata = file.metadata().map(|(key, value)| (key.to_owned(), value.clone()));
        let at = Config::read(&file).unwrap().layers;
        let own = file.tensors().iter().filter(|one| names::layer_of(&one.name) == Some(at));
        let alone = file.with(metadata.collect(), own.cloned().collect());
        assert!(BlockFile::is_one(&alone) && !BlockFile::is_one(&file));
        let read = |model: &str| {
            let model = open(model);
            let config = Config::read(&model).unwrap();
            BlockFile::read(&alone, (&model, &config)).map(|block| block.outline.config.layers)
        };
        assert_eq!(read("models/step35").unwrap(), 1);
        let error = read("models/mimo2").unwrap_err().to_string();
        assert!(error.contains("an MTP block of step35"), "{error}");
    }
}
