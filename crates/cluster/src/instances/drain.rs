//! Checks whether a node can be drained: whether the others suffice for its ranks and files.

use layout::Outline;

use super::host::Host;
use super::place::{Candidate, plan_for, relaxed};
use super::running::Instances;
use super::status;
use crate::desired::{Entry, Service};
use crate::{Error, InstanceState, InstanceStatus, NodeId, Result};

/// Outlines of instances' model files, and the memory of their towers, by the instances' ids.
pub(crate) type Models = Vec<(String, Outline, u64)>;

/// # Errors
/// The node's ranks do not fit on the others, or no other node has a file.
pub(crate) fn check_drain(
    instances: &Instances,
    host: &Host,
    node: NodeId,
    models: &[(String, Outline, u64)],
) -> Result<()> {
    let held: Vec<(Entry, Service, InstanceStatus)> = host
        .ctx
        .desired
        .wanted()
        .map(|(entry, wanted)| {
            let status = status::now(instances, host, entry, wanted);
            (entry.clone(), wanted.clone(), status)
        })
        .filter(|(_, _, status)| status.is_held_by(node))
        .collect();
    let mut free = others(instances, host, node, &held);
    for (entry, wanted, _) in &held {
        check_heir(host, node, entry, wanted)?;
        let found = models.iter().find(|(id, _, _)| *id == wanted.id);
        let Some(&(_, ref model, tower_bytes)) = found else { continue };
        let beside = placement::Beside { tower_bytes, ..placement::Beside::default() };
        let placed = plan_for(model, beside, &free, &relaxed(&wanted.spec), false);
        let plan = placed.map_err(|why| not_without(host, node, &entry.name, free.len(), &why))?;
        for rank in &plan.ranks {
            let free = &mut free[rank.node].memory_free_bytes;
            *free = free.saturating_sub(rank.memory_bytes);
        }
    }
    Ok(())
}

/// All other nodes that may have ranks, with their memory without these instances.
fn others(
    instances: &Instances,
    host: &Host,
    node: NodeId,
    held: &[(Entry, Service, InstanceStatus)],
) -> Vec<Candidate> {
    let mut free =
        instances.pool.candidates(host, &instances.table, None, protocol::Transport::Auto);
    free.retain(|one| one.node != node && !host.ctx.desired.is_drained(one.node));
    for one in &mut free {
        let ranks = held.iter().flat_map(|(_, _, status)| &status.ranks);
        let theirs = ranks.filter(|rank| rank.node == one.node);
        let bytes = theirs.map(|rank| rank.memory_bytes);
        one.memory_free_bytes = bytes.fold(one.memory_free_bytes, u64::saturating_add);
    }
    free
}

/// The next owner of a node's instance must have its file.
fn check_heir(host: &Host, node: NodeId, entry: &Entry, wanted: &Service) -> Result<()> {
    let ctx = &host.ctx;
    let may_own = |on: NodeId| on != node && !ctx.desired.is_drained(on);
    if entry.owner() != node || host.files.places.holders(ctx, &wanted.digest).any(may_own) {
        return Ok(());
    }
    let (name, gib) = (ctx.name_of(node), wanted.bytes as f64 / (1u64 << 30) as f64);
    Err(Error::Unusable(format!(
        "node {name} cannot be emptied: no other node has the file of {} ({}, {gib:.2} GiB). \
         Put it into the models folder of another node, or stop the model. Nothing was changed",
        entry.name, wanted.spec.model
    )))
}

fn not_without(host: &Host, node: NodeId, model: &str, others: usize, why: &str) -> Error {
    let name = host.ctx.name_of(node);
    Error::Unusable(format!(
        "node {name} cannot be emptied: {model} does not fit on the {others} others: {why}. \
         Or stop a model. Nothing was changed"
    ))
}

impl InstanceStatus {
    /// Whether a node owns it or has one of its ranks. A replica without ranks, of a drained owner,
    /// is nowhere.
    pub fn is_held_by(&self, node: NodeId) -> bool {
        let runs = !matches!(self.state, InstanceState::Failed { .. });
        let is_replica = self.replica_of.is_some() || self.replicas_wanted.is_some();
        let rests = is_replica && self.ranks.is_empty();
        (self.owner == node && !rests) || (runs && self.ranks.iter().any(|rank| rank.node == node))
    }
}
