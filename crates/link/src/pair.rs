//! What two ranks need of each other: links, signs of life beside each, and one opinion on which
//! links they go on with.
//!
//! Of several addresses some may lead nowhere: a cable that is not plugged in, a network that only
//! one of the two is in. The rank that dials finds out. Once one link stands, it waits for the
//! others for [`FURTHER_MAX`] at most, leaves out those that did not come, and says in one more
//! greeting which links it goes on with. A pair that shares memory, or that has one way only, needs
//! none of this.

use std::time::{Duration, Instant};

use crate::LINKS_MAX;
use crate::greeted::Greeted;

/// How long further links may take once one stands, and the first one before the others are tried:
/// a lost packet of a connection is sent again after a second.
pub(crate) const FURTHER_MAX: Duration = Duration::from_secs(2);

/// Links of a pair by number, a bit each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LinkSet(u8);

impl LinkSet {
    pub const FIRST: Self = LinkSet(1);

    /// `None` if it would be empty.
    pub fn of(indices: impl Iterator<Item = usize>) -> Option<Self> {
        Self::from_bits(indices.fold(0, |bits, index| bits | 1 << index))
    }

    pub fn from_bits(bits: usize) -> Option<Self> {
        u8::try_from(bits).ok().filter(|bits| *bits != 0).map(LinkSet)
    }

    pub fn bits(self) -> usize {
        usize::from(self.0)
    }

    pub fn contains(self, index: usize) -> bool {
        self.bits() >> index & 1 == 1
    }

    pub fn first(self) -> usize {
        self.0.trailing_zeros() as usize
    }
}

pub(crate) struct Pair {
    /// Connections that may be tried, each to the next of the dialed rank's addresses.
    ways: usize,
    /// Links that the pair has if all addresses are reached, at most `ways`.
    wanted: usize,
    /// What stands so far.
    links: [Option<Greeted>; LINKS_MAX],
    beats: [bool; LINKS_MAX],
    first_at: Option<Instant>,
    /// Of the dialing rank: whether it has tried more than the first, and what it has chosen.
    has_further: bool,
    chosen: Option<LinkSet>,
    /// What both go on with.
    kept: Option<LinkSet>,
}

impl Pair {
    pub fn new(wanted: usize, ways: usize) -> Self {
        Pair {
            ways,
            wanted,
            links: Default::default(),
            beats: [false; LINKS_MAX],
            first_at: None,
            has_further: false,
            chosen: None,
            kept: if ways == 1 { Some(LinkSet::FIRST) } else { None },
        }
    }

    pub fn is_complete(&self) -> bool {
        self.kept.is_some_and(|kept| {
            (0..LINKS_MAX).filter(|index| kept.contains(*index)).all(|index| self.stands(index))
        })
    }

    /// Keeps the first link of a number; `false` if it is not wanted any more.
    pub fn add_link(&mut self, greeted: Greeted) -> bool {
        let index = greeted.index;
        if self.links[index].is_some() || !self.may_have(index) {
            return false;
        }
        if index == 0 && greeted.mapping.is_some() {
            self.kept = Some(LinkSet::FIRST);
        }
        self.first_at.get_or_insert_with(Instant::now);
        self.links[index] = Some(greeted);
        true
    }

    /// As [`Self::add_link`], for the beats beside a link.
    pub fn add_beats(&mut self, index: usize) -> bool {
        let is_new = !self.beats[index] && self.may_have(index);
        self.beats[index] |= is_new;
        is_new
    }

    /// Both ranks know what they go on with.
    pub fn keep(&mut self, kept: LinkSet) {
        self.kept.get_or_insert(kept);
    }

    /// The links that the dialing rank should try besides the first: once, when the first has
    /// turned out not to share memory, or does not come.
    pub fn further(&mut self, now: Instant, started: Instant) -> std::ops::Range<usize> {
        let last = match self.links[0] {
            Some(_) => self.wanted,
            None if now >= started + FURTHER_MAX => self.ways,
            None => 1,
        };
        if self.has_further || self.kept.is_some() || last == 1 && self.links[0].is_none() {
            return 1..1;
        }
        self.has_further = true;
        1..last
    }

    /// What the dialing rank goes on with, once that is clear.
    pub fn choose(&mut self, now: Instant) -> Option<LinkSet> {
        if self.chosen.is_some() || self.kept.is_some() {
            return None;
        }
        let is_late = self.first_at.is_some_and(|first| now >= first + FURTHER_MAX);
        if is_late || (0..self.wanted).all(|index| self.stands(index)) {
            let standing = (0..self.ways).filter(|index| self.stands(*index));
            self.chosen = LinkSet::of(standing.take(self.wanted));
        }
        self.chosen
    }

    /// The numbers of the links that were wanted and are not in `chosen`.
    pub fn left_out(&self, chosen: LinkSet) -> impl Iterator<Item = usize> + use<> {
        (0..self.wanted).filter(move |index| !chosen.contains(*index))
    }

    /// The links that both go on with, by number.
    pub fn into_links(self) -> impl Iterator<Item = Greeted> {
        let kept = self.kept;
        let is_kept = move |index| kept.is_some_and(|kept| kept.contains(index));
        let links = self.links.into_iter().enumerate();
        links.filter_map(move |(index, link)| link.filter(|_| is_kept(index)))
    }

    /// Whether this pair shares memory.
    pub fn shares_memory(&self) -> bool {
        self.links[0].as_ref().is_some_and(|first| first.mapping.is_some())
    }

    fn stands(&self, index: usize) -> bool {
        self.links[index].is_some() && self.beats[index]
    }

    fn may_have(&self, index: usize) -> bool {
        self.kept.is_none_or(|kept| kept.contains(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_links_is_never_empty_and_keeps_its_numbers() {
        assert_eq!([LinkSet::from_bits(0), LinkSet::from_bits(256), LinkSet::of(1..1)], [None; 3]);
        let set = LinkSet::of([1, 7].into_iter()).unwrap();
        assert_eq!(LinkSet::from_bits(set.bits()), Some(set));
        assert_eq!((0..LINKS_MAX).filter(|index| set.contains(*index)).collect::<Vec<_>>(), [1, 7]);
        assert_eq!(set.first(), 1);
    }

    #[test]
    fn a_pair_with_one_way_tries_and_chooses_nothing_further() {
        let (mut pair, now) = (Pair::new(1, 1), Instant::now());
        assert_eq!(pair.further(now + 9 * FURTHER_MAX, now), 1..1);
        assert_eq!(pair.choose(now + 9 * FURTHER_MAX), None);
        assert!(!pair.is_complete());
    }

    #[test]
    fn the_other_ways_are_tried_once_the_first_has_had_its_time() {
        for (wanted, ways) in [(1, 3), (3, 3)] {
            let (mut pair, started) = (Pair::new(wanted, ways), Instant::now());
            assert_eq!(pair.further(started, started), 1..1);
            assert_eq!(pair.further(started + FURTHER_MAX, started), 1..3);
            assert_eq!(pair.further(started + 2 * FURTHER_MAX, started), 1..1, "once");
            assert_eq!(pair.choose(started + 9 * FURTHER_MAX), None, "nothing stands");
        }
    }
}
