//! Descriptions of models, read from their files' headers.

use std::path::Path;

use gguf::Directory;
use serde::{Deserialize, Serialize};

use crate::CheckText;
use crate::transfer::prepare::unused_tower;

/// The description of a model, from its header.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ModelAbout {
    /// The requested name.
    pub name: String,
    /// The holder of the file, if that is another node than the one asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Empty for a served model whose file is in no folder that its node knows.
    pub path: String,
    /// Of all parts.
    pub bytes: u64,
    pub parts: usize,
    pub architecture: String,
    pub title: String,
    pub parameters: u64,
    pub quantisation: String,
    /// Without those of blocks that guess further tokens.
    pub layers: Option<u64>,
    /// Whether it has a block of multi-token prediction that guesses tokens.
    #[serde(default)]
    pub has_mtp_block: bool,
    /// The kind of its vision tower, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sees_by: Option<String>,
    pub width: Option<u64>,
    pub heads: Option<u64>,
    pub kv_heads: Option<u64>,
    pub experts: Option<u64>,
    pub context_tokens: Option<u64>,
    pub vocabulary: Option<usize>,
    pub licence: String,
    /// Why this version cannot run it; absent if it can.
    pub cannot_run: Option<String>,
    /// Tensors that no code reads, by the purpose that their names indicate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_read: Option<String>,
    /// Oddities of its tokenizer and chat template, a sentence each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub remarks: Vec<String>,
    pub needs_about_bytes: u64,
    /// Whether the holder's machine can run the model without other nodes.
    pub fits_this_machine: bool,
    pub template: String,
}

impl ModelAbout {
    /// Reads a file's header; `room_bytes` is the memory for models on its machine.
    ///
    /// # Errors
    /// The file is not a model or is unreadable.
    pub fn read(
        name: &str,
        path: &Path,
        room_bytes: u64,
        check_text: CheckText,
    ) -> Result<Self, gguf::Error> {
        let file = checkpoint::open(path)?;
        let parts = checkpoint::paths(path);
        let lens = parts.iter().filter_map(|part| std::fs::metadata(part).ok());
        let bytes = lens.map(|metadata| metadata.len()).sum();
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let header = gguf::Source::directory(&file);
        let mut about = Self::of(name, &stem, (header, bytes), room_bytes, check_text);
        about.remarks.extend(unused_tower(path));
        about.remarks.extend(store::shelves::unused_layers(path, name));
        Ok(Self {
            path: path.to_string_lossy().into_owned(),
            parts: parts.iter().filter(|part| holds_weights(part)).count(),
            ..about
        })
    }

    /// Describes a model by its header and its length. The name of its file may tell how it is
    /// quantised.
    pub(crate) fn of(
        name: &str,
        stem: &str,
        (header, bytes): (&Directory, u64),
        room_bytes: u64,
        check_text: CheckText,
    ) -> Self {
        let text = |key: &str| header.find_str(key).ok().flatten().unwrap_or_default().to_owned();
        let architecture = text("general.architecture");
        let number = |key: &str| number(header, &format!("{architecture}.{key}"));
        let parameters = |dims: &[u64]| dims.iter().product::<u64>();
        let needs_about_bytes = hub::need_bytes(bytes);
        let outline = layout::Outline::read(header).map_err(|error| error.to_string());
        let checked = outline.as_ref().map_err(String::clone).and_then(|_| check_text(header));
        let tower = vision::Config::find(header).ok().flatten();
        let remarks = checked.clone().unwrap_or_default();
        let tokens = header.find_array("tokenizer.ggml.tokens").ok().flatten();
        Self {
            name: name.to_owned(),
            node: None,
            path: String::new(),
            bytes,
            parts: 1,
            title: text("general.name"),
            parameters: header.tensors().iter().map(|tensor| parameters(&tensor.dims)).sum(),
            quantisation: store::quant_of(stem).unwrap_or_else(|| main_type(header)),
            layers: match &outline {
                Ok(outline) => Some(outline.config.layers as u64),
                Err(_) => number("block_count"),
            },
            has_mtp_block: outline.as_ref().is_ok_and(|outline| outline.mtp.is_some()),
            sees_by: tower.map(|tower| tower.projector.name.to_owned()),
            width: number("embedding_length"),
            heads: number("attention.head_count"),
            kv_heads: number("attention.head_count_kv"),
            experts: number("expert_count"),
            context_tokens: number("context_length"),
            vocabulary: tokens.map(gguf::Array::len),
            licence: text("general.license"),
            not_read: outline.as_ref().ok().and_then(|outline| outline.not_read.clone()),
            remarks,
            cannot_run: checked.err(),
            needs_about_bytes,
            fits_this_machine: needs_about_bytes <= room_bytes,
            template: text("tokenizer.chat_template"),
            architecture,
        }
    }
}

/// Whether a file of a model holds weights; a folder has others beside them.
fn holds_weights(path: &Path) -> bool {
    let extension = path.extension().unwrap_or_default();
    !["json", "jinja", "model"].iter().any(|other| extension == *other)
}

/// Checks that this version can run a model; returns remarks on its tokenizer and chat template.
///
/// # Errors
/// Its architecture, its tensor types or its tokenizer are unknown.
pub fn can_run(header: &Directory, check_text: CheckText) -> Result<Vec<String>, String> {
    layout::Outline::read(header).map_err(|error| error.to_string())?;
    check_text(header)
}

/// A number of the header; of a per-layer array, the maximum.
fn number(header: &Directory, key: &str) -> Option<u64> {
    if let Some(array) = header.find_array(key).ok().flatten() {
        return array.integers()?.max()?.try_into().ok();
    }
    header.find_u64(key).ok().flatten()
}

/// The tensor type with the most bytes.
fn main_type(header: &Directory) -> String {
    let mut bytes = std::collections::BTreeMap::new();
    for tensor in header.tensors() {
        let name = format!("{:?}", tensor.ty);
        *bytes.entry(name).or_insert(0) += tensor.range.end - tensor.range.start;
    }
    bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or_else(String::new, |(name, _)| name)
}
