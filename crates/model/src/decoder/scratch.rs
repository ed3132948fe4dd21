//! Buffers of one step, allocated once.

use backend::Backend;
use layout::{
    BankBuffers, Buffers, CompressedBuffers, HeadBuffers, IndexerBuffers, LatentBuffers,
    LayerEmbeddingBuffers, NgramBuffers, RecurrentWidths, StreamBuffers,
};

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
    pub by_layer: Option<LayerEmbeddingScratch<B>>,
    pub ngrams: Option<NgramScratch<B>>,
    pub indexer: Option<IndexerScratch<B>>,
    pub compressed: Option<CompressedScratch<B>>,
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

/// The buffers of layers with one kind of heads.
pub(super) struct HeadScratch<B: Backend> {
    /// This rank's queries, keys and values.
    pub q: B::Rows,
    pub k: B::Rows,
    pub v: B::Rows,
    /// The queries and keys of all heads, for models that normalise them together; else without
    /// columns.
    pub all_q: B::Rows,
    pub all_k: B::Rows,
    pub attended: B::Rows,
    /// Gates on the heads' outputs, in models that have them.
    pub gate: Option<B::Rows>,
}

/// The hidden elements of a dense block.
pub(super) struct HiddenScratch<B: Backend> {
    pub gate: B::Rows,
    pub up: B::Rows,
}

/// The output of a dense block beside experts.
pub(super) struct BesideScratch<B: Backend> {
    /// Partial sums, `[parts * rows, width]`, and their total, `[rows, width]`.
    pub sums: B::Rows,
    pub total: B::Rows,
    /// Its total and the experts', one after the other, received in one exchange.
    pub both: Vec<f32>,
    pub width: usize,
}

/// The buffers of an indexer.
pub(super) struct IndexerScratch<B: Backend> {
    /// `[rows, heads * dim]`.
    pub q: B::Rows,
    /// The product of a key, and the key, `[rows, dim]`.
    pub product: B::Rows,
    pub k: B::Rows,
    /// `[rows, heads]`.
    pub weights: B::Rows,
    /// The values of its cache: it has none.
    pub none: B::Rows,
    /// The last choice.
    pub chosen: B::Chosen,
    chosen_bytes: usize,
}

/// The buffers of layers that compress.
pub(super) struct CompressedScratch<B: Backend> {
    /// Compressed queries, `[rows, q_rank]`.
    pub q_down: B::Rows,
    /// The compressed outputs of heads, `[rows, groups * out_rank]`.
    pub out: B::Rows,
    /// The inputs of entries, keys and their weights, `[rows, parts * dim]`: in layers without
    /// overlapping blocks, in layers with them, and of an indexer.
    pub rows: [[B::Rows; 2]; 3],
}

/// The buffers for mixing residual streams.
pub(super) struct StreamScratch<B: Backend> {
    /// All streams, normalised together, `[rows, stream_width]`.
    pub normed: B::Rows,
    /// The mixing weights of a half's input, `[rows, (2 + count) * count]`, and of the head,
    /// `[outputs, count]`.
    pub weights: B::Rows,
    pub head_weights: B::Rows,
    /// The mixed input, `[rows, width]`.
    pub mixed: B::Rows,
    /// If gates mix the streams: the gates, `[rows, stream_width]`, their inputs, `[rows, rank]`,
    /// and the streams' squares, `[rows, count]`.
    pub gates: Option<[B::Rows; 3]>,
}

/// The buffers of the layer with n-gram embeddings.
pub(super) struct NgramScratch<B: Backend> {
    /// The embeddings of all heads, `[rows, heads * dim]`, and the value made from them, `[rows,
    /// width]`.
    pub own: B::Rows,
    pub value: B::Rows,
    /// `[rows, stream_width]`: keys and queries, and the gated value.
    pub keys: B::Rows,
    pub queries: B::Rows,
    pub gated: B::Rows,
    /// The factors of a convolution without gates.
    pub ones: B::Rows,
    /// `[rows, count]`.
    pub squares: B::Rows,
    pub none: B::Rows,
}

/// The banked residual streams.
pub(super) struct BankScratch<B: Backend> {
    /// `[rows, all]`; those that later layers bank are undefined.
    pub banks: B::Rows,
    pub all: usize,
    /// A half's input from them, `[rows, width]`.
    pub mixed: B::Rows,
}

