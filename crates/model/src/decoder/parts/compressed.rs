//! Attention over a window, and over earlier blocks of positions, each as one entry (DeepSeek V4).
//!
//! All heads share one key a position, which is also its value, and every rank has all of them, and
//! all entries. The heads' outputs are rotated back, since values were rotated as keys, and
//! compressed by groups of heads before the output matrix, so a rank has whole groups.

use backend::{AttentionShape, Backend, Choice, Compression, IndexKeys, Parts, RopeStyle, Seen};
use layout::{Blocks, Compressed, Config, Shard, Slices};

use crate::ModelError;
use crate::decoder::context::Context;
use crate::decoder::scratch::{CompressedScratch, EntryScratch};
use crate::loader::Loader;
use crate::operations::{attention_range, parts, rope_style};
use crate::rope;

pub(crate) struct CompressedAttention<B: Backend> {
    /// Compresses and normalises queries.
    q_down: B::Matrix,
    q_norm: B::Vector,
    q_up: B::Matrix,
    /// Ones: heads of queries are normalised without a gain.
    ones: B::Vector,
    kv: B::Matrix,
    kv_norm: B::Vector,
    /// Elements of a head.
    dim: usize,
    /// The rotation table, and the table that reverses it.
    tables: [usize; 2],
    style: RopeStyle,
    compressor: Option<Compressor<B>>,
    indexer: Option<EntryIndexer<B>>,
    attend: B::Attention,
    /// For each of this rank's groups of heads.
    out_down: Vec<B::Matrix>,
    output: B::Matrix,
    parts: Option<Parts>,
}

/// Makes entries from blocks.
struct Compressor<B: Backend> {
    kv: B::Matrix,
    /// The gate for the weights of keys.
    gate: B::Matrix,
    overlap: bool,
    compression: Compression,
}

/// Chooses the entries that rows attend to, with its own entries.
struct EntryIndexer<B: Backend> {
    sizes: backend::Indexer,
    q: B::Matrix,
    weights: B::Matrix,
    compressor: Compressor<B>,
}

impl<B: Backend> CompressedAttention<B> {
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        compressed: &Compressed,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Self, ModelError> {
        let own = &shard.attention[config.heads_kind(layer)];
        let (dim, blocks) = (config.heads_of(layer).k_dim, compressed.blocks(layer));
        let shape = AttentionShape {
            kv_of_head: vec![0; own.queries.len()],
            k_dim: dim,
            v_dim: dim,
            scale: config.attention_scale(layer),
            range: attention_range(config, layer),
            soft_cap: None,
            sinks: Some(loader.numbers(&slices.get("attn_sinks"))?),
            values_in_keys: true,
        };
        Ok(Self {
            q_down: loader.matrix(&slices.get("attn_q_a"))?,
            q_norm: loader.vector(&slices.get("attn_q_a_norm"))?,
            q_up: loader.matrix(&slices.get("attn_q_b"))?,
            ones: loader.backend.vector(&vec![1.0; dim]),
            kv: loader.matrix(&slices.get("kv_down"))?,
            kv_norm: loader.vector(&slices.get("attn_kv_a_norm"))?,
            dim,
            tables: if blocks.is_some() { rope::STRETCHED } else { rope::PLAIN },
            style: rope_style(config),
            compressor: match blocks {
                Some(blocks) => Some(Compressor::load(loader, config, slices, "attn", blocks)?),
                None => None,
            },
            indexer: match blocks.filter(|_| config.indexer_of(layer).is_some()) {
                Some(blocks) => Some(EntryIndexer::load(loader, config, slices, blocks)?),
                None => None,
            },
            attend: loader.backend.attention(&shape),
            out_down: loader.matrices(&slices.get("attn_output_a"))?,
            output: loader.matrix(&slices.get("attn_output"))?,
            parts: parts(&own.leaves, shard.rank),
        })
    }

    /// Caches the keys of `h`, and the entries of blocks that end in it.
    pub fn cache(&self, c: &mut Context<'_, B>) {
        if self.out_down.is_empty() {
            return;
        }
        let Context { backend, config, scratch: s, segments, all_segments, .. } = c;
        let keys = &mut s.heads[0].k;
        backend.linear(&s.h, &mut [(&self.kv, &mut *keys)]);
        backend.rms_norm_in_place(keys, &self.kv_norm, config.rms_eps);
        backend.rope_last(keys, self.dim, self.style, self.tables[0]);
        let (kv, entries) = c.kept.compressed();
        backend.store(kv, segments, keys, keys);
        let [plain, overlapping, index] = &mut s.entries[..] else {
            panic!("made for models that compress");
        };
        let overlap = |own: &Compressor<B>| own.overlap;
        let rows = if self.compressor.as_ref().is_some_and(overlap) { overlapping } else { plain };
        let own = self.compressor.iter().zip([rows]);
        let index = self.indexer.iter().map(|own| &own.compressor).zip([index]);
        for ((compressor, rows), kept) in own.chain(index).zip(entries) {
            compressor.compress(*backend, &s.h, rows, kept, (segments, all_segments));
        }
    }

