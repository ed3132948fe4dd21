//! Inconsistent model files: each must be refused with an explanation, and none may panic.

#[path = "hostile/copies.rs"]
mod copies;

use std::sync::Arc;

use backend::Backend as _;
use copies::{Lie, copy, copy_as, fixture};
use gguf::{Memory, Source, TensorType, Value};
use layout::{Capacity, Config, Gating, Layout, Outline, Scaling};
use model::{Embedding, Model, ModelError, Pooled};
use protocol::CacheType;

fn load(memory: Memory, ranks: usize) -> Result<(), ModelError> {
    let source: Arc<dyn Source> = Arc::new(memory);
    let outline = Outline::read(source.directory())?;
    let layout = Layout::new(&vec![1; ranks], &[], outline.config.layers).unwrap();
    let capacity = Capacity {
        context_tokens: 64,
        sequences_max: 1,
        cache_tokens: 64,
        cache_type: CacheType::Auto,
        whole_rows: outline.config.whole_rows(),
        is_encoder: outline.config.encoder.is_some(),
        checkpoints: 2,
    };
    for rank in 0..ranks {
        let mut backend = backend::Cpu::new(1, &[]).unwrap();
        Model::load(&mut backend, &source, &outline, &layout, rank, capacity, &mut |_| {})?;
        Embedding::open(source.clone(), &outline.config)?;
        Pooled::open(&mut backend, source.clone(), &outline.config)?;
    }
    Ok(())
}

const MODELS: &[&str] = &[
    "llama3-tied",
    "olmo2",
    "phi3",
    "gemma3",
    "mixtral",
    "qwen3moe",
    "qwen2moe",
    "glm4moe",
    "minimax-m2",
    "gpt-oss",
    "deepseek-v3",
    "deepseek-v2-lite",
    "qwen35moe",
    "qwen3next",
    "granitehybrid",
    "nemotron_h_moe-latent",
    "lfm2moe",
    "kimi-linear",
    "bailingmoe3",
    "kimi-k3",
    "gemma4-e",
    "gemma4-moe",
    "step35",
    "mimo2",
    "seed_oss",
    "ernie4_5-moe",
    "arcee",
    "olmoe",
    "hy_v3",
    "hunyuan-moe",
    "glm4",
    "exaone4",
    "mistral3",
    "gemma2",
    "cohere2",
    "muse-glimmer",
    "phimoe",
    "llama4",
    "deepseek32",
    "glm-dsa",
    "minimax-m3",
    "deepseek4",
    "glm5-next",
    "qwen4exp",
    "../encoders/bert-rank",
    "../encoders/nomic-bert-moe",
    "../encoders/modern-bert",
    "../encoders/gemma-embedding",
];

