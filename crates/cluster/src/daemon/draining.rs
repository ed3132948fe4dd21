//! Empties nodes, so that somebody can switch them off: whether the others suffice, and the word
//! that makes it so. What moves then is in `moving`.

use layout::Outline;
use tracing::info;

use super::Daemon;
use super::placing::{Candidate, plan_for, relaxed};
use crate::desired::{Entry, Wanted};
use crate::{Error, InstanceState, InstanceStatus, NodeId, Result};

/// What the files of some instances hold, by the instances' ids.
pub(crate) type Models = Vec<(String, Outline)>;

impl Daemon {
    /// From now on a node is to be empty, if the others suffice for what it holds. `models`: what
    /// the files of these instances hold.
    pub(super) fn drain(&mut self, node: NodeId, models: &[(String, Outline)]) -> Result<()> {
        self.check_drain(node, models)?;
        self.set_drained(node, true);
        Ok(())
    }

    pub(super) fn set_drained(&mut self, node: NodeId, is_on: bool) {
        if self.desired.is_drained(node) == is_on {
            return;
        }
        info!(node = self.node_name(node), is_on, "a node is to be empty, or no longer");
        let news = self.desired.drain(node, is_on);
        self.desired_changed(news, None);
        self.reconcile();
    }

    /// # Errors
    /// What runs on a node does not fit on the others, or nobody else has a file.
    fn check_drain(&self, node: NodeId, models: &[(String, Outline)]) -> Result<()> {
        let held: Vec<(Entry, Wanted, InstanceStatus)> = self
            .desired
            .wanted()
            .map(|(entry, wanted)| (entry.clone(), wanted.clone(), self.status_now(entry, wanted)))
            .filter(|(_, _, status)| status.is_held_by(node))
            .collect();
        let mut free = self.others(node, &held);
        for (entry, wanted, _) in &held {
            self.check_heir(node, entry, wanted)?;
            let Some((_, model)) = models.iter().find(|(id, _)| *id == wanted.id) else { continue };
            let placed = plan_for(model, 0, &free, &relaxed(&wanted.spec), false);
            let plan =
                placed.map_err(|why| self.not_without(node, &entry.name, free.len(), &why))?;
            for rank in &plan.ranks {
                let free = &mut free[rank.node].memory_free_bytes;
                *free = free.saturating_sub(rank.memory_bytes);
            }
        }
        Ok(())
    }

    /// All other nodes that may have ranks, with the memory that they have without these instances.
    fn others(&self, node: NodeId, held: &[(Entry, Wanted, InstanceStatus)]) -> Vec<Candidate> {
        let mut free = self.candidates(None, protocol::Transport::Auto);
        free.retain(|one| one.node != node && !self.desired.is_drained(one.node));
        for one in &mut free {
            let ranks = held.iter().flat_map(|(_, _, status)| &status.ranks);
            let theirs = ranks.filter(|rank| rank.node == one.node);
            one.memory_free_bytes += theirs.map(|rank| rank.memory_bytes).sum::<u64>();
        }
        free
    }

    /// Whoever owns what a node owns must have its file.
    fn check_heir(&self, node: NodeId, entry: &Entry, wanted: &Wanted) -> Result<()> {
        let may_own = |on: NodeId| on != node && !self.desired.is_drained(on);
        if entry.owner() != node || self.file_holders(wanted).any(may_own) {
            return Ok(());
        }
        let (name, gib) = (self.node_name(node), wanted.bytes as f64 / (1u64 << 30) as f64);
        Err(Error::Unusable(format!(
            "node {name} cannot be emptied: no other node has the file of {} ({}, {gib:.2} GiB). \
             Put it into the models folder of another node, or stop the model. Nothing was changed",
            entry.name, wanted.spec.model
        )))
    }

    fn not_without(&self, node: NodeId, model: &str, others: usize, why: &str) -> Error {
        let name = self.node_name(node);
        Error::Unusable(format!(
            "node {name} cannot be emptied: {model} does not fit on the {others} others: {why}. \
             Or stop a model. Nothing was changed"
        ))
    }
}

impl InstanceStatus {
    /// Whether a node owns it or has one of its ranks.
    pub fn is_held_by(&self, node: NodeId) -> bool {
        let runs = !matches!(self.state, InstanceState::Failed { .. });
        self.owner == node || (runs && self.ranks.iter().any(|rank| rank.node == node))
    }
}
