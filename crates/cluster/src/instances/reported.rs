//! The status of an instance that this node does not run.

use std::time::Duration;

use super::host::Host;
use super::table::{Starting, Table};
use crate::desired::{Entry, Service};
use crate::peers::{gone_for, reaches_another_replica, way_round};
use crate::{InstanceState, InstanceStatus};

/// Time after which the status may name another node as the path to a lost owner.
const ROUND_AFTER: Duration = Duration::from_secs(2);

/// What becomes of requests meanwhile.
const OTHERS_GO_ON: &str = "the other replicas answer";

/// The status of an instance that this node does not run: its owner's report, else by the document.
pub(crate) fn reported(
    host: &Host,
    table: &Table,
    entry: &Entry,
    wanted: &Service,
) -> InstanceStatus {
    let (ctx, owner) = (&host.ctx, entry.owner());
    let heartbeat = ctx.live_heartbeat_of(owner);
    let mut reports = heartbeat.into_iter().flat_map(|heartbeat| &heartbeat.instances);
    let report = reports.find(|status| status.id == wanted.id);
    if let Some(status) = report.filter(|_| !entry.unloaded) {
        let model = entry.name.clone();
        return InstanceStatus { model, owner, ..status.clone() };
    }
    let state = match table.start(&wanted.id) {
        Some(Starting::Failed(reason, _)) if host.files.places.has_heir(ctx, wanted) => {
            let reason = format!("{reason}; another node takes it over");
            InstanceState::Recovering { reason }
        }
        Some(Starting::Failed(reason, _)) => InstanceState::Failed { reason: reason.clone() },
        _ if owner != ctx.me && heartbeat.is_none() => {
            InstanceState::Recovering { reason: why_without_owner(host, entry, wanted) }
        }
        _ if ctx.desired.is_drained(owner) && reaches_another_replica(ctx, &wanted.id) => {
            let name = ctx.name_of(owner);
            InstanceState::Recovering {
                reason: format!("node {name}, which owns it, is to be empty; {OTHERS_GO_ON}"),
            }
        }
        _ if entry.unloaded => InstanceState::Unloaded,
        _ => InstanceState::Loading,
    };
    InstanceStatus {
        id: wanted.id.clone(),
        model: entry.name.clone(),
        digest: Some(wanted.digest),
        model_bytes: wanted.bytes,
        file_nodes: Vec::new(),
        owner,
        state,
        epoch: 0,
        context_tokens: wanted.spec.context_tokens.unwrap_or(0),
        created_unix_s: wanted.created_unix_s,
        transport: wanted.spec.options.transport,
        ranks: Vec::new(),
        requests_running: 0,
        requests_waiting: 0,
        has_generated: false,
        last_decode_tokens_per_sec: None,
        stats: None,
        placement: Vec::new(),
        prediction: None,
        notes: Vec::new(),
        replica_of: None,
        replicas_wanted: None,
        keep_alive: wanted.spec.keep_alive,
        idle_since_unix_s: None,
        unloads_at_unix_s: None,
    }
}

fn why_without_owner(host: &Host, entry: &Entry, wanted: &Service) -> String {
    let ctx = &host.ctx;
    let owner = ctx.name_of(entry.owner());
    // Just after a loss, the others have yet to report that they have lost it too.
    let is_settled = gone_for(ctx, entry.owner()) > ROUND_AFTER;
    if is_settled && way_round(ctx, entry.owner()).is_some() {
        return format!("node {owner}, which owns it, is reached only through another node");
    }
    if host.files.places.has_heir(ctx, wanted) {
        return format!("node {owner}, which owns it, is gone; another one takes it over");
    }
    if reaches_another_replica(ctx, &wanted.id) {
        return format!("node {owner}, which owns it, is gone; {OTHERS_GO_ON}");
    }
    let gib = wanted.bytes as f64 / (1u64 << 30) as f64;
    if let Some(drained) = host.files.places.holders(ctx, &wanted.digest).next() {
        let name = ctx.name_of(drained);
        return format!(
            "node {owner}, which owns it, is gone, and its file ({}, {gib:.2} GiB) is only on \
             {name}, which is to be empty. Bring {owner} back, or type: sinew undrain {name}",
            wanted.spec.model
        );
    }
    let copies = match wanted.spec.copies {
        Some(2..) => "The copy that was asked for was not finished",
        _ => "With sinew serve --copies 2 another node would have it",
    };
    format!(
        "node {owner}, which owns it, is gone, and no other node has its file ({}, {gib:.2} \
         GiB). Bring {owner} back, or put the file into the models folder of another node. \
         {copies}",
        wanted.spec.model
    )
}
