//! Encoders: the room of one step, and devices that run none.

use super::states::outline;
use super::*;

#[test]
fn an_encoder_has_room_for_one_step_and_caches_in_one_place() {
    let model = outline("../encoders/bert");
    let of = |sequences_max| {
        let spec = InstanceSpec { sequences_max: Some(sequences_max), ..spec() };
        plan(&model, &[node(0, GIB, 27.0, 10.0)], &spec).unwrap()
    };
    let plan = of(4);
    // 512 rows of the largest step, and the last page of each text.
    assert_eq!((plan.split.context_tokens, plan.split.cache_tokens), (160, 512 + 4 * 64));
    // One layer's keys and values in f32, of three layers.
    let position = 2 * 64 * 4;
    assert_eq!(plan.ranks[0].footprint.cache_bytes, 768 * position);
    assert_eq!(of(8).split.cache_tokens, 512 + 8 * 64);
}

#[test]
fn a_device_without_encoders_is_refused_by_name() {
    let mut gpu = node(0, GIB, 27.0, 10.0);
    (gpu.device, gpu.class) = (Device::Ggml, "CUDA0".to_owned());
    let error = plan(&outline("../encoders/bert"), &[gpu], &spec()).unwrap_err().to_string();
    for words in ["n0", "CUDA0", "no encoder runs", "--device cpu"] {
        assert!(error.contains(words), "{words} in {error:?}");
    }
}
