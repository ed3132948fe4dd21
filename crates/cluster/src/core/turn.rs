//! The consequences of inputs and ticks: the order in which owners get their turns.

use std::time::Duration;

use tracing::warn;

use super::{Core, TICK};
use crate::NodeId;
use crate::admission;
use crate::context::{Context, News};
use crate::desired::Entry;
use crate::files::seen;
use crate::instance::Input;
use crate::instances::{self, Host, Instances};
use crate::membership::{self, ConnId, HEARTBEAT};
use crate::paths::Paths;
use crate::paths::rerouting::look_elsewhere;
use crate::peers;
use crate::requests::Below;
use crate::requests::waiting::end_long_waits;
use crate::wire::{Heartbeat, Message, VERSION};

/// A node that has just started only listens for this time, unless it has received the documents of
/// all members, which may be newer. A little longer than the higher id's call takes between two
/// nodes.
const SETTLE_MAX: Duration = Duration::from_secs(4);

impl Core {
    /// Delivers the news between owners until the queue is empty.
    pub(super) fn run_news(&mut self) {
        while let Some(news) = self.host.ctx.take_news() {
            self.hand_on(news);
        }
    }

    fn hand_on(&mut self, news: News) {
        let Self { host, peers, instances, requests, .. } = self;
        let ctx = &mut host.ctx;
        match news {
            News::PeerUp { peer, conn, returned } => {
                if returned {
                    instances.pool.growth.came_back(peer, ctx.now());
                }
                ctx.send(conn, Message::Members(ctx.all_members()));
                self.heartbeats += 1;
                let heartbeat = self.own_heartbeat();
                peers::send_heartbeat(&mut self.host.ctx, peer, conn, heartbeat);
            }
            News::PeerDown { peer, conn, reason } => self.peer_down(peer, conn, reason),
            News::MembersChanged => {
                host.paths.look_at_all(ctx);
                admission::forget_unmet(ctx, peers);
            }
            News::Parted { rest } => {
                self.leave_behind();
                self.peers.run(&mut self.host.ctx, rest);
            }
            News::Heartbeats => self.send_heartbeats(),
            News::Reconcile => self.reconcile(),
            News::RoundTrip => self.finish_joining(),
            News::Worker { host: from, worker, event } => {
                instances.worker(host, from, worker, event);
            }
            News::Answered { stream, event } => requests.answered(ctx, stream, event),
            News::Interrupted { stream, reason } => requests.interrupted(ctx, stream, reason),
            News::Resume => self.resume(),
        }
        self.note_failures();
    }

    fn peer_down(&mut self, peer: NodeId, conn: ConnId, reason: String) {
        let Self { host, admission, instances, requests, .. } = self;
        let now = host.ctx.now();
        instances.pool.growth.node_down(peer, now);
        host.workers.owner_left(&mut host.ctx, peer);
        host.paths.look_at(&host.ctx, peer, true);
        // The path may have begun to drop large packets.
        host.paths.doubt(&host.ctx, peer);
        let name = host.ctx.name_of(peer);
        let owner_lost =
            format!("node {name}, over which the model was reached, was lost: {reason}");
        requests.lose(&mut host.ctx, conn, &owner_lost);
        requests.cancel_for(&mut Below { instances, host }, |on, _| on == conn);
        admission.approvals.let_go(&host.ctx, Some(peer));
        instances.step_all(host, || Input::NodeDown { node: peer, reason: reason.clone() });
        // The others may need to know that this node no longer reaches it.
        self.send_heartbeats();
    }

    /// Drops all state of the former cluster.
    fn leave_behind(&mut self) {
        warn!("this node belongs to no cluster any more");
        let Self { host, peers, admission, instances, .. } = self;
        host.ctx.changed();
        let why = "this node was taken out of its cluster. To come back it needs a new join code: \
                   sinew invite on a member, then sinew join CODE here";
        admission.parted = Some(why.to_owned());
        instances.release_all(host, "its node has left the cluster");
        host.workers.end_all(&mut host.ctx);
        host.ctx.desired.clear();
        host.ctx.outside.keep_desired(host.ctx.desired.document());
        peers.keep_members(&mut host.ctx);
    }

    fn finish_joining(&mut self) {
        let settled = self.admission.take_settled(&self.host.ctx);
        if !settled.is_empty() {
            // A caller whose join is confirmed relies on the status.
            self.publish();
            self.admission.answer(&mut self.host.ctx, settled);
        }
    }

    pub(super) fn route(&mut self) {
        let routes = self.host.paths.routes(&self.host.ctx);
        self.instances.route(&routes);
    }

    /// Follows the document and the members' reports. The order matters: files first, since claims
    /// depend on them; then claims; then ends, whose memory is free for planning; then starts.
    pub(super) fn reconcile(&mut self) {
        let Self { host, instances, .. } = self;
        if !self.is_settled && is_settled(&host.ctx) {
            self.is_settled = true;
            host.ctx.changed();
        }
        host.files.places.look(&mut host.ctx);
        host.files.damage.expire(&mut host.ctx);
        instances::note_held(instances, host);
        if self.is_settled {
            take_over(instances, host);
            instances::keep_replicas(instances, host);
        }
        instances::end_superseded(instances, host);
        host.workers.leave_former_owners(&mut host.ctx);
        if self.is_settled {
            instances::let_rest(instances, host);
            instances::inherit(instances, host);
            instances::start_owned(instances, host);
            host.files.copies.keep(&mut host.ctx, &host.files.places);
        }
    }

