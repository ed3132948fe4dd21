//! The node's state as a list of owners, and the one function that feeds them.
//!
//! A [`Core`] receives all inputs as a [`Call`], an [`Event`] or a tick. It passes each to the
//! owner of the state concerned, and then empties the queue of [`News`] between owners. It has no
//! sockets, processes, files or clocks, and never blocks: [`Outside`] acts for it. So `io::driver`
//! can run it on a real system, and a simulation can run whole clusters of it.

mod inputs;
pub(crate) mod journal;
mod presets;
mod status;
mod turn;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::admission::{self, Admission};
use crate::api::peer;
use crate::context::{Context, News, Outside, Reply};
use crate::core::journal::Journal;
use crate::desired::{Document, Drain, Entry, PresetEntry};
use crate::files::Files;
use crate::instance::Input;
use crate::instances::{self, Host, Instances};
use crate::members::Members;
use crate::membership::{self, ConnId};
use crate::paths::Paths;
use crate::peers::{self, Peers};
use crate::requests::{self, Below, Requests};
use crate::wire::bounds::within_bounds;
use crate::wire::{Heartbeat, Message};
use crate::workers::Workers;
use crate::{ClusterStatus, Error, History, NodeConfig, NodeId, Parted, Result};

pub(crate) use inputs::{Call, Event};

/// Half a heartbeat, so that silence is detected in time.
pub(crate) const TICK: Duration = Duration::from_millis(250);

/// The owners of state, the lowest first. Each may call those before it in this list, and notifies
/// those after it by [`News`].
pub(crate) struct Core {
    pub(crate) host: Host,
    pub(crate) peers: Peers,
    pub(crate) admission: Admission,
    pub(crate) instances: Instances,
    pub(crate) requests: Requests,
    journal: Journal,
    status: watch::Sender<Arc<ClusterStatus>>,
    /// Notices for the user about files that were damaged at the start.
    told: Vec<String>,
    /// Whether this node has received the others' documents since it started.
    is_settled: bool,
    ticks: u64,
    /// Numbers the heartbeats, so that each answer is to one of them.
    heartbeats: u64,
}

impl Core {
    pub(crate) fn new(
        config: NodeConfig,
        (me, boot, listen): (NodeId, u64, SocketAddr),
        (document, told): (Document, Vec<String>),
        status: watch::Sender<Arc<ClusterStatus>>,
        outside: Box<dyn Outside>,
    ) -> Self {
        let paths = Paths::new(me, config.fleet_key.is_some());
        let peers = Peers::new(peer::addresses(&config.peers));
        let ctx = Context::new(config, (me, boot, listen), document, outside);
        Self {
            host: Host { ctx, paths, files: Files::default(), workers: Workers::default() },
            peers,
            admission: Admission::default(),
            instances: Instances::default(),
            requests: Requests::default(),
            journal: Journal::default(),
            status,
            told,
            is_settled: false,
            ticks: 0,
            heartbeats: 0,
        }
    }

    /// The history goes on from that of earlier runs.
    pub(crate) fn recall(&mut self, history: History) {
        self.journal = Journal::after(history);
    }

    /// Begins to look for the members of the last run.
    pub(crate) fn start(&mut self, remembered: Members) {
        let learned = membership::Input::Learned { members: remembered, by: None };
        self.peers.step(&mut self.host.ctx, learned);
        peers::announce(&mut self.host.ctx);
        self.host.ctx.outside.sense();
        self.run_news();
    }

    pub(crate) fn now(&self) -> Duration {
        self.host.ctx.now()
    }

    /// The requests, and the owners that they call.
    fn requests(&mut self) -> (&mut Requests, Below<'_>) {
        (&mut self.requests, Below { instances: &mut self.instances, host: &mut self.host })
    }

    /// Runs after every input: a change may let requests go on.
    pub(crate) fn settle(&mut self) {
        if self.host.ctx.take_may_resume() {
            self.resume();
            self.run_news();
        }
    }

    fn resume(&mut self) {
        let (requests, mut below) = self.requests();
        requests.resume(&mut below);
    }

    pub(crate) fn call(&mut self, call: Call) {
        self.host.ctx.changed();
        self.handle(call);
        self.run_news();
    }