#[test]
fn a_missing_or_larger_tensor_is_named() {
    // Optional tensors; every other one is required.
    const OPTIONAL: &[&str] = &[
        "bias",
        "exp_probs_b",
        "attn_sinks",
        "attn_gate",
        "rope_factors_long",
        "rope_freqs",
        "layer_output_scale",
        "ffn_down_exps.scale",
        "ffn_routed_norm",
        "token_types",
        "cls.",
        "dense_",
    ];
    for &model in MODELS {
        load(copy(model, None), 2).unwrap_or_else(|error| panic!("{model}: {error}"));
        let file = fixture(model);
        for tensor in file.directory().tensors() {
            let name: &'static str = tensor.name.clone().leak();
            let first_layers = ["blk.0.", "blk.1."].iter().any(|layer| name.starts_with(layer));
            if name.starts_with("blk.") && !first_layers {
                continue; // As the first ones, only slower.
            }
            let optional = (OPTIONAL.iter().any(|optional| name.contains(optional))
                && !name.contains("ssm_dt")
                && !name.contains("attn_gate") | (model == "step35"))
                || name == "output.weight"
                || (["glm4moe", "step35"].contains(&model) && name.contains("_norm"))
                || (model.starts_with("gemma4") && name.contains("attn_v"))
                || (model == "phi3" && name.contains("rope_factors"));
            if !optional {
                let error = load(copy(model, Some(&Lie::Drop(name))), 1).err();
                let error = error.unwrap_or_else(|| panic!("{model} without {name} was loaded"));
                // Without the fused matrix, the two parts of it are missing.
                let part = name.replace("gate_up_exps", "gate_exps").replace("attn_qkv", "attn_q");
                let said = error.to_string();
                assert!(
                    said.contains(name) || said.contains(&part),
                    "{model} without {name}: {error}"
                );
            }
            // Longrope's other factors are not read, the vocabulary may have any size, and a table
            // of n-grams may have rows that no hash reaches. Encoders may have any number of
            // positions, token types, labels and elements of an embedding.
            let is_any = [
                "rope_factors_long.weight",
                "token_embd.weight",
                "position_embd.weight",
                "token_types.weight",
                "dense_3.weight",
            ];
            if is_any.contains(&name)
                || (model, name) == ("qwen4exp", "per_layer_token_embd.weight")
            {
                continue;
            }
            let error = load(copy(model, Some(&Lie::Grow(name))), 1).err();
            let error = error.unwrap_or_else(|| panic!("{model} with a larger {name} was loaded"));
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn impossible_metadata_is_refused() {
    let u32s = |key, values: &[u32]| -> Vec<Lie> {
        values.iter().map(|value| Lie::Set(key, Value::U32(*value))).collect()
    };
    let f32s = |key, values: &[f32]| -> Vec<Lie> {
        values.iter().map(|value| Lie::Set(key, Value::F32(*value))).collect()
    };
    let lists = |key, lists: &[&[i32]]| -> Vec<Lie> {
        lists.iter().map(|list| Lie::List(key, list.to_vec())).collect()
    };
    let huge = 1 << 31;
    for (model, lies) in [
        ("gemma3", u32s("gemma3.attention.sliding_window", &[huge])),
        ("gemma3", u32s("gemma3.attention.sliding_window_pattern", &[0])),
        ("gemma3", f32s("gemma3.rope.freq_base_swa", &[0.0, f32::NAN])),
        ("gemma3", f32s("gemma3.final_logit_softcapping", &[f32::NAN, f32::INFINITY])),
        ("gpt-oss", u32s("gpt-oss.attention.sliding_window", &[huge])),
        ("gpt-oss", f32s("gpt-oss.rope.scaling.factor", &[-1.0, f32::INFINITY])),
        ("qwen3moe", u32s("qwen3moe.expert_count", &[0, 7, huge])),
        ("qwen3moe", u32s("qwen3moe.expert_used_count", &[0, 9, huge])),
        ("qwen3moe", u32s("qwen3moe.expert_feed_forward_length", &[1, 65, huge])),
        ("qwen3moe", u32s("qwen3moe.expert_gating_func", &[5, huge])),
        ("mixtral", u32s("llama.expert_count", &[1, huge])),
        ("glm4moe", u32s("glm4moe.leading_dense_block_count", &[0, huge])),
        ("glm4moe", u32s("glm4moe.nextn_predict_layers", &[3, 4, huge])),
        ("deepseek-v3", u32s("deepseek2.expert_group_count", &[3, 9, huge])),
        ("deepseek-v3", u32s("deepseek2.expert_group_used_count", &[5, huge])),
        ("deepseek-v3", u32s("deepseek2.expert_shared_count", &[2, huge])),
        ("deepseek-v3", u32s("deepseek2.rope.dimension_count", &[0, 15, 32, 64])),
        ("deepseek-v3", u32s("deepseek2.attention.kv_lora_rank", &[0, 16, huge])),
        ("deepseek-v3", u32s("deepseek2.attention.key_length_mla", &[0, 8, huge])),
        ("deepseek-v3", vec![Lie::Drop("deepseek2.attention.key_length_mla")]),
        ("llama3-tied", u32s("llama.attention.head_count", &[0, 3, huge])),
        ("llama3-tied", u32s("llama.attention.head_count_kv", &[0, 3, huge])),
        ("llama3-tied", u32s("llama.block_count", &[0, 4, huge])),
        ("llama3-tied", u32s("llama.rope.dimension_count", &[0, 15, 18])),
        ("llama3-tied", f32s("llama.rope.freq_base", &[0.0, -1.0, f32::NAN])),
        ("phi3", u32s("phi3.attention.head_count_kv", &[0, 2])),
        ("qwen35", u32s("qwen35.ssm.conv_kernel", &[0, 3, 9, huge])),
        ("qwen35", u32s("qwen35.ssm.state_size", &[0, 15, 32, huge])),
        ("qwen35", u32s("qwen35.ssm.group_count", &[0, 1, 3, huge])),
        ("qwen35", u32s("qwen35.ssm.time_step_rank", &[0, 2, 3, huge])),
        ("qwen35", u32s("qwen35.ssm.inner_size", &[0, 63, 128, huge])),
        ("qwen35", u32s("qwen35.attention.recurrent_layers", &[0, 1])),
        ("qwen35", vec![Lie::Drop("qwen35.attention.recurrent_layers")]),
        ("granitehybrid", u32s("granitehybrid.ssm.group_count", &[0, 4, huge])),
        ("granitehybrid", u32s("granitehybrid.ssm.conv_kernel", &[0, 5])),
        ("granitehybrid", u32s("granitehybrid.attention.head_count_kv", &[0, 2, huge])),
        ("nemotron_h", u32s("nemotron_h.feed_forward_length", &[0, 96, huge])),
        ("nemotron_h_moe-latent", u32s("nemotron_h_moe.moe_latent_size", &[16, huge])),
        ("lfm2", u32s("lfm2.shortconv.l_cache", &[0, 4, huge])),
        ("kimi-linear", u32s("kimi-linear.kda.head_dim", &[0, 15, huge])),
        ("kimi-linear", f32s("kimi-linear.kda.gate_lower_bound", &[0.0, 5.0, f32::NAN])),
        ("kimi-k3", u32s("kimi-k3.attn_res.block_size", &[0, huge])),
        ("kimi-k3", u32s("kimi-k3.expert_latent_length", &[0, 24, huge])),
        ("kimi-k3", f32s("kimi-k3.kda.gate_lower_bound", &[0.0, f32::NEG_INFINITY])),
        ("kimi-k3", f32s("kimi-k3.activation.situ_beta", &[0.0, -1.0, f32::NAN])),
        ("kimi-k3", vec![Lie::Drop("kimi-k3.activation.situ_linear_beta")]),
        ("kimi-k3", u32s("kimi-k3.attention.head_count_kv", &[0, 1])),
        ("gemma2", f32s("gemma2.attn_logit_softcapping", &[f32::NAN, f32::INFINITY])),
        ("mistral3", f32s("mistral3.attention.temperature_scale", &[f32::NAN, f32::INFINITY])),
        ("cohere2", f32s("cohere2.logit_scale", &[-1.0, f32::NAN])),
        ("llama4", u32s("llama4.attention.sliding_window", &[huge])),
        ("llama4", u32s("llama4.interleave_moe_layer_step", &[0, 1, 3, huge])),
        ("deepseek32", u32s("deepseek32.attention.indexer.head_count", &[0, 3, huge])),
        ("deepseek32", u32s("deepseek32.attention.indexer.key_length", &[0, 63, huge])),
        ("deepseek32", u32s("deepseek32.attention.indexer.top_k", &[0, huge])),
        ("minimax-m3", u32s("minimax-m3.attention.indexer.head_count", &[0, 1, huge])),
        ("minimax-m3", u32s("minimax-m3.attention.indexer.block_size", &[huge])),
        ("deepseek4", u32s("deepseek4.attention.compress_ratios", &[3, 96, huge])),
        ("deepseek4", u32s("deepseek4.attention.key_length", &[0, 31, huge])),
        ("deepseek4", u32s("deepseek4.attention.q_lora_rank", &[0, 31, huge])),
        ("deepseek4", u32s("deepseek4.attention.output_group_count", &[0, 1, 3, huge])),
        ("deepseek4", u32s("deepseek4.attention.output_lora_rank", &[0, 15, huge])),
        ("deepseek4", u32s("deepseek4.rope.dimension_count", &[0, 7, 34, huge])),
        ("deepseek4", u32s("deepseek4.hyper_connection.count", &[0, 2, huge])),
        ("deepseek4", u32s("deepseek4.hyper_connection.sinkhorn_iterations", &[0, huge])),
        ("deepseek4", u32s("deepseek4.hash_layer_count", &[2])),
        ("glm5-next", u32s("glm5-next.attention.indexer.kpool", &[0, 3, 5, huge])),
        ("glm5-next", u32s("glm5-next.attention.indexer.top_k", &[0, 15, huge])),
        ("glm5-next", vec![Lie::Drop("glm5-next.attention.indexer.kpool_select_tail")]),
        ("qwen4exp", u32s("qwen4exp.hyper_connection.count", &[0, 2, huge])),
        ("qwen4exp", u32s("qwen4exp.hyper_connection.low_rank", &[0, 15, huge])),
        ("qwen4exp", u32s("qwen4exp.attention.compress_ratios", &[0, 3, 128, huge])),
        ("qwen4exp", u32s("qwen4exp.attention.indexer.top_k", &[0, 15, huge])),
        ("qwen4exp", u32s("qwen4exp.ple.ngram_size", &[0, 1, 4, 9, huge])),
        ("qwen4exp", u32s("qwen4exp.ple.heads_per_ngram", &[0, 1, 3, huge])),
        ("qwen4exp", u32s("qwen4exp.ple.conv_kernel", &[0, 3, 7, huge])),
        ("qwen4exp", u32s("qwen4exp.embedding_length_per_layer_input", &[0, 11, huge])),
        ("qwen4exp", lists("qwen4exp.ple.layers", &[&[], &[3], &[4], &[0, 1], &[-1]])),
        ("qwen4exp", lists("qwen4exp.ple.layer_multipliers", &[&[], &[1, 1]])),
        ("qwen4exp", lists("qwen4exp.ple.head_offsets", &[&[0; 3], &[0, 0, 0, 200]])),
        ("qwen4exp", lists("qwen4exp.ple.head_offsets", &[&[0, 0, 0, i32::MAX]])),
        ("qwen4exp", lists("qwen4exp.ple.head_vocab_sizes", &[&[1; 3], &[0, 1, 1, 1]])),
        ("qwen4exp", vec![Lie::Drop("qwen4exp.ple.eos_token_id")]),
        ("ernie4_5-moe", u32s("ernie4_5-moe.leading_dense_block_count", &[0, 2])),
    ] {
        for lie in &lies {
            let error = load(copy(model, Some(lie)), 1).err();
            let error = error.unwrap_or_else(|| panic!("{model} with {lie:?} was loaded"));
            assert!(!error.to_string().is_empty());
        }
    }
}

#[test]
fn an_epsilon_that_is_negative_or_no_number_is_refused_by_name() {
    let rms = "attention.layer_norm_rms_epsilon";
    for (model, key) in [
        ("llama3-tied", format!("llama.{rms}")),
        ("nemotron_h", "nemotron_h.attention.layer_norm_epsilon".to_owned()),
        ("cohere2", "cohere2.attention.layer_norm_epsilon".to_owned()),
        ("qwen35", format!("qwen35.{rms}")),
        ("kimi-k3", format!("kimi-k3.{rms}")),
        ("deepseek4", "deepseek4.hyper_connection.epsilon".to_owned()),
    ] {
        let key: &'static str = key.leak();
        for eps in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -1.0, -1e-6] {
            let lie = Lie::Set(key, Value::F32(eps));
            let error = load(copy(model, Some(&lie)), 1).err();
            let error = error.unwrap_or_else(|| panic!("{model} with {eps} was loaded"));
            let said = format!("{key} is {eps}");
            assert!(error.to_string().contains(&said), "{error}");
        }
        load(copy(model, Some(&Lie::Set(key, Value::F32(1e-6)))), 1).unwrap();
    }
}

/// Some files of DeepSeek V4 count a layer for multi-token prediction and do not contain it.
#[test]
fn layers_for_further_tokens_count_only_where_they_are() {
    let named = Lie::Set("deepseek4.nextn_predict_layers", Value::U32(1));
    let layers =
        |model, lie: Option<&Lie>| Config::read(copy(model, lie).directory()).unwrap().layers;
    assert_eq!(layers("deepseek4", Some(&named)), 3);
    assert_eq!(layers("deepseek4", None), 3);
    assert_eq!(layers("qwen35-mtp", None), 3);
}

#[test]
fn what_the_metadata_says_is_what_runs() {
    let config = |name: &str| Config::read(fixture(name).directory()).unwrap();
    let windows = config("gemma3").windows;
    let local = Some(16);
    assert_eq!(windows, [local, local, local, local, local, None, local]);
    assert_eq!(config("gpt-oss").windows, [local, None, local, None]);
    assert_eq!(config("phi3").windows, [None; 2]);
    let kimi = config("kimi-k2");
    let experts = kimi.experts.unwrap();
    assert_eq!((experts.count, experts.used, experts.dense_layers), (24, 4, Some(1)));
    assert!(kimi.experts_of(0).is_none() && kimi.experts_of(1).is_some());
    assert_eq!(kimi.latent.unwrap().kv_rank, 64);
}

#[test]
fn chunks_temperatures_and_dense_layers_are_where_they_belong() {
    let config = |name: &str| Config::read(fixture(name).directory()).unwrap();
    let llama4 = config("llama4");
    let chunk = Some(8192);
    assert_eq!(llama4.windows, [chunk, chunk, chunk, None, chunk]);
    let are = |of: &dyn Fn(usize) -> bool| (0..5).map(of).collect::<Vec<_>>();
    assert_eq!(are(&|at| llama4.rotates(at)), [true, true, true, false, true]);
    assert_eq!(are(&|at| llama4.has_l2_qk_norm(at)), [true, true, true, false, true]);
    assert_eq!(are(&|at| llama4.temperature_of(at).is_some()), [false, false, false, true, false]);
    let temperature = llama4.temperature_of(3).unwrap();
    assert_eq!((temperature.scale, temperature.length, temperature.offset), (0.1, 8192, 1));
    assert_eq!(are(&|at| llama4.experts_of(at).is_some()), [false, true, false, true, false]);
    // A file turns chunks off explicitly, and then all layers rotate.
    let lie = Lie::Set("llama4.attention.sliding_window", Value::U32(0));
    let plain = Config::read(copy("llama4", Some(&lie)).directory()).unwrap();
    assert_eq!(plain.windows, [None; 5]);
    assert!((0..5).all(|at| plain.rotates(at) && plain.temperature_of(at).is_none()));

    let mistral = config("mistral3").temperature_of(0).unwrap();
    assert_eq!((mistral.scale, mistral.length, mistral.offset), (0.5, 16, 0));
    assert_eq!(config("mistral3").rope.magnitude, 1.0);
    // For Hunyuan 3, only the tensors show which layers are dense.
    let hunyuan = config("hy_v3");
    assert!(hunyuan.experts_of(0).is_none() && hunyuan.experts_of(1).is_some());
}

/// Rows without a separate fixture.
#[test]
fn files_of_a_sibling_load_under_the_other_name() {
    for (fixture_name, old, new) in
        [("cohere2", "cohere2", "command-r"), ("deepseek-v3", "deepseek2", "mistral4")]
    {
        let memory = copy_as(fixture_name, old, new);
        let config = Config::read(memory.directory()).unwrap();
        assert_eq!(config.arch.name, new);
        assert!(config.windows.iter().all(Option::is_none));
        assert!((0..config.layers).all(|layer| config.rotates(layer)));
        load(memory, 2).unwrap_or_else(|error| panic!("{new}: {error}"));
    }
}

#[test]
fn what_older_files_leave_unsaid_is_understood() {
    let config = |name: &str, lie| Config::read(copy(name, Some(&lie)).directory()).unwrap();
    let factor = config("llama3-tied", Lie::Set("llama.rope.scale_linear", Value::F32(4.0)));
    assert_eq!(factor.rope.scaling, Scaling::Linear { factor: 4.0 });
    let gating = config("deepseek-v3", Lie::Drop("deepseek2.expert_gating_func"));
    assert_eq!(gating.experts.unwrap().gating, Gating::Sigmoid);
    let gating = config("deepseek-v2", Lie::Drop("deepseek2.expert_gating_func"));
    assert_eq!(gating.experts.unwrap().gating, Gating::Softmax);
    let windows = config("gemma3", Lie::Drop("gemma3.attention.sliding_window")).windows;
    assert_eq!(windows, [None; 7]);
    // A factor of 0 means none.
    let none = config("gpt-oss", Lie::Set("gpt-oss.rope.scaling.factor", Value::F32(0.0)));
    assert!(matches!(none.rope.scaling, Scaling::Yarn { factor: 1.0, .. }));
    let none = config("cohere2", Lie::Set("cohere2.logit_scale", Value::F32(0.0)));
    assert_eq!(none.logit_scale, 1.0);
}

#[test]
fn factors_for_long_texts_are_for_contexts_that_have_them() {
    let short = |name: &str, lie: Option<Lie>| {
        Config::read(copy(name, lie.as_ref()).directory()).unwrap().rope.short_context
    };
    let original = "phi3.rope.scaling.original_context_length";
    assert_eq!(short("phi3", None), Some(1024));
    assert_eq!(short("phi3", Some(Lie::Set(original, Value::U32(8192)))), None);
    assert_eq!(short("qwen3", None), None);
}

#[test]
fn a_tensor_that_nothing_reads_is_refused_by_name() {
    for (model, name) in [
        ("llama3-tied", "blk.2.attn_q_norm.weight"),
        ("deepseek-v3", "blk.1.attn_q_a.bias"),
        ("qwen3moe", "blk.0.ffn_gate_up_exps.weight"),
        ("qwen3", "blk.3.attn_q.weight"),
        ("qwen3", "token_embd_norm.weight"),
        ("qwen3", "output.scale"),
    ] {
        let error = load(copy(model, Some(&Lie::Add(name))), 2).err();
        let error = error.unwrap_or_else(|| panic!("{model} with {name} was loaded"));
        assert!(
            matches!(&error, ModelError::Layout(layout::Error::UnknownTensor { .. })),
            "{model}: {error}"
        );
        assert!(error.to_string().contains(name), "{model}: {error}");
    }
    // Vision tensors, and those for multi-token prediction, belong to no layer that runs. Some
    // tensors are duplicates.
    let harmless =
        ["v.blk.0.attn_q.weight", "blk.3.nextn.enorm.weight", "blk.1.attn_rot_embd.weight"];
    for name in harmless {
        load(copy("llama3-tied", Some(&Lie::Add(name))), 2).unwrap();
    }
}

#[test]
fn types_without_products_are_refused_by_the_header() {
    let mut cpu = backend::Cpu::new(1, &[]).unwrap();
    for ty in (0..64).filter_map(TensorType::from_u32) {
        let multiplies = cpu.start_matrices(ty, 1, 1, 256).is_ok();
        assert_eq!(gguf::WEIGHT_TYPES.contains(&ty), multiplies, "{ty}");
    }
    for name in ["token_embd.weight", "blk.1.ffn_down.weight"] {
        let memory = copy("llama3-tied", Some(&Lie::Type(name, TensorType::I16)));
        let error = Outline::read(memory.directory()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("has type I16"), "{error}");
    }
}

#[test]
fn what_a_tensor_that_nothing_reads_probably_is_is_told() {
    for (name, what) in [
        ("blk.0.indexer.attn_k.weight", "indexer"),
        ("blk.1.nextn.enorm.weight", "MTP block"),
        ("blk.0.attn_q.weight.lora_a", "adapter"),
    ] {
        let error = load(copy("llama3-tied", Some(&Lie::Add(name))), 1).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(what), "{error}");
    }
    for (name, what) in [
        ("v.blk.0.attn_q.weight", Some("1 tensor of a vision tower")),
        ("mm.0.weight", Some("1 tensor of a vision tower")),
        ("blk.3.nextn.enorm.weight", Some("1 tensor of an MTP block")),
        ("rope_freqs.weight", None),
    ] {
        let memory = copy("qwen3", Some(&Lie::Add(name)));
        let not_read = Outline::read(memory.directory()).unwrap().not_read;
        let is_told = not_read.as_ref().map(|not_read| what.is_some_and(|w| not_read.contains(w)));
        assert_eq!(is_told, what.map(|_| true), "{name}: {not_read:?}");
    }
}

#[test]
fn what_is_no_model_says_what_it_is() {
    for (lie, what) in [
        (Lie::Set("general.type", Value::String("adapter".into())), "an adapter (LoRA)"),
        (Lie::Set("general.architecture", Value::String("clip".into())), "(mmproj)"),
        (
            Lie::Set("general.architecture", Value::String("llama9".into())),
            "nearest by name is \"llama",
        ),
    ] {
        let error = load(copy("llama3-tied", Some(&lie)), 1).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}
