//! Which split gives one request's tokens fastest, from what was measured of nodes and links.

use layout::Outline;
use protocol::{SplitOptions, StageSize, Strategy};

use crate::cost::{Costs, Shape};
use crate::stages::stages;
use crate::{Error, Node, Options};

/// What was measured of the way between two nodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LinkSpeed {
    /// A short message from one rank's hands to another's, seconds.
    pub message_secs: f64,
    /// In each direction.
    pub bytes_per_sec: f64,
}

impl LinkSpeed {
    /// Ranks of one machine, roughly as `sinew bench net` measures them.
    pub const SHARED_MEMORY: Self = Self { message_secs: 1.5e-6, bytes_per_sec: 8e9 };
    /// The same over TCP.
    pub const LOOPBACK: Self = Self { message_secs: 9e-6, bytes_per_sec: 2e9 };
}

/// One way to split a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Candidate {
    /// None for one of all.
    pub stages: Vec<StageSize>,
    /// Predicted, of one request; `None` where something was not measured.
    pub tokens_per_sec: Option<f64>,
}

/// Whether the plan may choose the strategy.
pub(crate) fn is_free(options: &Options<'_>) -> bool {
    let SplitOptions { strategy, stages, stage_layers, .. } = &options.spec.options;
    *strategy == Strategy::Auto && stages.is_none() && stage_layers.is_none()
}

/// The splits of the model that come into question, the fastest first.
pub(crate) fn candidates(
    model: &Outline,
    nodes: &[Node],
    shares: &[u32],
    options: &Options<'_>,
) -> Result<Vec<Candidate>, Error> {
    let candidate = |strategy| {
        let stages = stages(model, shares, strategy, options)?;
        let tokens_per_sec = tokens_per_sec(model, nodes, shares, &stages, options.ring);
        Ok(Candidate { stages, tokens_per_sec })
    };
    if !is_free(options) || nodes.len() == 1 {
        return Ok(vec![candidate(options.spec.options.strategy)?]);
    }
    let mut candidates = vec![candidate(Strategy::Tensor)?];
    // A model may have too few layers for stages, or a node no share; then tensors it is.
    candidates.extend(candidate(Strategy::Pipeline));
    // The ring that tensors need is the one of a pipeline as well; a hybrid needs other links.
    if nodes.len() > 3 && !options.ring {
        candidates.extend(candidate(Strategy::Hybrid));
    }
    let rate = |one: &Candidate| one.tokens_per_sec.unwrap_or(0.0);
    candidates.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
    Ok(candidates)
}

/// What all links of a plan can do at least, if all were measured. A link between two others than
/// the first node is taken to be no worse than theirs to the first.
pub(crate) fn slowest_link(nodes: &[Node]) -> Option<LinkSpeed> {
    let links = nodes.get(1..)?.iter().map(|node| node.link);
    links.reduce(|a, b| {
        let (a, b) = (a?, b?);
        let message_secs = a.message_secs.max(b.message_secs);
        Some(LinkSpeed { message_secs, bytes_per_sec: a.bytes_per_sec.min(b.bytes_per_sec) })
    })?
}

/// Tokens per second of one request over `stages`, none meaning one of all.
pub(crate) fn tokens_per_sec(
    model: &Outline,
    nodes: &[Node],
    shares: &[u32],
    stages: &[StageSize],
    ring: bool,
) -> Option<f64> {
    let link = slowest_link(nodes)?;
    let layers = model.config.layers;
    let one = [StageSize { ranks: nodes.len(), layers }];
    let stages = if stages.is_empty() { &one } else { stages };
    let costs = Costs {
        decode_secs: equal_node_secs(model, nodes, shares, stages)?,
        // Only decoding is asked for.
        prefill_secs: 0.0,
        added: 1.0,
        message_secs: link.message_secs,
        bytes_per_sec: link.bytes_per_sec,
        ring,
    };
    let head = model.head_part();
    let rate = 1.0 / costs.decode(&Shape { layers, width: model.config.width, head }, stages);
    (rate.is_finite() && rate > 0.0).then_some(rate)
}

