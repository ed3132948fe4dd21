//! The attention parameters of a layer.

use std::ops::Range;

use super::range::AttentionRange;

/// The most heads of one task; more heads share keys only in latent attention.
const HEADS_A_TASK: usize = 32;

/// The attention parameters of a layer and this shard's heads.
#[derive(Debug, Clone)]
pub struct AttendShape {
    pub(super) heads: usize,
    pub(super) k_dim: usize,
    pub(super) v_dim: usize,
    pub(super) scale: f32,
    pub(super) range: AttentionRange,
    pub(super) soft_cap: Option<f32>,
    pub(super) sinks: Option<Vec<f32>>,
    /// Whether a value is the start of its key (latent attention).
    pub(super) values_in_keys: bool,
    /// Runs of heads that read the same head of the cache.
    pub(super) groups: Vec<Group>,
}

#[derive(Debug, Clone)]
pub(super) struct Group {
    pub kv_head: usize,
    pub heads: Range<usize>,
}

impl AttendShape {
    /// `kv_of_head`: for each head of this shard, its head in this shard's cache. `scale`: the
    /// factor of every score (usually `1 / sqrt(k_dim)`).
    pub fn new(kv_of_head: &[u32], k_dim: usize, v_dim: usize, scale: f32) -> Self {
        let kv_of_head = kv_of_head.iter().map(|kv_head| *kv_head as usize);
        let groups = groups_of(kv_of_head.clone(), HEADS_A_TASK);
        let (heads, values_in_keys) = (kv_of_head.len(), false);
        let (range, soft_cap, sinks) = (AttentionRange::Full, None, None);
        Self { heads, k_dim, v_dim, scale, range, soft_cap, sinks, values_in_keys, groups }
    }

    /// Sets whether a value is the start of its key: with few visible positions, it is then read
    /// once.
    pub fn with_values_in_keys(mut self, values_in_keys: bool) -> Self {
        self.values_in_keys = values_in_keys;
        self
    }

    /// Runs of at most `heads_max` heads that read the same head of the cache.
    pub(super) fn groups(&self, heads_max: usize) -> Vec<Group> {
        let all = self.groups.iter();
        groups_of(all.flat_map(|group| group.heads.clone().map(|_| group.kv_head)), heads_max)
    }

    pub fn with_range(mut self, range: AttentionRange) -> Self {
        self.range = range;
        self
    }

    /// Scores become `cap * tanh(score / cap)`.
    pub fn with_soft_cap(mut self, cap: Option<f32>) -> Self {
        self.soft_cap = cap;
        self
    }

    /// One logit a head that takes part in the softmax without a value (gpt-oss).
    ///
    /// # Panics
    /// If the number of logits differs from that of heads.
    pub fn with_sinks(mut self, sinks: Option<Vec<f32>>) -> Self {
        assert!(sinks.as_ref().is_none_or(|sinks| sinks.len() == self.heads));
        self.sinks = sinks;
        self
    }

    /// Heads of this shard.
    pub fn heads(&self) -> usize {
        self.heads
    }
}

fn groups_of(kv_of_head: impl Iterator<Item = usize>, heads_max: usize) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (head, kv_head) in kv_of_head.enumerate() {
        match groups.last_mut() {
            Some(group) if group.kv_head == kv_head && group.heads.len() < heads_max => {
                group.heads.end = head + 1;
            }
            _ => groups.push(Group { kv_head, heads: head..head + 1 }),
        }
    }
    groups
}