    /// The steps of a tick, in this order.
    const EACH_TICK: [fn(&mut Self); 9] = [
        // Losses by silence; all later steps see the present members.
        |core| core.peers.step(&mut core.host.ctx, membership::Input::Tick),
        // Heartbeats go out before this node starts anything that takes long.
        Self::speak,
        |core| look_elsewhere(&mut core.host.ctx),
        // The document, before the instances are reviewed.
        Self::reconcile,
        Self::tick_paths,
        // The instances' own deadlines; then links, then places, then idle time: an instance that
        // moves is not unloaded for it.
        Self::tick_instances,
        Self::review_instances,
        // After the instances: their placements end the orphans in the way.
        Self::tick_requests,
        |core| core.admission.tick(&mut core.host.ctx, &core.peers),
    ];

    pub(crate) fn tick(&mut self) {
        self.ticks += 1;
        for step in Self::EACH_TICK {
            step(self);
            self.run_news();
        }
    }

    fn speak(&mut self) {
        if self.ticks.is_multiple_of(HEARTBEAT.as_millis() as u64 / TICK.as_millis() as u64) {
            self.send_heartbeats();
        } else {
            peers::send_signs_of_life(&mut self.host.ctx);
        }
    }

    fn tick_paths(&mut self) {
        let is_at_rest = self.host.workers.is_empty();
        self.host.paths.measure(&mut self.host.ctx, is_at_rest);
        if Paths::is_report_due(self.ticks) {
            let statuses = instances::status::all(&self.instances, &self.host);
            let ranks: Vec<_> = statuses.into_iter().map(|instance| instance.ranks).collect();
            let Host { ctx, paths, .. } = &mut self.host;
            paths.look(ctx, &ranks);
            for node in instances::nodes_in_doubt(&self.instances.table) {
                paths.doubt(ctx, node);
            }
            instances::note_links(&mut self.instances.table, ctx, paths);
            paths.twin.look(ctx);
        }
        self.host.paths.report(&mut self.host.ctx, self.ticks);
    }

    /// Also runs between two ticks, when an instance's deadline is due.
    pub(crate) fn tick_instances(&mut self) {
        self.instances.step_all(&mut self.host, || Input::Tick);
        self.run_news();
    }

    fn review_instances(&mut self) {
        let Self { host, instances, ticks, .. } = self;
        instances.look_at_late_links(host);
        instances::review(instances, host, *ticks);
        instances::count_replicas(instances, host, *ticks);
        instances::unload_idle(instances, host);
        host.workers.end_orphans(&mut host.ctx, |id| instances.table.get(id).is_some());
    }

    fn tick_requests(&mut self) {
        let (requests, mut below) = self.requests();
        requests.choose_late(&mut below);
        requests.resume(&mut below);
        end_long_waits(requests, &mut below);
        self.finish_joining();
        self.note_failures();
    }

    /// The deadline of the first instance that has one before the next tick.
    pub(crate) fn next_deadline(&self) -> Option<Duration> {
        self.instances.deadline()
    }

    /// Ends all instances, streams and workers.
    pub(crate) fn end_all(&mut self) {
        self.instances.release_all(&mut self.host, "its node shuts down");
        self.run_news();
        self.requests.end_all(&mut self.host.ctx);
        self.host.workers.end_all(&mut self.host.ctx);
    }

    /// Whether all workers of this node have ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.host.workers.is_empty()
    }

    fn send_heartbeats(&mut self) {
        self.heartbeats += 1;
        let peers: Vec<_> = self.host.ctx.conns.iter().map(|(id, on)| (on.peer, *id)).collect();
        let heartbeat = self.own_heartbeat();
        for (peer, conn) in peers {
            peers::send_heartbeat(&mut self.host.ctx, peer, conn, heartbeat.clone());
        }
    }

    /// The state of this node, for other members.
    fn own_heartbeat(&self) -> Heartbeat {
        let Host { ctx, paths, files, workers } = &self.host;
        Heartbeat {
            seq: self.heartbeats,
            name: ctx.config.name.clone(),
            version: VERSION.to_owned(),
            memory_bytes: ctx.config.memory_bytes,
            memory_used_bytes: workers.memory_used_bytes(),
            threads: ctx.config.threads,
            numerics: ctx.versions.numerics,
            speed: paths.speed,
            device: ctx.config.device.told(),
            instances: self.instances.table.current().map(|(_, owned)| owned.told()).collect(),
            sees: ctx.membership.reachable().collect(),
            document: ctx.desired.fingerprint(),
            files: files.places.holdings(),
            kept: workers.kept_ranks(),
            cannot_copy: files.copies.failed(),
            requests: self.admission.approvals.own_requests(ctx),
        }
    }
}

/// A document that equals those of all members is the latest.
fn is_settled(ctx: &Context) -> bool {
    let fingerprint = ctx.desired.fingerprint();
    let heard = |id: NodeId| ctx.heartbeat_of(id).is_some_and(|told| told.document == fingerprint);
    ctx.membership.members().all(|member| heard(member.id)) || ctx.now() >= SETTLE_MAX
}

/// Claims the instances without an owner.
fn take_over(instances: &Instances, host: &mut Host) {
    let (peers, files, now) = (seen(&host.ctx), host.files.places.holdings(), host.ctx.now());
    // What this node already loads beside the owner it claims once that works.
    let loading: Vec<String> = {
        let wanted = host.ctx.desired.wanted();
        let loads = |id: &str| instances.table.successor(id).is_some();
        wanted.filter(|(_, one)| loads(&one.id)).map(|(entry, _)| entry.name.clone()).collect()
    };
    let is_loading = |name: &str| loading.iter().any(|one| one == name);
    let published = host.ctx.desired.reunite(&peers, now);
    host.ctx.replicate(published, None);
    let claims = host.ctx.desired.take_over(&files, &peers, now, is_loading);
    for Entry { name, .. } in &claims {
        warn!(name, "its owner is gone; this node takes it over");
    }
    host.ctx.replicate(claims, None);
}
