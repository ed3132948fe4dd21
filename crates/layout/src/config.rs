//! A model's sizes and switches, read from its file's metadata.

use gguf::Directory;

use crate::arch::{self, Arch, AttentionScale, LogitScale, QkNorm, Rotation};
use crate::file::limits::{VOCAB_MAX, WIDTH_MAX};
use crate::file::{BlockCounts, Error, Metadata, in_range, names};
use crate::parts::{
    Assistant, Attending, Banks, Compressed, Eagle3, Encoder, Experts, Heads, Indexer, Latent,
    LayerHalves, Mixer, Ngrams, Recurrence, Rope, Sight, Situ, Streams, Temperature, choosers,
    clamps, context_max, dense, halves, sparse, windows,
};

/// Everything about a model that is not a weight.
#[derive(Debug, Clone)]
pub struct Config {
    pub arch: &'static Arch,
    pub layers: usize,
    /// The halves of each layer.
    pub halves: Vec<LayerHalves>,
    /// Elements of the residual stream.
    pub width: usize,
    attending: Attending,
    /// Latent attention's sizes.
    pub latent: Option<Latent>,
    /// The sizes of layers that compress the positions before their window.
    pub compressed: Option<Compressed>,
    /// The residual streams, if there are several.
    pub streams: Option<Streams>,
    /// The layers that bank the residual stream, if any do.
    pub banks: Option<Banks>,
    /// The sizes of layers that carry a state.
    pub recurrence: Option<Recurrence>,
    /// The distinct widths of dense feed-forward blocks, in hidden elements.
    pub feed_forward: Vec<usize>,
    /// The index of each layer's width among them.
    feed_forward_kinds: Vec<usize>,
    pub experts: Option<Experts>,
    /// Which layers have experts.
    sparse: Vec<bool>,
    pub vocab: usize,
    /// The context that the model was trained for.
    pub context_max: usize,
    pub rms_eps: f32,
    pub rope: Rope,
    rotation: Rotation,
    /// The sizes of the indexer, in models that have one.
    pub indexer: Option<Indexer>,
    /// The layer whose choice each layer follows.
    choosers: Vec<Option<usize>>,
    attention_scales: Vec<f32>,
    /// Attention scores become `cap * tanh(score / cap)`, after their scale.
    pub attention_cap: Option<f32>,
    temperature: Option<Temperature>,
    /// The factor of attention outputs.
    pub value_scale: f32,
    /// The visible positions of each layer; `None` for all.
    pub windows: Vec<Option<usize>>,
    pub embedding_scale: f32,
    /// Elements of the embeddings of each single layer, besides the shared one.
    pub by_layer: Option<usize>,
    /// The embeddings of the last few tokens, if a layer reads them.
    pub ngrams: Option<Ngrams>,
    clamps: Vec<[Option<f32>; 2]>,
    /// The limits of [`Activation::Situ`](crate::Activation::Situ), for models with that
    /// activation.
    pub situ: Option<Situ>,
    /// The factor of a half's output before it is added to the residual stream.
    pub residual_scale: f32,
    pub logit_scale: f32,
    /// Logits become `cap * tanh(logit / cap)`, after their scale.
    pub logit_cap: Option<f32>,
    /// How rows of a picture see each other, if they do.
    pub sight: Option<Sight>,
    /// What only an encoder has.
    pub encoder: Option<Encoder>,
    /// What only an EAGLE-3 head has.
    pub eagle3: Option<Eagle3>,
    /// What only Gemma 4's assistant has: it caches nothing and reads the caches of its model.
    pub assistant: Option<Assistant>,
}

