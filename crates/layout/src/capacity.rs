//! How much of a conversation there is room for.

use protocol::CacheType;

/// Positions of one page of the cache of keys and values.
pub const PAGE_POSITIONS: usize = 64;

/// A step of one sequence may have so many rows whose logits are wanted.
const OUTPUTS_MIN: usize = 8;

/// Rows of the largest step. Long enough that a prompt's products run at full speed, short enough
/// that a running answer waits only tenths of a second for it.
const ROWS_MAX: usize = 512;

/// The same for a model in stages, where a stage is idle until the first chunk of a prompt reaches
/// it: small enough that a prompt makes many.
const STAGED_ROWS_MAX: usize = 64;

/// Rows of the largest step of a long prompt, of a model in so many stages.
pub fn rows_max(stages: usize) -> usize {
    if stages > 1 { STAGED_ROWS_MAX } else { ROWS_MAX }
}

/// What an instance is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Positions of the longest sequence.
    pub context_tokens: usize,
    /// Sequences that may run at once.
    pub sequences_max: usize,
    /// Positions of all sequences together; whole pages of them are kept.
    pub cache_tokens: usize,
    pub cache_type: CacheType,
    /// How many ends of texts can be gone on from that no running sequence has, in models whose
    /// layers do not all keep all positions: copies of states, or texts whose window is kept.
    pub checkpoints: usize,
}

/// The `cache_tokens` with which each of `sequences_max` sequences can fill its context.
pub fn full_cache_tokens(context_tokens: usize, sequences_max: usize) -> usize {
    let pages = context_tokens.div_ceil(PAGE_POSITIONS).saturating_mul(sequences_max);
    pages.saturating_mul(PAGE_POSITIONS)
}

/// Most rows of a sequence in one step whose tokens are guesses.
pub const GUESSES_MAX: usize = 7;

/// Sequences for which a draft model guesses at once.
pub const DRAFTS_MAX: usize = 4;

/// What layers with a window keep of the positions: those that running sequences may still see,
/// and those before the ends of texts that others may go on from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many positions a position sees, itself included.
    pub positions: usize,
    /// Pages of their cache, of all sequences.
    pub pages: usize,
}

impl Window {
    /// For `sequences` that may run at once in steps of up to `rows_max` rows, or for one beside so
    /// many ends of other texts.
    pub fn new(positions: usize, sequences: usize, rows_max: usize, ends: usize) -> Self {
        let mut found = Self { positions, pages: 0 };
        let behind = found.pages_behind();
        // Besides those behind it, a running sequence has one that it writes to and one for
        // guesses; the rows of a step fill as many more, whosever they are.
        let texts = sequences.max(ends.saturating_add(1)).saturating_mul(behind + 2);
        found.pages = texts.saturating_add(rows_max.div_ceil(PAGE_POSITIONS));
        found
    }

    /// How many pages before the end of one the positions after it still see.
    pub fn pages_behind(&self) -> usize {
        (self.positions - 1).div_ceil(PAGE_POSITIONS)
    }
}

impl Capacity {
    /// Of a draft model that reads up to `context_max` tokens, for a model that is served with
    /// `context_tokens`.
    pub fn of_draft(context_max: usize, context_tokens: usize) -> Self {
        let context_tokens = context_tokens.min(context_max);
        Self {
            context_tokens,
            sequences_max: DRAFTS_MAX,
            cache_tokens: full_cache_tokens(context_tokens, DRAFTS_MAX),
            cache_type: CacheType::Auto,
            // Of each sequence, the state behind its last certain token.
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

    /// What layers that see no more than `window` positions keep, in a model in so many stages;
    /// `None` if that would not be less than all positions.
    pub fn window(&self, window: Option<usize>, stages: usize) -> Option<Window> {
        let rows_max = self.rows_max(stages);
        let found = Window::new(window?, self.sequences_max, rows_max, self.checkpoints);
        (found.pages < self.pages()).then_some(found)
    }

    /// Rows of a step whose logits may be wanted: one of each sequence, or several of a few whose
    /// next tokens were guessed.
    pub fn outputs_max(&self) -> usize {
        self.sequences_max.max(OUTPUTS_MIN)
    }

    /// Rows of the largest step of a model in so many stages.
    pub fn rows_max(&self, stages: usize) -> usize {
        rows_max(stages).min(self.context_tokens).max(self.outputs_max())
    }
}
