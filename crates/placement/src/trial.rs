//! One way to place a model on nodes: the shares of its layers, and whether it fits.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;

use layout::{Device, Split};
use protocol::StageSize;

use crate::cost::{Load, Model, Prediction, Rank, Stage};
use crate::group::{Member, Place, Subject, WORKER_BYTES, head, member};
use crate::node::{LinkSpeed, Node, Speed, link};
use crate::shares::{UNITS, scaled, units};
use crate::streaming::{Misses, Streaming};
use crate::work::Work;

/// The parameters common to all trials.
pub(crate) struct Context<'a> {
    pub subject: Subject<'a>,
    pub model: Model,
    pub nodes: &'a [Node],
    /// The speed of each node, measured, or derived from its threads if any measurement is missing.
    pub speeds: Vec<Speed>,
    pub measured: bool,
    pub load: Load,
    /// The requested shares of all ranks.
    pub shares: Option<&'a [u32]>,
    /// The requested layers of each stage.
    pub stage_layers: Option<&'a [usize]>,
    /// The layers before which a pipeline may be cut, and both ends.
    pub borders: Vec<usize>,
    /// Layers of each kind before each border.
    pub counts: Vec<Vec<u32>>,
    pub known: RefCell<HashMap<Key, Rc<Member>>>,
    /// The time to serve the load with the best split so far, before its layers were moved.
    pub best_secs: Cell<f64>,
    pub heads: RefCell<HashMap<(usize, Device), (u64, Work)>>,
}

/// A rank's position in a stage, whether there are several stages, and the device.
pub(crate) type Key = (Place, bool, Device);

/// A split that fits.
#[derive(Debug, Clone)]
pub(crate) struct Fit {
    /// By stage, the indices of its nodes in the list.
    pub groups: Vec<Vec<usize>>,
    pub shares: Vec<u32>,
    /// The units of each stage's ranks; empty if shares were requested.
    units: Vec<Vec<u32>>,
    /// The layers of each stage, and their pieces.
    pub layers: Vec<usize>,
    pub pieces: Vec<usize>,
    pub prediction: Prediction,
    /// The time to serve the load; plans are compared by it.
    pub secs: f64,
}

/// A split that does not fit, by the node that lacks most.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Misfit {
    pub groups: Vec<Vec<usize>>,
    /// Its index in the list.
    pub node: usize,
    pub share: u32,
    pub shares: u32,
    pub needed_bytes: u64,
}

impl Fit {
    pub fn stages(&self) -> Vec<StageSize> {
        let sizes = self.groups.iter().zip(&self.layers);
        sizes.map(|(group, &layers)| StageSize { ranks: group.len(), layers }).collect()
    }

    pub fn nodes(&self) -> impl Iterator<Item = usize> {
        self.groups.iter().flatten().copied()
    }
}

/// Stages with their shares, before their layers are cut.
pub(crate) struct Trial<'c, 'a> {
    pub context: &'c Context<'a>,
    pub groups: &'c [Vec<usize>],
    shares: Vec<u32>,
    pub stages: Vec<Vec<Rc<Member>>>,
    /// The cost of layers to each stage's ranks, for comparing cuts.
    rates: Vec<Vec<PerLayer>>,
    /// Each rank's part of the output head, in order.
    heads: Vec<(u64, Work)>,
    links: Vec<(LinkSpeed, LinkSpeed)>,
}

/// The cost of each layer to a rank, by kind, and its fixed cost: approximate seconds of a token
/// (or bytes for each of its stage's shares, if shares were requested), and bytes of memory.
struct PerLayer {
    secs: Vec<f64>,
    fixed_secs: f64,
    bytes: Vec<u64>,
    fixed_bytes: u64,
}

impl<'a> Context<'a> {
    /// The layers of stages with these pieces.
    pub fn layers(&self, pieces: &[usize]) -> Vec<usize> {
        let mut start = 0;
        let stage = |count: &usize| {
            let end = start + count;
            let layers = self.borders[end] - self.borders[start];
            start = end;
            layers
        };
        pieces.iter().map(stage).collect()
    }

