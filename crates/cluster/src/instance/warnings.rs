//! Warnings about an instance's speed.

use placement::Prediction;

use super::Instance;
use super::rank::{Rank, RankPace};

impl Instance {
    /// A warning if answers differ from the prediction.
    pub(crate) fn pace_warning(&self, prediction: &Prediction) -> Option<String> {
        let guessed = self.stats.as_ref().is_some_and(|stats| stats.guessed_right_tokens > 0);
        self.pace.warning(prediction, &self.rank_paces(), guessed)
    }

    /// Whether links are the most likely cause.
    pub(crate) fn waits_for_links(&self, prediction: &Prediction) -> bool {
        self.pace.blames_links(prediction, &self.rank_paces())
    }

    /// Empty with several stages, which wait for each other by design.
    fn rank_paces(&self) -> Vec<RankPace<'_>> {
        let all: &[Rank] = if self.split.stages.is_empty() { &self.ranks } else { &[] };
        all.iter().map(Rank::pace).collect()
    }
}
