//! Decides whether a working model moves, after new nodes or free memory. Pure, like every
//! decision.
//!
//! A move costs loading and a pause of all answers. So it must pay, must lead to stable nodes, and
//! must not repeat often.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{InstanceSpec, Split};

use crate::NodeId;

/// How long a new node must have stayed before a model moves to it; doubled for each recent loss
/// after the first.
const STEADY_AFTER: Duration = Duration::from_secs(5);
const STEADY_AFTER_MAX: Duration = Duration::from_secs(320);
/// "Recent" for losses and moves.
const MEMORY: Duration = Duration::from_secs(3600);
/// "Recent" for returns over an unstable path.
const FLAPPING: Duration = Duration::from_secs(60);
/// The pause after a move; doubled for each further recent one.
const PAUSE: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(1800);
/// Maximum pause after a failed attempt of a move that is required.
const PAUSE_MUST: Duration = Duration::from_secs(5);
/// Predictions and the measurements behind them are off by some per cent.
const GAIN_MIN: f64 = 1.1;

/// The presence of nodes and the moves of instances.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    presence: BTreeMap<NodeId, Presence>,
    /// Times of an instance's recent moves, by its id.
    moves: BTreeMap<String, VecDeque<Duration>>,
}

#[derive(Debug, Default)]
struct Presence {
    here_since: Option<Duration>,
    losses: VecDeque<Duration>,
    returns: VecDeque<Duration>,
}

/// The terms of a placement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Terms {
    /// Nodes that have a rank.
    pub nodes: usize,
    /// Whether nodes, shares and stages follow the request.
    pub is_as_asked: bool,
    /// Predicted, of one request.
    pub tokens_per_sec: Option<f64>,
}

impl Growth {
    pub(crate) fn node_up(&mut self, node: NodeId, now: Duration) {
        self.presence.entry(node).or_default().here_since.get_or_insert(now);
    }

    pub(crate) fn node_down(&mut self, node: NodeId, now: Duration) {
        let presence = self.presence.entry(node).or_default();
        if presence.here_since.take().is_some() {
            note(&mut presence.losses, now);
        }
    }

    /// A node has returned in the same process: its path was cut.
    pub(crate) fn came_back(&mut self, node: NodeId, now: Duration) {
        note(&mut self.presence.entry(node).or_default().returns, now);
    }

    /// Number of recent returns.
    pub(crate) fn returns(&self, node: NodeId, now: Duration) -> usize {
        let returns = self.presence.get(&node).map(|presence| &presence.returns);
        let is_late = |at: &&Duration| now.saturating_sub(**at) < FLAPPING;
        returns.map_or(0, |returns| returns.iter().filter(is_late).count())
    }

    /// Whether a node has been present for long enough.
    pub(crate) fn is_steady(&self, node: NodeId, now: Duration) -> bool {
        let Some(presence) = self.presence.get(&node) else { return false };
        let losses = lately(&presence.losses, now).saturating_sub(1);
        let enough = doubled(STEADY_AFTER, losses, STEADY_AFTER_MAX);
        presence.here_since.is_some_and(|since| now.saturating_sub(since) >= enough)
    }

    /// Whether an instance may move again; if it `must` move, after a short pause.
    pub(crate) fn may_move(&self, id: &str, must: bool, now: Duration) -> bool {
        let Some(moves) = self.moves.get(id) else { return true };
        let Some(last) = moves.back() else { return true };
        let most = if must { PAUSE_MUST } else { PAUSE_MAX };
        let pause = doubled(PAUSE, lately(moves, now).saturating_sub(1), most);
        now.saturating_sub(*last) >= pause
    }

    /// An instance begins to move.
    pub(crate) fn moved(&mut self, id: &str, now: Duration) {
        note(self.moves.entry(id.to_owned()).or_default(), now);
    }

    /// Its last move has failed: the pause begins now.
    pub(crate) fn failed(&mut self, id: &str, now: Duration) {
        if let Some(last) = self.moves.get_mut(id).and_then(VecDeque::back_mut) {
            *last = now;
        }
    }

    /// Drops all instances and nodes but these.
    pub(crate) fn retain(
        &mut self,
        is_instance: impl Fn(&str) -> bool,
        is_node: impl Fn(NodeId) -> bool,
    ) {
        self.moves.retain(|id, _| is_instance(id));
        self.presence.retain(|node, _| is_node(*node));
    }
}

/// Whether a split has the requested nodes, shares and stages.
pub(crate) fn is_as_asked(wanted: &InstanceSpec, split: &Split) -> bool {
    let (nodes, options) = (split.shares.len(), &wanted.options);
    let layers = |layers: &Vec<usize>| split.stages.iter().map(|s| s.layers).eq(layers.clone());
    let ranks = |ranks: &Vec<usize>| split.stages.iter().map(|s| s.ranks).eq(ranks.clone());
    wanted.nodes.as_ref().is_none_or(|asked| asked.count() == nodes)
        && options.shares.as_ref().is_none_or(|asked| *asked == split.shares)
        && options.stages.as_ref().is_none_or(ranks)
        && options.stage_layers.as_ref().is_none_or(layers)
}

