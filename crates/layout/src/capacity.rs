//! The capacity of an instance: the room for conversations.

use protocol::CacheType;

/// Positions of one page of the cache of keys and values.
pub const PAGE_POSITIONS: usize = 64;

/// The rows of a step that may produce logits, at least: enough for one speculating sequence.
const OUTPUTS_MIN: usize = 8;

/// Rows of the largest step: enough for a prompt's products to run at full speed, and few enough
/// that a running answer waits only tenths of a second.
const ROWS_MAX: usize = 512;

/// The same for a model in stages. A stage is idle until the first chunk of a prompt reaches it, so
/// a prompt should make many chunks.
const STAGED_ROWS_MAX: usize = 64;

/// Pictures that rank 0 keeps in memory as rows, those in work included.
pub const PICTURES_KEPT: usize = 2;

/// Rows of the largest step of a long prompt, for a model in `stages` stages.
pub fn rows_max(stages: usize) -> usize {
    if stages > 1 { STAGED_ROWS_MAX } else { ROWS_MAX }
}

/// The capacity of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Positions of the longest sequence.
    pub context_tokens: usize,
    /// The most sequences at once.
    pub sequences_max: usize,
    /// Positions of all sequences together, rounded up to pages.
    pub cache_tokens: usize,
    pub cache_type: CacheType,
    /// Rows of the longest run that must be in one step: a picture whose rows see each other, or an
    /// encoder's text; 0 if everything can be cut.
    pub whole_rows: usize,
    /// Whether the model is an encoder: every row of a step may be an output.
    pub is_encoder: bool,
    /// Saved ends of texts, beside those of running sequences, from which a sequence can continue.
    /// For models in which not all layers keep all positions: copies of states, or texts with their
    /// window.
    pub checkpoints: usize,
}

/// The `cache_tokens` that let each of `sequences_max` sequences fill its context.
pub fn full_cache_tokens(context_tokens: usize, sequences_max: usize) -> usize {
    let pages = context_tokens.div_ceil(PAGE_POSITIONS).saturating_mul(sequences_max);
    pages.saturating_mul(PAGE_POSITIONS)
}

/// The `cache_tokens` for the largest step of an encoder: its rows, and for each text the rest of
/// its last page.
pub fn step_cache_tokens(context_tokens: usize, sequences_max: usize) -> usize {
    let rows = context_tokens.max(ROWS_MAX).div_ceil(PAGE_POSITIONS);
    rows.saturating_add(sequences_max).saturating_mul(PAGE_POSITIONS)
}

/// The most speculated rows of a sequence in one step.
pub const GUESSES_MAX: usize = 7;

/// The sequences that a draft model serves at once.
pub const DRAFTS_MAX: usize = 4;

/// The positions kept by layers with a window: those visible to running sequences, and those before
/// saved ends of texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Positions visible to a position, including itself.
    pub positions: usize,
    /// Pages of their cache, of all sequences.
    pub pages: usize,
}

impl Window {
    /// For `sequences` at once in steps of up to `rows_max` rows, or for one sequence and `ends`
    /// saved ends of texts.
    pub fn new(positions: usize, sequences: usize, rows_max: usize, ends: usize) -> Self {
        let mut found = Self { positions, pages: 0 };
        let behind = found.pages_behind();
        // Besides the pages behind it, a running sequence has one to write to and one for guesses.
        // The rows of a step fill up to `rows_max` positions more, in any sequence.
        let texts = sequences.max(ends.saturating_add(1)).saturating_mul(behind + 2);
        found.pages = texts.saturating_add(rows_max.div_ceil(PAGE_POSITIONS));
        found
    }

    /// The number of pages before the end of a page that are still visible after it.
    pub fn pages_behind(&self) -> usize {
        (self.positions - 1).div_ceil(PAGE_POSITIONS)
    }
}

impl Capacity {
    /// The capacity of a draft model that reads up to `context_max` tokens, for a model with a
    /// context of `context_tokens`.
    pub fn of_draft(context_max: usize, context_tokens: usize) -> Self {
        let context_tokens = context_tokens.min(context_max);
        Self {
            context_tokens,
            sequences_max: DRAFTS_MAX,
            cache_tokens: full_cache_tokens(context_tokens, DRAFTS_MAX),
            cache_type: CacheType::Auto,
            whole_rows: 0,
            is_encoder: false,
            // For each sequence, the state after its last certain token.
            checkpoints: DRAFTS_MAX,
        }
    }

    /// Pages of the cache that one sequence may fill.
    pub fn pages_per_sequence(&self) -> usize {
        self.context_tokens.div_ceil(PAGE_POSITIONS)
    }

    /// Pages of the cache that all sequences share.
    pub fn pages(&self) -> usize {
        self.cache_tokens.div_ceil(PAGE_POSITIONS)
    }

    /// The window of layers that see no more than `window` positions, in a model with `stages`
    /// stages; `None` if it would not save memory.
    pub fn window(&self, window: Option<usize>, stages: usize) -> Option<Window> {
        let rows_max = self.rows_max(stages);
        let found = Window::new(window?, self.sequences_max, rows_max, self.checkpoints);
        (found.pages < self.pages()).then_some(found)
    }

    /// Rows of a step that may produce logits: one of each sequence, or several of a few sequences
    /// with speculated tokens.
    pub fn outputs_max(&self) -> usize {
        match self.is_encoder {
            // All rows of the largest step, beside one row for each sequence.
            true => self.context_tokens.max(ROWS_MAX).saturating_add(self.sequences_max),
            false => self.answers_max(),
        }
    }

    fn answers_max(&self) -> usize {
        self.sequences_max.max(OUTPUTS_MIN)
    }

    /// Rows of the largest step of a long text.
    pub fn chunk_rows(&self, stages: usize) -> usize {
        rows_max(stages).min(self.context_tokens).max(self.answers_max())
    }

    /// Rows of the largest step of a model with `stages` stages: a picture that cannot be cut has
    /// room beside every answer.
    pub fn rows_max(&self, stages: usize) -> usize {
        let whole = if self.whole_rows > 0 { self.whole_rows + self.sequences_max } else { 0 };
        self.chunk_rows(stages).max(whole.min(self.context_tokens))
    }
}
