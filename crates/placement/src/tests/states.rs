//! Models with recurrent layers: their plans, and their refusals.

use gguf::{File, Source};

use super::*;

pub(super) fn outline(name: &str) -> Outline {
    let file = File::open(fixtures::path(&format!("models/{name}.gguf"))).expect("it is a fixture");
    Outline::read(file.directory()).expect("it is supported")
}

#[test]
fn a_device_without_states_is_refused_by_name() {
    let mut gpu = node(0, GIB, 27.0, 10.0);
    (gpu.device, gpu.class) = (Device::Ggml, "CUDA0".to_owned());
    let error = plan(&outline("qwen35"), &[gpu.clone()], &spec()).unwrap_err().to_string();
    for words in ["n0", "CUDA0", "carry a state", "--device cpu"] {
        assert!(error.contains(words), "{words} in {error:?}");
    }
    assert!(plan(&outline("qwen3"), &[gpu], &spec()).is_ok());
}

#[test]
fn states_and_their_checkpoints_are_in_the_plan() {
    let model = outline("qwen35");
    let bytes = |checkpoints| {
        let spec = InstanceSpec {
            sequences_max: Some(4),
            ..split(SplitOptions { checkpoints: Some(checkpoints), ..SplitOptions::default() })
        };
        let plan = plan(&model, &[node(0, GIB, 27.0, 10.0)], &spec).unwrap();
        plan.ranks[0].footprint.cache_bytes
    };
    // Four of five layers: 4 heads of 16 by 16, and three positions of 2 x 32 + 64 elements.
    let state = 4 * (4 * 16 * 16 + 3 * 128) * 4;
    assert_eq!(bytes(10) - bytes(2), 8 * state);
}

#[test]
fn a_plan_says_where_states_cannot_be_cut() {
    let plan_of = |name: &str| plan(&outline(name), &nodes(2, 10.0), &of(Strategy::Tensor));
    let says = |name: &str| plan_of(name).unwrap().why.iter().any(|why| why.contains("be cut:"));
    assert!(!says("qwen35") && !says("granitehybrid"));
    let quantised = "../quant/qwen35-q256.Q4_K_M";
    // One block of 256 weights spans all of its heads.
    assert!(outline(quantised).has_whole_states() && says(quantised));
}
