//! Commands of an instance to its workers' nodes.

use std::net::IpAddr;
use std::time::Duration;

use protocol::{Split, WorkerCommand};

use super::graph::Graph;
use super::rank::{Rank, Worker};
use super::{Effect, Instance, Phase};
use crate::NodeId;
use crate::wire::{WorkerId, WorkerOrder};

impl Instance {
    /// Calls the nodes by their present names; returns whether one had another.
    pub(crate) fn name_nodes(&mut self, name_of: impl Fn(NodeId) -> String) -> bool {
        let mut is_news = false;
        for rank in &mut self.ranks {
            let name = name_of(rank.node);
            is_news |= name != rank.node_name;
            rank.node_name = name;
        }
        is_news
    }

    /// Starts over on other nodes.
    pub(crate) fn replace(&mut self, ranks: Vec<Rank>, split: Split, now: Duration) -> Vec<Effect> {
        self.graph = Graph::default();
        self.reorder(ranks, split, now)
    }

    /// Starts over on the same nodes in another order.
    pub(crate) fn reorder(&mut self, ranks: Vec<Rank>, split: Split, now: Duration) -> Vec<Effect> {
        self.end_workers();
        (self.ranks, self.split) = (ranks, split);
        self.phase = Phase::Gathering;
        self.advance(now);
        std::mem::take(&mut self.effects)
    }

    /// Moves a working instance to other nodes: its running requests are interrupted with this
    /// reason.
    pub(crate) fn move_to(
        &mut self,
        ranks: Vec<Rank>,
        split: Split,
        why: &str,
        now: Duration,
    ) -> Vec<Effect> {
        self.let_go(why);
        self.end_epoch(why.to_owned());
        self.replace(ranks, split, now)
    }

    pub(super) fn spawn(&mut self, at: usize, worker: WorkerId) {
        let (rank, fixed) = (&self.ranks[at], &self.fixed);
        let bind = rank.worker.as_ref().map_or(IpAddr::from([127, 0, 0, 1]), |worker| worker.bind);
        let order = WorkerOrder {
            instance: fixed.id.clone(),
            claim: fixed.claim,
            rank: at,
            numerics: protocol::NUMERICS,
            spec: fixed.spec.clone(),
            split: self.split.clone(),
            digest: fixed.digest,
            model_bytes: fixed.model_bytes,
            memory_bytes: rank.memory_bytes,
            bind,
        };
        self.effects.push(Effect::Spawn { node: rank.node, worker, order: Box::new(order) });
    }

    pub(super) fn send(&mut self, at: usize, command: WorkerCommand) {
        let rank = &self.ranks[at];
        if let Some(worker) = rank.worker.as_ref().filter(|worker| !worker.ending)
            && rank.is_node_up()
        {
            self.effects.push(Effect::Send { node: rank.node, worker: worker.id, command });
        }
    }

    pub(super) fn end(&mut self, at: usize, at_once: bool) {
        let node = self.ranks[at].node;
        if let Some(worker) = &mut self.ranks[at].worker {
            worker.ending = true;
            self.effects.push(Effect::End { node, worker: worker.id, at_once });
        }
    }

    pub(super) fn end_workers(&mut self) {
        for at in 0..self.ranks.len() {
            self.end(at, false);
            self.ranks[at].worker = None;
        }
    }

    pub(super) fn last_words(&mut self, at: usize, words: String) {
        if let Some(worker) = &mut self.ranks[at].worker {
            worker.last_words = Some(words);
        }
    }

    /// The node that runs a worker of this instance.
    pub(crate) fn host(&self, id: WorkerId) -> Option<NodeId> {
        let is_its = |rank: &&Rank| rank.worker.as_ref().is_some_and(|worker| worker.id == id);
        self.ranks.iter().find(is_its).map(|rank| rank.node)
    }