    /// The pieces of stages with these layers; `None` if a piece would be split.
    pub fn pieces(&self, layers: &[usize]) -> Option<Vec<usize>> {
        let (mut layer, mut before) = (0, 0);
        let stage = |count: &usize| {
            layer += count;
            let border = self.borders.binary_search(&layer).ok()?;
            Some(border - std::mem::replace(&mut before, border))
        };
        layers.iter().map(stage).collect()
    }

    /// The best cut of the model over these groups of nodes.
    pub fn fit(&self, groups: &[Vec<usize>]) -> Result<Fit, Misfit> {
        if let Some(shares) = self.shares {
            return self.trial(groups, shares.to_vec()).cut();
        }
        let free = |group: &Vec<usize>| vec![UNITS; group.len()];
        let dealt = |rates: &dyn Fn(&[usize]) -> Vec<f64>| -> Vec<Vec<u32>> {
            let of = |group: &Vec<usize>| units(&rates(group), &free(group));
            groups.iter().map(|group| of(group).unwrap_or_else(|| free(group))).collect()
        };
        let by_speed = dealt(&|group| self.rates(group));
        let first = self.try_units(groups, &by_speed);
        let Err(misfit) = first else { return first };
        if groups.iter().all(|group| group.len() == 1) {
            return Err(misfit);
        }
        // Some node lacks memory: nodes with more memory take more than their speed suggests.
        let by_memory = dealt(&|group| self.rooms(group));
        let tried = [
            self.fit_by_memory(groups, by_speed, &misfit),
            self.try_units(groups, &by_memory)
                .or_else(|misfit| self.fit_by_memory(groups, by_memory, &misfit)),
        ];
        let found = tried.into_iter().filter_map(Result::ok);
        found.min_by(|a, b| a.secs.total_cmp(&b.secs)).ok_or(misfit)
    }

    /// Moves units between the ranks of a stage while that makes it faster.
    pub fn polish(&self, best: &mut Fit) {
        const RANKS_MAX: usize = 8;
        const ROUNDS: usize = 16;
        if best.units.is_empty() || best.nodes().count() > RANKS_MAX {
            return;
        }
        for _ in 0..ROUNDS {
            let mut next: Option<Fit> = None;
            for stage in 0..best.units.len() {
                let ranks = best.units[stage].len();
                let pairs = (0..ranks).flat_map(|from| (0..ranks).map(move |to| (from, to)));
                for (from, to) in pairs.filter(|(from, to)| from != to) {
                    let mut units = best.units.clone();
                    if units[stage][from] <= 1 {
                        continue;
                    }
                    (units[stage][from], units[stage][to]) =
                        (units[stage][from] - 1, units[stage][to] + 1);
                    let found = self.try_units(&best.groups, &units).ok();
                    let least = next.as_ref().map_or(best.secs * (1.0 - 1e-9), |next| next.secs);
                    next = found.filter(|found| found.secs < least).or(next);
                }
            }
            match next {
                Some(found) => *best = found,
                None => return,
            }
        }
    }

    /// Moves units away from nodes that lack memory, while other nodes have some.
    fn fit_by_memory(
        &self,
        groups: &[Vec<usize>],
        mut units_of: Vec<Vec<u32>>,
        first: &Misfit,
    ) -> Result<Fit, Misfit> {
        let mut limits: Vec<Vec<u32>> =
            groups.iter().map(|group| vec![UNITS; group.len()]).collect();
        let mut misfit = first.clone();
        // Each round lowers a limit by at least one.
        for _ in 0..UNITS as usize * self.nodes.len() {
            let place = |group: &Vec<usize>| group.iter().position(|node| *node == misfit.node);
            let found = groups.iter().enumerate().find_map(|(at, group)| Some((at, place(group)?)));
            let Some((stage, at)) = found else { return Err(misfit) };
            let taken = units_of[stage][at];
            if taken == 0 {
                return Err(misfit);
            }
            // In proportion to the free memory. This takes too many rather than too few, since a
            // part of the need is fixed.
            let free = self.nodes[misfit.node].memory_free_bytes as f64;
            let held = f64::from(taken) * free / misfit.needed_bytes as f64;
            limits[stage][at] = (held as u32).max(taken / 2).min(taken - 1);
            let speeds = self.rates(&groups[stage]);
            let Some(dealt) = units(&speeds, &limits[stage]) else { return Err(misfit) };
            units_of[stage] = dealt;
            match self.try_units(groups, &units_of) {
                Err(next) => misfit = next,
                found => return found,
            }
        }
        Err(misfit)
    }

