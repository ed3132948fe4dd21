//! Searches nodes, their order and their groups: every candidate is tried.
//!
//! With few nodes every subset is tried. With many nodes the search tries sets of the fastest, the
//! largest and the nearest ones, and then adds, removes or exchanges single nodes of the best. The
//! order follows the links: each node is followed by its nearest. Groups are all nodes (sums in
//! every layer), single ones (a pipeline), and equal groups in between, or any groups of a few
//! nodes.

use std::collections::HashSet;

use layout::{RANKS_MAX, STAGE_RANKS_MAX};
use protocol::Strategy;

use crate::Error;
use crate::callable::callable;
use crate::node::{LinkSpeed, Node, link};
use crate::trial::{Context, Fit, Misfit};

/// Up to this many nodes, every subset is tried.
const ALL_SUBSETS_MAX: usize = 8;
/// For subsets up to this size, every grouping is tried.
const ALL_GROUPINGS_MAX: usize = 4;
/// For subsets up to this size, every order is tried.
const ALL_ORDERS_MAX: usize = 4;
/// The number of best splits whose shares are then refined.
const POLISHED: usize = 3;
/// The number of best sets in which nodes are exchanged.
const EXCHANGED: usize = 4;
/// Rounds of exchanges, after which the best is good enough.
const EXCHANGES_MAX: usize = 4;
/// The most sets to try: sixteen different nodes have about 500; 64 would have 13,000, and take ten
/// seconds.
const SETS_MAX: usize = 1500;

/// The limits of the search.
#[derive(Debug, Clone)]
pub(crate) struct Limits<'a> {
    /// Exactly this many nodes, if a number was requested, else
    pub nodes: Option<usize>,
    /// at least this many.
    pub least: usize,
    pub strategy: Strategy,
    /// The requested ranks of each stage.
    pub stages: Option<&'a [usize]>,
    /// The number of stages, if the request determines it.
    pub stage_count: Option<usize>,
    /// Use the first nodes in the given order, and no others.
    pub fixed_order: bool,
    /// The order is requested: it has shares.
    pub exact_order: bool,
}

/// Everything that was tried.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    pub found: Vec<Fit>,
    pub misfits: Vec<Misfit>,
    /// Two nodes of different classes, for which a group was left out.
    pub mixed: Option<(usize, usize)>,
    /// Two nodes of which the first cannot call the second, for which an order was left out.
    pub uncalled: Option<(usize, usize)>,
}

impl Tried {
    /// The error if every set of nodes was left out, for a pair that cannot be together.
    pub fn left_out(&self, nodes: &[Node]) -> Option<Error> {
        let name = |at: usize| nodes[at].name.clone();
        let described = |at: usize| (name(at), nodes[at].class.clone());
        match (self.mixed, self.uncalled) {
            _ if !self.misfits.is_empty() => None,
            (Some((one, other)), _) => {
                Some(Error::MixedDevices { one: described(one), other: described(other) })
            }
            (None, Some((caller, called))) => {
                Some(Error::Uncalled { caller: name(caller), called: name(called) })
            }
            (None, None) => None,
        }
    }
}

pub(crate) fn search(context: &Context<'_>, limits: &Limits<'_>) -> Tried {
    let mut search = Search { context, limits, tried: Tried::default(), seen: HashSet::new() };
    let all = context.nodes.len();
    let most = all.min(RANKS_MAX);
    let sizes = match limits.nodes {
        Some(count) => count..=count,
        None => limits.least.min(most)..=most,
    };
    if limits.fixed_order {
        let count = *sizes.end();
        search.try_nodes((0..count).collect());
    } else if all <= ALL_SUBSETS_MAX {
        for others in 0..1_u32 << (all - 1) {
            let chosen: Vec<usize> =
                (0..all).filter(|at| *at == 0 || others >> (at - 1) & 1 == 1).collect();
            if sizes.contains(&chosen.len()) {
                search.try_nodes(chosen);
            }
        }
    } else {
        for order in search.orders() {
            for size in sizes.clone() {
                search.try_nodes(order[..size].to_vec());
            }
        }
        search.exchange(&sizes);
    }
    let mut tried = search.tried;
    tried.found.sort_by(|a, b| a.secs.total_cmp(&b.secs));
    for found in tried.found.iter_mut().take(POLISHED) {
        context.polish(found);
    }
    tried
}

struct Search<'c, 'a> {
    context: &'c Context<'a>,
    limits: &'c Limits<'c>,
    tried: Tried,
    /// Sets of nodes already tried.
    seen: HashSet<Vec<usize>>,
}

