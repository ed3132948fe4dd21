//! The outline of a model file: its configuration and its tensors, each with its split over ranks.
//! It is read once; the shares of ranks are arithmetic from then on.

mod attention;
mod compressed;
mod feed_forward;
mod head;
mod known;
mod recurrent;

use std::collections::HashSet;
use std::sync::Arc;

use gguf::{Directory, TensorInfo};
use protocol::ExpertSplit;

use self::known::{check_all_known, known};
use crate::arch::NormKind;
use crate::recurrence::LayerHalves;
use crate::shard::{Cuts, Hidden, RecurrentCut};
use crate::tensors::{Part, Tensor, check_float, check_types};
use crate::{BlockFile, Config, Error, MtpBlock, factors, names, unread};

/// A runnable model, without its weights.
#[derive(Debug, Clone)]
pub struct Outline {
    pub config: Config,
    pub(crate) layers: Vec<Vec<Tensor>>,
    /// The output head: a norm and the matrix.
    pub(crate) head: Vec<Tensor>,
    /// Bytes in the file: of all tensors, used or not,
    pub file_bytes: u64,
    /// of each layer,
    pub layer_bytes: Vec<u64>,
    /// of the matrix of the output head,
    pub head_bytes: u64,
    /// and of the reads for one token: all layers, the head, and the used experts.
    pub read_bytes: u64,
    /// The kind of each layer. Layers of one kind have the same tensors, types, heads and window.
    pub kinds: Vec<usize>,
    /// The block that predicts further tokens, if the file has one that can run.
    pub mtp: Option<Arc<Outline>>,
    /// The unused tensors of the file, counted by their purpose.
    pub not_read: Option<String>,
    /// The possible cuts, with the columns of experts cut and with whole experts.
    cuts: [Cuts; 2],
}

impl Outline {
    /// # Errors
    /// The file is not a complete model of a supported kind.
    pub fn read(directory: &Directory) -> Result<Self, Error> {
        Self::read_for(directory, false)
    }

    /// The same. If an assistant reads the model's cache, rank 0 keeps all that it reads.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_for(directory: &Directory, has_assistant: bool) -> Result<Self, Error> {
        if BlockFile::is_one(directory) {
            return Err(Error::Block);
        }
        let mut config = Config::read(directory)?;
        if has_assistant {
            config.keep_for_assistant();
        }
        Self::read_as(directory, config, false)
    }

    /// Reads the header of an [MTP block](crate::MtpBlock) or a [block of a file](BlockFile): its
    /// output head also has the tensors with which a row begins.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_block(directory: &Directory) -> Result<Self, Error> {
        Self::read_as(directory, Config::read(directory)?, true)
    }

    fn read_as(directory: &Directory, config: Config, is_block: bool) -> Result<Self, Error> {
        let layers = (0..config.layers).map(|layer| Layer::read(directory, &config, layer));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        if let Some(own) = config.by_layer {
            checked(directory, names::BY_LAYER, [own * config.layers, config.vocab])?;
        }
        let head = Layer::read_head(directory, &config, is_block)?;
        let all = layers.iter().flatten().chain(&head);
        let read: HashSet<&str> = all.map(|tensor| tensor.name.as_str()).collect();
        check_all_known(directory, &config, &read)?;
        factors::check(directory, layers.iter().flatten().chain(&head))?;
        check_types(directory, &read)?;
        // A model runs without a block that cannot.
        let block = if is_block { None } else { MtpBlock::read(directory).ok().flatten() };
        let known = known(directory, &read, block.is_some().then_some(config.layers));
        let mut outline = Self {
            not_read: unread::summary(directory, config.layers, &known),
            mtp: block.map(|block| Arc::new(block.outline)),
            kinds: kinds(&config, &layers),
            cuts: [false, true].map(|whole| cuts(&config, &layers, whole)),
            layers,
            head,
            file_bytes: 0,
            layer_bytes: vec![0; config.layers],
            head_bytes: 0,
            read_bytes: 0,
            config,
        };
        outline.weigh(directory);
        Ok(outline)
    }

    fn weigh(&mut self, directory: &Directory) {
        let mut resting = 0;
        for tensor in directory.tensors() {
            let bytes = tensor.range.end - tensor.range.start;
            self.file_bytes += bytes;
            if self.head.iter().any(|head| head.name == tensor.name && !head.is_vector) {
                self.head_bytes = bytes;
            }
            let layer = names::layer_of(&tensor.name);
            let Some(sum) = layer.and_then(|at| self.layer_bytes.get_mut(at)) else { continue };
            *sum += bytes;
            if let Some(experts) = self.config.experts.filter(|_| tensor.name.contains("_exps.")) {
                let unused = (experts.count - experts.used) as u128;
                resting += (u128::from(bytes) * unused / experts.count as u128) as u64;
            }
        }
        self.read_bytes = self.layer_bytes.iter().sum::<u64>() + self.head_bytes - resting;
    }

    /// The output head's fraction of all that a token reads, 0 to 1.
    pub fn head_part(&self) -> f64 {
        let layers: u64 = self.layer_bytes.iter().sum();
        self.head_bytes as f64 / (self.head_bytes + layers) as f64
    }

    /// Whether any layer has a tensor with the role `role`.
    pub(crate) fn has(&self, role: &str) -> bool {
        self.layers.iter().flatten().any(|tensor| tensor.role == role)
    }

    /// Whether the weights that fill the cache are floats.
    pub(crate) fn is_cache_float(&self) -> bool {
        let keys = |tensor: &&Tensor| ["attn_k", "kv_down"].contains(&tensor.role);
        let filled_by = self.layers.iter().flatten().find(keys);
        filled_by.is_some_and(|tensor| tensor.ty.block_len() == 1)
    }

    /// The number of parts that the columns of an expert can be cut into, if there are any.
    pub fn expert_parts(&self) -> Option<usize> {
        self.cuts(false).experts.map(|hidden| hidden.units())
    }

    /// Whether ranks get whole experts instead of columns of each.
    ///
    /// By default this depends only on the model: the choice decides the order of sums, and results
    /// must not depend on the number of ranks. Columns give all ranks the same work, so whole
    /// experts are for those that cannot be cut into more than a few parts.
    pub fn whole_experts(&self, asked: ExpertSplit) -> bool {
        const PARTS_FEW: usize = 3;
        let (Some(experts), Some(parts)) = (&self.config.experts, self.expert_parts()) else {
            return false;
        };
        match asked {
            ExpertSplit::Columns => false,
            ExpertSplit::Whole => true,
            ExpertSplit::Auto => parts <= PARTS_FEW && experts.count > parts,
        }
    }

    /// Whether its layers with a state are indivisible, so that no two ranks can share one.
    pub fn has_whole_states(&self) -> bool {
        self.cuts(false).recurrent.is_some_and(|cut| cut.is_whole())
    }

    /// The sizes that determine the possible cuts.
    pub(crate) fn cuts(&self, whole: bool) -> &Cuts {
        &self.cuts[usize::from(whole)]
    }
}

