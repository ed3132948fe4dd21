use protocol::CacheType;

use crate::choice::gib;
use crate::wishes::WishError;

/// Why no plan exists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Wish(WishError),
    #[error(
        "{asked} nodes were asked for, but {live} are live. Start and join more, or ask for {live}"
    )]
    TooFewNodes { asked: usize, live: usize },
    #[error("a model can be split over 1 to {max} nodes, not {asked}")]
    TooManyRanks { asked: usize, max: usize },
    #[error(
        "{ranks} nodes would share the same layers, and {max} are the most. Ask for fewer, or for --strategy hybrid or pipeline"
    )]
    TooManyTogether { ranks: usize, max: usize },
    #[error("{shares} shares were given for {nodes} nodes. Give one number for each node")]
    Shares { shares: usize, nodes: usize },
    #[error(
        "stages of {by_ranks:?} ranks do not make up {ranks} ranks. Give one number for each stage, at least 1, such as --stages 2,2 for 4 nodes"
    )]
    Stages { by_ranks: Vec<usize>, ranks: usize },
    #[error(
        "--wire-type q8 quantises the sums of nodes that share a layer, and of {nodes} nodes in {stages} stages no two do. Leave it out, or split the model with --strategy tensor"
    )]
    NoSums { nodes: usize, stages: usize },
    #[error(
        "{stages} stages cannot be made of {layers} layers{}. Ask for at most {pieces} stages",
        if .pieces < .layers { ", as some read the keys and values of others and stay with them" } else { "" }
    )]
    TooManyStages { stages: usize, layers: usize, pieces: usize },
    #[error(
        "no stage can begin with layer {layer}, as layers from it on read the keys and values of layers before it. Begin stages at some of {borders:?}"
    )]
    Parted { layer: usize, borders: Vec<usize> },
    #[error(
        "{given:?} layers do not make up {layers} layers in {stages} stages. Give each stage at least one"
    )]
    StageLayers { given: Vec<usize>, layers: usize, stages: usize },
    #[error(
        "the shares {shares:?} are no split: at least one must be above 0 and their sum below 2^31"
    )]
    NoShares { shares: Vec<u32> },
    #[error(
        "a context of {asked} tokens was asked for; this model was trained for {max}. Ask for at most {max}"
    )]
    Context { asked: usize, max: usize },
    #[error(
        "a cache of {asked} tokens does not hold one conversation of {context}. Ask for at least that many with --cache-tokens, or for shorter conversations with --ctx"
    )]
    Cache { asked: usize, context: usize },
    #[error(
        "node {node} computes on {class}, which has no {} for this model. Leave --cache-type out for half precision, or ask for nodes that compute on their CPU",
        cache(*.cache_type)
    )]
    CacheType { node: String, class: String, cache_type: CacheType },
    #[error(
        "node {node} computes on {class}, which has no layers that carry a state, as this model's do. Ask for nodes that compute on their CPU with --nodes, or start this one with --device cpu"
    )]
    NoStates { node: String, class: String },
    #[error(
        "node {node} computes on {class}, which has no layers that choose the positions they see, as this model's do. Ask for nodes that compute on their CPU with --nodes, or start this one with --device cpu"
    )]
    NoIndexers { node: String, class: String },
    #[error(
        "node {node} computes on {class}, where no encoder runs, as this model is one. Ask for nodes that compute on their CPU with --nodes, or start this one with --device cpu"
    )]
    NoEncoders { node: String, class: String },
    #[error(
        "node {node} computes on {class}, and experts are read from disk by processors only. Leave --expert-memory out, ask for nodes that compute on their CPU with --nodes, or start this one with --device cpu"
    )]
    ExpertDevice { node: String, class: String },
    #[error(
        "--expert-memory is {}, and one expert takes {} on node {node}. Ask for at least that",
        gib(*.asked_bytes), gib(*.least_bytes)
    )]
    ExpertMemory { node: String, asked_bytes: u64, least_bytes: u64 },
    #[error("--expert-memory is for models with experts, and this one has none. Leave it out")]
    NoExperts,
    #[error(
        "nodes that share a layer must compute alike, but {} computes on {}, and {} on {}. Leave the choice of nodes to sinew, or ask for --strategy pipeline",
        one.0, one.1, other.0, other.1
    )]
    MixedDevices {
        /// Names of two nodes, and their compute devices.
        one: (String, String),
        other: (String, String),
    },
    #[error(
        "node {caller} cannot call node {called}, and two parts of a model link over such a call. Open the TCP port of {called} in its firewall, or leave one of the two out with --nodes"
    )]
    Uncalled { caller: String, called: String },
    #[error(
        "it {tried}, node {node} would need {}{} and has {} free for models, which is {} too little, of {} on all nodes. Try a smaller context, add a node, free memory, or give the node more with sinew up --memory",
        gib(*.needed_bytes), of(*.share, *.shares), gib(*.free_bytes),
        gib(.needed_bytes.saturating_sub(*.free_bytes)), gib(*.all_bytes)
    )]
    Memory {
        /// The misfit in words, with the number of candidate nodes.
        tried: String,
        /// Its name, and its device if that is not the CPU.
        node: String,
        share: u32,
        shares: u32,
        needed_bytes: u64,
        free_bytes: u64,
        /// Free bytes on all nodes together.
        all_bytes: u64,
    },
}

fn cache(cache_type: CacheType) -> &'static str {
    match cache_type {
        CacheType::Auto => "cache",
        CacheType::F16 => "cache of f16",
        CacheType::F32 => "cache of f32",
        CacheType::I16 => "cache of i16",
        CacheType::Q8_0 => "cache of q8_0 (heads would have to be multiples of 32 numbers)",
    }
}

/// Describes a part of a model; empty for all of it.
fn of(share: u32, shares: u32) -> String {
    if share == shares { String::new() } else { format!(" for {share} of {shares} parts of it") }
}