impl Search<'_, '_> {
    /// Orders of all nodes, the first one first, the others by one criterion each.
    fn orders(&self) -> Vec<Vec<usize>> {
        let Context { nodes, speeds, .. } = self.context;
        let read = |at: usize| speeds[at].rates.read_bytes_per_sec;
        let multiply = |at: usize| speeds[at].rates.quantised_ops_per_sec;
        let room = |at: usize| nodes[at].memory_free_bytes as f64;
        let near = |at: usize| -self.distance(0, at);
        let both = |at: usize| read(at).min(room(at));
        let keys: [&dyn Fn(usize) -> f64; 5] = [&read, &multiply, &room, &near, &both];
        keys.map(|key| {
            let mut others: Vec<usize> = (1..nodes.len()).collect();
            others.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
            std::iter::once(0).chain(others).collect()
        })
        .into()
    }

    /// Adds, removes and exchanges single nodes of the best few sets, while that helps.
    fn exchange(&mut self, sizes: &std::ops::RangeInclusive<usize>) {
        let mut done = HashSet::new();
        for _ in 0..EXCHANGES_MAX {
            let mut best = self.best_sets();
            best.retain(|set| done.insert(set.clone()));
            if best.is_empty() {
                return;
            }
            for set in &best {
                self.try_neighbours(set, sizes);
            }
        }
    }

    /// Tries the sets that differ in one node.
    fn try_neighbours(&mut self, chosen: &[usize], sizes: &std::ops::RangeInclusive<usize>) {
        let all = 1..self.context.nodes.len();
        let (inside, outside): (Vec<_>, Vec<_>) = all.partition(|at| chosen.contains(at));
        let with = |left: Option<usize>, added: Option<usize>| {
            let kept = chosen.iter().copied().filter(|at| Some(*at) != left);
            kept.chain(added).collect::<Vec<usize>>()
        };
        let mut others: Vec<Vec<usize>> = Vec::new();
        others.extend(inside.iter().map(|left| with(Some(*left), None)));
        others.extend(outside.iter().map(|added| with(None, Some(*added))));
        for left in &inside {
            // One of several equal nodes is enough.
            let mut kinds = Vec::new();
            for added in &outside {
                if kinds.iter().all(|kind| !self.alike(*kind, *added)) {
                    kinds.push(*added);
                    others.push(with(Some(*left), Some(*added)));
                }
            }
        }
        for chosen in others.into_iter().filter(|chosen| sizes.contains(&chosen.len())) {
            if self.seen.len() >= SETS_MAX {
                return;
            }
            self.try_nodes(chosen);
        }
    }

    /// The node sets of the best splits so far.
    fn best_sets(&self) -> Vec<Vec<usize>> {
        let mut found: Vec<&Fit> = self.tried.found.iter().collect();
        found.sort_by(|a, b| a.secs.total_cmp(&b.secs));
        let mut sets: Vec<Vec<usize>> = Vec::new();
        for found in found {
            let mut set: Vec<usize> = found.nodes().collect();
            set.sort_unstable();
            if !sets.contains(&set) {
                sets.push(set);
            }
            if sets.len() == EXCHANGED {
                break;
            }
        }
        sets
    }

    fn alike(&self, a: usize, b: usize) -> bool {
        let (one, other) = (&self.context.nodes[a], &self.context.nodes[b]);
        self.context.speeds[a] == self.context.speeds[b]
            && (one.memory_free_bytes, &one.class, one.machine)
                == (other.memory_free_bytes, &other.class, other.machine)
            && one.links == other.links
            && one.uncalled == other.uncalled
    }

    /// Tries all groupings of these nodes, ordered along their links.
    fn try_nodes(&mut self, chosen: Vec<usize>) {
        let mut set = chosen.clone();
        set.sort_unstable();
        if !self.seen.insert(set) {
            return;
        }
        let orders = match chosen.len() {
            _ if self.limits.fixed_order => vec![chosen],
            3..=ALL_ORDERS_MAX => self.all_orders(chosen),
            _ => vec![self.along_links(chosen)],
        };
        let mut seen = HashSet::new();
        for order in orders {
            let order = match callable(self.context.nodes, &order) {
                Ok(other) if other != order && self.limits.exact_order => {
                    // The requested order has two that stand the wrong way round.
                    let at = (0..order.len()).find(|at| other[*at] != order[*at]).unwrap_or(0);
                    self.tried.uncalled.get_or_insert((other[at], order[at]));
                    continue;
                }
                Ok(order) => order,
                Err(pair) => {
                    self.tried.uncalled.get_or_insert(pair);
                    continue;
                }
            };
            if seen.insert(order.clone()) {
                for sizes in self.groupings(order.len()) {
                    self.try_groups(&order, sizes);
                }
            }
        }
    }