    fn handle(&mut self, call: Call) {
        let Self { host, peers, admission, instances, .. } = self;
        let ctx = &mut host.ctx;
        // The caller may have stopped waiting; that undoes nothing.
        match call {
            Call::Invite { ttl, reply } => drop(reply.send(Ok(admission.invite(ctx, ttl)))),
            Call::Join { code, reply } => admission.join(ctx, &code, reply),
            Call::Remove { name, reply } => {
                let outcome = admission::remove(ctx, peers, &name);
                if let Ok(parted) = &outcome {
                    // It comes back as any new member would.
                    self.set_drained(parted.node, false);
                }
                self.answer_when_parted(reply, outcome);
            }
            Call::Leave { reply } => {
                let outcome = self.leave();
                self.answer_when_parted(reply, outcome);
            }
            Call::Pair { with, reply } => admission.pair(ctx, with, reply),
            Call::Accept { number, node, reply } => {
                admission.approvals.accept(ctx, &number, node.as_deref(), reply);
            }
            Call::WithdrawRequest { reply } => {
                admission.withdraw(ctx);
                drop(reply.send(Ok(())));
            }
            Call::RefuseRequest { node, reply } => admission.approvals.refuse(ctx, &node, reply),
            Call::Pairing { reply } => drop(reply.send(Ok(admission.pairing(ctx)))),
            Call::Serve { prepared, reply } => {
                let outcome = instances::serve(instances, host, *prepared);
                self.answer_when_kept(reply, outcome);
            }
            Call::Plan { spec, model, reply } => {
                drop(reply.send(instances::plan(instances, host, &spec, &model)))
            }
            Call::Stop { name, reply } => {
                let outcome = instances::stop(instances, host, &name);
                self.reconcile();
                self.answer_when_kept(reply, outcome);
            }
            Call::Drain { node, models, reply } => {
                let outcome = instances::check_drain(instances, host, node, &models);
                if outcome.is_ok() {
                    self.set_drained(node, true);
                }
                self.answer_when_kept(reply, outcome);
            }
            Call::Undrain { node, reply } => {
                self.set_drained(node, false);
                self.answer_when_kept(reply, Ok(()));
            }
            Call::WritePreset { name, preset, reply } => {
                let outcome = presets::write(ctx, &name, preset.map(|preset| *preset));
                self.answer_when_kept(reply, outcome);
            }
            Call::Generate { name, request, reply } => {
                let (requests, mut below) = self.requests();
                drop(reply.send(requests.generate(&mut below, &name, *request)));
            }
            Call::Header { name, reply } => instances::header(instances, host, &name, reply),
            Call::Shutdown { reply } => drop(reply),
        }
    }