impl Terms {
    /// Why moving to `offered` pays; `None` if it does not.
    pub(crate) fn gain(&self, offered: &Self) -> Option<String> {
        match (self.is_as_asked, offered.is_as_asked) {
            (false, true) => return Some("it can be placed as it was asked for".to_owned()),
            (true, false) => return None,
            _ => {}
        }
        let (held, rate) = (self.tokens_per_sec?, offered.tokens_per_sec?);
        (rate >= GAIN_MIN * held).then(|| {
            let nodes = if offered.nodes == 1 { "node" } else { "nodes" };
            format!(
                "predicted {rate:.1} tokens/s on {} {nodes} instead of {held:.1}",
                offered.nodes
            )
        })
    }
}

/// Records a time, and drops old ones.
fn note(times: &mut VecDeque<Duration>, now: Duration) {
    times.retain(|at| now.saturating_sub(*at) < MEMORY);
    times.push_back(now);
}

fn lately(times: &VecDeque<Duration>, now: Duration) -> usize {
    times.iter().filter(|at| now.saturating_sub(**at) < MEMORY).count()
}

fn doubled(first: Duration, times: usize, most: Duration) -> Duration {
    first.saturating_mul(1 << times.min(16)).min(most)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::{Nodes, SplitOptions, StageSize};

    const NODE: NodeId = NodeId([1; 32]);

    fn secs(secs: u64) -> Duration {
        Duration::from_secs(secs)
    }

    #[test]
    fn a_node_that_comes_and_goes_has_to_stay_ever_longer() {
        let mut growth = Growth::default();
        assert!(!growth.is_steady(NODE, secs(9)), "nobody has seen it");
        let mut now = 0;
        for enough in [5, 5, 10, 20, 40, 80, 160, 320, 320] {
            growth.node_up(NODE, secs(now));
            growth.node_up(NODE, secs(now + 2));
            assert!(!growth.is_steady(NODE, secs(now + enough - 1)), "{enough}");
            assert!(growth.is_steady(NODE, secs(now + enough)), "{enough}");
            now += enough;
            growth.node_down(NODE, secs(now));
            growth.node_down(NODE, secs(now));
            assert!(!growth.is_steady(NODE, secs(now + 999)));
        }
        // Old losses no longer count.
        growth.node_up(NODE, secs(now + 3600));
        assert!(growth.is_steady(NODE, secs(now + 3605)));
    }

    #[test]
    fn returns_count_for_a_minute() {
        let mut growth = Growth::default();
        [0, 10, 20].into_iter().for_each(|at| growth.came_back(NODE, secs(at)));
        assert_eq!([20, 59, 60, 80].map(|now| growth.returns(NODE, secs(now))), [3, 3, 2, 0]);
    }

    #[test]
    fn moves_grow_rare() {
        let mut growth = Growth::default();
        let mut now = 0;
        for pause in [30, 60, 120, 240, 480] {
            assert!(growth.may_move("i", false, secs(now)), "{pause}");
            growth.moved("i", secs(now));
            assert!(!growth.may_move("i", false, secs(now + pause - 1)), "{pause}");
            assert!(!growth.may_move("i", true, secs(now + 4)));
            assert!(growth.may_move("i", true, secs(now + 5)));
            now += pause;
        }
        assert!(growth.may_move("another", false, secs(0)));
        growth.retain(|id| id != "i", |_| true);
        assert!(growth.may_move("i", false, secs(1)));
    }

    #[test]
    fn a_failed_move_counts_once_and_its_pause_begins_at_the_end() {
        let mut growth = Growth::default();
        growth.moved("i", secs(0));
        growth.failed("i", secs(20));
        assert!(!growth.may_move("i", false, secs(49)));
        assert!(growth.may_move("i", false, secs(50)));
    }

    #[test]
    fn a_move_must_pay() {
        let terms = |is_as_asked, tokens_per_sec| Terms { nodes: 2, is_as_asked, tokens_per_sec };
        let (unknown, slow, fast) = (None, Some(10.0), Some(11.0));
        let pays = |held: Terms, offered: Terms| held.gain(&offered).is_some();
        assert!(pays(terms(true, slow), terms(true, fast)));
        assert!(!pays(terms(true, slow), terms(true, Some(10.9))));
        assert!(!pays(terms(true, fast), terms(true, slow)));
        assert!(pays(terms(false, fast), terms(true, slow)));
        assert!(!pays(terms(true, slow), terms(false, fast)));
        assert!(!pays(terms(true, unknown), terms(true, fast)));
        assert!(!pays(terms(true, slow), terms(true, unknown)));
    }

    #[test]
    fn what_was_asked_for_is_compared_with_what_there_is() {
        let stages = vec![StageSize { ranks: 1, layers: 3 }, StageSize { ranks: 1, layers: 1 }];
        let split = Split { shares: vec![1, 1], stages, ..Split::default() };
        let asked = |nodes: Option<usize>, options| {
            let nodes = nodes.map(Nodes::Count);
            is_as_asked(&InstanceSpec { nodes, options, ..InstanceSpec::default() }, &split)
        };
        let options = SplitOptions::default;
        assert!(asked(None, options()) && asked(Some(2), options()) && !asked(Some(3), options()));
        let shares = |shares: &[u32]| SplitOptions { shares: Some(shares.to_vec()), ..options() };
        assert!(asked(None, shares(&[1, 1])) && !asked(None, shares(&[2, 1])));
        let layers = |layers: &[usize]| SplitOptions {
            stage_layers: Some(layers.to_vec()),
            stages: Some(vec![1; layers.len()]),
            ..options()
        };
        assert!(asked(None, layers(&[3, 1])) && !asked(None, layers(&[2, 2])));
        assert!(!asked(None, layers(&[3, 1, 1])));
    }
}