fn cuts(config: &Config, layers: &[Vec<Tensor>], whole: bool) -> Cuts {
    let block = |role: &str| {
        let tensors = layers.iter().flatten().filter(|tensor| tensor.role == role);
        tensors.map(|tensor| tensor.ty.block_len()).max()
    };
    let hidden = |role: &str, columns: usize| Some(Hidden::columns(columns, block(role)?));
    let dense = config.feed_forward.iter().filter_map(|width| hidden("ffn_down", *width));
    let experts = config.experts.as_ref();
    Cuts {
        heads: config.heads().to_vec(),
        attention_block: block("attn_output").unwrap_or(1),
        recurrent: config
            .recurrence
            .map(|sizes| RecurrentCut::new(sizes, block("recurrent_output").unwrap_or(1))),
        feed_forward: dense.collect(),
        experts: experts.and_then(|experts| match whole {
            true => Some(Hidden::whole(experts.count)),
            false => hidden("ffn_down_exps", experts.hidden),
        }),
        shared_expert: experts.and_then(|experts| hidden("ffn_down_shexp", experts.shared_hidden?)),
        shared_apart: experts.is_some_and(|experts| experts.latent.is_some()),
        whole_experts: whole && experts.is_some(),
    }
}

/// The kind of each layer, numbered from 0 in order of appearance.
fn kinds(config: &Config, layers: &[Vec<Tensor>]) -> Vec<usize> {
    let same = |a: &[Tensor], b: &[Tensor]| {
        let facts = |one: &Tensor| (one.role, one.ty, one.shape);
        a.iter().map(facts).eq(b.iter().map(facts))
    };
    let (mut first, mut kinds) = (Vec::new(), Vec::new());
    for (at, (layer, window)) in layers.iter().zip(&config.windows).enumerate() {
        let facts = (*window, config.heads_kind(at), config.chooser_of(at).is_some());
        let is_known = |(known, of): &(&[Tensor], _)| same(known, layer) && *of == facts;
        let known = first.iter().position(is_known);
        kinds.push(known.unwrap_or(first.len()));
        if known.is_none() {
            first.push((layer, facts));
        }
    }
    kinds
}

/// A layer's tensors, collected one by one.
struct Layer<'a> {
    directory: &'a Directory,
    layer: usize,
    tensors: Vec<Tensor>,
}