    /// `sums = attention(h)` over the cache, this rank's part.
    pub fn attend(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, segments, all_segments, .. } = c;
        let z = s.compressed.as_mut().expect("made for models that compress");
        let heads = &mut s.heads[0];
        let CompressedScratch { q_down, out, .. } = z;
        if self.out_down.is_empty() {
            return backend.linear_parts(out, &self.output, self.parts.as_ref(), &mut s.sums);
        }
        backend.linear(&s.h, &mut [(&self.q_down, &mut *q_down)]);
        backend.rms_norm_in_place(q_down, &self.q_norm, config.rms_eps);
        backend.linear(q_down, &mut [(&self.q_up, &mut heads.q)]);
        backend.rms_norm_in_place(&mut heads.q, &self.ones, config.rms_eps);
        backend.rope_last(&mut heads.q, self.dim, self.style, self.tables[0]);
        let (kv, entries) = c.kept.compressed();
        let own = entries.first().map(|own| (own, *all_segments));
        let mut seen = Seen { entries: own, ..Seen::ALL };
        if let (Some(indexer), Some(i), Some(chosen), [_, keys]) =
            (&self.indexer, &mut s.indexer, &mut s.chosen, &*entries)
        {
            backend.linear(q_down, &mut [(&indexer.q, &mut i.q)]);
            backend.rope_last(&mut i.q, indexer.sizes.dim, self.style, self.tables[0]);
            backend.linear(&s.h, &mut [(&indexer.weights, &mut i.weights)]);
            let (keys, sizes) = (IndexKeys::Entries(keys), &indexer.sizes);
            backend.choose(keys, sizes, all_segments, &i.q, &i.weights, chosen);
            seen.chosen = Some(chosen);
        }
        backend.attend(kv, &self.attend, segments, seen, &heads.q, &mut heads.attended);
        backend.rope_last(&mut heads.attended, self.dim, self.style, self.tables[1]);
        backend.linear_heads(&heads.attended, &self.out_down, out);
        backend.linear_parts(out, &self.output, self.parts.as_ref(), &mut s.sums);
    }
}

impl<B: Backend> Compressor<B> {
    /// `whose`: the prefix of its tensors' names.
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        whose: &str,
        blocks: Blocks,
    ) -> Result<Self, ModelError> {
        let slice = |what: &str| slices.get(&format!("{whose}_compressor_{what}"));
        let [rope, _] = rope::STRETCHED;
        Ok(Self {
            kv: loader.matrix(&slice("kv"))?,
            gate: loader.matrix(&slice("gate"))?,
            overlap: blocks.overlap,
            compression: Compression {
                rotates_first: false,
                by_place: loader.table(&slice("ape"))?,
                norm: Some((loader.numbers(&slice("norm"))?, config.rms_eps)),
                rope: Some((
                    rope::tables(&config.rope, None).swap_remove(rope),
                    rope_style(config),
                )),
            },
        })
    }

    /// Makes the entries of the blocks that end in `h`.
    fn compress(
        &self,
        backend: &mut B,
        h: &B::Rows,
        EntryScratch { keys: kv, weights: gate }: &mut EntryScratch<B>,
        entries: &mut B::Entries,
        (windows, segments): (&[backend::Segment], &[backend::Segment]),
    ) {
        backend.linear(h, &mut [(&self.kv, &mut *kv), (&self.gate, &mut *gate)]);
        backend.compress(entries, &self.compression, [kv, gate], windows, segments);
    }
}

impl<B: Backend> EntryIndexer<B> {
    fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        slices: &Slices<'_>,
        blocks: Blocks,
    ) -> Result<Self, ModelError> {
        let found = config.indexer.expect("the layer has one");
        let choice = Choice::Positions { count: found.count };
        Ok(Self {
            sizes: backend::Indexer { heads: found.heads, dim: found.dim, choice },
            q: loader.matrix(&slices.get("indexer.attn_q_b"))?,
            weights: loader.matrix(&slices.get("indexer.proj"))?,
            compressor: Compressor::load(loader, config, slices, "indexer", blocks)?,
        })
    }
}
