//! An indexer: it chooses the positions that a layer's rows attend to, with its own queries and
//! keys.
//!
//! Every rank has all of its keys, and makes the same choice from the same bits. If each key/value
//! head has a separate choice, a rank makes those of its heads.

use std::convert::Infallible;

use backend::{Backend, Choice, Compression, IndexKeys, RopeStyle};
use layout::{Config, IndexerKind, Shard, Slices};

use crate::decoder::context::{Context, IndexKept, Kept};
use crate::decoder::scratch::IndexerScratch;
use crate::loader::Loader;
use crate::operations::style;
use crate::{ModelError, rope};

/// Added to the variance in the norm of a key, whatever the model's epsilon.
const NORM_EPS: f32 = 1e-6;

pub(crate) struct Indexer<B: Backend> {
    sizes: backend::Indexer,
    q: B::Matrix,
    k: B::Matrix,
    /// The weights of the heads' products, if all choose together.
    weights: Option<B::Matrix>,
    q_norm: Option<B::Vector>,
    /// The norm of keys; a mean of keys is normalised afterwards.
    k_norm: Option<B::Vector>,
    /// The bias of a layer norm.
    k_bias: Option<B::Vector>,
    /// For an indexer over pools: the gate of keys' weights, if there is one, and the compression.
    pools: Option<(Option<B::Matrix>, Compression)>,
    rope: Option<RopeStyle>,
}

impl<B: Backend> Indexer<B> {
    /// The indexer of a layer, if it has one.
    pub fn load(
        loader: &mut Loader<'_, B>,
        config: &Config,
        shard: &Shard,
        slices: &Slices<'_>,
        layer: usize,
    ) -> Result<Option<Self>, ModelError> {
        let (Some(found), Some(kind)) = (config.indexer_of(layer), config.arch.indexer) else {
            return Ok(None);
        };
        let keys = shard.attention[config.heads_kind(layer)].keys.len();
        let count = found.count;
        let choice = match (found.blocks, found.pool) {
            (Some((size, local)), _) => Choice::Blocks { size, count, local },
            (None, Some(size)) => Choice::Pools { size, count },
            (None, None) => Choice::Positions { count },
        };
        let sizes = backend::Indexer { heads: found.own_heads(keys), dim: found.dim, choice };
        let k_norm = match kind {
            IndexerKind::Means => None,
            _ => Some(loader.vector(&slices.get("indexer.k_norm"))?),
        };
        Ok(Some(match kind {
            // Another module chooses entries.
            IndexerKind::Compressed => return Ok(None),
            IndexerKind::Latent(_) | IndexerKind::Pools => Self {
                sizes,
                q: loader.matrix(&slices.get("indexer.attn_q_b"))?,
                k: loader.matrix(&slices.get("indexer.attn_k"))?,
                weights: Some(loader.matrix(&slices.get("indexer.proj"))?),
                q_norm: None,
                k_norm,
                k_bias: loader.find_vector(slices.find("indexer.k_norm.bias"))?,
                pools: match slices.find("indexer_compressor_gate") {
                    Some(gate) => Some((Some(loader.matrix(&gate)?), pools(loader, slices)?)),
                    None => None,
                },
                rope: match kind {
                    IndexerKind::Latent(rope) => Some(style(rope)),
                    _ => None,
                },
            },
            IndexerKind::Blocks | IndexerKind::Means => Self {
                sizes,
                q: loader.matrix(&slices.get("indexer.q_proj"))?,
                k: loader.matrix(&slices.get("indexer.k_proj"))?,
                weights: None,
                q_norm: Some(loader.vector(&slices.get("indexer.q_norm"))?),
                k_norm,
                k_bias: None,
                pools: match found.pool {
                    Some(pool) => Some((None, means(loader, config, slices, pool)?)),
                    None => None,
                },
                rope: Some(style(config.rope.style)),
            },
        }))
    }

