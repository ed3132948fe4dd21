use std::cell::Cell;

use layout::{
    Capacity, Device, Footprint, Layout, Outline, PAGE_POSITIONS, RANKS_MAX, STAGE_RANKS_MAX,
    full_cache_tokens, step_cache_tokens,
};
use protocol::{InstanceSpec, Mix, Nodes, Split, SplitOptions, Strategy};
use serde::{Deserialize, Serialize};

use crate::beside::DraftBytes;
use crate::choice::{
    Alternative, alternatives, choose, cuts, describe, expert_words, gib, names, words,
};
use crate::cost::{Load, Model, Prediction};
use crate::error::Error;
use crate::group::{Subject, counts};
use crate::mtp;
use crate::node::{Node, Speed, link};
use crate::placing::{Placing, PlannedRank};
use crate::search::{Limits, Tried, search};
use crate::streaming::Streaming;
use crate::trial::{Context, Fit, Misfit};
use crate::wishes;

/// The default context: enough for a long chat.
const CONTEXT_TOKENS_DEFAULT: usize = 8192;
/// The default number of sequences at once, and the number of full-length sequences in the default
/// cache: most are much shorter.
pub(crate) const SEQUENCES_DEFAULT: usize = 16;
const LONGEST_DEFAULT: usize = 4;
/// The default number of users of `--mix many`.
const USERS_DEFAULT: usize = 8;

/// The request, and the state of the cluster beside its nodes.
#[derive(Debug, Clone)]
pub struct Options<'a> {
    pub spec: &'a InstanceSpec,
    /// Whether some pairs of nodes cannot link, so that sums of four and more nodes go round a
    /// ring: the nodes are used in the given order.
    pub ring: bool,
    /// The load to optimize for, instead of [`InstanceSpec::mix`].
    pub load: Option<Load>,
    /// What guesses, if the spec names a draft. [`plan_beside`](crate::plan_beside) sets it.
    pub draft: DraftBytes,
}

impl<'a> Options<'a> {
    /// For these wishes, over links between any two nodes.
    pub fn new(spec: &'a InstanceSpec) -> Self {
        Self { spec, ring: false, load: None, draft: DraftBytes::default() }
    }
}

/// The decided share of each rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub ranks: Vec<PlannedRank>,
    pub split: Split,
    /// `tensor` or `pipeline 10+6`, for example.
    pub name: String,
    /// Absent if a node or a link was not measured.
    pub prediction: Option<Prediction>,
    /// The rejected alternatives, the next best first, each with the reason.
    pub alternatives: Vec<Alternative>,
    /// The reasons in words for a user: the choice, then the next best, then details.
    pub why: Vec<String>,
}

/// Chooses nodes, their order, stages and shares. `nodes[0]` is the node that got the request and
/// becomes rank 0.
///
/// By default it takes the split with the shortest predicted time for the requested mix, if nodes
/// and links were measured: more nodes only where they make it faster, or where fewer lack memory.
/// Without measurements it takes all nodes and splits by tensors, and fewer where these do not fit.
/// It never plans more memory than a node has free.
///
/// # Errors
/// The request cannot be met; the error lists what is missing, in numbers.
pub fn plan(model: &Outline, nodes: &[Node], options: &Options<'_>) -> Result<Plan, Error> {
    mtp::plan(model, nodes, options, plan_alone)
}

/// [`plan`] without an MTP block. Experts are read from disk if that was asked for, or if they do
/// not fit.
fn plan_alone(model: &Outline, nodes: &[Node], options: &Options<'_>) -> Result<Plan, Error> {
    let asked_bytes = options.spec.options.expert_memory.map(|size| size.0);
    if asked_bytes.is_some() {
        model.config.experts.ok_or(Error::NoExperts)?;
        return plan_with(model, nodes, options, Some(Streaming { asked_bytes }));
    }
    let found = plan_with(model, nodes, options, None);
    match (&found, model.config.experts) {
        (Err(Error::Memory { .. }), Some(_)) => {
            let streaming = Some(Streaming { asked_bytes: None });
            plan_with(model, nodes, options, streaming).or(found)
        }
        _ => found,
    }
}

