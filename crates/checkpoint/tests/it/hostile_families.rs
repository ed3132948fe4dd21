//! The tables of all families refuse configurations and shapes that cannot be. Nothing panics.

use std::fs;
use std::path::Path;

use crate::common::{Described, described, safetensors};
use gguf::Source;
use serde_json::{Value, json};

/// Models with changes of numbers that look at sizes.
const MODELS: [&str; 21] = [
    "deepseek32-mtp",
    "deepseek4",
    "deepseek4-mxfp4",
    "gemma4",
    "gemma4-assistant",
    "glm4moe-mtp",
    "glm5-next",
    "granitehybrid",
    "kimi-k3",
    "kimi-linear",
    "bailingmoe3",
    "llama4",
    "mimo2",
    "minimax-m3",
    "mistral4",
    "nemotron_h_moe-latent",
    "qwen3-eagle3",
    "qwen35-mtp",
    "qwen3next",
    "qwen4exp",
    "step35",
];

fn write_weights(model: &Described, folder: &Path) {
    fs::write(folder.join("weights.safetensors"), safetensors(&model.tensors())).unwrap();
}

/// Opens a folder and reads all of it, if it can be read.
fn read(folder: &Path) -> Result<(), String> {
    let file = checkpoint::open(folder).map_err(|error| error.to_string())?;
    for tensor in file.directory().tensors() {
        let (start, piece) = (tensor.range.start, tensor.range.end - tensor.range.start);
        let pieces = gguf::Strided { start, piece, stride: piece, count: 1 };
        file.read(pieces, &mut vec![0; piece as usize]).unwrap();
    }
    Ok(())
}

/// The places of all values in a configuration.
fn places(value: &Value, before: &str) -> Vec<String> {
    let of = |(key, value): (String, &Value)| {
        let place = format!("{before}/{key}");
        let inside = places(value, &place);
        [vec![place], inside].concat()
    };
    match value {
        Value::Object(map) => {
            map.iter().flat_map(|(key, value)| of((key.clone(), value))).collect()
        }
        Value::Array(list) => list
            .iter()
            .take(2)
            .enumerate()
            .flat_map(|(at, value)| of((at.to_string(), value)))
            .collect(),
        _ => Vec::new(),
    }
}

#[test]
fn other_values_in_a_configuration_are_refused_or_read() {
    let others = [json!(0), json!(3), json!(1u64 << 40), json!(u64::MAX), json!(-1), json!(0.3)];
    let others = [&others[..], &[json!("x"), json!([]), json!({}), json!(null)]].concat();
    let mut refused = 0;
    for name in MODELS {
        let (mut model, dir) = (described(name), tempfile::tempdir().unwrap());
        model.write_unlisted(dir.path());
        let whole = model.config.clone();
        for (at, place) in places(&whole, "").into_iter().enumerate() {
            for other in others.iter().skip(at % 3).step_by(3) {
                model.config = whole.clone();
                *model.config.pointer_mut(&place).unwrap() = other.clone();
                fs::write(dir.path().join("config.json"), model.config.to_string()).unwrap();
                refused += usize::from(checkpoint::open(dir.path()).is_err());
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn other_shapes_are_refused_or_read() {
    let mut refused = 0;
    for name in MODELS {
        let (mut model, dir) = (described(name), tempfile::tempdir().unwrap());
        model.write_unlisted(dir.path());
        let whole = model.weights.clone();
        let is_first = |name: &&String| !name.contains("experts.") || name.contains("experts.0.");
        for (at, name) in whole.keys().filter(is_first).enumerate() {
            let others = [vec![], vec![1], vec![6], vec![3, 4], vec![2, 3, 4], vec![1, 2, 3, 4, 5]];
            let other = &others[at % others.len()];
            model.weights.insert(name.clone(), other.clone());
            write_weights(&model, dir.path());
            refused += usize::from(read(dir.path()).is_err());
            model.weights.insert(name.clone(), whole[name].clone());
        }
    }
    assert!(refused > 200, "{refused}");
}

/// The refusal of a model whose weights are changed.
fn refusal(name: &str, change: impl Fn(&mut Described)) -> String {
    let (mut model, dir) = (described(name), tempfile::tempdir().unwrap());
    change(&mut model);
    model.write_unlisted(dir.path());
    read(dir.path()).unwrap_err()
}

#[test]
fn parts_that_are_missing_and_blocks_far_away_are_named() {
    let error = refusal("kimi-k3", |model| {
        model.weights.remove("language_model.model.layers.1.mlp_res_norm.weight");
    });
    assert!(error.contains("blk.1.ffn_res_score.weight"), "{error}");
    assert!(error.contains("a product of two tensors, not 1"), "{error}");
    let shard = "model.layers.1.ple.ple_embedding.ngram_embedding.shard_0.weight";
    let error = refusal("qwen4exp", |model| drop(model.weights.remove(shard)));
    assert!(error.contains("has 1 parts, of which some are missing"), "{error}");
    let constants = "model.layers.1.ple.ple_embedding.layer_multipliers";
    let error = refusal("qwen4exp", |model| drop(model.types.remove(constants)));
    assert!(error.contains("at most 4096 numbers of I64 is needed"), "{error}");
    let error = refusal("qwen4exp", |model| {
        model.weights.insert(constants.to_owned(), vec![5000]);
    });
    assert!(error.contains("at most 4096 numbers of I64 is needed"), "{error}");
    let error = refusal("qwen35-mtp", |model| {
        model.weights.insert("mtp.layers.4000000000.x.weight".to_owned(), vec![4]);
    });
    assert!(error.contains("block 4000000001 behind 3 layers; 16 are read"), "{error}");
    let error = refusal("step35", |model| {
        model.config["text_config"]["partial_rotary_factors"] = json!([0.5, 0.5, 1.0, 0.5]);
    });
    assert!(error.contains("partial_rotary_factors is [0.5, 0.5, 1.0, 0.5]; 1 for"), "{error}");
    let error = refusal("mimo2", |model| model.config["swa_head_dim"] = json!(8));
    assert!(error.contains("swa_head_dim is 8; 24, as head_dim is, is needed"), "{error}");
}
