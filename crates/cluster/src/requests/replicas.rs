//! The replicas of a model as the requests of this node's clients see them.

use super::below::Below;
use crate::InstanceState;
use crate::context::Context;
use crate::desired::{Entry, Service};
use crate::instances::{Host, Instances, reported};
use crate::membership::ConnId;
use crate::peers::conn_to_owner;
use crate::wire::{Message, Offer, Question};

/// The replicas at which a request may run: by the model's name all, by that of a further replica
/// this one alone.
fn replicas<'a>(below: &'a Below<'_>, first: &str) -> Vec<(&'a Entry, &'a Service)> {
    let mut all = below.host.ctx.desired.replicas(first);
    if all.iter().any(|(_, one)| one.id == first && one.is_further()) {
        all.retain(|(_, one)| one.id == first);
    }
    all
}

/// How soon a replica takes a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Soon {
    /// It works and can be reached.
    Now,
    Loads,
    /// A request loads it.
    OnRequest,
    /// No node loads it now, or its owner cannot be reached.
    Later,
    GivenUp,
}

fn how_soon(below: &Below<'_>, entry: &Entry, wanted: &Service) -> Soon {
    let Below { instances, host } = below;
    let (status, is_reached) = match instances.table.get(&wanted.id) {
        Some(owned) => (owned.told(), true),
        None => {
            let is_mine = entry.owner() == host.ctx.me;
            let is_reached = is_mine || conn_to_owner(&host.ctx, entry, wanted).is_some();
            (reported(host, &instances.table, entry, wanted), is_reached)
        }
    };
    match status.state {
        InstanceState::Failed { .. } => Soon::GivenUp,
        _ if !is_reached => Soon::Later,
        InstanceState::Ready => Soon::Now,
        InstanceState::Unloaded => Soon::OnRequest,
        _ if status.ranks.is_empty() => Soon::Later,
        InstanceState::Loading | InstanceState::Recovering { .. } => Soon::Loads,
    }
}

/// The replicas of a model that work and can be reached; none of a model with one.
pub(super) fn ready(below: &Below<'_>, first: &str) -> Vec<String> {
    let all = replicas(below, first);
    if all.len() < 2 {
        return Vec::new();
    }
    let ready =
        all.into_iter().filter(|(entry, wanted)| how_soon(below, entry, wanted) == Soon::Now);
    ready.map(|(_, wanted)| wanted.id.clone()).collect()
}

/// The replica at which a request goes on: the one that is soonest ready, and of several the one
/// that has the fewest of this node's requests, by `there`. `None`: the model is served no more.
pub(super) fn next_place(
    below: &Below<'_>,
    (first, present): (&str, &str),
    there: impl Fn(&str) -> usize,
) -> Option<String> {
    let all = replicas(below, first);
    if let [(_, only)] = all[..] {
        return Some(only.id.clone());
    }
    let best = all.into_iter().min_by_key(|(entry, wanted)| {
        (how_soon(below, entry, wanted), there(&wanted.id), wanted.id != present)
    });
    best.map(|(_, wanted)| wanted.id.clone())
}

/// Answers another node's question about an instance of this node.
pub(crate) fn quote(
    instances: &Instances,
    host: &mut Host,
    (conn, stream): (ConnId, u64),
    instance: String,
    question: &Question,
) {
    let offer = instances.offer(&instance, question);
    host.ctx.send(conn, Message::Quoted { stream, instance, offer });
}

/// The connection to the owner of an instance, if it knows offers.
pub(super) fn owner_to_ask(ctx: &Context, id: &str) -> Option<ConnId> {
    let (entry, wanted) = ctx.desired.find(id)?;
    let conn = conn_to_owner(ctx, entry, wanted)?;
    ctx.conns.get(&conn).filter(|to| Offer::is_known_in(to.protocol)).map(|_| conn)
}