fn plan_with(
    model: &Outline,
    nodes: &[Node],
    options: &Options<'_>,
    streaming: Option<Streaming>,
) -> Result<Plan, Error> {
    let asked = asked_nodes(nodes, options)?;
    wishes::check(model, options.spec, asked.unwrap_or(nodes.len())).map_err(Error::Wish)?;
    wishes::check_split(model, options, asked)?;
    let spec = options.spec;
    let context_tokens = context(model, options)?;
    let sequences_max = spec.sequences_max.unwrap_or(SEQUENCES_DEFAULT);
    let (cache_least, cache_most) = cache(model, options, (context_tokens, sequences_max))?;
    let whole_experts = model.whole_experts(spec.options.experts);
    let capacity = |tokens| capacity(model, options, (context_tokens, sequences_max, tokens));
    let try_all = |cache_tokens| {
        let capacity = capacity(cache_tokens);
        let subject = Subject { outline: model, whole_experts, capacity: &capacity, streaming };
        try_all(&context_of(subject, nodes, options), options, asked)
    };
    // An explicit number of requests gets memory for all of them, if there is enough.
    let mut tried = Tried::default();
    if spec.sequences_max.is_some() {
        tried = try_all(cache_most);
    }
    if tried.found.is_empty() {
        tried = try_all(cache_least);
    }
    let Some(chosen) = choose(&tried.found).map(|at| tried.found[at].clone()) else {
        let why = tried.left_out(nodes);
        return Err(why.unwrap_or_else(|| nothing(model, nodes, options, &tried)));
    };
    let chosen_nodes: Vec<&Node> = chosen.nodes().map(|at| &nodes[at]).collect();
    wishes::check_devices(model, spec, &chosen_nodes)?;
    let place = placing(model, nodes, &chosen, whole_experts, streaming)?;
    let cache_tokens = largest(cache_least, cache_most, |tokens| place.fits(&capacity(tokens)));
    let ranks = place.ranks(&capacity(cache_tokens));
    let stages = if chosen.groups.len() > 1 { chosen.stages() } else { Vec::new() };
    let prediction = Some(chosen.prediction).filter(|_| is_measured(nodes));
    let alternatives = match prediction {
        Some(_) => alternatives(nodes, &chosen, &tried),
        None => Vec::new(),
    };
    let mut plan = Plan {
        split: Split {
            shares: chosen.shares.clone(),
            stages,
            whole_experts,
            context_tokens,
            sequences_max,
            cache_tokens,
            expert_bytes: place.expert_bytes(&ranks),
            ..Split::default()
        },
        name: describe(&chosen.groups, &chosen.layers),
        ranks,
        prediction,
        alternatives,
        why: Vec::new(),
    };
    plan.why = explain(&plan, model, nodes, &chosen, is_asked(options));
    let rate = prediction.map(|prediction| prediction.decode_tokens_per_sec);
    plan.why.extend(expert_words(&place.kept(&plan.ranks), rate));
    plan.why.extend(prediction.and_then(|_| cuts(nodes, model.config.layers)));
    plan.why.extend(exactness(nodes, &chosen));
    Ok(plan)
}

fn capacity(
    model: &Outline,
    options: &Options<'_>,
    (context_tokens, sequences_max, cache_tokens): (usize, usize, usize),
) -> Capacity {
    Capacity {
        context_tokens,
        sequences_max,
        cache_tokens,
        cache_type: options.spec.options.cache_type,
        whole_rows: model.config.whole_rows(),
        is_encoder: model.config.encoder.is_some(),
        checkpoints: options.spec.options.checkpoints(),
    }
}

/// The choice, rank by rank.
fn placing<'a>(
    model: &'a Outline,
    nodes: &'a [Node],
    chosen: &Fit,
    whole_experts: bool,
    streaming: Option<Streaming>,
) -> Result<Placing<'a>, Error> {
    let stages = chosen.stages();
    let sizes: Vec<_> = stages.iter().map(|stage| (stage.ranks, stage.layers)).collect();
    let sizes = if sizes.len() > 1 { sizes } else { Vec::new() };
    let shares = &chosen.shares;
    let layout = Layout::new(shares, &sizes, model.config.layers);
    let layout = layout.map_err(|_| Error::NoShares { shares: shares.clone() })?;
    let layout = layout.with_whole_experts(whole_experts);
    let place = Placing::new(model, nodes, chosen.nodes(), shares, &layout, streaming);
    let Some(asked_bytes) = streaming.and_then(|own| own.asked_bytes) else { return Ok(place) };
    if let Some(Node { name, class, .. }) = place.without_disk() {
        return Err(Error::ExpertDevice { node: name.clone(), class: class.clone() });
    }
    match place.largest_expert() {
        Some((node, least_bytes)) if asked_bytes < least_bytes => {
            Err(Error::ExpertMemory { node: node.name.clone(), asked_bytes, least_bytes })
        }
        _ => Ok(place),
    }
}

