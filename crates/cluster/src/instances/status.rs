//! The status of all served instances: this node's own, and others by their owners' reports.

use protocol::Nodes;

use super::host::Host;
use super::replicas;
use super::reported::reported;
use super::running::Instances;
use super::slow_links;
use crate::context::Context;
use crate::desired::{Entry, Service};
use crate::files::{Places, can_follow, why_no_copy};
use crate::{Error, InstanceState, InstanceStatus, RankStatus};

/// All served instances.
pub(crate) fn all(instances: &Instances, host: &Host) -> Vec<InstanceStatus> {
    let status = |(entry, wanted): (&Entry, &Service)| now(instances, host, entry, wanted);
    host.ctx.desired.wanted().map(status).collect()
}

pub(crate) fn now(
    instances: &Instances,
    host: &Host,
    entry: &Entry,
    wanted: &Service,
) -> InstanceStatus {
    let (ctx, owned) = (&host.ctx, instances.table.get(&wanted.id));
    let mut status = match owned {
        Some(owned) => {
            let (placement, prediction) = (owned.why.clone(), owned.prediction);
            let mut status = owned.told();
            let pace = prediction.and_then(|found| owned.machine.pace_warning(&found));
            status.notes.extend(pace.into_iter().chain(slow_links::notes(owned, ctx, &host.paths)));
            status.notes.extend(owned.prepared.model.remarks.iter().cloned());
            InstanceStatus { placement, prediction, ..status }
        }
        None => reported(host, &instances.table, entry, wanted),
    };
    status.created_unix_s = wanted.created_unix_s;
    let (replica_of, asked) = replicas::group(ctx, wanted);
    (status.replica_of, status.replicas_wanted) = (replica_of, asked.or(status.replicas_wanted));
    let holders = host.files.places.holders(ctx, &wanted.digest);
    status.file_nodes = holders.map(|node| ctx.name_of(node)).collect();
    let places = &host.files.places;
    status.notes.extend(sole_holder((ctx, places), wanted, &status.file_nodes));
    status.notes.extend(move_note(instances, &wanted.id));
    let borrowed = borrowed(wanted, &status);
    status.notes.extend(borrowed);
    let apart = owned.map(|owned| instances.pool.partition.notes(ctx, owned));
    status.notes.extend(apart.into_iter().flatten());
    status
}

/// Why no node can take a request for an instance now.
pub(crate) fn why_nowhere(instances: &Instances, host: &Host, id: &str) -> String {
    let found = host.ctx.desired.find(id);
    let state = match instances.table.get(id) {
        Some(owned) => Some(owned.machine.state()),
        None => found.map(|(entry, wanted)| reported(host, &instances.table, entry, wanted).state),
    };
    match state {
        Some(InstanceState::Recovering { reason } | InstanceState::Failed { reason }) => reason,
        Some(InstanceState::Ready) => "the model has no room for another request now".to_owned(),
        _ if super::idle::waits_for_room(&instances.table, id) => {
            "the model waits for the memory of others, which are being unloaded".to_owned()
        }
        _ => "the node that owns the model is starting it".to_owned(),
    }
}

pub(crate) fn not_served(instances: &Instances, host: &Host, name: &str) -> Error {
    let statuses = all(instances, host);
    let models = statuses.iter().filter(|status| status.replica_of.is_none());
    let models: Vec<&str> = models.map(|status| status.model.as_str()).collect();
    let known = match models.as_slice() {
        [] => "no model is served".to_owned(),
        models => format!("served are: {}", models.join(", ")),
    };
    Error::NotServed { name: name.to_owned(), known }
}

/// Note for the user: the target and progress of an instance's move.
fn move_note(instances: &Instances, id: &str) -> Option<String> {
    let Some(next) = instances.table.successor(id) else {
        return instances.table.get(id)?.review.stuck.clone();
    };
    let ranks = next.machine.status().ranks;
    // Other nodes may report numbers of any size.
    let total: u128 = ranks.iter().map(|rank| u128::from(rank.total_bytes)).sum();
    let done: u128 = ranks.iter().map(|rank| u128::from(rank.loaded_bytes)).sum();
    let names: Vec<String> = ranks.into_iter().map(|rank| rank.node_name).collect();
    let percent = (done * 100).checked_div(total).unwrap_or(0);
    Some(format!("moves to {}: {percent} % loaded", names.join(", ")))
}

/// Note for the user: the only node with a model's file, without which nobody can drive it.
fn sole_holder(
    (ctx, places): (&Context, &Places),
    wanted: &Service,
    file_nodes: &[String],
) -> Option<String> {
    let [only] = file_nodes else { return None };
    let is_asked = wanted.spec.copies.is_some_and(|copies| copies > 1);
    let is_due = is_asked && !wanted.spec.copies_if_room;
    (ctx.membership.members().count() > 0 && !is_due).then(|| {
        let next = if can_follow(ctx, places, wanted) {
            "Another node copies it if its disk has room".to_owned()
        } else if is_asked {
            why_no_copy(ctx, &wanted.digest)
        } else {
            "For a second copy, stop it and serve it with --copies 2".to_owned()
        };
        format!("only node {only} has its file, and without that node it stops. {next}")
    })
}

/// Note for the user: the nodes of an instance that its request does not name.
fn borrowed(wanted: &Service, status: &InstanceStatus) -> Option<String> {
    let Some(nodes @ Nodes::Named(asked)) = &wanted.spec.nodes else { return None };
    let is_named = |rank: &RankStatus| nodes.place_of(&rank.node_name, &rank.node.to_string());
    let borrowed = status.ranks.iter().filter(|rank| is_named(rank).is_none());
    let borrowed: Vec<&str> = borrowed.map(|rank| rank.node_name.as_str()).collect();
    (!borrowed.is_empty()).then(|| {
        format!(
            "it was asked for on {}. They do not suffice, so it borrows {} until they do",
            asked.join(", "),
            borrowed.join(", ")
        )
    })
}