/// The seconds that a token would take on one node, if equal ones in the place of these took as
/// long as these do: a stage waits for the node that is slowest with its share.
fn equal_node_secs(
    model: &Outline,
    nodes: &[Node],
    shares: &[u32],
    stages: &[StageSize],
) -> Option<f64> {
    let total: f64 = shares.iter().map(|share| f64::from(*share)).sum();
    let mut own = nodes.iter().zip(shares).map(|(node, share)| {
        let bytes = model.read_bytes as f64 * f64::from(*share) / total;
        Some(bytes / node.read_bytes_per_sec?)
    });
    stages.iter().try_fold(0.0, |sum, stage| {
        let slowest = own.by_ref().take(stage.ranks).try_fold(0.0, |a: f64, b| Some(a.max(b?)))?;
        Some(sum + stage.ranks as f64 * slowest)
    })
}

/// Says what was chosen and why, in numbers. `candidates`: all that were weighed, the chosen one
/// first.
pub(crate) fn reason(candidates: &[Candidate], nodes: &[Node], asked: bool) -> Option<String> {
    let (chosen, others) = candidates.split_first()?;
    let over = format!("{} over {} nodes", name(chosen), nodes.len());
    let asked = if asked { ", as was asked" } else { "" };
    let (Some(rate), Some(link)) = (chosen.tokens_per_sec, slowest_link(nodes)) else {
        return Some(format!("{over}{asked}: not predicted, as a node or a link was not measured"));
    };
    let mut text = format!("{over}{asked}: predicted about {} tokens/s", rough(rate));
    for other in others {
        let rate = other.tokens_per_sec.unwrap_or(0.0);
        text.push_str(&format!("; {} {}", name(other), rough(rate)));
    }
    let read = nodes.iter().filter_map(|node| node.read_bytes_per_sec).fold(f64::MAX, f64::min);
    text.push_str(&format!(
        " (a message takes {:.1} us, links carry {:.2} GB/s, nodes read {:.1} GB/s at least)",
        link.message_secs * 1e6,
        link.bytes_per_sec / 1e9,
        read / 1e9
    ));
    Some(text)
}

/// A positive rate with two digits, which is what a prediction is good for.
fn rough(rate: f64) -> String {
    let digits = rate.max(f64::MIN_POSITIVE).log10().floor() as i32 - 1;
    let step = 10_f64.powi(digits);
    format!("{:.*}", usize::try_from(-digits).unwrap_or(0), (rate / step).round() * step)
}