/// The buffers of layers with their own embeddings.
pub(super) struct LayerEmbeddingScratch<B: Backend> {
    /// The shared embedding, `[rows, width]`.
    pub shared: B::Rows,
    /// The embeddings of all layers from the stage's first on, `[rows, layers * own]`.
    pub all: B::Rows,
    pub all_width: usize,
    /// Two buffers for one layer's, `[rows, own]`.
    pub own: B::Rows,
    pub gate: B::Rows,
}

/// The additional buffers of latent attention.
pub(super) struct LatentScratch<B: Backend> {
    sizes: LatentBuffers,
    /// Compressed queries, `[rows, q_rank]`.
    pub q_down: Option<B::Rows>,
    /// `[rows, heads * plain_dim]` and `[rows, heads * rope_dim]`.
    pub q_plain: B::Rows,
    pub q_rope: B::Rows,
    /// Queries in the compressed space, and their outputs, `[rows, heads * kv_rank]`.
    pub q_up: B::Rows,
    /// `[rows, kv_rank]` and `[rows, rope_dim]`.
    pub kv: B::Rows,
    pub k_rope: B::Rows,
}

/// The buffers of layers with a state.
pub(super) struct RecurrentScratch<B: Backend> {
    pub q: B::Rows,
    pub k: B::Rows,
    pub v: B::Rows,
    pub decay: B::Rows,
    pub beta: B::Rows,
    pub gate: B::Rows,
    pub out: B::Rows,
    /// Intermediate low-rank projections.
    pub low_rank: B::Rows,
    /// Squares of all heads, `[parts * rows, heads]`, and their sums, `[rows, heads]`.
    pub squares: Option<[B::Rows; 2]>,
}

/// The buffers of experts in a latent space.
pub(super) struct ExpertScratch<B: Backend> {
    /// `[rows, latent]`.
    pub input: B::Rows,
    /// `[parts * rows, latent]`, and their total, `[rows, latent]`.
    pub sums: B::Rows,
    pub total: B::Rows,
}

/// The buffers of the experts' choice.
pub(super) struct Routing<B: Backend> {
    /// `[rows, experts]`.
    pub logits: B::Rows,
    /// `[rows, 1]`.
    pub shared_gate: B::Rows,
    /// The experts of each row, if its token chooses them.
    pub given: Vec<u32>,
    pub routes: B::Routes,
}

impl<B: Backend> Scratch<B> {
    pub fn new(backend: &mut B, sizes: &Buffers) -> Self {
        let latent = sizes.latent.map(|latent| LatentScratch::new(backend, latent, sizes.rows));
        let routing = sizes.experts.map(|experts| Routing {
            logits: backend.rows(sizes.rows, experts),
            shared_gate: backend.rows(sizes.rows, 1),
            given: Vec::new(),
            routes: backend.routes(),
        });
        let recurrent = sizes.recurrent.map(|widths| RecurrentScratch::new(backend, widths, sizes));
        let by_layer = sizes.by_layer.map(|by| LayerEmbeddingScratch::new(backend, by, sizes.rows));
        let indexer = sizes.indexer.map(|index| IndexerScratch::new(backend, index, sizes.rows));
        let beside = sizes.beside.map(|width| BesideScratch {
            sums: backend.rows(sizes.rows * sizes.parts, width),
            total: backend.rows(sizes.rows, width),
            both: Vec::new(),
            width,
        });
        let expert = sizes.expert_width.map(|width| ExpertScratch {
            input: backend.rows(sizes.rows, width),
            sums: backend.rows(sizes.rows * sizes.parts, width),
            total: backend.rows(sizes.rows, width),
        });
        let mut rows = |width| backend.rows(sizes.rows, width);
        let compressed = sizes.compressed.map(|z| CompressedScratch::new(z, &mut rows));
        let width = sizes.width;
        let streams = sizes.streams.map(|streams| StreamScratch::new(streams, width, &mut rows));
        let ngrams = sizes.ngrams.map(|sizes| NgramScratch::new(sizes, &mut rows));
        let banks = sizes.banks.map(|BankBuffers { all, mixed }| BankScratch {
            banks: rows(all),
            all,
            mixed: rows(mixed),
        });
        Self {
            x: rows(sizes.streams.map_or(width, |streams| streams.all)),
            h: rows(sizes.width),
            joined: sizes.joined.map(&mut rows),
            heads: sizes.heads.iter().map(|kind| HeadScratch::new(kind, &mut rows)).collect(),
            latent,
            recurrent,
            expert,
            hidden: sizes
                .hidden
                .iter()
                .map(|hidden| HiddenScratch { gate: rows(*hidden), up: rows(*hidden) })
                .collect(),
            beside,
            by_layer,
            ngrams,
            indexer,
            compressed,
            streams,
            banks,
            tokens: Vec::new(),
            routing,
            sums: backend.rows(sizes.rows * sizes.parts, sizes.width),
            normed: backend.rows(sizes.outputs, sizes.width),
            logits: backend.rows(sizes.outputs, sizes.vocab),
        }
    }