    fn try_units(&self, groups: &[Vec<usize>], units: &[Vec<u32>]) -> Result<Fit, Misfit> {
        let stage = |(units, group): (&Vec<u32>, &Vec<usize>)| {
            (units.clone(), self.rates(group).iter().sum::<f64>())
        };
        let stages: Vec<_> = units.iter().zip(groups).map(stage).collect();
        let mut found = self.trial(groups, scaled(&stages)).cut()?;
        found.units = units.to_vec();
        Ok(found)
    }

    /// The memory of each node of a group for layers.
    fn rooms(&self, group: &[usize]) -> Vec<f64> {
        let free = |at: &usize| self.nodes[*at].memory_free_bytes.saturating_sub(WORKER_BYTES);
        group.iter().map(|at| free(at).max(1) as f64).collect()
    }

    /// Loads a second of each node of a group, if it had the whole model.
    fn rates(&self, group: &[usize]) -> Vec<f64> {
        let outline = self.subject.outline;
        let rate = |at: &usize| {
            let rates = self.speeds[*at].rates;
            let ops = if self.model.quantised {
                rates.quantised_ops_per_sec
            } else {
                rates.float_ops_per_sec
            };
            // Two operations for each weight; most weights have half a byte, or one.
            let (bytes, weights) = (outline.read_bytes as f64, outline.read_bytes as f64);
            let token = bytes / rates.read_bytes_per_sec;
            let answer = self.load.answer_tokens as f64 * token;
            let prompt = self.load.prompt_tokens as f64 * 2.0 * weights / ops;
            1.0 / (answer + prompt)
        };
        group.iter().map(rate).collect()
    }

