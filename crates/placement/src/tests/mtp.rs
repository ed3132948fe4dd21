//! Room for a model's MTP block.

use gguf::Source;
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

/// A plan over two nodes with a draft, and its gain, if one is predicted.
fn with_draft(draft: DraftBytes, strategy: Strategy, latency_us: f64) -> (Plan, Option<f64>) {
    let asked = SplitOptions { draft: Some("draft.gguf".into()), ..SplitOptions::default() };
    let spec = split(SplitOptions { strategy, ..asked });
    let beside = Beside { draft, ..Beside::default() };
    let (model, nodes) = (outline("qwen3"), nodes(2, latency_us));
    let plan = crate::plan_beside(&model, &nodes, &Options::new(&spec), beside).unwrap();
    let told = plan.why.iter().any(|why| why.ends_with("of its draft, if 70 % are right"));
    let prediction = plan.prediction.unwrap();
    assert_eq!(told, prediction.guessed.is_some(), "{:?}", plan.why);
    let rate = prediction.decode_tokens_per_sec;
    (plan, prediction.guessed.map(|guessed| guessed.decode_tokens_per_sec / rate))
}

#[test]
fn a_draft_s_guesses_are_predicted_too() {
    let own = DraftBytes::by(&outline("qwen3"), |_| 1 << 20);
    let gain = |draft, latency_us| with_draft(draft, Strategy::Tensor, latency_us).1;
    let (near, far) = (gain(own, 5.0).unwrap(), gain(own, 300.0).unwrap());
    assert!(1.0 <= near && near < far, "{near} and {far}");
    // The leader may lack the draft.
    assert_eq!(gain(DraftBytes::default(), 300.0), None);
}

#[test]
fn a_head_guesses_nothing_in_a_pipeline() {
    let fixture = |name: &str| gguf::File::open(fixtures::path(&format!("{name}.gguf"))).unwrap();
    let (model, head) = (fixture("models/qwen3"), fixture("heads/qwen3-eagle3"));
    let config = layout::Config::read(model.directory()).unwrap();
    let due = (model.directory().as_ref(), &config);
    let head = layout::BlockFile::read(head.directory(), due).unwrap();
    let head = DraftBytes::by(&head.outline, |_| 1 << 20);
    let own = DraftBytes::by(&outline("qwen3"), |_| 1 << 20);
    let told = |plan: &Plan| plan.why.iter().any(|why| why.contains("--strategy tensor"));
    for (draft, strategy, guesses) in [
        (head, Strategy::Tensor, true),
        (head, Strategy::Pipeline, false),
        (own, Strategy::Pipeline, true),
    ] {
        let (plan, gain) = with_draft(draft, strategy, 300.0);
        assert_eq!((gain.is_some(), told(&plan)), (guesses, !guesses), "{:?}", plan.why);
    }
}
