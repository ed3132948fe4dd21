//! Rank 0's orders about pages and the disk: to keep one, or to load one. Each step carries some.

use layout::PAGE_POSITIONS;
use protocol::Token;

/// Identifies a text up to the end of a page, in every process that computes the same bits.
pub type PageKey = [u8; 32];

/// Most orders of a step.
pub const ORDERS_MAX: usize = 32;

/// Words of an order in a message.
pub(crate) const WORDS: usize = PAGE_POSITIONS + 12;

/// What the pages or checkpoints of these numbers hold, or shall hold, of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageOrder {
    pub key: PageKey,
    /// The last tokens of the text, which fill the page.
    pub tokens: [Token; PAGE_POSITIONS],
    pub page: Option<u32>,
    /// The page in layers that keep only their window.
    pub window: Option<u32>,
    pub checkpoint: Option<u32>,
    /// Rank 0's number for who waits for it.
    pub fetch: u64,
    /// How far the stages so far have come, for a page to load.
    pub loaded: Loaded,
}

/// How far ranks have come with a page to load: those that have come least far decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Loaded {
    /// Some part is not there, or damaged.
    Missing,
    /// Some part is being read.
    Pending,
    /// All parts are in the cache.
    Placed,
}

impl Loaded {
    /// As a number of a message between ranks, whose least counts.
    pub fn number(self) -> f32 {
        f32::from(self as u8)
    }

    /// `None`: it is none of them.
    pub fn of_number(number: f32) -> Option<Self> {
        let all = [Self::Missing, Self::Pending, Self::Placed];
        all.into_iter().find(|one| one.number() == number)
    }
}

impl PageOrder {
    pub fn new(key: PageKey, tokens: [Token; PAGE_POSITIONS]) -> Self {
        let loaded = Loaded::Placed;
        Self { key, tokens, page: None, window: None, checkpoint: None, fetch: 0, loaded }
    }

    pub(crate) fn encode(&self) -> impl Iterator<Item = u32> + '_ {
        let key = self.key.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word));
        let numbers = [self.page, self.window, self.checkpoint];
        let numbers = numbers.map(|number| number.unwrap_or(u32::MAX));
        let rest = numbers.into_iter().chain([self.loaded as u32]);
        key.chain(self.tokens).chain(rest)
    }

    /// `None`: a page, a page in windows or a checkpoint is none of these many.
    pub(crate) fn decode(mut words: impl Iterator<Item = u32>, counts: [usize; 3]) -> Option<Self> {
        let mut next = || words.next().unwrap_or(u32::MAX);
        let mut key = [0; 32];
        key.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = next().to_le_bytes());
        let tokens = std::array::from_fn(|_| next());
        let numbers: [u32; 3] = std::array::from_fn(|_| next());
        let [page, window, checkpoint] =
            numbers.map(|number| (number != u32::MAX).then_some(number));
        let mut all = [page, window, checkpoint].into_iter().zip(counts);
        if all.any(|(number, count)| number.is_some_and(|number| number as usize >= count)) {
            return None;
        }
        let loaded = Loaded::of_number(next() as f32)?;
        Some(Self { key, tokens, page, window, checkpoint, fetch: 0, loaded })
    }
}