fn name(candidate: &Candidate) -> &'static str {
    match candidate.stages.as_slice() {
        [] | [_] => "tensor",
        stages if stages.iter().all(|stage| stage.ranks == 1) => "pipeline",
        _ => "hybrid",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;
    use crate::shapes::{Dense, LLAMA};
    use gguf::TensorType;
    use protocol::InstanceSpec;

    /// Llama-3.2-1B in Q4_0: 16 layers, and a head in Q6_K.
    fn model() -> Outline {
        // 34.2 MB a layer, and 215 MB of head.
        let head = TensorType::Q6_K;
        let dense = Dense { layers: 16, width: 2048, heads: 32, kv_heads: 8, ..LLAMA };
        dense.outline(TensorType::Q4_0, head)
    }

    /// Nodes that read 27 GB/s, as the cores of docs/performance.md.
    fn nodes(count: usize, message_us: f64) -> Vec<Node> {
        let link = LinkSpeed { message_secs: message_us * 1e-6, bytes_per_sec: 1e9 };
        let node = |id| Node {
            id,
            memory_free_bytes: 64 << 30,
            threads: 1,
            read_bytes_per_sec: Some(27e9),
            link: (id > 0).then_some(link),
        };
        (0..count).map(node).collect()
    }

    fn plan(
        model: &Outline,
        nodes: &[Node],
        strategy: Strategy,
        ring: bool,
    ) -> Result<Plan, Error> {
        let options = SplitOptions { strategy, ..SplitOptions::default() };
        let spec = InstanceSpec { options, ..InstanceSpec::default() };
        crate::plan(model, nodes, &Options { spec: &spec, ring })
    }

    fn planned(nodes: &[Node]) -> Plan {
        plan(&model(), nodes, Strategy::Auto, false).unwrap()
    }

    fn stages_of(plan: &Plan) -> Vec<usize> {
        plan.split.stages.iter().map(|stage| stage.ranks).collect()
    }

    #[test]
    fn slow_links_make_a_pipeline_of_what_fast_ones_split() {
        for (count, message_us, expected) in [
            (2, 3.0, vec![]),
            (2, 100.0, vec![]),
            (2, 300.0, vec![]),
            (2, 1000.0, vec![1, 1]),
            (2, 3000.0, vec![1, 1]),
            (4, 3.0, vec![]),
            (4, 500.0, vec![]),
            (4, 5000.0, vec![1, 1, 1, 1]),
            (1, 0.0, vec![]),
        ] {
            let plan = planned(&nodes(count, message_us));
            assert_eq!(stages_of(&plan), expected, "{count} at {message_us} us: {:?}", plan.why);
        }
    }

    #[test]
    fn a_ring_makes_a_pipeline_sooner() {
        for (message_us, ring, expected) in
            [(3.0, true, vec![]), (150.0, false, vec![]), (150.0, true, vec![1, 1, 1, 1])]
        {
            let plan = plan(&model(), &nodes(4, message_us), Strategy::Auto, ring).unwrap();
            assert_eq!(stages_of(&plan), expected, "{message_us} us: {:?}", plan.why);
        }
    }

    #[test]
    fn the_choice_changes_once_between_300_and_1000_us() {
        let is_tensor = |us: usize| planned(&nodes(2, us as f64)).split.stages.is_empty();
        let choices: Vec<bool> = (300..=1000).step_by(10).map(is_tensor).collect();
        assert!(choices[0] && !choices[choices.len() - 1]);
        assert_eq!(choices.windows(2).filter(|pair| pair[0] != pair[1]).count(), 1);
    }

    #[test]
    fn predictions_have_two_digits() {
        let found = [0.123, 0.999, 4.56, 40.7, 99.6, 3683.6].map(rough);
        assert_eq!(found, ["0.12", "1.00", "4.6", "41", "100", "3700"]);
    }

    #[test]
    fn the_reason_is_in_numbers() {
        let why = planned(&nodes(2, 300.0)).why.join("\n");
        let expected = "tensor over 2 nodes: predicted about 41 tokens/s; pipeline 40 (a \
                        message takes 300.0 us, links carry 1.00 GB/s, nodes read 27.0 GB/s at least)";
        assert!(why.contains(expected), "{why}");
    }

    #[test]
    fn a_wish_is_followed_and_what_was_not_measured_is_not_guessed() {
        let forced = plan(&model(), &nodes(2, 3000.0), Strategy::Tensor, false).unwrap();
        assert!(forced.split.stages.is_empty());
        assert!(forced.why.join(" ").contains("tensor over 2 nodes, as was asked: predicted"));
        let unknown: [fn(&mut Node); 2] =
            [|node| node.link = None, |node| node.read_bytes_per_sec = None];
        for forget in unknown {
            let mut nodes = nodes(3, 3000.0);
            forget(&mut nodes[2]);
            let plan = planned(&nodes);
            assert!(plan.split.stages.is_empty());
            assert!(plan.why.join(" ").contains("was not measured"), "{:?}", plan.why);
        }
    }

    #[test]
    fn nodes_that_read_slowly_bear_slower_links() {
        let mut nodes = nodes(2, 700.0);
        assert!(!planned(&nodes).split.stages.is_empty());
        nodes[1].read_bytes_per_sec = Some(5e9);
        // Half of a token takes 14 ms on the first and 76 ms on the second: tensors wait for it.
        assert!(!planned(&nodes).split.stages.is_empty());
        nodes[0].read_bytes_per_sec = Some(5e9);
        assert!(planned(&nodes).split.stages.is_empty());
    }

    #[test]
    fn the_fastest_that_fits_is_chosen() {
        // Three layers cannot be halved, tensors can.
        let dense = Dense { layers: 3, width: 4096, hidden: 327_680, vocab: 1024, ..LLAMA };
        let model = dense.outline(TensorType::Q8_0, TensorType::Q8_0);
        let mut nodes = nodes(2, 1e6);
        let chosen = |nodes: &[Node]| plan(&model, nodes, Strategy::Auto, false).unwrap();
        assert_eq!(stages_of(&chosen(&nodes)), [1, 1]);
        nodes.iter_mut().for_each(|node| node.memory_free_bytes = 7 << 30);
        let tight = chosen(&nodes);
        assert!(tight.split.stages.is_empty() && tight.why.join(" ").contains("; pipeline "));
        nodes.iter_mut().for_each(|node| node.memory_free_bytes = 1 << 30);
        assert!(plan(&model, &nodes, Strategy::Auto, false).is_err());
    }

    #[test]
    fn experts_that_rest_are_not_read() {
        let mut sparse = model();
        sparse.read_bytes /= 10;
        let plan = plan(&sparse, &nodes(2, 100.0), Strategy::Auto, false).unwrap();
        assert_eq!(stages_of(&plan), [1, 1], "{:?}", plan.why);
    }
}