/// The lost guarantees of a plan with ggml devices.
fn exactness(nodes: &[Node], chosen: &Fit) -> Option<String> {
    let on_ggml = chosen.nodes().filter(|at| nodes[*at].device == Device::Ggml);
    let names: Vec<&str> = on_ggml.map(|at| nodes[at].name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "{} computes with ggml: an answer's last bits depend on the split and on what else runs \
             (docs/exactness.md)",
            names.join(", ")
        )
    })
}

/// The requested number of nodes, in whatever option.
fn asked_nodes(nodes: &[Node], options: &Options<'_>) -> Result<Option<usize>, Error> {
    let SplitOptions { shares, stages, .. } = &options.spec.options;
    let live = nodes.len();
    let by_shares = shares.as_ref().map(Vec::len);
    let by_stages = stages.as_ref().map(|stages| stages.iter().sum());
    let asked = options.spec.nodes.as_ref().map(Nodes::count).or(by_shares).or(by_stages);
    if let Some(asked) = asked {
        if asked == 0 || asked > RANKS_MAX {
            return Err(Error::TooManyRanks { asked, max: RANKS_MAX });
        }
        if asked > live {
            return Err(Error::TooFewNodes { asked, live });
        }
        if let Some(shares) = by_shares.filter(|shares| *shares != asked) {
            return Err(Error::Shares { shares, nodes: asked });
        }
    } else if live == 0 {
        return Err(Error::TooFewNodes { asked: 1, live });
    }
    Ok(asked)
}

/// Whether the request fixes the number of nodes or the strategy.
fn is_asked(options: &Options<'_>) -> bool {
    let SplitOptions { strategy, stages, stage_layers, shares, .. } = &options.spec.options;
    *strategy != Strategy::Auto
        || options.spec.nodes.is_some()
        || stages.is_some()
        || stage_layers.is_some()
        || shares.is_some()
}

/// Whether all nodes and links were measured.
fn is_measured(nodes: &[Node]) -> bool {
    let sane = |node: &Node| node.speed.is_some_and(|speed| speed.is_sane());
    nodes.iter().all(sane) && (1..nodes.len()).all(|at| link(nodes, 0, at).is_some())
}

/// The parameters common to all trials. Without complete measurements, speeds follow from threads.
pub(crate) fn context_of<'a>(
    subject: Subject<'a>,
    nodes: &'a [Node],
    options: &Options<'a>,
) -> Context<'a> {
    let (model, spec) = (subject.outline, options.spec);
    let measured = is_measured(nodes);
    let speed = |node: &Node| match node.speed {
        Some(speed) if measured => speed.for_model(model),
        _ => Speed::of_threads(node.threads),
    };
    let experts = model.config.experts.as_ref();
    let borders = model.config.borders();
    Context {
        subject,
        model: Model {
            pieces: borders.len() - 1,
            width: model.config.width,
            // The width in the middle, if it varies.
            hop_width: model.config.input_width(model.config.layers.div_ceil(2)),
            quantised: model.is_quantised(),
            experts: experts.map_or(1, |experts| experts.count),
            experts_used: experts.map_or(1, |experts| experts.used),
            whole_experts: subject.whole_experts,
            window: model.config.window().unwrap_or(0),
            wire_type: spec.options.wire_type,
            ring: options.ring,
            guesses_in_stages: !options.draft.reads_layers,
            guess_bytes: match spec.options.draft {
                Some(_) => options.draft.read(),
                None => model.mtp.as_ref().map(|block| {
                    let bytes = block.row_loads().map(|(_, bytes, _)| bytes);
                    bytes.sum()
                }),
            },
        },
        nodes,
        speeds: nodes.iter().map(speed).collect(),
        measured,
        load: options.load.unwrap_or_else(|| load(spec, subject.capacity.context_tokens)),
        shares: spec.options.shares.as_deref(),
        stage_layers: spec.options.stage_layers.as_deref(),
        counts: counts(model, &borders),
        borders,
        known: Default::default(),
        best_secs: Cell::new(f64::INFINITY),
        heads: Default::default(),
    }
}