    pub fn trial<'c>(&'c self, groups: &'c [Vec<usize>], shares: Vec<u32>) -> Trial<'c, 'a> {
        let mut rest = &shares[..];
        let stages = groups.iter().map(|group| {
            let (own, others) = rest.split_at(group.len());
            rest = others;
            self.members(group, own, groups.len())
        });
        let stages: Vec<Vec<Rc<Member>>> = stages.collect();
        let heads = self.heads(groups, &shares);
        let rates = self.per_layer(groups, &shares, &stages, &heads);
        Trial { context: self, groups, stages, rates, heads, links: self.links(groups), shares }
    }

    fn per_layer(
        &self,
        groups: &[Vec<usize>],
        shares: &[u32],
        stages: &[Vec<Rc<Member>>],
        heads: &[(u64, Work)],
    ) -> Vec<Vec<PerLayer>> {
        let used = self.model.experts_used as f64 / self.model.experts as f64;
        let bytes = |work: &Work| work.common_bytes + work.expert_bytes * used;
        let mut first = 0;
        let stage = |(group, members): (&Vec<usize>, &Vec<Rc<Member>>)| {
            let own = first..first + group.len();
            first = own.end;
            let share: f64 = shares[own.clone()].iter().map(|share| f64::from(*share)).sum();
            let ranks = group.iter().zip(members.iter()).zip(&heads[own]);
            let rank =
                |((place, member), (head_bytes, head)): ((&usize, &Rc<Member>), &(u64, Work))| {
                    let speed = self.speeds[*place];
                    let secs = |work: &Work| match self.shares {
                        Some(_) => bytes(work) / share.max(1e-9),
                        None => {
                            bytes(work) / speed.rates.read_bytes_per_sec
                                + work.operations * speed.operation_secs
                        }
                    };
                    PerLayer {
                        secs: member.work.iter().map(secs).collect(),
                        fixed_secs: secs(head),
                        bytes: member.layer_bytes.clone(),
                        fixed_bytes: member.fixed_bytes.saturating_add(*head_bytes),
                    }
                };
            ranks.map(rank).collect()
        };
        groups.iter().zip(stages).map(stage).collect()
    }

    fn members(&self, group: &[usize], shares: &[u32], stages: usize) -> Vec<Rc<Member>> {
        // The only rank of a stage has all of it, whatever its share.
        let shares = if group.len() == 1 { &[1] } else { shares };
        let mut known = self.known.borrow_mut();
        let one = |(at, place): (&usize, Place)| {
            let device = self.nodes[*at].device;
            let made = || Rc::new(member(&self.subject, place, device, stages));
            known.entry((place, stages > 1, device)).or_insert_with(made).clone()
        };
        group.iter().zip(Place::of_ranks(shares)).map(one).collect()
    }

    /// The parts of the output head: rank 0 and the ranks of the last stage have one.
    fn heads(&self, groups: &[Vec<usize>], shares: &[u32]) -> Vec<(u64, Work)> {
        let first_of_last = shares.len() - groups[groups.len() - 1].len();
        let is_output = |rank: usize| rank == 0 || rank >= first_of_last;
        let ranks: Vec<usize> = (0..shares.len()).filter(|rank| is_output(*rank)).collect();
        let own: Vec<u32> = ranks.iter().map(|rank| shares[*rank]).collect();
        let vocab = self.subject.outline.config.vocab;
        let cut = Split::new(&own).map(|split| split.cut(vocab)).unwrap_or_default();
        let mut heads = vec![(0, Work::default()); shares.len()];
        let places: Vec<usize> = groups.iter().flatten().copied().collect();
        for (rank, rows) in ranks.into_iter().zip(cut) {
            let key = (rows.len(), self.nodes[places[rank]].device);
            let known = self.heads.borrow().get(&key).copied();
            heads[rank] = known.unwrap_or_else(|| head(&self.subject, key.0, key.1));
            self.heads.borrow_mut().insert(key, heads[rank]);
        }
        heads
    }

    /// The slowest link within each stage, and to the next one.
    fn links(&self, groups: &[Vec<usize>]) -> Vec<(LinkSpeed, LinkSpeed)> {
        let way = |a: usize, b: usize| {
            link(self.nodes, a, b).filter(|_| self.measured).unwrap_or(LinkSpeed::UNKNOWN)
        };
        let within = |group: &[usize]| {
            let pairs = group
                .iter()
                .enumerate()
                .flat_map(|(at, a)| group[at + 1..].iter().map(move |b| (*a, *b)));
            pairs.map(|(a, b)| way(a, b)).reduce(LinkSpeed::worse).unwrap_or(LinkSpeed::UNKNOWN)
        };
        // Each rank of a stage has one sender in the stage before, as in `engine`. The output of
        // the last stage returns to rank 0.
        let onward = |at: usize| {
            let own = &groups[at];
            let ways: Vec<LinkSpeed> = match groups.get(at + 1) {
                Some(next) => {
                    let pairs = next.iter().enumerate();
                    pairs.map(|(place, rank)| way(own[place % own.len()], *rank)).collect()
                }
                None if at > 0 => own.iter().map(|rank| way(*rank, groups[0][0])).collect(),
                None => Vec::new(),
            };
            ways.into_iter().reduce(LinkSpeed::worse).unwrap_or(LinkSpeed::UNKNOWN)
        };
        (0..groups.len()).map(|at| (within(&groups[at]), onward(at))).collect()
    }
}

impl Trial<'_, '_> {
    pub fn found(&self, pieces: Vec<usize>) -> Result<Fit, Misfit> {
        let mut start = 0;
        for (stage, count) in pieces.iter().enumerate() {
            if !self.fits(stage, start, start + count) {
                return Err(self.lacking(&pieces));
            }
            start += count;
        }
        let load = self.context.load;
        let prediction = self.context.model.predict(&self.cost_stages(&pieces), load);
        let answers = (load.users * load.answer_tokens) as f64;
        let secs = load.users as f64 * prediction.first_token_secs
            + answers / prediction.total_tokens_per_sec;
        let (groups, shares) = (self.groups.to_vec(), self.shares.clone());
        let layers = self.context.layers(&pieces);
        Ok(Fit { groups, shares, units: Vec::new(), layers, pieces, prediction, secs })
    }