    /// Bytes of all buffers.
    pub fn bytes(&self, backend: &B) -> u64 {
        let of_all = [&self.x, &self.h, &self.sums].into_iter().chain(&self.joined);
        let beside = self.beside.iter().flat_map(|beside| [&beside.sums, &beside.total]);
        let of_heads = self.heads.iter().flat_map(HeadScratch::all);
        let of_hidden = self.hidden.iter().flat_map(|hidden| [&hidden.gate, &hidden.up]);
        let by_layer = self.by_layer.iter().flat_map(|e| [&e.shared, &e.all, &e.own, &e.gate]);
        let indexer = self.indexer.iter();
        let of_choices = indexer.clone().map(|indexer| indexer.chosen_bytes).sum::<usize>();
        let indexer = indexer.flat_map(|i| [&i.q, &i.product, &i.k, &i.weights, &i.none]);
        let of_outputs = [&self.normed, &self.logits];
        let latent = self.latent.iter().flat_map(|latent| {
            let LatentScratch { q_down, q_plain, q_rope, q_up, kv, k_rope, .. } = latent;
            [q_plain, q_rope, q_up, kv, k_rope].into_iter().chain(q_down)
        });
        let recurrent = self.recurrent.iter().flat_map(RecurrentScratch::all);
        let expert = self.expert.iter().flat_map(|e| [&e.input, &e.sums, &e.total]);
        let routing = self.routing.iter().flat_map(|r| [&r.logits, &r.shared_gate]);
        let compressed = self.compressed.iter().flat_map(CompressedScratch::all);
        let streams = self.streams.iter().flat_map(StreamScratch::all);
        let ngrams = self.ngrams.iter().flat_map(NgramScratch::all);
        let banks = self.banks.iter().flat_map(|room| [&room.banks, &room.mixed]);
        let of_all = of_all.chain(compressed).chain(streams).chain(banks).chain(ngrams);
        let rows = of_all.chain(of_heads).chain(of_hidden).chain(of_outputs);
        let rows = rows.chain(recurrent).chain(expert).chain(beside).chain(by_layer).chain(indexer);
        let rows = rows.chain(latent).chain(routing).map(|rows| backend.rows_bytes(rows));
        (rows.sum::<usize>() + of_choices) as u64
    }
}

impl<B: Backend> HeadScratch<B> {
    fn new(sizes: &HeadBuffers, rows: &mut impl FnMut(usize) -> B::Rows) -> Self {
        Self {
            q: rows(sizes.q),
            k: rows(sizes.k),
            v: rows(sizes.v),
            all_q: rows(sizes.all_q),
            all_k: rows(sizes.all_k),
            attended: rows(sizes.attended),
            gate: sizes.gate.map(rows),
        }
    }

    fn all(&self) -> impl Iterator<Item = &B::Rows> {
        let Self { q, k, v, all_q, all_k, attended, gate } = self;
        [q, k, v, all_q, all_k, attended].into_iter().chain(gate)
    }
}

impl<B: Backend> IndexerScratch<B> {
    fn new(backend: &mut B, sizes: IndexerBuffers, rows_max: usize) -> Self {
        let IndexerBuffers { q, k, weights, groups, pages } = sizes;
        let mut rows = |width| backend.rows(rows_max, width);
        Self {
            q: rows(q),
            product: rows(k),
            k: rows(k),
            weights: rows(weights),
            none: rows(0),
            chosen: backend.chosen(rows_max, groups, pages),
            chosen_bytes: backend.chosen_bytes(rows_max, groups, pages),
        }
    }
}

