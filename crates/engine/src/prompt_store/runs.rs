//! Runs of bytes that a part of a page gets from other parts of the same layer.

use std::ops::Range;

use model::{Part, Shared};
use protocol::Heads;

/// All bytes of a part that count.
pub(super) fn places(part: &Part) -> Vec<Range<usize>> {
    let own: Vec<Range<usize>> = part.shared_with(part).into_iter().map(|run| run.to).collect();
    if own.is_empty() { std::iter::once(0..part.bytes).collect() } else { own }
}

/// Takes from `missing` what another part has of it.
pub(super) fn take_shared(
    part: &Part,
    other: &Part,
    missing: &mut Vec<Range<usize>>,
) -> Vec<Shared> {
    let mut taken = Vec::new();
    for Shared { to, from } in part.shared_with(other) {
        for gap in &*missing {
            let run = gap.start.max(to.start)..gap.end.min(to.end);
            if !run.is_empty() {
                taken.push(Shared { from: from + (run.start - to.start), to: run });
            }
        }
        *missing = without(missing, &to);
    }
    taken
}

/// Ranges without a part of them.
pub(super) fn without(ranges: &[Range<usize>], part: &Range<usize>) -> Vec<Range<usize>> {
    let cut = |range: &Range<usize>| {
        let before = range.start..range.end.min(part.start);
        let after = range.start.max(part.end)..range.end;
        [before, after].into_iter().filter(|rest| !rest.is_empty())
    };
    ranges.iter().flat_map(cut).collect()
}

/// The records that a member with these heads may have of a part.
pub(super) fn like(part: &Part, known: &[Heads]) -> Vec<Part> {
    let others = known.iter().map(|heads| part.with_heads(heads));
    // A part without heads is the same everywhere.
    let whole = part.heads.is_empty().then(|| part.clone());
    others.flatten().chain(whole).collect()
}

#[cfg(test)]
mod tests {
    use model::{Cut, Holder, LayerCache};

    use super::*;

    #[test]
    fn what_is_missing_is_taken_once_and_gaps_stay() {
        let (cache, holder, cut) = (LayerCache::Keys, Holder::Page, Cut::Keys { head_bytes: 10 });
        let empty = Part { layer: 0, cache, holder, heads: vec![0, 1], cut, bytes: 10 };
        let part = |first, end| empty.with_heads(&[first, end]).unwrap();
        let own = part(2, 8);
        let mut missing = places(&own);
        assert_eq!(missing, std::slice::from_ref(&(0..60)));
        let mut take = |other: &Part| take_shared(&own, other, &mut missing);
        assert_eq!(take(&part(4, 6)), [Shared { to: 20..40, from: 0 }]);
        let around = [Shared { to: 10..20, from: 0 }, Shared { to: 40..50, from: 30 }];
        assert_eq!(take(&part(3, 7)), around);
        assert_eq!(take(&part(3, 7)), []);
        assert_eq!(missing, [0..10, 50..60]);
        let whole = Part { cut: Cut::Whole, heads: Vec::new(), ..empty.clone() };
        assert_eq!(places(&whole), std::slice::from_ref(&(0..10)));
    }
}