impl Config {
    /// # Errors
    /// The architecture is not supported, or its metadata is missing or impossible.
    pub fn read(directory: &Directory) -> Result<Self, Error> {
        check_is_model(directory)?;
        let arch = arch::find(directory.str("general.architecture")?)?;
        let metadata = Metadata { directory, arch };
        let width = metadata.size("embedding_length", WIDTH_MAX)?;
        let layers = BlockCounts::read(directory)?.layers;
        let halves = halves(&metadata, layers)?;
        let windows = windows(&metadata, layers)?;
        let attends: Vec<bool> =
            halves.iter().map(|layer| layer.mixer == Some(Mixer::Attention)).collect();
        let compressed = Compressed::read(&metadata, layers)?;
        let attending = Attending::read(&metadata, compressed.as_ref(), width, &attends, &windows)?;
        let recurrence = Recurrence::read(&metadata, &halves, width)?;
        let ngrams = Ngrams::read(&metadata, &halves)?;
        let experts = Experts::read(&metadata, layers)?;
        let rope = Rope::read(&metadata, rotated_dims(&attending, &attends, &windows))?;
        let (feed_forward, feed_forward_kinds) =
            dense::widths(&metadata, layers, experts.as_ref())?;
        // Files write 0 for "not capped".
        let cap = |name| Ok::<_, Error>(metadata.find_f32(name)?.filter(|cap| *cap > 0.0));
        let sqrt_width = (width as f32).sqrt();
        let embedding_scale = if arch.embedding_times_sqrt_width { sqrt_width } else { 1.0 };
        let by_layer = metadata.find_size("embedding_length_per_layer_input", WIDTH_MAX)?;
        let by_layer = by_layer.filter(|_| !arch.ngrams);
        let config = Self {
            arch,
            layers,
            halves,
            width,
            latent: attending.latent,
            compressed,
            streams: Streams::read(&metadata)?,
            banks: Banks::read(&metadata, layers)?,
            recurrence,
            feed_forward,
            feed_forward_kinds,
            sparse: sparse(&metadata, layers, experts.as_ref()),
            experts,
            vocab: vocab(directory, arch)?,
            context_max: context_max(&metadata)?,
            rms_eps: rms_eps(&metadata)?,
            attention_scales: attention_scales(&metadata, &rope, width, &attending.heads, layers)?,
            attention_cap: cap("attn_logit_softcapping")?,
            temperature: Temperature::read(&metadata, rope.original_context)?,
            value_scale: metadata.positive_or("attention.value_scale", 1.0)?,
            rope,
            rotation: rotation(&metadata)?,
            indexer: Indexer::read(&metadata, layers)?,
            choosers: choosers(&metadata, &attends)?,
            windows,
            attending,
            embedding_scale: metadata.factor_or("embedding_scale", embedding_scale)?,
            by_layer,
            ngrams,
            clamps: clamps(&metadata, layers)?,
            situ: Situ::read(&metadata)?,
            residual_scale: metadata.factor_or("residual_scale", 1.0)?,
            logit_scale: match arch.logit_scale {
                LogitScale::Divides => 1.0 / metadata.factor_or("logit_scale", 1.0)?,
                LogitScale::Multiplies => metadata.factor_or("logit_scale", 1.0)?,
            },
            logit_cap: cap("final_logit_softcapping")?,
            sight: Sight::read(directory, by_layer.is_some())?,
            encoder: Encoder::read(&metadata)?,
            eagle3: Eagle3::read(&metadata)?,
            assistant: Assistant::read(&metadata)?,
        };
        config.check()?;
        Ok(config)
    }

    /// The experts of layer `layer`, if it has any.
    pub fn experts_of(&self, layer: usize) -> Option<&Experts> {
        let sparse = self.halves[layer].feed_forward && self.sparse[layer];
        self.experts.as_ref().filter(|_| sparse)
    }

    /// Whether layer `layer` has a dense block.
    pub fn is_dense(&self, layer: usize) -> bool {
        let is_dense = self.experts_of(layer).is_none() || self.arch.dense_beside_experts;
        self.halves[layer].feed_forward && is_dense
    }

    /// The distinct kinds of heads.
    pub fn heads(&self) -> &[Heads] {
        &self.attending.heads
    }

    /// The kind of layer `layer`'s heads.
    pub fn heads_kind(&self, layer: usize) -> usize {
        self.attending.kinds[layer]
    }

    /// The heads of layer `layer`, which must attend.
    pub fn heads_of(&self, layer: usize) -> &Heads {
        &self.attending.heads[self.heads_kind(layer)]
    }

    /// The layer whose keys and values layer `layer` reads: itself, or an earlier one.
    pub fn cache_of(&self, layer: usize) -> usize {
        self.attending.caches[layer]
    }