    /// Caches the keys of `h`.
    pub fn cache(&self, c: &mut Context<'_, B>) {
        let Context { backend, config, scratch: s, rows, .. } = c;
        let i = s.indexer.as_mut().expect("made for models with indexers");
        backend.linear(&s.h, &mut [(&self.k, &mut i.product)]);
        match (&self.k_norm, &self.k_bias) {
            (Some(norm), Some(bias)) => {
                backend.layer_norm(&i.product, norm, NORM_EPS, &mut i.k);
                backend.add_bias(&mut i.k, bias);
            }
            (Some(norm), None) => backend.rms_norm(&i.product, norm, config.rms_eps, &mut i.k),
            (None, _) => backend.columns(&i.product, 0..self.sizes.dim, &mut i.k),
        }
        if let Some(rope) = self.rope.filter(|_| self.pools.is_none()) {
            backend.rope(&mut i.k, self.sizes.dim, rope, 0);
        }
        match (&mut *c.kept, &self.pools) {
            (Kept::KeysAndValues(_, Some(IndexKept::Positions(keys))), None) => {
                backend.store(keys, c.segments, &i.k, &i.none);
            }
            (Kept::KeysAndValues(_, Some(IndexKept::Entries(entries))), Some((gate, pools))) => {
                match gate {
                    Some(gate) => backend.linear(&s.h, &mut [(gate, &mut i.product)]),
                    None => fill(*backend, &mut i.product, *rows, 0.0),
                }
                let rows = [&i.k, &i.product];
                backend.compress(entries, pools, rows, c.segments, c.segments);
            }
            _ => panic!("a layer with an indexer keeps its keys"),
        }
    }

    /// Chooses for every row: its queries come from `q_in`, the weights of heads from `h`.
    pub fn choose(
        &self,
        backend: &mut B,
        config: &Config,
        batch: (IndexKeys<'_, B>, &[backend::Segment]),
        (q_in, h, rows): (&B::Rows, &B::Rows, usize),
        (i, chosen): (&mut IndexerScratch<B>, &mut B::Chosen),
    ) {
        backend.linear(q_in, &mut [(&self.q, &mut i.q)]);
        if let Some(norm) = &self.q_norm {
            backend.rms_norm_in_place(&mut i.q, norm, config.rms_eps);
        }
        if let Some(rope) = self.rope {
            backend.rope(&mut i.q, self.sizes.dim, rope, 0);
        }
        match &self.weights {
            Some(weights) => backend.linear(h, &mut [(weights, &mut i.weights)]),
            // Heads that choose together have equal weights.
            None if self.pools.is_some() => fill(backend, &mut i.weights, rows, 1.0),
            None => {}
        }
        let (keys, segments) = batch;
        backend.choose(keys, &self.sizes, segments, &i.q, &i.weights, chosen);
    }
}

fn fill<B: Backend>(backend: &mut B, x: &mut B::Rows, rows: usize, number: f32) {
    let Ok(()) = backend.write(x, rows, |x| {
        x.fill(number);
        Ok::<_, Infallible>(())
    });
}

/// The compression to means of `pool` keys: equal weights, then the norm and the rotation.
fn means<B: Backend>(
    loader: &mut Loader<'_, B>,
    config: &Config,
    slices: &Slices<'_>,
    pool: usize,
) -> Result<Compression, ModelError> {
    let gain = loader.numbers(&slices.get("indexer.k_norm"))?;
    let table = rope::tables(&config.rope, None).swap_remove(0);
    Ok(Compression {
        by_place: vec![0.0; pool * gain.len()],
        norm: Some((gain, config.rms_eps)),
        rope: Some((table, style(config.rope.style))),
        rotates_first: true,
    })
}

/// The compression to pools: of keys only, neither normalised nor rotated.
fn pools<B: Backend>(
    loader: &mut Loader<'_, B>,
    slices: &Slices<'_>,
) -> Result<Compression, ModelError> {
    let by_place = loader.table(&slices.get("indexer_compressor_ape"))?;
    Ok(Compression { by_place, norm: None, rope: None, rotates_first: false })
}
