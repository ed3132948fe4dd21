//! Room for a model's MTP block.

use protocol::Speculation;

use super::states::outline;
use super::*;
use crate::{Beside, DraftBytes};

fn left_out(plan: &Plan) -> bool {
    plan.why.iter().any(|why| why.contains("(MTP) is left out: n0 lacks"))
}

#[test]
fn a_block_has_room_on_the_leader_or_is_left_out() {
    let model = outline("qwen35-mtp");
    let of = |memory: u64, spec: &InstanceSpec| plan(&model, &[node(0, memory, 27.0, 10.0)], spec);
    let plenty = of(GIB, &spec()).unwrap();
    assert!(plenty.split.mtp && !left_out(&plenty));
    let block = model.mtp_footprint(plenty.split.context_tokens, Device::Cpu).unwrap();
    let without = SplitOptions { speculation: Speculation::Off, ..SplitOptions::default() };
    let alone = of(GIB, &split(without)).unwrap();
    assert!(!alone.split.mtp && !left_out(&alone));
    let more = plenty.ranks[0].memory_bytes - alone.ranks[0].memory_bytes;
    assert_eq!(more, block.bytes());

    // The least memory in which the model runs at all.
    let (mut least, mut most) = (0, GIB);
    while least + 1 < most {
        let middle = (least + most) / 2;
        *(if of(middle, &spec()).is_ok() { &mut most } else { &mut least }) = middle;
    }
    let short = of(most, &spec()).unwrap();
    assert!(!short.split.mtp && left_out(&short), "{:?}", short.why);
    assert!(of(most + block.bytes(), &spec()).unwrap().split.mtp);
}

#[test]
fn other_devices_have_the_block_too() {
    let mut gpu = node(0, GIB, 27.0, 10.0);
    (gpu.device, gpu.class) = (Device::Ggml, "CUDA0".to_owned());
    assert!(plan(&outline("glm4moe-mtp"), &[gpu], &spec()).unwrap().split.mtp);
}

#[test]
fn guesses_gain_more_over_slow_links() {
    let model = outline("qwen35-mtp");
    let gain = |latency_us: f64| {
        let two = split(SplitOptions { strategy: Strategy::Tensor, ..SplitOptions::default() });
        let planned = plan(&model, &nodes(2, latency_us), &two).unwrap();
        let prediction = planned.prediction.unwrap();
        let guessed = prediction.guessed.unwrap();
        let is_told = |why: &String| why.ends_with("of its MTP block, if 70 % are right");
        assert!(planned.why.iter().any(is_told), "{:?}", planned.why);
        assert!((1..=layout::GUESSES_MAX).contains(&guessed.depth));
        guessed.decode_tokens_per_sec / prediction.decode_tokens_per_sec
    };
    // At this acceptance no number of guesses gives more than 1 / (1 - 0.7) tokens a step.
    let (near, far) = (gain(5.0), gain(300.0));
    assert!(1.0 < near && near < far && far < 1.0 / 0.3, "{near} and {far}");
    let off = SplitOptions { speculation: Speculation::Off, ..SplitOptions::default() };
    let off = plan(&model, &[node(0, GIB, 27.0, 10.0)], &split(off)).unwrap();
    assert!(off.prediction.unwrap().guessed.is_none());
}

#[test]
fn a_draft_s_guesses_are_predicted_too() {
    let model = outline("qwen3");
    let draft = SplitOptions { draft: Some("draft.gguf".into()), ..SplitOptions::default() };
    let spec = split(SplitOptions { strategy: Strategy::Tensor, ..draft });
    let guessed = |draft: DraftBytes, latency_us: f64| {
        let beside = Beside { draft, ..Beside::default() };
        let nodes = nodes(2, latency_us);
        let plan = crate::plan_beside(&model, &nodes, &Options::new(&spec), beside).unwrap();
        let told = plan.why.iter().any(|why| why.ends_with("of its draft, if 70 % are right"));
        let prediction = plan.prediction.unwrap();
        assert_eq!(told, prediction.guessed.is_some(), "{:?}", plan.why);
        prediction.guessed.map(|one| one.decode_tokens_per_sec / prediction.decode_tokens_per_sec)
    };
    let own = DraftBytes::by(&model, |_| 1 << 20);
    let (near, far) = (guessed(own, 5.0).unwrap(), guessed(own, 300.0).unwrap());
    assert!(1.0 <= near && near < far, "{near} and {far}");
    // The leader may lack the draft.
    assert_eq!(guessed(DraftBytes::default(), 300.0), None);
}
