//! Buffers of one step, allocated once by the list of `layout`.

use backend::Backend;
use layout::Buffers;

use super::arena::Arena;

/// Declares the buffers of a part. Each field gets the planned buffer `part.field`; the part is
/// absent if its first one is. A `Maybe` may be absent alone.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident of $part:literal {
        $($(#[$field_doc:meta])* $field:ident: $kind:ident,)*
    }) => {
        $(#[$doc])*
        pub(super) struct $name<B: Backend> {
            $($(#[$field_doc])* pub $field: part!(@type $kind),)*
        }

        impl<B: Backend> $name<B> {
            /// `at`: the index among parts of the same name.
            fn take(arena: &mut Arena<B>, at: usize) -> Option<Self> {
                let mut find = |field: &str| arena.find(&format!("{}.{field}", $part), at);
                Some(Self { $($field: part!(@value $kind, find(stringify!($field))),)* })
            }
        }
    };
    (@type Rows) => { B::Rows };
    (@type Maybe) => { Option<B::Rows> };
    (@value Rows, $found:expr) => { $found? };
    (@value Maybe, $found:expr) => { $found };
}

/// Buffers that all layers reuse: the token loop allocates nothing.
pub(super) struct Scratch<B: Backend> {
    /// The residual streams, `[rows, stream_width]`; after the last layer's keys and values
    /// `[outputs, width]`.
    pub x: B::Rows,
    /// Input of a layer's half, and then its total, `[rows, width]`.
    pub h: B::Rows,
    /// The attention's input, if it is not `h`: a token's embedding beside a state, `[rows, 2 *
    /// width]`.
    pub joined: Option<B::Rows>,
    /// For each kind of heads.
    pub heads: Vec<HeadScratch<B>>,
    pub latent: Option<LatentScratch<B>>,
    pub recurrent: Option<RecurrentScratch<B>>,
    /// The hidden elements of dense blocks, for each of their widths, then those of a shared expert
    /// that is a separate block.
    pub hidden: Vec<HiddenScratch<B>>,
    /// The output of a dense block beside experts, in models with both in one layer.
    pub beside: Option<BesideScratch<B>>,
    /// The totals of a dense block and of experts, received in one exchange.
    pub both: Vec<f32>,
    pub by_layer: Option<LayerEmbeddingScratch<B>>,
    pub ngrams: Option<NgramScratch<B>>,
    pub indexer: Option<IndexerScratch<B>>,
    /// The last choice of an indexer.
    pub chosen: Option<B::Chosen>,
    pub compressed: Option<CompressedScratch<B>>,
    /// Of layers without overlapping blocks, of layers with them, and of an indexer.
    pub entries: Vec<EntryScratch<B>>,
    pub streams: Option<StreamScratch<B>>,
    pub banks: Option<BankScratch<B>>,
    /// The token of each row, if tokens choose experts.
    pub tokens: Vec<u32>,
    pub routing: Option<Routing<B>>,
    /// Partial sums, `[parts * rows, width]`.
    pub sums: B::Rows,
    /// The experts' input and their partial sums, if they differ from the residual stream in width.
    pub expert: Option<ExpertScratch<B>>,
    /// The outputs after the last norm, `[outputs, width]`.
    pub normed: B::Rows,
    /// This rank's slice of the logits, `[outputs, vocab slice]`.
    pub logits: B::Rows,
}

part! {
    /// The buffers of layers with one kind of heads.
    HeadScratch of "heads" {
        /// This rank's queries, keys and values.
        q: Rows,
        k: Rows,
        v: Rows,
        /// The queries and keys of all heads, for models that normalise them together; else without
        /// columns.
        all_q: Rows,
        all_k: Rows,
        attended: Rows,
        /// Gates on the heads' outputs, in models that have them.
        gate: Maybe,
    }
}

part! {
    /// The hidden elements of a dense block.
    HiddenScratch of "hidden" {
        gate: Rows,
        up: Rows,
    }
}

part! {
    /// The output of a dense block beside experts.
    BesideScratch of "beside" {
        /// Partial sums, `[parts * rows, width]`, and their total, `[rows, width]`.
        sums: Rows,
        total: Rows,
    }
}

part! {
    /// The buffers of an indexer.
    IndexerScratch of "indexer" {
        /// `[rows, heads * dim]`.
        q: Rows,
        /// The product of a key, and the key, `[rows, dim]`.
        product: Rows,
        k: Rows,
        /// `[rows, heads]`.
        weights: Rows,
        /// The values of its cache: it has none.
        none: Rows,
    }
}

part! {
    /// The buffers of layers that compress.
    CompressedScratch of "compressed" {
        /// Compressed queries, `[rows, q_rank]`.
        q_down: Rows,
        /// The compressed outputs of heads, `[rows, groups * out_rank]`.
        out: Rows,
    }
}

part! {
    /// The inputs of entries, `[rows, parts * dim]`.
    EntryScratch of "entries" {
        keys: Rows,
        weights: Rows,
    }
}

part! {
    /// The buffers for mixing residual streams.
    StreamScratch of "streams" {
        /// All streams, normalised together, `[rows, stream_width]`.
        normed: Rows,
        /// The mixing weights of a half's input, `[rows, (2 + count) * count]`, and of the head,
        /// `[outputs, count]`.
        weights: Rows,
        head_weights: Rows,
        /// The mixed input, `[rows, width]`.
        mixed: Rows,
        /// If gates mix the streams: the gates, `[rows, stream_width]`, their inputs, `[rows,
        /// rank]`, and the streams' squares, `[rows, count]`.
        gates: Maybe,
        narrow: Maybe,
        squares: Maybe,
    }
}

part! {
    /// The buffers of the layer with n-gram embeddings.
    NgramScratch of "ngrams" {
        /// The embeddings of all heads, `[rows, heads * dim]`, and the value made from them,
        /// `[rows, width]`.
        own: Rows,
        value: Rows,
        /// `[rows, stream_width]`: keys and queries, and the gated value.
        keys: Rows,
        queries: Rows,
        gated: Rows,
        /// The factors of a convolution without gates.
        ones: Rows,
        /// `[rows, count]`.
        squares: Rows,
        none: Rows,
    }
}

part! {
    /// The banked residual streams.
    BankScratch of "banks" {
        /// `[rows, count * width]`; those that later layers bank are undefined.
        banks: Rows,
        /// A half's input from them, `[rows, width]`.
        mixed: Rows,
    }
}

part! {
    /// The buffers of layers with their own embeddings.
    LayerEmbeddingScratch of "by_layer" {
        /// The shared embedding, `[rows, width]`.
        shared: Rows,
        /// The embeddings of all layers from the stage's first on, `[rows, layers * own]`.
        all: Rows,
        /// Two buffers for one layer's, `[rows, own]`.
        own: Rows,
        gate: Rows,
    }
}

part! {
    /// The additional buffers of latent attention.
    LatentScratch of "latent" {
        /// `[rows, heads * plain_dim]` and `[rows, heads * rope_dim]`.
        q_plain: Rows,
        q_rope: Rows,
        /// Queries in the compressed space, and their outputs, `[rows, heads * kv_rank]`.
        q_up: Rows,
        /// `[rows, kv_rank]` and `[rows, rope_dim]`.
        kv: Rows,
        k_rope: Rows,
        /// Compressed queries, `[rows, q_rank]`.
        q_down: Maybe,
    }
}

part! {
    /// The buffers of layers with a state.
    RecurrentScratch of "recurrent" {
        q: Rows,
        k: Rows,
        v: Rows,
        decay: Rows,
        beta: Rows,
        gate: Rows,
        out: Rows,
        /// Intermediate low-rank projections.
        low_rank: Rows,
        /// Squares of all heads, `[parts * rows, heads]`, and their sums, `[rows, heads]`.
        square_parts: Maybe,
        squares: Maybe,
    }
}

part! {
    /// The buffers of experts in a latent space.
    ExpertScratch of "expert" {
        /// `[rows, latent]`.
        input: Rows,
        /// `[parts * rows, latent]`, and their total, `[rows, latent]`.
        sums: Rows,
        total: Rows,
    }
}

part! {
    /// The router's outputs.
    RouterScratch of "routing" {
        /// `[rows, experts]`.
        logits: Rows,
        /// `[rows, 1]`.
        shared_gate: Rows,
    }
}

/// The buffers of the experts' choice.
pub(super) struct Routing<B: Backend> {
    pub router: RouterScratch<B>,
    /// The experts of each row, if its token chooses them.
    pub given: Vec<u32>,
    pub routes: B::Routes,
}

/// The buffers of a part for each of its indices.
fn each<T>(take: impl FnMut(usize) -> Option<T>) -> Vec<T> {
    (0..).map_while(take).collect()
}

impl<B: Backend> Scratch<B> {
    /// Allocates the planned buffers; returns their bytes on the device too.
    pub fn new(backend: &mut B, plan: &Buffers) -> (Self, u64) {
        let mut arena = Arena::new(backend, plan);
        let all = &mut arena;
        let routing = RouterScratch::take(all, 0).map(|router| Routing {
            router,
            given: Vec::new(),
            routes: backend.routes(),
        });
        let made = Self {
            x: all.take("x"),
            h: all.take("h"),
            joined: all.find("joined", 0),
            heads: each(|at| HeadScratch::take(all, at)),
            latent: LatentScratch::take(all, 0),
            recurrent: RecurrentScratch::take(all, 0),
            hidden: each(|at| HiddenScratch::take(all, at)),
            beside: BesideScratch::take(all, 0),
            both: Vec::new(),
            by_layer: LayerEmbeddingScratch::take(all, 0),
            ngrams: NgramScratch::take(all, 0),
            indexer: IndexerScratch::take(all, 0),
            chosen: all.chosen(),
            compressed: CompressedScratch::take(all, 0),
            entries: each(|at| EntryScratch::take(all, at)),
            streams: StreamScratch::take(all, 0),
            banks: BankScratch::take(all, 0),
            tokens: Vec::new(),
            routing,
            sums: all.take("sums"),
            expert: ExpertScratch::take(all, 0),
            normed: all.take("normed"),
            logits: all.take("logits"),
        };
        let bytes = arena.bytes;
        arena.end();
        (made, bytes)
    }
}