    fn try_groups(&mut self, order: &[usize], sizes: Vec<usize>) {
        let mut rest = order;
        let mut group = |size| {
            let (own, others) = rest.split_at(size);
            rest = others;
            own.to_vec()
        };
        let groups: Vec<Vec<usize>> = sizes.into_iter().map(&mut group).collect();
        // Ranks of one stage must choose the same experts, and different engines round differently.
        let class = |at: usize| &self.context.nodes[at].class;
        let odd_one = |group: &Vec<usize>| {
            let odd = group.iter().find(|at| class(**at) != class(group[0]))?;
            Some((group[0], *odd))
        };
        if let Some(pair) = groups.iter().find_map(odd_one) {
            self.tried.mixed.get_or_insert(pair);
            return;
        }
        // The order of ranks that share all layers does not matter.
        let is_first = || {
            let mut sorted = order.to_vec();
            sorted.sort_unstable();
            callable(self.context.nodes, &sorted).is_ok_and(|first| first == order)
        };
        let is_again = groups.len() == 1 && order.len() <= ALL_ORDERS_MAX && !is_first();
        if is_again && !self.limits.fixed_order {
            return;
        }
        match self.context.fit(&groups) {
            Ok(found) => self.tried.found.push(found),
            Err(misfit) => self.tried.misfits.push(misfit),
        }
    }

    /// All orders that start with the first node.
    fn all_orders(&self, mut chosen: Vec<usize>) -> Vec<Vec<usize>> {
        chosen.sort_unstable();
        let mut orders = vec![vec![chosen[0]]];
        for _ in 1..chosen.len() {
            let longer = |order: &Vec<usize>| {
                let left = chosen.iter().filter(|at| !order.contains(at));
                let added = left.map(|at| order.iter().copied().chain([*at]).collect());
                added.collect::<Vec<Vec<usize>>>()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        orders
    }

    /// Each node followed by the nearest of the rest; of equally near ones the fastest.
    fn along_links(&self, mut chosen: Vec<usize>) -> Vec<usize> {
        chosen.sort_unstable();
        let mut order = vec![chosen.remove(0)];
        while !chosen.is_empty() {
            let last = order[order.len() - 1];
            let key = |at: usize| {
                let read = self.context.speeds[at].rates.read_bytes_per_sec;
                (self.distance(last, at), -read)
            };
            let nearest = (0..chosen.len()).min_by(|a, b| {
                let (a, b) = (key(chosen[*a]), key(chosen[*b]));
                a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
            });
            order.push(chosen.remove(nearest.unwrap_or(0)));
        }
        order
    }

    /// Seconds of one row from one node to another.
    fn distance(&self, a: usize, b: usize) -> f64 {
        let way = link(self.context.nodes, a, b).unwrap_or(LinkSpeed::UNKNOWN);
        way.secs(4.0 * self.context.model.width as f64)
    }

    /// The sizes of the groups that `count` nodes may form.
    fn groupings(&self, count: usize) -> Vec<Vec<usize>> {
        let pieces = self.context.model.pieces;
        if let Some(asked) = self.limits.stages {
            return vec![asked.to_vec()];
        }
        let (tensor, pipeline) = (vec![count], vec![1; count]);
        let hybrid = |size: usize| -> Vec<usize> {
            (0..count).step_by(size).map(|at| size.min(count - at)).collect()
        };
        // Sums along a ring need no other links than a pipeline; a hybrid may.
        let ring = self.context.model.ring;
        let all: Vec<Vec<usize>> = match self.limits.strategy {
            _ if count == 1 => vec![tensor],
            Strategy::Tensor => vec![tensor],
            Strategy::Pipeline => vec![pipeline],
            // Without measurements, groups are pairs.
            Strategy::Hybrid if self.limits.fixed_order => vec![hybrid(2)],
            Strategy::Hybrid => (2..count).map(hybrid).collect(),
            Strategy::Auto if ring => vec![tensor, pipeline],
            Strategy::Auto if count <= ALL_GROUPINGS_MAX => compositions(count),
            Strategy::Auto => {
                let between = (2..=count / 2).map(hybrid);
                [tensor, pipeline].into_iter().chain(between).collect()
            }
        };
        let wanted = |sizes: &Vec<usize>| {
            let room = sizes.iter().all(|ranks| *ranks <= STAGE_RANKS_MAX);
            room && sizes.len() <= pieces
                && self.limits.stage_count.is_none_or(|n| n == sizes.len())
        };
        all.into_iter().filter(wanted).collect()
    }
}

/// All ways to write `count` as a sum, in order.
fn compositions(count: usize) -> Vec<Vec<usize>> {
    let cuts = 0..1_u32 << (count - 1);
    let sizes = |cuts: u32| {
        let mut sizes = vec![1];
        for at in 0..count - 1 {
            match cuts >> at & 1 {
                0 => *sizes.last_mut().expect("there is a first") += 1,
                _ => sizes.push(1),
            }
        }
        sizes
    };
    cuts.map(sizes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groupings_of_a_few_are_all_there_are() {
        let mut found = compositions(3);
        found.sort();
        assert_eq!(found, [vec![1, 1, 1], vec![1, 2], vec![2, 1], vec![3]]);
        assert_eq!(compositions(4).len(), 8);
    }
}
