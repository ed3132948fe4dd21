//! The messages between a daemon and its workers: pure data and its framing.
//!
//! A worker is one process with one rank of one model instance. Its daemon writes
//! [`WorkerCommand`]s to its standard input and reads [`WorkerEvent`]s from its standard output,
//! each as one [`frame`]. The same types travel between daemons in the control plane, so that one
//! daemon can drive the workers of others. Tokens travel this way too; activations use the data
//! plane.
//!
//! ```text
//! daemon                                worker
//!   Open(spec)               ->
//!                            <-  Listening, Loading ..., Loaded
//!   Connect(epoch, endpoints)->                                    (again after each Lost)
//!                            <-  Linked
//!   Generate(request) ...    ->                                    (rank 0 only)
//!                            <-  Tokens ..., Done | Rejected, Stats ...
//!                            <-  Lost(rank): this epoch has ended, weights are kept
//!   end of input             ->  the worker exits
//! ```
//!
//! This crate knows no sockets, no processes and no models.

mod byte_size;
mod call;
mod embedding;
pub mod frame;
mod generate;
mod keep_alive;
mod nodes;
pub mod parameters;
mod picture;
mod preset;
mod prompts;
mod replicas;
mod ring;
mod samplers;
mod sampling;
mod secret;
mod spec;
mod split_mix;
mod stats;
mod steps;
mod token;
mod turns;
mod worker;

pub use byte_size::ByteSize;
pub use call::RankCall;
pub use embedding::{EmbeddingOptions, LABELS_MAX, Pooling};
pub use generate::{
    AnswerToken, BIASES_MAX, END_TOKENS_MAX, FailureKind, FinishReason, GenerateRequest,
    Generation, Grammar, InvalidRequest, LOGPROBS_MAX, Logprobs, RequestId,
};
pub use keep_alive::{KeepAlive, seconds};
pub use nodes::Nodes;
pub use picture::{
    Detail, PICTURE_BYTES_MAX, PICTURES_MAX, Picture, PictureFile, is_of_picture, row_tokens,
};
pub use preset::{PRESET_BYTES_MAX, Preset, PresetMessage};
pub use prompts::{
    HEADS_OF_DISK_MAX, Heads, RECORD_MEMBERS_MAX, RECORDS_BYTES_MAX, RECORDS_MAX, RecordWanted,
    RecordsAsk, RecordsRelay, are_heads, heads_line, heads_of_line,
};
pub use replicas::{Replicas, first_key, key_after, page_keys};
pub use ring::{ring_pairs, ring_peers};
pub use samplers::{
    BREAKER_HEADS_MAX, BREAKER_TAIL_MAX, BREAKER_TAILS_MAX, DryBreakers, SAMPLERS_MAX, Sampler,
};
pub use sampling::{PARAMETERS, Parameter, ParameterFields, Sampling, SamplingChoice};
pub use secret::Secret;
pub use spec::{
    CacheType, ExpertSplit, InstanceSpec, Mix, SpecVersion, Speculation, Split, SplitOptions,
    StageSize, Strategy, Transport, WireType,
};
/// Counts changes after which the same model and input give other bits, or steps have another form.
/// The ranks of an instance must agree on it, and so must their links. Nodes with different values
/// still form one cluster.
pub const NUMERICS: u32 = 7;

pub use split_mix::split_mix;
pub use stats::{
    EngineStats, ExpertStats, Guesses, LinkStats, PageStats, PromptStats, RankStats, StepStats,
};
pub use token::Token;
pub use turns::Turns;
pub use worker::{
    ExpertCache, FileCheck, ModelSource, PromptCache, WorkerCommand, WorkerDevice, WorkerEvent,
    WorkerSpec,
};
