//! Sets of byte ranges: those present in a file, and those being fetched.

use serde::{Deserialize, Serialize};

/// Ranges of bytes, in order, neither overlapping nor touching.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Adds `start..end`.
    pub fn add(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let first = self.0.partition_point(|range| range.1 < start);
        let last = self.0.partition_point(|range| range.0 <= end);
        let touched = &self.0[first..last];
        let start = touched.first().map_or(start, |range| range.0.min(start));
        let end = touched.last().map_or(end, |range| range.1.max(end));
        self.0.splice(first..last, [(start, end)]);
    }

    /// Takes `start..end` out.
    pub fn remove(&mut self, start: u64, end: u64) {
        if start >= end {
            return;
        }
        let mut left = Vec::with_capacity(self.0.len() + 1);
        for &(from, to) in &self.0 {
            left.extend([(from, to.min(start)), (from.max(end), to)].iter().filter(|r| r.0 < r.1));
        }
        self.0 = left;
    }

    /// Whether all of `start..end` is in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        let at = self.0.partition_point(|range| range.1 <= start);
        start >= end || self.0.get(at).is_some_and(|range| range.0 <= start && end <= range.1)
    }

    /// The number of bytes.
    pub fn total(&self) -> u64 {
        self.0.iter().map(|(start, end)| end - start).sum()
    }

    /// The first range below `len` that is in neither set, at most `most` bytes long.
    pub fn gap(&self, other: &Self, len: u64, most: u64) -> Option<(u64, u64)> {
        let mut start = 0;
        let end = loop {
            let after = |ranges: &Self| {
                let at = ranges.0.partition_point(|range| range.1 <= start);
                ranges.0.get(at).copied()
            };
            let next: Vec<(u64, u64)> = [after(self), after(other)].into_iter().flatten().collect();
            match next.iter().find(|range| range.0 <= start) {
                Some(range) => start = range.1,
                None => break next.iter().map(|range| range.0).min().unwrap_or(len).min(len),
            }
        };
        (start < end).then(|| (start, end.min(start.saturating_add(most))))
    }

    /// Whether an untrusted set is valid: in order, and below `len`.
    pub fn is_sound(&self, len: u64) -> bool {
        let ordered = self.0.windows(2).all(|two| two[0].1 < two[1].0);
        ordered && self.0.iter().all(|range| range.0 < range.1 && range.1 <= len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_merge_and_gaps_are_found() {
        let (mut have, mut taken) = (Ranges::default(), Ranges::default());
        assert_eq!(have.gap(&taken, 100, 30), Some((0, 30)));
        have.add(10, 20);
        have.add(40, 50);
        have.add(20, 25);
        assert_eq!(have, Ranges(vec![(10, 25), (40, 50)]));
        assert!(have.covers(10, 25) && have.covers(41, 42) && have.covers(30, 30));
        assert!(!have.covers(9, 11) && !have.covers(24, 41) && !have.covers(50, 51));
        taken.add(0, 10);
        assert_eq!(have.gap(&taken, 100, 30), Some((25, 40)));
        taken.add(25, 40);
        assert_eq!(have.gap(&taken, 100, 30), Some((50, 80)));
        have.add(50, 100);
        assert_eq!(have.gap(&taken, 100, 30), None);
        taken.remove(30, 35);
        assert_eq!(have.gap(&taken, 100, 30), Some((30, 35)));
        assert_eq!((have.total(), taken.total()), (75, 20));
        have.add(0, 100);
        assert_eq!(have, Ranges(vec![(0, 100)]));
    }

    #[test]
    fn random_ranges_agree_with_a_table_of_bytes() {
        let mut random = fastrand::Rng::with_seed(7);
        let (mut ranges, mut table) = (Ranges::default(), [false; 64]);
        for _ in 0..500 {
            let (a, b) = (random.u64(0..64), random.u64(0..64));
            let (start, end) = (a.min(b), a.max(b));
            let adds = random.bool();
            if adds {
                ranges.add(start, end)
            } else {
                ranges.remove(start, end)
            }
            table[start as usize..end as usize].fill(adds);
            assert!(ranges.is_sound(64));
            assert_eq!(ranges.total(), table.iter().filter(|is| **is).count() as u64);
            let gap = ranges.gap(&Ranges::default(), 64, 1).map(|gap| gap.0 as usize);
            assert_eq!(gap, table.iter().position(|is| !is));
        }
    }
}
