//! Assigns layers to stages: evenly by time, or as many as possible to the fastest stage; then
//! improves the better of the two by moving single layers. Inseparable layers form one piece; in
//! most models each layer is one piece.

use crate::trial::{Fit, Misfit, Trial};

/// The most that moving layers can gain: a split further behind the best so far is left alone.
const IMPROVED_MAX: f64 = 0.15;

impl Trial<'_, '_> {
    /// Assigns the requested layers to each stage, or the fastest ones.
    pub fn cut(&self) -> Result<Fit, Misfit> {
        let pieces = self.context.model.pieces;
        if let Some(asked) = self.context.stage_layers {
            let pieces = self.context.pieces(asked);
            return self.found(pieces.expect("checked before anything is tried"));
        }
        if self.stages.len() == 1 {
            return self.found(vec![pieces]);
        }
        // A request is binding, and without measurements the even cut is used.
        let is_free = self.context.shares.is_none() && self.context.measured;
        let cuts = [self.cut_even(), self.cut_fast().filter(|_| is_free)];
        let found = cuts.into_iter().flatten().filter_map(|cut| self.found(cut).ok());
        match found.min_by(|a, b| a.secs.total_cmp(&b.secs)) {
            Some(found) if is_free && self.is_near_the_best(&found) => Ok(self.improve(found)),
            Some(found) => Ok(found),
            None => Err(self.lacking(&self.full_cut())),
        }
    }

    fn is_near_the_best(&self, found: &Fit) -> bool {
        let best = self.context.best_secs.get().min(found.secs);
        self.context.best_secs.set(best);
        found.secs <= best * (1.0 + IMPROVED_MAX)
    }

    /// Minimizes the time of the slowest stage.
    fn cut_even(&self) -> Option<Vec<usize>> {
        const HALVINGS: usize = 11;
        let pieces = self.context.model.pieces;
        let all = |stage: usize| self.secs(stage, 0, pieces);
        let (mut low, mut high) = (0.0, (0..self.stages.len()).map(all).fold(0.0, f64::max));
        let mut best = self.cut_within(high)?;
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            match self.cut_within(middle) {
                Some(cut) => (best, high) = (cut, middle),
                None => low = middle,
            }
        }
        Some(best)
    }

    /// A cut in which no stage takes longer than `secs`, if there is one.
    fn cut_within(&self, secs: f64) -> Option<Vec<usize>> {
        let (pieces, stages) = (self.context.model.pieces, self.stages.len());
        let mut start = 0;
        let mut counts = Vec::with_capacity(stages);
        for stage in 0..stages {
            let after = stages - stage - 1;
            let is_within =
                |end| self.fits(stage, start, end) && self.secs(stage, start, end) <= secs;
            // The time and the memory of a stage grow with its layers.
            let (mut end, mut most) = (start, pieces - after);
            while end < most {
                let middle = end + (most - end).div_ceil(2);
                (end, most) = if is_within(middle) { (middle, most) } else { (end, middle - 1) };
            }
            if end == start {
                return None;
            }
            counts.push(end - start);
            start = end;
        }
        (start == pieces).then_some(counts)
    }

    /// Assigns each layer to the fastest stage with memory for it: a single request is in one stage
    /// at a time.
    fn cut_fast(&self) -> Option<Vec<usize>> {
        let (pieces, stages) = (self.context.model.pieces, self.stages.len());
        let mut counts = vec![1; stages];
        let mut order: Vec<usize> = (0..stages).collect();
        order.sort_by(|a, b| self.secs(*a, 0, pieces).total_cmp(&self.secs(*b, 0, pieces)));
        let mut left = pieces.checked_sub(stages)?;
        for stage in order {
            while left > 0 {
                counts[stage] += 1;
                let start: usize = counts[..stage].iter().sum();
                if !self.fits(stage, start, (start + counts[stage]).min(pieces)) {
                    counts[stage] -= 1;
                    break;
                }
                left -= 1;
            }
        }
        (left == 0).then_some(counts)
    }

    /// A cut for the error message: each stage gets the layers it has memory for, and the rest goes
    /// to a stage of several ranks, which could divide them differently, if there is one.
    fn full_cut(&self) -> Vec<usize> {
        let (pieces, stages) = (self.context.model.pieces, self.stages.len());
        let mut start = 0;
        let mut counts = Vec::with_capacity(stages);
        for stage in 0..stages {
            let most = pieces - start - (stages - stage - 1);
            let fits = (1..=most).take_while(|count| self.fits(stage, start, start + count));
            counts.push(fits.last().unwrap_or(1));
            start += counts[stage];
        }
        let several = self.groups.iter().position(|group| group.len() > 1);
        counts[several.unwrap_or(stages - 1)] += pieces - start;
        counts
    }

    /// Moves single layers between stages while that makes it faster.
    fn improve(&self, mut best: Fit) -> Fit {
        const ROUNDS: usize = 64;
        for _ in 0..ROUNDS {
            let stages = best.pieces.len();
            let pairs = (0..stages).flat_map(|from| (0..stages).map(move |to| (from, to)));
            let moved = pairs.filter(|(from, to)| from != to && best.pieces[*from] > 1);
            let moved = moved.filter_map(|(from, to)| {
                let mut pieces = best.pieces.clone();
                (pieces[from], pieces[to]) = (pieces[from] - 1, pieces[to] + 1);
                self.found(pieces).ok()
            });
            match moved.min_by(|a, b| a.secs.total_cmp(&b.secs)) {
                Some(next) if next.secs < best.secs * (1.0 - 1e-9) => best = next,
                _ => break,
            }
        }
        best
    }
}
