//! The outline of a model file: its configuration and its tensors, each with its split over ranks.
//! It is read once; the shares of ranks are arithmetic from then on.

mod known;

use std::collections::HashSet;
use std::sync::Arc;

use gguf::Directory;
use protocol::ExpertSplit;

use self::known::{check_all_known, known};
use crate::collect::Layer;
use crate::config::Config;
use crate::factors;
use crate::file::{Error, names, unread};
use crate::parts::all::ALL;
use crate::parts::head;
use crate::shard::{Cuts, Hidden, RecurrentCut};
use crate::tensors::{Tensor, check_types};

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
    /// Reads the header of an [MTP block](crate::MtpBlock), or of a [file with
    /// one](crate::BlockFile): its output head also has the tensors with which a row begins.
    ///
    /// # Errors
    /// Those of [`Self::read`].
    pub fn read_block(directory: &Directory) -> Result<Self, Error> {
        Self::read_as(directory, Config::read(directory)?, (true, None))
    }

    /// `block`: whether it is one, and the one behind its layers.
    pub(crate) fn read_as(
        directory: &Directory,
        config: Config,
        (is_block, block): (bool, Option<Self>),
    ) -> Result<Self, Error> {
        let of_layer = |at: usize| {
            let mut layer = Layer::new(directory, at);
            ALL.iter().try_for_each(|part| part.tensors(&mut layer, &config))?;
            Ok(layer.tensors)
        };
        let layers = (0..config.layers).map(of_layer).collect::<Result<Vec<_>, Error>>()?;
        let head = head::tensors(directory, &config, is_block)?;
        let all = layers.iter().flatten().chain(&head);
        let read: HashSet<&str> = all.map(|tensor| tensor.name.as_str()).collect();
        check_all_known(directory, &config, &read)?;
        factors::check(directory, layers.iter().flatten().chain(&head))?;
        check_types(directory, &read)?;
        let known = known(directory, &read, block.is_some().then_some(config.layers));
        let mut outline = Self {
            not_read: unread::summary(directory, config.layers, &known),
            mtp: block.map(Arc::new),
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