    /// The layer whose choice of positions layer `layer` follows: itself, or an earlier one; `None`
    /// for full attention.
    pub fn chooser_of(&self, layer: usize) -> Option<usize> {
        self.choosers[layer]
    }

    /// The indexer of layer `layer`, if it has its own.
    pub fn indexer_of(&self, layer: usize) -> Option<&Indexer> {
        self.indexer.as_ref().filter(|_| self.choosers[layer] == Some(layer))
    }

    /// The index of layer `layer`'s width in [`feed_forward`](Self::feed_forward).
    pub fn feed_forward_kind(&self, layer: usize) -> usize {
        self.feed_forward_kinds[layer]
    }

    /// Whether layer `layer` rotates queries and keys.
    pub fn rotates(&self, layer: usize) -> bool {
        match self.rotation {
            Rotation::Always | Rotation::UnlessUntrained => true,
            Rotation::AllButEvery(every) => !(layer + 1).is_multiple_of(every),
            Rotation::InWindows => self.windows[layer].is_some() || self.window().is_none(),
            Rotation::Never => false,
        }
    }

    /// The attention temperature of layer `layer`, if it has one.
    pub fn temperature_of(&self, layer: usize) -> Option<Temperature> {
        self.temperature.filter(|found| !(found.unrotated_only && self.rotates(layer)))
    }

    /// Whether layer `layer` normalises the heads of queries and keys without a gain (Llama 4).
    pub fn has_l2_qk_norm(&self, layer: usize) -> bool {
        // Llama 4 Maverick has no such norms, and its files have no key for that.
        const WITHOUT: usize = 128;
        let is_without = self.experts.is_some_and(|experts| experts.count == WITHOUT);
        let bare = self.arch.qk_norm == QkNorm::L2AfterRotation;
        bare && self.rotates(layer) && !is_without
    }

    /// The positions of the widest window or the longest entry, if a layer has one and later steps
    /// read a text's earlier positions.
    pub fn window(&self) -> Option<usize> {
        if self.encoder.is_some() {
            return None;
        }
        let reach = self.compressed.as_ref().and_then(Compressed::reach);
        self.windows.iter().flatten().copied().max().map(|most| most.max(reach.unwrap_or(0)))
    }

    /// Whether a sequence can continue from any position, and overwrite later ones.
    pub fn keeps_all(&self) -> bool {
        let pools = |layer| self.indexer_of(layer).is_some_and(|of| of.pool.is_some());
        let pools = self.compressed.is_some() || (0..self.layers).any(pools);
        self.recurrence.is_none() && self.window().is_none() && !pools
    }

    /// Whether layer `layer` attends over its own keys and values.
    pub fn attends(&self, layer: usize) -> bool {
        self.halves[layer].mixer == Some(Mixer::Attention)
    }

    /// The sizes of layer `layer`'s state, if it carries one.
    pub fn recurrence_of(&self, layer: usize) -> Option<&Recurrence> {
        let recurs = self.halves[layer].mixer == Some(Mixer::Recurrence);
        self.recurrence.as_ref().filter(|_| recurs)
    }

    /// The cached elements of a key and of a value, for each cached head.
    pub fn cached_dims(&self, heads: &Heads) -> (usize, usize) {
        match self.latent {
            Some(latent) => (latent.kv_rank + latent.rope_dim, latent.kv_rank),
            None => (heads.k_dim, heads.v_dim),
        }
    }

    /// The factor of the scores of layer `layer`, which must attend.
    pub fn attention_scale(&self, layer: usize) -> f32 {
        self.attention_scales[self.heads_kind(layer)]
    }

    /// The limits of the hidden elements of layer `layer`'s routed experts, and of its shared one.
    pub fn clamps(&self, layer: usize) -> [Option<f32>; 2] {
        self.clamps[layer]
    }

    /// Elements of all residual streams of a row.
    pub fn stream_width(&self) -> usize {
        self.width * self.stream_count()
    }

    /// The number of residual streams.
    pub fn stream_count(&self) -> usize {
        self.streams.map_or(1, |streams| streams.count)
    }

