//! What a key of config.json changes. `fixtures/generate/folders.py` compares such folders with
//! transformers; these are the differences that it found and that tables alone cannot mend.

use crate::common::{Described, described};
use gguf::{File, Source, Value};
use serde_json::json;

fn open(name: &str, change: impl FnOnce(&mut Described)) -> Result<File, String> {
    let (mut model, dir) = (described(name), tempfile::tempdir().unwrap());
    change(&mut model);
    model.write(dir.path(), 1);
    checkpoint::open(dir.path()).map_err(|error| error.to_string())
}

fn value(name: &str, key: &str, change: impl FnOnce(&mut Described)) -> Option<Value> {
    open(name, change).unwrap().directory().get(key).cloned()
}

/// Numbers follow from names, so that two tensors are equal if one is there under both.
#[test]
fn an_output_matrix_of_its_own_counts_whatever_is_said_of_it() {
    let has_head = |file: File| file.directory().find_tensor("output.weight").is_some();
    let tied = |model: &mut Described| model.config["tie_word_embeddings"] = json!(true);
    assert!(has_head(open("llama-untied", tied).unwrap()));
    let without = open("llama-untied", |model| {
        tied(model);
        model.weights.remove("lm_head.weight");
    });
    assert!(!has_head(without.unwrap()));
}

#[test]
fn what_is_switched_off_is_not_there() {
    let off = |model: &mut Described| model.config["attention_bias"] = json!(false);
    let error = open("llama-biases", off).unwrap_err();
    assert!(
        error.contains("attention_bias is false; true for a folder with self_attn."),
        "{error}"
    );
    let missing = |model: &mut Described| {
        model.config.as_object_mut().unwrap().remove("attention_bias");
    };
    let error = open("glm4moe", missing).unwrap_err();
    assert!(error.contains("attention_bias is missing"), "{error}");
    let off = |model: &mut Described| model.config["use_qk_norm"] = json!(false);
    assert!(open("glm4moe", off).unwrap_err().contains("use_qk_norm is false"));
}

#[test]
fn layers_behind_the_last_do_not_matter_unless_they_guess() {
    let short = |model: &mut Described| model.config["num_hidden_layers"] = json!(1);
    let file = open("glm4moe", short).unwrap();
    assert!(file.directory().find_tensor("blk.1.attn_q.weight").is_none());
    let blocks = value("glm4moe-mtp", "glm4moe.nextn_predict_layers", |_| {});
    assert_eq!(blocks, Some(Value::U32(1)));
}

#[test]
fn positions_scales_and_ramps_are_the_configurations() {
    let rotates = |positions: &str| {
        let change = |model: &mut Described| {
            model.config["position_embedding_type"] = json!(positions);
        };
        value("granite-without-state", "granite.rope.scaling.finetuned", change)
    };
    assert_eq!(rotates("rope"), Some(Value::Bool(true)));
    assert_eq!(rotates("nope"), Some(Value::Bool(false)));
    let scale = |scalar: f64| {
        let change = |model: &mut Described| model.config["query_pre_attn_scalar"] = json!(scalar);
        value("gemma3", "gemma3.attention.scale", change)
    };
    assert_eq!(scale(64.0), Some(Value::F32(0.125)));
    let ramp = |model: &mut Described| model.config["rope_parameters"]["truncate"] = json!(false);
    let truncates = value("gpt-oss", "gpt-oss.rope.scaling.yarn_truncate", ramp);
    assert_eq!(truncates, Some(Value::Bool(false)));
    let cap = |model: &mut Described| model.config["attn_logit_softcapping"] = json!(5.0);
    assert_eq!(value("gemma3", "gemma3.attn_logit_softcapping", cap), None);
}