    /// Answers once the change is on disk, so that the answer holds even after a power cut.
    fn answer_when_kept<T: Send + 'static>(&mut self, reply: Reply<T>, outcome: Result<T>) {
        self.run_news();
        self.publish();
        // The caller may have stopped waiting.
        match outcome {
            Err(error) => drop(reply.send(Err(error))),
            Ok(value) => self.host.ctx.outside.when_desired_kept(Box::new(|kept| {
                drop(reply.send(kept.map(|()| value)));
            })),
        }
    }

    fn answer_when_parted(&mut self, reply: Reply<Parted>, outcome: Result<Parted>) {
        self.run_news();
        self.publish();
        match outcome {
            Err(error) => drop(reply.send(Err(error))),
            Ok(parted) => admission::answer_when_parted(&mut self.host.ctx, reply, parted),
        }
    }

    /// Leaves the cluster, and notifies the reachable members.
    fn leave(&mut self) -> Result<Parted> {
        let others = self.host.ctx.membership.members().count();
        if others == 0 {
            return Err(Error::Alone);
        }
        let (node, name) = (self.host.ctx.me, self.host.ctx.config.name.clone());
        let told = self.host.ctx.membership.reachable().count();
        self.set_drained(node, false);
        // The connections to the nodes of its workers still exist here.
        self.instances.release_all(&mut self.host, "its node leaves the cluster");
        let farewell = self.host.ctx.membership.farewell(&name);
        self.host.ctx.send_all(&Message::Members(farewell));
        self.peers.step(&mut self.host.ctx, membership::Input::Leave);
        self.run_news();
        self.admission.parted = None;
        Ok(Parted { node, name, told, untold: others - told })
    }

    fn set_drained(&mut self, node: NodeId, is_on: bool) {
        let ctx = &mut self.host.ctx;
        if ctx.desired.is_drained(node) == is_on {
            return;
        }
        tracing::info!(node = ctx.name_of(node), is_on, "a node is drained, or no longer");
        let news = ctx.desired.drain(node, is_on);
        ctx.replicate(news, None);
        self.reconcile();
    }

    pub(crate) fn input(&mut self, event: Event) {
        self.take(event);
        self.run_news();
    }

    fn take(&mut self, event: Event) {
        let Self { host, peers, admission, instances, .. } = self;
        let Host { ctx, paths, files, workers } = host;
        match event {
            Event::Connected(opened) => peers.connected(ctx, opened),
            Event::DialFailed { peer, error } => peers.dial_failed(ctx, peer, &error),
            Event::Received { conn, message } => self.received(conn, message),
            Event::Heard { conn } => peers::heard(ctx, conn),
            Event::Closed { conn, reason } => {
                peers.step(ctx, membership::Input::Closed { conn, reason });
            }
            Event::Sighted(sighting) if sighting.announced.id == ctx.me => {
                paths.twin.sighted(ctx, &sighting.addresses);
            }
            Event::Sighted(sighting) => admission.sighted(ctx, peers, sighting),
            Event::Vanished(id) => {
                let is_news = admission.nearby.forget(&id);
                ctx.changed_if(is_news);
            }
            Event::JoinAsked { member, secret, from, reply } => {
                admission.join_asked(ctx, peers, member, (&secret, from), reply);
            }
            Event::JoinLost { peer, secret } => admission.join_lost(ctx, peers, peer, &secret),
            Event::JoinDone { kept, by, members, reply } => {
                admission.join_done(ctx, peers, (by, members), kept, reply);
                ctx.post(News::RoundTrip);
            }
            Event::FleetAsked { peer, members, reply } => {
                admission.fleet_asked(ctx, peers, (peer, members), reply);
            }
            Event::United { peer, members } => admission.united(ctx, peers, peer, members),
            Event::Pair(event) => {
                admission.pair_event(ctx, peers, event);
                ctx.post(News::RoundTrip);
            }
            Event::LeaveAsked { peer, reply } => {
                admission::leave_asked(ctx, peers, peer, reply);
                self.set_drained(peer, false);
            }
            Event::ProbeAsked { peer, reply } => {
                // The visitor may have hung up.
                let _ = reply.send(peer == ctx.me || ctx.membership.is_member(peer));
            }
            Event::ReadSpeed(speed) => {
                if paths.speed_measured(ctx, speed) {
                    ctx.post(News::Heartbeats);
                }
            }
            Event::Measured { peer, address, found } if peer == ctx.me => {
                paths.twin.answered(ctx, address, found.is_some());
            }
            Event::Measured { peer, address, found } => {
                let cut = found.is_some() && paths.answered_at(ctx, peer, address);
                let is_news = paths.measured(ctx, peer, address, found);
                if cut || is_news {
                    self.route();
                }
                if cut {
                    let other_way = membership::Input::OtherWay { peer, address };
                    self.peers.step(&mut self.host.ctx, other_way);
                }
            }
            Event::PeersFound(addresses) => peers.given = addresses,
            Event::Sensed(machine, sensors) => paths.sensed(ctx, machine, sensors),
            Event::BulkAsked { peer, digest, reply } => {
                drop(reply.send(instances.file_for(ctx, peer, digest)));
            }
            Event::Damaged { node, digest, group } => {
                files.damage.note(ctx, node, digest, group);
                if node == ctx.me {
                    // The file is searched again, and hashed anew.
                    files.places.located(ctx, digest, None);
                }
            }
            Event::Copied { digest, copied } => {
                files.copies.ended(ctx, &mut files.places, digest, copied)
            }
            Event::WorkerStarted { process, started } => workers.started(ctx, process, started),
            Event::Worker { process, news } => workers.news(ctx, process, news),
            Event::Located { digest, path } => {
                if path.is_some() {
                    // Its bytes were hashed again since the damage was found.
                    files.damage.forget(ctx, ctx.me, digest);
                }
                files.places.located(ctx, digest, path);
            }
            Event::Opened { id, opened } => instances::opened(instances, host, &id, opened),
            Event::Abandoned { stream } => {
                let (requests, mut below) = self.requests();
                requests.abandoned(&mut below, stream);
            }
        }
    }

    fn received(&mut self, conn: ConnId, message: Message) {
        let Some(peer) = self.host.ctx.conns.get(&conn).map(|conn| conn.peer) else { return };
        peers::heard(&mut self.host.ctx, conn);
        let Some(message) = within_bounds(message) else {
            return self.host.ctx.disbelieve(peer, "what only a worker's own node commands");
        };
        let Self { host, peers, admission, instances, requests, .. } = self;
        let Host { ctx, paths, workers, .. } = host;
        match message {
            Message::Heartbeat(heartbeat) => self.heartbeat(peer, conn, *heartbeat),
            Message::HeartbeatSeen { seq } => peers::heartbeat_seen(ctx, peer, seq),
            Message::Members(members) => {
                let (members, by) = (members.sanitized(), Some(peer));
                peers.step(ctx, membership::Input::Learned { members, by });
            }
            Message::Desired(document) => self.document_received(document, conn),
            Message::Spawn { worker, order } => {
                let served = instances.file_for(ctx, ctx.me, order.digest);
                workers.host(ctx, peer, worker, *order, served);
            }
            Message::Command { worker, command } => workers.command(ctx, peer, worker, command),
            Message::End { worker, at_once } => workers.end(ctx, peer, worker, at_once),
            Message::Spawned { worker, pid } => {
                instances.worker(host, peer, worker, Input::Spawned { worker, pid });
            }
            Message::Event { worker, event } => {
                instances.worker(host, peer, worker, Input::FromWorker { worker, event });
            }
            Message::Exited { worker, how } => {
                instances.worker(host, peer, worker, Input::Exited { worker, how });
            }
            Message::Generate { stream, name, request, relays } => {
                let (requests, mut below) = self.requests();
                requests.generate_for(&mut below, (conn, stream), &name, *request, relays);
            }
            Message::Quote { stream, instance, question } => {
                requests::quote(instances, host, (conn, stream), instance, &question);
            }
            Message::Quoted { stream, instance, offer } => {
                let (requests, mut below) = self.requests();
                requests.quoted(&mut below, (conn, stream), instance, offer);
            }
            Message::CancelGenerate { stream } => {
                let (requests, mut below) = self.requests();
                requests.cancel_for(&mut below, |on, its| on == conn && its == stream);
            }
            Message::Generated { stream, event, let_go } => {
                requests.generated(ctx, (conn, stream), event, let_go);
            }
            Message::Report(report) => {
                paths.reported(ctx, peer, *report);
                self.route();
            }
            Message::Decide { call, node, number } => {
                admission.approvals.decide_for(ctx, conn, call, node, number.as_deref());
            }
            Message::Decided { call, outcome } => {
                admission.approvals.decided(ctx, peer, call, outcome)
            }
        }
    }

    fn heartbeat(&mut self, peer: NodeId, conn: ConnId, heartbeat: Heartbeat) {
        let Self { host, instances, .. } = self;
        let (seq, document) = (heartbeat.seq, heartbeat.document);
        let path = host.ctx.conns.get(&conn).map(|conn| conn.path);
        let is_first = peers::note_heartbeat(&mut host.ctx, peer, heartbeat);
        if let (true, Some(path)) = (is_first, path) {
            instances.node_up(host, peer, path);
            // The peer now knows this node as a member and lets it measure.
            host.paths.look_at(&host.ctx, peer, false);
            host.paths.send_report(&mut host.ctx, conn);
            // A peer whose heartbeat is answered relies on being listed.
            self.publish();
        }
        let ctx = &mut self.host.ctx;
        ctx.send(conn, Message::HeartbeatSeen { seq });
        // A member with another document gets this node's; it does the same.
        let (both, now) = ([document, ctx.desired.fingerprint()], ctx.now());
        let view = ctx.views.get_mut(&peer);
        if view.is_some_and(|view| view.should_get_document(both, now)) {
            let document = ctx.desired.document();
            ctx.send(conn, Message::Desired(document));
        }
    }

    fn document_received(&mut self, mut told: Document, from: ConnId) {
        let ctx = &mut self.host.ctx;
        let Some(by) = ctx.conns.get(&from).map(|conn| conn.peer) else { return };
        told.drains.retain(|drain| ctx.knows(drain.node));
        let others = ctx.membership.members().map(|member| member.id);
        if let Some(of) = ctx.desired.strip_false(by, others, &mut told) {
            ctx.disbelieve(by, of);
        }
        let news = ctx.desired.merge(told);
        for Entry { name, wanted, claim, .. } in &news.entries {
            let owner = ctx.name_of(claim.node);
            tracing::info!(name, owner, served = wanted.is_some(), "the document changed");
        }
        for Drain { node, is_on, .. } in &news.drains {
            tracing::info!(node = ctx.name_of(*node), is_on, "a drain changed");
        }
        for PresetEntry { name, .. } in &news.presets {
            tracing::info!(name, "a preset changed");
        }
        ctx.replicate(news, Some(from));
        self.reconcile();
    }

    /// Publishes the present status, if it has changed.
    pub(crate) fn publish(&mut self) {
        if !self.host.ctx.take_changed() {
            return;
        }
        let status = status::of(&status::Seen {
            host: &self.host,
            peers: &self.peers,
            admission: &self.admission,
            instances: &self.instances,
            told: &self.told,
            is_settled: self.is_settled,
        });
        let status = Arc::new(status);
        let ctx = &self.host.ctx;
        self.journal.observe(&status, ctx.outside.unix_ms());
        self.status.send_replace(status);
    }

    /// The journal, for handles of this node.
    pub(crate) fn events(&self) -> watch::Receiver<History> {
        self.journal.watch()
    }

    /// Records failed requests of this node's clients.
    fn note_failures(&mut self) {
        for (instance, reason) in self.requests.failures.drain(..) {
            let ctx = &self.host.ctx;
            let found = ctx.desired.find(&instance);
            let model = found.map_or(&instance, |(entry, _)| &entry.name);
            self.journal.request_failed(model, &reason, ctx.outside.unix_ms());
        }
    }
}
