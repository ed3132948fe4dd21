//! The attention of each layer: its heads, and the layer whose keys and values it reads.

pub(crate) mod wiring;

use crate::file::limits::WIDTH_MAX;
use crate::file::{Error, Metadata, in_range};
use crate::parts::{Compressed, Latent};

/// The heads of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub queries: usize,
    /// Key/value heads; each serves an equal number of queries.
    pub keys: usize,
    /// Elements of one head's query and key.
    pub k_dim: usize,
    /// Elements of one head's value.
    pub v_dim: usize,
    /// Query heads that share columns of the output matrix, and the number of those columns. Each
    /// head has its own, one for each element of a value, unless the heads' outputs are compressed
    /// first.
    pub out_heads: usize,
    pub out_dim: usize,
    /// Whether rank 0 keeps all keys and values, for an assistant that reads them.
    pub whole_on_first: bool,
}

/// The attention of all layers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attending {
    /// The distinct kinds of heads.
    pub heads: Vec<Heads>,
    /// The kind of each layer's heads.
    pub kinds: Vec<usize>,
    /// The layer whose keys and values each layer reads.
    pub caches: Vec<usize>,
    pub latent: Option<Latent>,
}

impl Heads {
    /// The number of queries that share each key.
    pub fn group(&self) -> usize {
        self.queries / self.keys
    }

    fn check(&self) -> Result<(), Error> {
        let Self { queries, keys, k_dim, v_dim, .. } = *self;
        if !queries.is_multiple_of(keys) {
            let what = format!("{queries} heads cannot share {keys} key/value heads evenly");
            return Err(Error::Impossible { what });
        }
        // Products of these are sizes of tensors; none may overflow before the comparison.
        let (found, limit) = (queries * k_dim.max(v_dim), WIDTH_MAX as usize * 16);
        if found > limit {
            let what = format!("a matrix of {found} rows; at most {limit} are possible");
            return Err(Error::Impossible { what });
        }
        Ok(())
    }

    fn check_compressed(&self, compressed: &Compressed) -> Result<(), Error> {
        let Self { queries, k_dim, v_dim, out_heads, .. } = *self;
        let Compressed { out_groups, rope_dim, .. } = *compressed;
        let what = match () {
            () if k_dim != v_dim => format!("keys of {k_dim} numbers that are values of {v_dim}"),
            () if out_heads * out_groups != queries || out_heads == 0 => {
                format!("{queries} heads in {out_groups} groups")
            }
            () if rope_dim > k_dim || !rope_dim.is_multiple_of(2) => {
                format!("{rope_dim} of {k_dim} numbers of a head cannot be rotated")
            }
            () => return Ok(()),
        };
        Err(Error::Impossible { what })
    }

    /// Columns of the output matrix for all heads.
    pub fn columns(&self) -> usize {
        self.queries / self.out_heads * self.out_dim
    }
}