impl<B: Backend> CompressedScratch<B> {
    fn new(sizes: CompressedBuffers, rows: &mut impl FnMut(usize) -> B::Rows) -> Self {
        let CompressedBuffers { q_down, out, rows: widths } = sizes;
        let (q_down, out) = (rows(q_down), rows(out));
        Self { q_down, out, rows: widths.map(|width| [rows(width), rows(width)]) }
    }

    fn all(&self) -> impl Iterator<Item = &B::Rows> {
        [&self.q_down, &self.out].into_iter().chain(self.rows.iter().flatten())
    }
}

impl<B: Backend> StreamScratch<B> {
    fn new(sizes: StreamBuffers, width: usize, rows: &mut impl FnMut(usize) -> B::Rows) -> Self {
        let StreamBuffers { all, weights, head, gates } = sizes;
        Self {
            normed: rows(all),
            weights: rows(weights),
            head_weights: rows(head),
            mixed: rows(width),
            gates: gates.map(|[rank, count]| [rows(all), rows(rank), rows(count)]),
        }
    }

    fn all(&self) -> impl Iterator<Item = &B::Rows> {
        let Self { normed, weights, head_weights, mixed, gates } = self;
        [normed, weights, head_weights, mixed].into_iter().chain(gates.iter().flatten())
    }
}

impl<B: Backend> NgramScratch<B> {
    fn new(sizes: NgramBuffers, rows: &mut impl FnMut(usize) -> B::Rows) -> Self {
        let NgramBuffers { own, value, all, count } = sizes;
        Self {
            own: rows(own),
            value: rows(value),
            keys: rows(all),
            queries: rows(all),
            gated: rows(all),
            ones: rows(all),
            squares: rows(count),
            none: rows(0),
        }
    }

    fn all(&self) -> [&B::Rows; 8] {
        let Self { own, value, keys, queries, gated, ones, squares, none } = self;
        [own, value, keys, queries, gated, ones, squares, none]
    }
}

impl<B: Backend> LayerEmbeddingScratch<B> {
    fn new(backend: &mut B, sizes: LayerEmbeddingBuffers, rows_max: usize) -> Self {
        let mut rows = |width| backend.rows(rows_max, width);
        let LayerEmbeddingBuffers { own, shared, all } = sizes;
        Self {
            shared: rows(shared),
            all: rows(all),
            all_width: all,
            own: rows(own),
            gate: rows(own),
        }
    }
}

impl<B: Backend> RecurrentScratch<B> {
    fn new(backend: &mut B, widths: RecurrentWidths, sizes: &Buffers) -> Self {
        let squares = widths.squares;
        let parts = sizes.rows * sizes.parts;
        let squares = (squares > 0)
            .then(|| [backend.rows(parts, squares), backend.rows(sizes.rows, squares)]);
        let mut rows = |width| backend.rows(sizes.rows, width);
        Self {
            q: rows(widths.k),
            k: rows(widths.k),
            v: rows(widths.v),
            decay: rows(widths.decay),
            beta: rows(widths.beta),
            gate: rows(widths.gate),
            out: rows(widths.v),
            low_rank: rows(widths.low_rank),
            squares,
        }
    }

    fn all(&self) -> impl Iterator<Item = &B::Rows> {
        let Self { q, k, v, decay, beta, gate, out, low_rank, squares } = self;
        [q, k, v, decay, beta, gate, out, low_rank].into_iter().chain(squares.iter().flatten())
    }
}

impl<B: Backend> LatentScratch<B> {
    fn new(backend: &mut B, sizes: LatentBuffers, rows_max: usize) -> Self {
        let mut rows = |width| backend.rows(rows_max, width);
        Self {
            q_down: sizes.q_down.map(&mut rows),
            q_plain: rows(sizes.q_plain),
            q_rope: rows(sizes.q_rope),
            q_up: rows(sizes.q_up),
            kv: rows(sizes.kv),
            k_rope: rows(sizes.k_rope),
            sizes,
        }
    }

    pub fn sizes(&self) -> &LatentBuffers {
        &self.sizes
    }
}