fn try_all(context: &Context<'_>, options: &Options<'_>, asked: Option<usize>) -> Tried {
    let (spec, measured) = (options.spec, context.measured);
    let all = context.nodes.len().min(RANKS_MAX);
    let strategy = spec.options.strategy;
    let mut limits = Limits {
        nodes: asked.or_else(|| (!measured || options.ring).then_some(all)),
        least: match strategy {
            Strategy::Auto => 1,
            Strategy::Tensor | Strategy::Pipeline => 2.min(all),
            Strategy::Hybrid => wishes::HYBRID_MIN.min(all),
        },
        strategy,
        stages: spec.options.stages.as_deref(),
        stage_count: spec.options.stage_layers.as_ref().map(Vec::len),
        fixed_order: options.ring || !measured || spec.options.shares.is_some(),
        exact_order: spec.options.shares.is_some(),
    };
    if measured {
        return search(context, &limits);
    }
    let mut tried = Tried::default();
    if strategy == Strategy::Auto && limits.stage_count.is_none() {
        // Nothing favours another split, unless this one does not fit.
        let nodes = asked.or(Some(all.min(STAGE_RANKS_MAX)));
        tried = search(context, &Limits { strategy: Strategy::Tensor, nodes, ..limits.clone() });
    }
    if tried.found.is_empty() {
        tried = search(context, &limits);
    }
    if tried.found.is_empty() && asked.is_none() && !options.ring {
        // Some of the nodes may be too small.
        (limits.nodes, limits.fixed_order) = (None, false);
        tried = search(context, &limits);
    }
    tried
}

/// The load of a mix, for this context.
fn load(spec: &InstanceSpec, context_tokens: usize) -> Load {
    let users = match spec.mix {
        Mix::Many => spec.sequences_max.unwrap_or(USERS_DEFAULT).clamp(1, 1024),
        Mix::One | Mix::Long => 1,
    };
    let prompt = if spec.mix == Mix::Long { 8192 } else { 512 };
    let prompt_tokens = prompt.min(context_tokens * 3 / 4).max(1);
    let answer_tokens = 256.min(context_tokens.saturating_sub(prompt_tokens)).max(1);
    Load { users, prompt_tokens, answer_tokens }
}

/// The error when no split was found.
fn nothing(model: &Outline, nodes: &[Node], options: &Options<'_>, tried: &Tried) -> Error {
    let lacks =
        |misfit: &&Misfit| misfit.needed_bytes.saturating_sub(nodes[misfit.node].memory_free_bytes);
    let Some(nearest) = tried.misfits.iter().min_by_key(lacks) else {
        let layers = model.config.layers;
        return match &options.spec.options.stage_layers {
            Some(given) => Error::StageLayers { given: given.clone(), layers, stages: nodes.len() },
            None => {
                let pieces = model.config.borders().len() - 1;
                Error::TooManyStages { stages: nodes.len(), layers, pieces }
            }
        };
    };
    let node = &nodes[nearest.node];
    let count = nodes.len();
    Error::Memory {
        tried: match count {
            1 => "does not fit on the only node there is".to_owned(),
            _ => format!(
                "fits on no set of the {count} nodes: of what comes nearest ({})",
                crate::choice::name(&nearest.groups)
            ),
        },
        node: match node.device {
            Device::Cpu => node.name.clone(),
            Device::Ggml => format!("{} ({})", node.name, node.class),
        },
        share: nearest.share,
        shares: nearest.shares,
        needed_bytes: nearest.needed_bytes,
        free_bytes: node.memory_free_bytes,
        all_bytes: nodes.iter().map(|n| n.memory_free_bytes).fold(0, u64::saturating_add),
    }
}