    pub fn cost_stages(&self, pieces: &[usize]) -> Vec<Stage<'_>> {
        let (mut start, mut first) = (0, 0);
        let mut stages = Vec::with_capacity(pieces.len());
        let layers = self.context.layers(pieces);
        for (stage, (count, layers)) in pieces.iter().zip(layers).enumerate() {
            let ranks = self.groups[stage].iter().zip(self.stages[stage].iter()).enumerate();
            let needed: Vec<u64> = self.needed(stage, start, start + count).collect();
            let ranks = ranks.map(|(at, (place, member))| {
                let work = self.work(member, start, start + count);
                Rank {
                    node: &self.context.nodes[*place],
                    speed: self.context.speeds[*place],
                    work,
                    head: self.heads[first + at].1,
                    misses: self.misses(*place, member, &work, needed[at]),
                }
            });
            let (within, onward) = self.links[stage];
            stages.push(Stage { layers, ranks: ranks.collect(), within, onward });
            first += self.groups[stage].len();
            start += count;
        }
        stages
    }

    /// What a rank misses of its experts that needs `needed_bytes` at least.
    fn misses(
        &self,
        place: usize,
        member: &Member,
        work: &Work,
        needed_bytes: u64,
    ) -> Option<Misses> {
        let streaming = self.context.subject.streaming?;
        let node = &self.context.nodes[place];
        if !Streaming::is_on(node.device) {
            return None;
        }
        let all = work.expert_bytes as u64;
        let left = node.memory_free_bytes.saturating_sub(needed_bytes) + member.expert_bytes;
        let kept = streaming.kept_bytes(all, left);
        Some(Streaming::misses(kept, all, &self.context.speeds[place]))
    }

    fn of_kinds(&self, start: usize, end: usize) -> impl Iterator<Item = u32> {
        self.context.counts.iter().map(move |before| before[end] - before[start])
    }

    fn work(&self, member: &Member, start: usize, end: usize) -> Work {
        let kinds = self.of_kinds(start, end).zip(&member.work);
        kinds.fold(Work::default(), |sum, (count, work)| sum.plus(work.times(f64::from(count))))
    }

    /// The approximate seconds of one token for these pieces in a stage, and for its part of the
    /// head; or, if shares were requested, the bytes for each share.
    pub fn secs(&self, stage: usize, start: usize, end: usize) -> f64 {
        let mut slowest = 0.0;
        let mut sum = 0.0;
        for rank in &self.rates[stage] {
            let mut secs = rank.fixed_secs;
            for (before, each) in self.context.counts.iter().zip(&rank.secs) {
                secs += f64::from(before[end] - before[start]) * each;
            }
            slowest = f64::max(slowest, secs);
            sum += secs;
        }
        if self.context.shares.is_some() { sum } else { slowest }
    }

    pub fn fits(&self, stage: usize, start: usize, end: usize) -> bool {
        let mut ranks = self.needed(stage, start, end).zip(&self.groups[stage]);
        ranks.all(|(needed, place)| needed <= self.context.nodes[*place].memory_free_bytes)
    }

    /// Bytes of each rank of a stage with these pieces.
    fn needed(&self, stage: usize, start: usize, end: usize) -> impl Iterator<Item = u64> {
        self.rates[stage].iter().map(move |rank| {
            let kinds = self.of_kinds(start, end).zip(&rank.bytes);
            let layers = kinds.map(|(count, bytes)| u64::from(count).saturating_mul(*bytes));
            layers.fold(rank.fixed_bytes, u64::saturating_add)
        })
    }

    /// The rank that lacks most memory with this cut.
    pub fn lacking(&self, pieces: &[usize]) -> Misfit {
        let (mut start, mut rank) = (0, 0);
        let mut worst: Option<(u64, Misfit)> = None;
        for (stage, count) in pieces.iter().enumerate() {
            for (needed_bytes, place) in
                self.needed(stage, start, start + count).zip(&self.groups[stage])
            {
                let free = self.context.nodes[*place].memory_free_bytes;
                let lacks = needed_bytes.saturating_sub(free);
                if worst.as_ref().is_none_or(|(most, _)| lacks > *most) {
                    let misfit = Misfit {
                        groups: self.groups.to_vec(),
                        node: *place,
                        share: self.shares[rank],
                        shares: self.shares.iter().sum(),
                        needed_bytes,
                    };
                    worst = Some((lacks, misfit));
                }
                rank += 1;
            }
            start += count;
        }
        worst.expect("a split has ranks").1
    }
}