impl<'a> Layer<'a> {
    fn new(directory: &'a Directory, layer: usize) -> Self {
        Self { directory, layer, tensors: Vec::new() }
    }

    fn read(directory: &'a Directory, config: &Config, layer: usize) -> Result<Vec<Tensor>, Error> {
        let mut found = Self::new(directory, layer);
        let (width, norms) = (config.width, &config.arch.norms);
        let LayerHalves { mixer, feed_forward } = config.halves[layer];
        let has_biases = config.arch.norm_kind == NormKind::Layer;
        let [mixes, feeds] = [mixer.is_some(), feed_forward];
        for ([role, bias], name, is_there) in [
            (["attention_norm", "attention_norm.bias"], norms.attention, mixes),
            (["after_attention_norm", ""], norms.after_attention, mixes),
            (["feed_forward_norm", "feed_forward_norm.bias"], norms.feed_forward, feeds),
            (["after_feed_forward_norm", ""], norms.after_feed_forward, feeds),
        ] {
            let Some(name) = name.filter(|_| is_there) else { continue };
            found.vector(role, name, width)?;
            if has_biases && !bias.is_empty() {
                found.find_bias(bias, name, width, Part::Of(0..width))?;
            }
        }
        let all = Part::Of(0..width);
        if config.attends(layer) {
            match (&config.latent, &config.compressed) {
                (Some(latent), _) => found.latent_attention(config, latent)?,
                (None, Some(compressed)) => found.compressed_attention(config, compressed)?,
                (None, None) => found.attention(config)?,
            }
            let (heads, kind) = (config.heads_of(layer), config.heads_kind(layer));
            let (columns, own) = (heads.columns(), Part::Attention { kind });
            let name = config.compressed.as_ref().map_or("attn_output", |_| "attn_output_b");
            let name = names::layer(layer, name);
            found.add("attn_output", &name, [columns, width], all.clone(), own)?;
            found.find_bias("attn_output.bias", "attn_output", width, all.clone())?;
        }
        if let Some(recurrence) = config.recurrence_of(layer) {
            found.recurrence(config, recurrence)?;
        }
        let experts = config.experts_of(layer);
        if let Some(experts) = experts {
            found.experts(config, experts)?;
        }
        if feed_forward && (experts.is_none() || config.arch.dense_beside_experts) {
            found.feed_forward(config)?;
        }
        if feed_forward {
            found.find_bias("ffn_down.bias", "ffn_down", width, all)?;
        }
        found.by_layer(config)?;
        found.ngrams(config)?;
        if let Some(streams) = &config.streams {
            found.streams(width, streams)?;
        }
        if config.banks.is_some() {
            found.banks(config)?;
        }
        let scale = names::layer(layer, "layer_output_scale");
        if found.has(&scale) {
            found.add_vector("output_scale", &scale, 1, 1)?;
        }
        Ok(found.tensors)
    }

    /// A layer's projection of its own embeddings, in models that have them.
    fn by_layer(&mut self, config: &Config) -> Result<(), Error> {
        let Some(own) = config.by_layer else { return Ok(()) };
        let (width, all) = (config.width, Part::Of(0..config.width));
        let rows = self.layer * own..(self.layer + 1) * own;
        let shape = [width, own * config.layers];
        let projection = names::BY_LAYER_PROJECTION;
        self.add("by_layer_projection", projection, shape, Part::Of(rows), all.clone())?;
        self.add_vector("by_layer_projection_norm", names::BY_LAYER_NORM, 1, own)?;
        for (role, name, shape) in
            [("by_layer_gate", "inp_gate", [width, own]), ("by_layer_output", "proj", [own, width])]
        {
            let name = names::layer(self.layer, name);
            let [cols, rows] = shape;
            self.add(role, &name, shape, Part::Of(0..rows), Part::Of(0..cols))?;
        }
        self.vector("after_by_layer_norm", "post_norm", width)
    }