    /// Whether a layer from `layer` on chooses experts by the token's id.
    pub fn needs_tokens(&self, layer: usize) -> bool {
        self.experts.is_some_and(|experts| layer < experts.by_token)
    }

    /// The n-gram embeddings that layer `layer` or a later one reads.
    pub fn ngrams_from(&self, layer: usize) -> Option<&Ngrams> {
        self.ngrams.as_ref().filter(|ngrams| layer <= ngrams.layer)
    }

    /// Elements of a row that attention reads.
    pub fn attention_width(&self) -> usize {
        if self.arch.reads_token { 2 * self.width } else { self.width }
    }

    /// Whether all layers of a stage cache in one place, one after the other: an encoder's later
    /// steps read nothing of it.
    pub fn shares_caches(&self) -> bool {
        self.encoder.is_some() && self.heads().len() == 1
    }

    /// The last layer that caches positions: after it, only rows that produce logits continue.
    pub fn last_keeping(&self) -> usize {
        let keeps = |layer: &usize| self.keeps(*layer) || self.recurrence_of(*layer).is_some();
        (0..self.layers).rev().find(keeps).unwrap_or(self.layers - 1)
    }

    /// Whether layer `layer` has its own cache of keys and values.
    pub fn keeps(&self, layer: usize) -> bool {
        self.assistant.is_none() && self.attends(layer) && self.cache_of(layer) == layer
    }

    /// From now on rank 0 keeps all keys and values that an assistant reads.
    pub(crate) fn keep_for_assistant(&mut self) {
        let read: Vec<usize> =
            [true, false].into_iter().filter_map(|it| self.last_cache(it)).collect();
        for layer in read {
            let before = self.attending.keep_whole(layer);
            self.attention_scales.push(self.attention_scales[before]);
        }
    }

    /// An assistant reads the cache of this layer: the last layer with a window, or without one,
    /// reads it too. `None` if the model has no such layer with keys and values of heads.
    pub fn last_cache(&self, has_window: bool) -> Option<usize> {
        let alike =
            |layer: &usize| self.attends(*layer) && self.windows[*layer].is_some() == has_window;
        let plain = self.latent.is_none() && self.compressed.is_none() && self.indexer.is_none();
        (0..self.layers).rev().find(alike).filter(|_| plain).map(|layer| self.cache_of(layer))
    }

    /// The layers before which a pipeline may be cut, and both ends. A layer that reads another's
    /// keys and values, or follows its choice, stays with it.
    pub fn borders(&self) -> Vec<usize> {
        let of_layer =
            |layer: usize| self.cache_of(layer).min(self.chooser_of(layer).unwrap_or(layer));
        let reads = |from: usize| (from..self.layers).map(of_layer).min();
        (0..=self.layers).filter(|layer| reads(*layer).is_none_or(|read| read >= *layer)).collect()
    }

    /// See [`Capacity::whole_rows`](crate::Capacity::whole_rows).
    pub fn whole_rows(&self) -> usize {
        let text = if self.encoder.is_some() { self.context_max } else { 0 };
        self.sight.map_or(text, |sight| sight.rows_max)
    }

    /// Whether the rows of a picture see each other in layers with a window, and in others.
    pub fn sees_pictures_whole(&self, has_window: bool) -> bool {
        self.sight.is_some_and(|sight| has_window || !sight.windows_only)
    }

    fn check(&self) -> Result<(), Error> {
        let has_gates = self.streams.is_some_and(|streams| streams.rank().is_some());
        let needs_states = self.banks.is_some() || self.situ.is_some() || has_gates;
        if needs_states && self.recurrence.is_none() {
            let what = format!("a {} without layers that carry a state", self.arch.name);
            return Err(Error::Unsupported { what });
        }
        let impossible = |what: String| Err(Error::Impossible { what });
        for layer in (0..self.layers).filter(|layer| self.attends(*layer)) {
            let rotated = self.latent.map_or(self.heads_of(layer).k_dim, |latent| latent.rope_dim);
            let dims = self.rope.dims_of(self.windows[layer].is_some());
            if self.rotates(layer) && !(dims.is_multiple_of(2) && dims <= rotated) {
                return impossible(format!(
                    "{dims} of {rotated} numbers of a head cannot be rotated"
                ));
            }
        }
        if let Some(indexer) = self.indexer.filter(|_| self.choosers.iter().any(Option::is_some)) {
            let keys = self.heads()[0].keys;
            if indexer.blocks.is_some() && (indexer.heads != keys || self.heads().len() > 1) {
                let what = format!("an indexer of {} heads for {keys}", indexer.heads);
                return impossible(format!("{what} key/value heads"));
            }
            if self.rope.dims > indexer.dim {
                let Indexer { dim, .. } = indexer;
                return impossible(format!("{} of {dim} numbers are rotated", self.rope.dims));
            }
        }
        let limit = WIDTH_MAX as usize * 16;
        if self.vocab > limit {
            return impossible(format!("{} tokens; at most {limit} are possible", self.vocab));
        }
        Ok(())
    }
}

