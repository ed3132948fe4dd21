//! Buffers of one step, made once.

use backend::Backend;
use layout::{Buffers, LatentBuffers, RecurrentWidths};

/// Buffers that all layers use one after the other: the token loop allocates nothing.
pub(super) struct Scratch<B: Backend> {
    /// The residual stream, `[rows, width]`; after the last layer's keys and values
    /// `[outputs, width]`.
    pub x: B::Rows,
    /// What a layer's half reads, and then its sum on the way back, `[rows, width]`.
    pub h: B::Rows,
    /// This rank's queries, keys and values.
    pub q: B::Rows,
    pub k: B::Rows,
    pub v: B::Rows,
    /// Those of all heads, for models that normalise them together; else without columns.
    pub all_q: B::Rows,
    pub all_k: B::Rows,
    pub latent: Option<LatentScratch<B>>,
    pub attended: B::Rows,
    /// Gates on what was attended to, in models that have them.
    pub attention_gate: Option<B::Rows>,
    pub recurrent: Option<RecurrentScratch<B>>,
    pub gate: B::Rows,
    pub up: B::Rows,
    pub routing: Option<Routing<B>>,
    /// Partial sums, `[parts * rows, width]`.
    pub sums: B::Rows,
    /// What experts read and their partial sums, where that is not the residual stream.
    pub expert: Option<ExpertScratch<B>>,
    /// The outputs after the last norm, `[outputs, width]`.
    pub normed: B::Rows,
    /// This rank's slice of the logits, `[outputs, vocab slice]`.
    pub logits: B::Rows,
}

/// What latent attention needs in addition.
pub(super) struct LatentScratch<B: Backend> {
    sizes: LatentBuffers,
    /// Compressed queries, `[rows, q_rank]`.
    pub q_down: Option<B::Rows>,
    /// `[rows, heads * plain_dim]` and `[rows, heads * rope_dim]`.
    pub q_plain: B::Rows,
    pub q_rope: B::Rows,
    /// Queries in the compressed space, and what they attended to, `[rows, heads * kv_rank]`.
    pub q_up: B::Rows,
    /// `[rows, kv_rank]` and `[rows, rope_dim]`.
    pub kv: B::Rows,
    pub k_rope: B::Rows,
}

/// What layers with a state read and write.
pub(super) struct RecurrentScratch<B: Backend> {
    pub q: B::Rows,
    pub k: B::Rows,
    pub v: B::Rows,
    pub decay: B::Rows,
    pub beta: B::Rows,
    pub gate: B::Rows,
    pub out: B::Rows,
    /// Low-rank projections on their way.
    pub low_rank: B::Rows,
    /// Squares of all heads, `[parts * rows, heads]`, and their sums, `[rows, heads]`.
    pub squares: Option<[B::Rows; 2]>,
}

/// What experts in a latent space read and write.
pub(super) struct ExpertScratch<B: Backend> {
    /// `[rows, latent]`.
    pub input: B::Rows,
    /// `[parts * rows, latent]`, and their total, `[rows, latent]`.
    pub sums: B::Rows,
    pub total: B::Rows,
}

/// What the choice of experts needs.
pub(super) struct Routing<B: Backend> {
    /// `[rows, experts]`.
    pub logits: B::Rows,
    /// `[rows, 1]`.
    pub shared_gate: B::Rows,
    pub routes: B::Routes,
}

impl<B: Backend> Scratch<B> {
    pub fn new(backend: &mut B, sizes: &Buffers) -> Self {
        let latent = sizes.latent.map(|latent| LatentScratch::new(backend, latent, sizes.rows));
        let routing = sizes.experts.map(|experts| Routing {
            logits: backend.rows(sizes.rows, experts),
            shared_gate: backend.rows(sizes.rows, 1),
            routes: backend.routes(),
        });
        let recurrent = sizes.recurrent.map(|widths| RecurrentScratch::new(backend, widths, sizes));
        let expert = sizes.expert_width.map(|width| ExpertScratch {
            input: backend.rows(sizes.rows, width),
            sums: backend.rows(sizes.rows * sizes.parts, width),
            total: backend.rows(sizes.rows, width),
        });
        let mut rows = |width| backend.rows(sizes.rows, width);
        Self {
            x: rows(sizes.width),
            h: rows(sizes.width),
            q: rows(sizes.q),
            k: rows(sizes.k),
            v: rows(sizes.v),
            all_q: rows(sizes.all_q),
            all_k: rows(sizes.all_k),
            latent,
            attended: rows(sizes.attended),
            attention_gate: sizes.attention_gate.map(&mut rows),
            recurrent,
            expert,
            gate: rows(sizes.hidden),
            up: rows(sizes.hidden),
            routing,
            sums: backend.rows(sizes.rows * sizes.parts, sizes.width),
            normed: backend.rows(sizes.outputs, sizes.width),
            logits: backend.rows(sizes.outputs, sizes.vocab),
        }
    }

    /// Bytes of all of them.
    pub fn bytes(&self, backend: &B) -> u64 {
        let of_all = [&self.x, &self.h, &self.q, &self.k, &self.v, &self.all_q, &self.all_k];
        let of_halves = [&self.attended, &self.gate, &self.up, &self.sums];
        let of_halves = of_halves.into_iter().chain(&self.attention_gate);
        let of_outputs = [&self.normed, &self.logits];
        let latent = self.latent.iter().flat_map(|latent| {
            let LatentScratch { q_down, q_plain, q_rope, q_up, kv, k_rope, .. } = latent;
            [q_plain, q_rope, q_up, kv, k_rope].into_iter().chain(q_down)
        });
        let recurrent = self.recurrent.iter().flat_map(RecurrentScratch::all);
        let expert = self.expert.iter().flat_map(|e| [&e.input, &e.sums, &e.total]);
        let routing = self.routing.iter().flat_map(|r| [&r.logits, &r.shared_gate]);
        let rows = of_all.into_iter().chain(of_halves).chain(of_outputs);
        let rows = rows.chain(recurrent).chain(expert);
        let rows = rows.chain(latent).chain(routing).map(|rows| backend.rows_bytes(rows));
        rows.sum::<usize>() as u64
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