fn context(model: &Outline, options: &Options<'_>) -> Result<usize, Error> {
    let max = model.config.context_max;
    match options.spec.context_tokens {
        Some(asked) if asked == 0 || asked > max => Err(Error::Context { asked, max }),
        Some(asked) => Ok(asked),
        None => Ok(CONTEXT_TOKENS_DEFAULT.min(model.config.rope.short_context.unwrap_or(max))),
    }
}

/// The least and the most tokens of the cache. By default it has room for the requested sequences
/// at full length, or for as many as memory allows, at least one. An encoder keeps nothing beyond a
/// step, so it has room for the texts of one.
fn cache(
    model: &Outline,
    options: &Options<'_>,
    (context_tokens, sequences_max): (usize, usize),
) -> Result<(usize, usize), Error> {
    let least = full_cache_tokens(context_tokens, 1);
    match options.spec.cache_tokens {
        Some(asked) if asked < context_tokens => {
            Err(Error::Cache { asked, context: context_tokens })
        }
        Some(asked) => Ok((asked, asked)),
        None if model.config.encoder.is_some() => {
            Ok((least, step_cache_tokens(context_tokens, sequences_max)))
        }
        None => {
            let longest = options.spec.sequences_max.map_or(LONGEST_DEFAULT, |_| sequences_max);
            Ok((least, full_cache_tokens(context_tokens, longest)))
        }
    }
}

/// The largest cache of whole pages from `least` to `most` that `fits`; `least` if none does.
fn largest(least: usize, most: usize, fits: impl Fn(usize) -> bool) -> usize {
    if fits(most) {
        return most;
    }
    let (mut good, mut bad) = (0, (most - least) / PAGE_POSITIONS);
    while good + 1 < bad {
        let middle = good + (bad - good) / 2;
        if fits(least + middle * PAGE_POSITIONS) { good = middle } else { bad = middle }
    }
    least + good * PAGE_POSITIONS
}

fn explain(
    plan: &Plan,
    model: &Outline,
    nodes: &[Node],
    chosen: &Fit,
    is_asked: bool,
) -> Vec<String> {
    let over = match plan.ranks.len() {
        1 => format!("one node, {}", plan.ranks[0].name),
        _ => format!("{} over {}", plan.name, names(nodes, &chosen.groups).join(", ")),
    };
    let asked = if is_asked { ", as was asked" } else { "" };
    let predicted = match &plan.prediction {
        Some(prediction) => words(prediction),
        None => "not predicted, as a node or a link was not measured".to_owned(),
    };
    let mut why = vec![format!("{over}{asked}: {predicted}")];
    why.extend(plan.alternatives.first().map(|next| {
        format!("next best: {} over {}: {}", next.split, next.nodes.join(", "), next.reason)
    }));
    let sum = |bytes: fn(&Footprint) -> u64| {
        gib(plan.ranks.iter().map(|rank| bytes(&rank.footprint)).fold(0, u64::saturating_add))
    };
    let (weights, cache) = (sum(|held| held.weight_bytes), sum(|held| held.cache_bytes));
    let tokens = plan.split.cache_tokens;
    let kept = if model.config.recurrence.is_some() { "cache and states" } else { "cache" };
    why.push(format!("{weights} of weights and {cache} of {kept}, for {tokens} tokens"));
    why.extend(model.config.rope.short_context.map(|short| {
        let (now, max) = (plan.split.context_tokens, model.config.context_max);
        match now <= short {
            true => format!(
                "texts of at most {now} tokens, read as the model was trained; a --ctx of over \
                 {short}, up to {max}, stretches its rotation, for short texts as well"
            ),
            false => format!(
                "the model's rotation is stretched for texts of over {short} tokens; without \
                 --ctx, short ones are read as it was trained"
            ),
        }
    }));
    let whole = plan.split.whole_experts;
    let experts = model.config.experts.map(|experts| experts.count);
    why.extend(experts.zip(model.expert_parts()).map(|(experts, parts)| match whole {
        true => format!("whole experts to each node: {experts} of them, of {parts} parts each"),
        false => format!("columns of every expert to each node, which can be cut in {parts}"),
    }));
    if plan.ranks.len() > 1 && model.has_whole_states() {
        why.push("layers that carry a state cannot be cut: one node of each stage has them".into());
    }
    why
}
