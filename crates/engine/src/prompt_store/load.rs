//! A page being read: each of its parts from the record of its own heads, or put together from those
//! of others.

use std::ops::Range;
use std::sync::mpsc::{Receiver, TryRecvError};

use backend::Backend;
use model::{Model, Part, Shared};
use records::{Pending, Record, Records};

use super::members::{Given, Members};
use super::{header, key_of, number};
use crate::page_orders::{Loaded, PageOrder};

/// A page being read.
pub(super) struct Load {
    pub order: PageOrder,
    /// What is not in the cache yet.
    left: Vec<Piece>,
    /// Parts that are put together, by their number: this disk gets them as one record each.
    made: Vec<usize>,
    is_missing: bool,
}

/// Bytes of the part with this number.
struct Piece {
    part: usize,
    from: From,
}

enum From {
    /// Runs of a record of this disk, which has this many bytes.
    Disk(Pending<Option<Record>>, usize, Vec<Shared>),
    Members(Receiver<Given>),
}

/// Where records are looked for.
pub(super) struct Sources<'a> {
    pub records: &'a Records,
    pub parts: &'a [Part],
    /// The heads of records of this disk.
    pub known: &'a [Vec<u32>],
    pub members: Option<&'a Members>,
}

impl Load {
    pub fn begin(order: &PageOrder, sources: &Sources<'_>) -> Self {
        let mut load =
            Self { order: order.clone(), left: Vec::new(), made: Vec::new(), is_missing: false };
        for (at, part) in sources.parts.iter().enumerate() {
            if number(order, part.holder).is_some() {
                load.begin_part(at, part, sources);
            }
        }
        load
    }

    fn begin_part(&mut self, at: usize, part: &Part, sources: &Sources<'_>) {
        let Sources { records, known, members, .. } = *sources;
        let (text, header) = (self.order.key, header(&self.order));
        let mut add = |other: &Part, runs: Vec<Shared>| {
            let pending = records.get(&key_of(&text, other), Some(&header));
            self.left.push(Piece { part: at, from: From::Disk(pending, other.bytes, runs) });
        };
        if records.contains(&key_of(&text, part)) {
            return add(part, vec![Shared { to: 0..part.bytes, from: 0 }]);
        }
        let mut missing = places(part);
        for other in known.iter().filter_map(|heads| part.with_heads(heads)) {
            if missing.is_empty() {
                break;
            }
            if records.contains(&key_of(&text, &other)) {
                let runs = take_shared(part, &other, &mut missing);
                if !runs.is_empty() {
                    add(&other, runs);
                }
            }
        }
        self.made.push(at);
        if missing.is_empty() {
            return;
        }
        match members {
            Some(members) => {
                let given = members.want(text, part.clone(), missing, header);
                self.left.push(Piece { part: at, from: From::Members(given) });
            }
            None => self.is_missing = true,
        }
    }

    /// Places what has come. Once all is there, parts that were put together are written down.
    pub fn go_on<B: Backend>(
        &mut self,
        sources: &Sources<'_>,
        backend: &mut B,
        model: &mut Model<B>,
    ) -> Loaded {
        let Self { order, left, made, is_missing } = self;
        let parts = sources.parts;
        left.retain_mut(|Piece { part, from }| {
            let Some(number) = number(order, parts[*part].holder) else { return false };
            let taken = from.take(|to, bytes| {
                model.content(backend, &parts[*part], number)[to].copy_from_slice(bytes);
            });
            *is_missing |= taken == Some(false);
            taken.is_none()
        });
        if *is_missing {
            return Loaded::Missing;
        }
        if !left.is_empty() {
            return Loaded::Pending;
        }
        for part in made.drain(..).map(|at| &parts[at]) {
            let Some(number) = number(order, part.holder) else { continue };
            let content = model.content(backend, part, number);
            let fill = |out: &mut [u8]| out.copy_from_slice(content);
            sources.records.put(&key_of(&order.key, part), &header(order), part.bytes, fill);
        }
        Loaded::Placed
    }
}

impl From {
    /// Hands bytes over if they have come: whether they were there. `None`: not yet.
    fn take(&mut self, mut place: impl FnMut(Range<usize>, &[u8])) -> Option<bool> {
        match self {
            Self::Disk(pending, bytes, runs) => {
                let record = pending.try_take()?;
                let Some(record) = record.filter(|record| record.payload().len() == *bytes) else {
                    return Some(false);
                };
                for Shared { to, from } in runs {
                    place(to.clone(), &record.payload()[*from..][..to.len()]);
                }
                Some(true)
            }
            Self::Members(given) => match given.try_recv() {
                Err(TryRecvError::Empty) => None,
                Ok(Some(runs)) => {
                    runs.into_iter().for_each(|(to, bytes)| place(to, &bytes));
                    Some(true)
                }
                Ok(None) | Err(TryRecvError::Disconnected) => Some(false),
            },
        }
    }
}

/// All bytes of a part that count.
fn places(part: &Part) -> Vec<Range<usize>> {
    let own: Vec<Range<usize>> = part.shared_with(part).into_iter().map(|run| run.to).collect();
    if own.is_empty() { vec![0..part.bytes] } else { own }
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
        assert_eq!(missing, [0..60]);
        let mut take = |other: &Part| take_shared(&own, other, &mut missing);
        assert_eq!(take(&part(4, 6)), [Shared { to: 20..40, from: 0 }]);
        let around = [Shared { to: 10..20, from: 0 }, Shared { to: 40..50, from: 30 }];
        assert_eq!(take(&part(3, 7)), around);
        assert_eq!(take(&part(3, 7)), []);
        assert_eq!(missing, [0..10, 50..60]);
        let whole = Part { cut: Cut::Whole, heads: Vec::new(), ..empty.clone() };
        assert_eq!(places(&whole), [0..10]);
    }
}
