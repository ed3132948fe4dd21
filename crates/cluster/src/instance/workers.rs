//! What an instance has its nodes do with their workers.

use std::net::IpAddr;

use protocol::WorkerCommand;

use super::rank::{Rank, Worker};
use super::{Effect, Instance};
use crate::NodeId;
use crate::wire::{WorkerId, WorkerOrder};

impl Instance {
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

    /// The node that was told to run a worker, if it is one of this instance.
    pub(crate) fn host(&self, id: WorkerId) -> Option<NodeId> {
        let is_its = |rank: &&Rank| rank.worker.as_ref().is_some_and(|worker| worker.id == id);
        self.ranks.iter().find(is_its).map(|rank| rank.node)
    }

    pub(super) fn find(&mut self, id: WorkerId) -> Option<(usize, &mut Worker)> {
        let workers = self.ranks.iter_mut().map(|rank| rank.worker.as_mut()).enumerate();
        workers.filter_map(|(at, worker)| Some((at, worker?))).find(|(_, worker)| worker.id == id)
    }
}