impl Attending {
    /// `attends`: which layers attend. `windows`: the visible positions of each layer, if not all.
    pub fn read(
        metadata: &Metadata<'_>,
        compressed: Option<&Compressed>,
        width: usize,
        attends: &[bool],
        windows: &[Option<usize>],
    ) -> Result<Self, Error> {
        const QUERIES: &str = "attention.head_count";
        const KEYS: &str = "attention.head_count_kv";
        let layers = windows.len();
        let (queries, keys) =
            (metadata.of_layers(QUERIES, layers)?, metadata.of_layers(KEYS, layers)?);
        let in_range = |key, count| in_range(&metadata.key(key), count, WIDTH_MAX);
        let of_layer = |layer: usize| -> Result<(Heads, Option<Latent>), Error> {
            let queries = in_range(QUERIES, queries[layer].unwrap_or(0))?;
            let keys = keys[layer].map_or(Ok(queries), |keys| in_range(KEYS, keys))?;
            let (k_dim, v_dim, latent) =
                head_sizes(metadata, width / queries, windows[layer].is_some())?;
            let keys = if latent.is_some() { 1 } else { keys };
            let mut heads = Heads {
                queries,
                keys,
                k_dim,
                v_dim,
                out_heads: 1,
                out_dim: v_dim,
                whole_on_first: false,
            };
            if let Some(compressed) = compressed {
                (heads.keys, heads.out_dim) = (1, compressed.out_rank);
                heads.out_heads = queries / compressed.out_groups;
            }
            heads.check()?;
            if let Some(compressed) = compressed {
                heads.check_compressed(compressed)?;
            }
            Ok((heads, latent))
        };
        let (mut heads, mut kinds, mut latent) = (Vec::new(), vec![0; layers], None);
        for layer in (0..layers).filter(|layer| attends[*layer]) {
            let (own, own_latent) = of_layer(layer)?;
            latent = own_latent;
            kinds[layer] = heads.iter().position(|known| *known == own).unwrap_or(heads.len());
            if kinds[layer] == heads.len() {
                heads.push(own);
            }
        }
        if heads.is_empty() {
            heads.push(of_layer(0)?.0);
        }
        let caches = caches(metadata, &kinds, windows)?;
        Ok(Self { heads, kinds, caches, latent })
    }

    /// From now on rank 0 keeps all keys and values of layer `layer`: its heads are of a new kind,
    /// the last one. Returns their kind before.
    pub fn keep_whole(&mut self, layer: usize) -> usize {
        let before = self.kinds[layer];
        self.heads.push(Heads { whole_on_first: true, ..self.heads[before] });
        let now = self.heads.len() - 1;
        for (kind, cache) in self.kinds.iter_mut().zip(&self.caches) {
            if *cache == layer {
                *kind = now;
            }
        }
        before
    }
}

/// The layer whose keys and values each layer reads. The last `shared_kv_layers` layers have none
/// of their own: each reads those of the nearest earlier layer with the same window.
fn caches(
    metadata: &Metadata<'_>,
    kinds: &[usize],
    windows: &[Option<usize>],
) -> Result<Vec<usize>, Error> {
    const KEY: &str = "attention.shared_kv_layers";
    let layers = kinds.len();
    let shared = metadata.find_size(KEY, layers as u64)?.unwrap_or(0);
    let own = layers - shared;
    let mut found: Vec<usize> = (0..own).collect();
    for layer in own..layers {
        let alike = |other: &usize| windows[*other] == windows[layer];
        match (0..own).rev().find(alike) {
            Some(source) if kinds[source] == kinds[layer] => found.push(source),
            source => {
                let what = format!(
                    "layer {layer} has no keys and values ({} is {shared}), and {}",
                    metadata.key(KEY),
                    source.map_or("no layer before sees as much as it does".to_owned(), |source| {
                        format!("layer {source}, whose it would read, has other heads")
                    })
                );
                return Err(Error::Impossible { what });
            }
        }
    }
    Ok(found)
}

/// The dimensions of a head's key and value, and latent attention's sizes.
fn head_sizes(
    metadata: &Metadata<'_>,
    default: usize,
    has_window: bool,
) -> Result<(usize, usize, Option<Latent>), Error> {
    if metadata.arch.latent {
        let (k_dim, v_dim, latent) = Latent::read(metadata)?;
        return Ok((k_dim, v_dim, Some(latent)));
    }
    let size_or = |name, default: usize| {
        let found = metadata.find_size(name, WIDTH_MAX)?.unwrap_or(default) as u64;
        in_range(&metadata.key(name), found, WIDTH_MAX)
    };
    let mut k_dim = size_or("attention.key_length", default)?;
    let mut v_dim = size_or("attention.value_length", k_dim)?;
    if has_window {
        k_dim = size_or("attention.key_length_swa", k_dim)?;
        v_dim = size_or("attention.value_length_swa", v_dim)?;
    }
    Ok((k_dim, v_dim, None))
}