    pub(super) fn find(&mut self, id: WorkerId) -> Option<(usize, &mut Worker)> {
        let workers = self.ranks.iter_mut().map(|rank| rank.worker.as_mut()).enumerate();
        workers.filter_map(|(at, worker)| Some((at, worker?))).find(|(_, worker)| worker.id == id)
    }
}

#[cfg(test)]
mod tests {
    use protocol::WorkerEvent;

    use super::super::tests::{
        brief, fixed, instance, load, ms, ranks_of, ready, reasons, says, split, submit,
    };
    use super::super::{Input, Instance};
    use crate::{InstanceState, NodeId};

    #[test]
    fn a_model_that_moves_lets_its_requests_go_with_the_reason() {
        let mut instance = ready();
        submit(&mut instance, 10);
        assert!(!instance.is_idle() && !instance.lacks_nodes());
        let effects = instance.move_to(ranks_of(&["a", "c"]), split(2), "it moves", ms(11));
        assert_eq!(brief(&effects), "let-go#1 disconnect1 disconnect2 end1 end2 spawn3 spawn4");
        assert_eq!(reasons(&effects), ["it moves"]);
        assert_eq!(instance.state(), InstanceState::Recovering { reason: "it moves".to_owned() });
        let nodes = [NodeId([b'a'; 32]), NodeId([b'c'; 32])];
        assert!(instance.nodes().eq(nodes) && instance.is_idle());
    }

    #[test]
    fn a_node_with_a_new_name_is_called_by_it() {
        let mut instance = instance();
        let names = |instance: &Instance| {
            let ranks = instance.status().ranks.into_iter();
            ranks.map(|rank| rank.node_name).collect::<Vec<_>>()
        };
        let before = names(&instance);
        let second = instance.ranks[1].node;
        let name_of = |node| if node == second { "laptop" } else { "a" }.to_owned();
        assert!(instance.name_nodes(name_of) && before[1] != "laptop");
        assert_eq!(names(&instance)[1], "laptop");
        assert!(!instance.name_nodes(name_of));
    }

    #[test]
    fn a_model_without_nodes_waits_for_them() {
        let mut instance = Instance::waiting(fixed(), "there is no room", ms(0));
        assert_eq!(brief(&instance.take_effects()), "");
        assert!(instance.lacks_nodes());
        let effects = instance.replace(ranks_of(&["a", "c"]), split(2), ms(1));
        assert_eq!(brief(&effects), "spawn1 spawn2");
    }

    #[test]
    fn a_worker_that_freezes_while_it_loads_is_found_in_seconds() {
        let mut instance = instance();
        instance.take_effects();
        load(&mut instance, 1, 0);
        instance.step(Input::Spawned { worker: 2, pid: 7 }, ms(0));
        // Alive; parts of its shard arrive over a slow network, and then nothing more.
        let alive =
            |arrived_bytes| WorkerEvent::Loading { done_bytes: 3, total_bytes: 9, arrived_bytes };
        let mut now = 0;
        while now < 300_000 {
            now += 500;
            says(&mut instance, 2, alive(now.min(240_000)), now);
            assert_eq!(brief(&instance.step(Input::Tick, ms(now))), "");
        }
        // The owner was asleep and has received nothing.
        now += 30_000;
        assert_eq!(brief(&instance.step(Input::Tick, ms(now - 500))), "");
        says(&mut instance, 2, alive(240_000), now);
        for _ in 0..9 {
            now += 500;
            assert_eq!(brief(&instance.step(Input::Tick, ms(now))), "");
        }
        assert_eq!(brief(&instance.step(Input::Tick, ms(now + 500))), "kill2");
        let exited = Input::Exited { worker: 2, how: "was killed by signal 9".to_owned() };
        instance.step(exited, ms(now + 501));
        let InstanceState::Recovering { reason } = instance.state() else { panic!() };
        assert!(reason.contains("it froze: it said nothing for 5 s"), "{reason}");
    }
}