/// Refuses adapters and vision towers, which repositories contain beside models.
fn check_is_model(directory: &Directory) -> Result<(), Error> {
    let text = |key| directory.find_str(key).ok().flatten().unwrap_or_default();
    let what = match (text("general.type"), text("general.architecture")) {
        ("adapter", _) => "an adapter (LoRA), which has to be merged into its model first",
        (_, "clip") => "the part of one that reads images or sound (mmproj)",
        _ => return Ok(()),
    };
    Err(Error::NoModel { what })
}

fn rms_eps(metadata: &Metadata<'_>) -> Result<f32, Error> {
    const KEY: &str = "attention.layer_norm_rms_epsilon";
    // Nemotron-H's converter writes this name, although its norms are RMS norms.
    let find = |key| metadata.find_not_negative(key);
    match find(KEY)?.or(find("attention.layer_norm_epsilon")?) {
        Some(eps) => Ok(eps),
        None => metadata.f32(KEY),
    }
}

fn rotation(metadata: &Metadata<'_>) -> Result<Rotation, Error> {
    let untrained = || Ok::<_, Error>(metadata.find_bool("rope.scaling.finetuned")? == Some(false));
    Ok(match metadata.arch.rotation {
        Rotation::UnlessUntrained if untrained()? => Rotation::Never,
        rotation => rotation,
    })
}

/// The number of rotated elements of a head, in layers with full attention and in layers with a
/// window.
fn rotated_dims(attending: &Attending, attends: &[bool], windows: &[Option<usize>]) -> [usize; 2] {
    let of = |local: bool| {
        let alike = |layer: &usize| attends[*layer] && windows[*layer].is_some() == local;
        let kind = (0..windows.len()).find(alike).map_or(0, |layer| attending.kinds[layer]);
        attending.latent.map_or(attending.heads[kind].k_dim, |latent| latent.rope_dim)
    };
    [of(false), of(true)]
}

/// The factor of attention scores, for each kind of heads.
fn attention_scales(
    metadata: &Metadata<'_>,
    rope: &Rope,
    width: usize,
    heads: &[Heads],
    layers: usize,
) -> Result<Vec<f32>, Error> {
    /// Of Gemma 2 and 3, only the 27B models scale by width per head; their files do not contain
    /// that.
    const GEMMAS_27B: [(&str, usize); 2] = [("gemma2", 46), ("gemma3", 62)];
    let gemma_27b = GEMMAS_27B.contains(&(metadata.arch.name, layers));
    let of = |heads: &Heads| {
        let dim = if gemma_27b { width / heads.queries } else { heads.k_dim };
        let default = match metadata.arch.attention_scale {
            AttentionScale::InverseRoot => 1.0 / (dim as f32).sqrt(),
            AttentionScale::One => 1.0,
        };
        Ok(metadata.factor_or("attention.scale", default)? * rope.score_scale)
    };
    heads.iter().map(of).collect()
}

/// The number of tokens, from the embedding matrix: every file has it. An EAGLE-3 head may guess
/// fewer than it reads.
fn vocab(directory: &Directory, arch: &Arch) -> Result<usize, Error> {
    let of = if arch.reads_token { names::OUTPUT } else { names::EMBEDDING };
    let rows = directory.tensor(of)?.rows() as u64;
    in_range("the number of tokens", rows, VOCAB_MAX)
}