    /// The scores of banked residual streams; the last layer's also serve the head.
    fn banks(&mut self, config: &Config) -> Result<(), Error> {
        for role in ["attn_res_score", "ffn_res_score"] {
            self.vector(role, role, config.width)?;
        }
        if self.layer + 1 == config.layers {
            self.add_vector("output_res_score", names::OUTPUT_BANKS, 1, config.width)?;
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.directory.find_tensor(name).is_some()
    }

    /// The matrix whose role is its name.
    fn matrix(
        &mut self,
        role: &'static str,
        shape: [usize; 2],
        rows: Part,
        cols: Part,
    ) -> Result<(), Error> {
        let name = names::layer(self.layer, role);
        self.add(role, &name, shape, rows, cols).map(drop)
    }

    /// `count` matrices `[cols, rows]`, each multiplied separately.
    fn several(
        &mut self,
        role: &'static str,
        name: &str,
        count: usize,
        [cols, rows]: [usize; 2],
    ) -> Result<&mut Tensor, Error> {
        let name = names::layer(self.layer, name);
        let (shape, all) = ([cols, rows * count], Part::Of(0..cols));
        let tensor = self.add(role, &name, shape, Part::Of(0..rows), all)?;
        (tensor.shape, tensor.apart) = ([count, rows, cols], true);
        Ok(tensor)
    }

    /// One vector of `len` elements, of any shape in the file; a rank has `part`.
    fn flat(
        &mut self,
        role: &'static str,
        name: &str,
        len: usize,
        part: Part,
    ) -> Result<(), Error> {
        let found = self.directory.tensor(name)?;
        let (cols, rows) = (found.columns(), found.rows());
        if cols.checked_mul(rows) != Some(len) {
            let (name, found_cols, found_rows) = (name.to_owned(), cols, rows);
            return Err(Error::Shape { name, found_cols, found_rows, cols: len, rows: 1 });
        }
        check_float(found)?;
        let tensor = self.add(role, name, [cols, rows], part, Part::Of(0..1))?;
        (tensor.shape, tensor.apart, tensor.is_vector) = ([1, len, 1], true, true);
        Ok(())
    }

    /// A matrix of any type, to add or to look up.
    fn table(
        &mut self,
        role: &'static str,
        name: &str,
        [cols, rows]: [usize; 2],
    ) -> Result<(), Error> {
        let (own_rows, own_cols) = (Part::Of(0..rows), Part::Of(0..cols));
        self.add(role, name, [cols, rows], own_rows, own_cols)?.is_vector = true;
        Ok(())
    }

    /// A vector of `len` elements, such as a norm's gain.
    fn vector(&mut self, role: &'static str, name: &str, len: usize) -> Result<(), Error> {
        let name = names::layer(self.layer, name);
        self.add_vector(role, &name, 1, len).map(drop)
    }

    /// The elements `part` of a bias, if the file has it.
    fn find_bias(
        &mut self,
        role: &'static str,
        name: &str,
        len: usize,
        part: Part,
    ) -> Result<(), Error> {
        let name = names::bias(self.layer, name);
        if self.has(&name) {
            self.add_vector(role, &name, 1, len)?.rows = part;
        }
        Ok(())
    }

    /// `count` vectors of `len` elements in one tensor.
    fn add_vector(
        &mut self,
        role: &'static str,
        name: &str,
        count: usize,
        len: usize,
    ) -> Result<&mut Tensor, Error> {
        let found = checked(self.directory, name, [len, count])?;
        check_float(found)?;
        let tensor = self.add(role, name, [len, count], Part::Of(0..len), Part::Of(0..1))?;
        (tensor.matrices, tensor.shape) = (Part::Of(0..count), [count, len, 1]);
        (tensor.apart, tensor.is_vector) = (true, true);
        Ok(tensor)
    }

    /// A matrix of the file, which must have the shape `[cols, rows]`.
    fn add(
        &mut self,
        role: &'static str,
        name: &str,
        [cols, rows]: [usize; 2],
        own_rows: Part,
        own_cols: Part,
    ) -> Result<&mut Tensor, Error> {
        let ty = checked(self.directory, name, [cols, rows])?.ty;
        self.tensors.push(Tensor {
            role,
            name: name.to_owned(),
            ty,
            shape: [1, rows, cols],
            matrices: Part::Of(0..1),
            rows: own_rows,
            cols: own_cols,
            apart: false,
            is_vector: false,
        });
        Ok(self.tensors.last_mut().expect("one was pushed"))
    }
}

/// The tensor `name`, which must have the shape `[cols, rows]`.
///
/// # Errors
/// It is missing or has another shape.
pub fn checked<'a>(
    directory: &'a Directory,
    name: &str,
    [cols, rows]: [usize; 2],
) -> Result<&'a TensorInfo, Error> {
    let tensor = directory.tensor(name)?;
    if (tensor.columns(), tensor.rows()) == (cols, rows) {
        return Ok(tensor);
    }
    let (found_cols, found_rows) = (tensor.columns(), tensor.rows());
    Err(Error::Shape { name: name.to_owned(), found_cols, found_rows, cols, rows })
}

/// The vector `name` of `len` floats.
///
/// # Errors
/// It is missing, or something else.
pub fn checked_vector<'a>(
    directory: &'a Directory,
    name: &str,
    len: usize,
) -> Result<&'a TensorInfo, Error> {
    let tensor = checked(directory, name, [len, 1])?;
    check_float(tensor)?;
    Ok(tensor)
}
