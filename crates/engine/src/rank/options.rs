//! What a rank is asked to be.

use layout::{Capacity, Config, Layout};
use protocol::{ExpertCache, PromptCache, Speculation, Split, SplitOptions, WireType};

use crate::EngineError;
use crate::route::Route;

/// The file of a draft, if one is asked for.
pub(crate) type DraftFile = Option<Result<gguf::File, gguf::Error>>;

#[derive(Debug, Clone)]
pub(crate) struct RankOptions {
    pub rank: usize,
    pub options: SplitOptions,
    pub split: Split,
    pub threads: usize,
    pub cpus: Vec<usize>,
    pub prompts: Option<PromptCache>,
    pub experts: Option<ExpertCache>,
}

impl RankOptions {
    /// # Errors
    /// The cache has no room for one text.
    pub(crate) fn capacity(&self, config: &Config) -> Result<Capacity, EngineError> {
        let Split { context_tokens, sequences_max, cache_tokens, .. } = self.split;
        let capacity = Capacity {
            context_tokens,
            sequences_max,
            cache_tokens,
            cache_type: self.options.cache_type,
            whole_rows: config.whole_rows(),
            is_encoder: config.encoder.is_some(),
            checkpoints: self.options.checkpoints(),
        };
        if capacity.pages() < capacity.pages_per_sequence() {
            let what = format!("a cache of {cache_tokens} tokens for contexts of {context_tokens}");
            return Err(EngineError::Protocol(what));
        }
        Ok(capacity)
    }

    /// # Errors
    /// The stages do not make up the ranks and layers.
    pub(crate) fn layout(&self, config: &Config) -> Result<Layout, EngineError> {
        let sizes = self.split.stages.iter().map(|stage| (stage.ranks, stage.layers));
        let sizes: Vec<_> = sizes.collect();
        let layout =
            Layout::new(&self.split.shares, &sizes, config.layers).map_err(layout::Error::from)?;
        layout.check(config).map_err(layout::Error::from)?;
        Ok(layout.with_whole_experts(self.split.whole_experts))
    }

    /// Where prompts are kept: nowhere if sums of 8 bits, which depend on the split, are in them.
    pub(crate) fn prompts(&self, route: &Route) -> Option<&PromptCache> {
        let is_exact = self.options.wire_type == WireType::F32 || route.stage.len() == 1;
        self.prompts.as_ref().filter(|_| is_exact)
    }

    /// Rank 0: the file of a draft, if one is asked for.
    pub(crate) fn draft(&self) -> DraftFile {
        let Self { rank, options: SplitOptions { draft, speculation, .. }, .. } = self;
        let guesses = *rank == 0 && *speculation == Speculation::Prompt;
        draft.as_ref().filter(|_| guesses).map(|path| checkpoint::open(path))
    }
}
