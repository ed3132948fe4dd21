//! Compares folders with the GGUF files that llama.cpp's converter makes of them, tensor by tensor.

use crate::common::{described, names};
use crate::compare::differences;
use gguf::Source;

#[test]
fn folders_become_what_the_converter_makes_of_them() {
    let only = std::env::var("ONLY").unwrap_or_default();
    let is_wanted = |name: &String| only.is_empty() || only.split(',').any(|it| it == name);
    let names: Vec<String> = names().into_iter().filter(is_wanted).collect();
    assert!(!names.is_empty());
    let mut failed = Vec::new();
    for name in names {
        let (wanted, dir) = (described(&name), tempfile::tempdir().unwrap());
        wanted.write(dir.path(), 2);
        match checkpoint::open(dir.path()) {
            Ok(file) => {
                let lines = differences(&file, &wanted);
                failed.extend(lines.into_iter().map(|line| format!("{name}: {line}")));
            }
            Err(error) => failed.push(format!("{name}: {error}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The library speculators writes a head's layer in a part of the configuration.
#[test]
fn a_head_of_speculators_becomes_what_others_do() {
    let (mut wanted, dir) = (described("qwen3-eagle3"), tempfile::tempdir().unwrap());
    let mut layer = wanted.config.take();
    let own = ["draft_vocab_size", "target_hidden_size", "norm_before_residual", "norm_before_fc"];
    let own = own.into_iter().chain(["eagle_aux_hidden_state_layer_ids"]);
    let own = own.map(|key| (key.to_owned(), layer.as_object_mut().unwrap().remove(key).unwrap()));
    let mut root: serde_json::Map<_, _> = own.collect();
    layer["architectures"] = serde_json::json!(["LlamaForCausalLM"]);
    root.insert("architectures".to_owned(), serde_json::json!(["Eagle3Speculator"]));
    root.insert("transformer_layer_config".to_owned(), layer);
    wanted.config = root.into();
    wanted.write(dir.path(), 1);
    let file = checkpoint::open(dir.path()).unwrap();
    assert_eq!(differences(&file, &wanted), [] as [String; 0]);
}

/// llama.cpp's converter leaves the blocks of DeepSeek V3 out. They are like those of V3.2, but for
/// the indexer.
#[test]
fn a_block_of_deepseek_v3_becomes_what_one_of_v3_2_does() {
    let (mut wanted, dir) = (described("deepseek32-mtp"), tempfile::tempdir().unwrap());
    wanted.config["architectures"] = serde_json::json!(["DeepseekV3ForCausalLM"]);
    wanted.weights.retain(|name, _| !name.contains("indexer"));
    wanted.tensors.retain(|name, _| !name.contains("indexer"));
    wanted.metadata.retain(|key, _| !key.contains("indexer") && key != "general.architecture");
    let metadata = std::mem::take(&mut wanted.metadata).into_iter();
    wanted.metadata =
        metadata.map(|(key, value)| (key.replace("deepseek32.", "deepseek2."), value)).collect();
    wanted.write(dir.path(), 1);
    let file = checkpoint::open(dir.path()).unwrap();
    assert_eq!(differences(&file, &wanted), [] as [String; 0]);
    assert!(layout::Outline::read(file.directory()).unwrap().mtp.is_some());
}

/// llama.cpp's converter leaves it out. transformers scales queries from the original context on.
#[test]
fn queries_of_mistral_4_grow_with_their_position() {
    let dir = tempfile::tempdir().unwrap();
    described("mistral4").write(dir.path(), 1);
    let file = checkpoint::open(dir.path()).unwrap();
    let outline = layout::Outline::read(file.directory()).unwrap();
    let found = outline.config.temperature_of(0).unwrap();
    assert_eq!((found.scale, found.length), (0.1, 16));
}
