//! All state of a node, and what it decides. Everything that happens reaches it as a [`Call`] or an
//! [`Event`]; it feeds the state machines with them and has [`Outside`] do what they ask for. It
//! knows no sockets, processes, files and clocks, and never waits, so that [`driver`] can run it on
//! a real [`system`], and a simulation whole clusters of it.

mod adopting;
mod apart;
mod conn;
mod copying;
mod deciding;
mod desiring;
mod draining;
mod driver;
mod hosting;
mod inputs;
mod joining;
mod leaving;
#[cfg(test)]
mod lies;
mod listening;
mod moving;
mod outside;
mod owning;
mod pairing;
mod peers;
mod placing;
mod prepared;
mod processes;
mod publish;
mod reporting;
mod requests;
mod rerouting;
mod resting;
#[cfg(test)]
mod simulation;
mod slow_links;
mod streams;
mod system;
#[cfg(test)]
mod tests;
mod twin;
mod uniting;
mod waiting;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use protocol::RequestId;
use store::Digest;
use tokio::sync::watch;

use crate::desired::{Desired, Document};
use crate::given;
use crate::growth::Growth;
use crate::instance::Instance;
use crate::invites::Invites;
use crate::journal::Journal;
use crate::kept::Saver;
use crate::machine::{Machine, Sensors};
use crate::members::Members;
use crate::membership::{self, ConnId, HEARTBEAT, Membership};
use crate::nearby::Nearby;
use crate::rdma_ways::RdmaWays;
use crate::remeasuring::Remeasuring;
use crate::ways::Ways;
use crate::wire::Versions;
use crate::{ClusterStatus, GenerateEvent, NodeConfig, NodeId, PullStatus, Result};

pub(crate) use driver::{INPUTS_MAX, run};
use inputs::Reply;
pub(crate) use inputs::{Call, Event, Events};
pub(crate) use listening::listen;
use outside::{Outside, ProcessId};
pub(crate) use prepared::{Prepared, draft_bytes};
pub(crate) use system::System;

/// Half a heartbeat, so that silence is noticed in time.
const TICK: Duration = Duration::from_millis(250);

/// What keeps the state of a node on disk.
pub(crate) struct Kept {
    pub members: Arc<Saver<Members>>,
    pub desired: Arc<Saver<Document>>,
}

/// A model that this node owns, and what its state machine does not know.
struct Owned {
    machine: Instance,
    prepared: Arc<Prepared>,
    sinks: BTreeMap<RequestId, requests::Sink>,
    /// Why it is placed as it is.
    why: Vec<String>,
    prediction: Option<placement::Prediction>,
    reviewed: moving::Reviewed,
    /// What the ways to its ranks' nodes could do when those came to be.
    links: BTreeMap<NodeId, placement::LinkSpeed>,
    rest: resting::Rest,
}

pub(crate) struct Daemon {
    config: NodeConfig,
    me: NodeId,
    /// Drawn at random when the daemon starts.
    boot: u64,
    /// Where it listens.
    listen: SocketAddr,
    versions: Versions,
    outside: Box<dyn Outside>,
    status: watch::Sender<Arc<ClusterStatus>>,
    dirty: bool,
    ticks: u64,
    journal: Journal,
    /// Of this node's threads together, once it is measured.
    /// Where members may be that a person named.
    given: Vec<SocketAddr>,
    speed: Option<placement::Speed>,
    remeasuring: Remeasuring,
    machine: Machine,
    sensors: Sensors,
    /// The models that this node is fetching, as the others were told last.
    downloads: Vec<PullStatus>,
    ways: Ways,
    rdma_ways: RdmaWays,
    /// Whether the others should hear at once what was measured, or how far a download is.
    has_news: bool,
    membership: Membership,
    invites: Invites,
    conns: BTreeMap<ConnId, peers::PeerConn>,
    views: BTreeMap<NodeId, peers::View>,
    /// Why members do not let this node in, in their words.
    refusals: BTreeMap<NodeId, peers::Refusal>,
    joining: Vec<joining::Joining>,
    nearby: Nearby,
    uniting: uniting::Uniting,
    pairs: pairing::Pairs,
    /// Why this node belongs to no cluster any more, if it did.
    parted: Option<String>,
    twin: twin::Twin,

    desired: Desired,
    duties: desiring::Duties,
    /// What a person should know of the files that were found damaged.
    told: Vec<String>,
    /// Models whose bytes were found damaged, on which node, and which MiB, from 0.
    damage: BTreeMap<(NodeId, Digest), Option<u64>>,

    /// By instance id.
    owned: BTreeMap<String, Owned>,
    /// What is being loaded beside what runs, to take its place. By instance id.
    successors: BTreeMap<String, Owned>,
    /// Of this node's instances that are in nobody's memory, by id.
    unloaded: BTreeMap<String, Arc<Prepared>>,
    growth: Growth,
    apart: apart::Pairs,
    instances_made: u64,
    workers: BTreeMap<hosting::WorkerKey, hosting::Hosted>,
    next_process: ProcessId,
    /// Of this node's clients.
    streams: BTreeMap<u64, streams::Stream>,
    next_stream: u64,
}

impl Daemon {
    pub(crate) fn new(
        config: NodeConfig,
        (me, boot, listen): (NodeId, u64, SocketAddr),
        (document, told): (Document, Vec<String>),
        status: watch::Sender<Arc<ClusterStatus>>,
        outside: Box<dyn Outside>,
    ) -> Self {
        Self {
            remeasuring: Remeasuring::new(me, config.fleet_key.is_some()),
            membership: Membership::new(me, outside.now()),
            desired: Desired::new(me, document, outside.signer()).called(&config.name),
            given: given::addresses(&config.peers),
            config,
            me,
            boot,
            listen,
            versions: outside.versions(),
            outside,
            status,
            dirty: true,
            ticks: 0,
            journal: Journal::default(),
            speed: None,
            machine: Machine::default(),
            sensors: Sensors::default(),
            downloads: Vec::new(),
            ways: Ways::default(),
            rdma_ways: RdmaWays::default(),
            has_news: false,
            invites: Invites::default(),
            conns: BTreeMap::new(),
            views: BTreeMap::new(),
            refusals: BTreeMap::new(),
            joining: Vec::new(),
            nearby: Nearby::default(),
            uniting: uniting::Uniting::default(),
            pairs: pairing::Pairs::default(),
            parted: None,
            twin: twin::Twin::default(),
            duties: desiring::Duties::default(),
            told,
            damage: BTreeMap::new(),
            owned: BTreeMap::new(),
            successors: BTreeMap::new(),
            unloaded: BTreeMap::new(),
            growth: Growth::default(),
            apart: apart::Pairs::default(),
            instances_made: 0,
            workers: BTreeMap::new(),
            next_process: 0,
            streams: BTreeMap::new(),
            next_stream: 0,
        }
    }

    /// Begins to look for the members that it remembers.
    fn start(&mut self, remembered: Members) {
        self.step_membership(membership::Input::Learned { members: remembered, by: None });
        self.announce();
        self.outside.sense();
    }

    /// After every event: what has changed may let requests go on.
    fn settle_streams(&mut self) {
        if self.dirty {
            self.resume_streams();
        }
    }

    fn call(&mut self, call: Call) {
        self.dirty = true;
        // A caller that has stopped waiting is no reason to undo what it asked for.
        match call {
            Call::Invite { ttl, reply } => drop(reply.send(Ok(self.invite(ttl)))),
            Call::Join { code, reply } => self.join(&code, reply),
            Call::Remove { name, reply } => self.remove(&name, reply),
            Call::Leave { reply } => self.leave(reply),
            Call::Pair { with, reply } => self.pair(with, reply),
            Call::Accept { number, node, reply } => self.accept(&number, node.as_deref(), reply),
            Call::RefuseRequest { node, reply } => self.refuse_request(&node, reply),
            Call::Pairing { reply } => drop(reply.send(Ok(self.pairing()))),
            Call::Serve { prepared, reply } => {
                let outcome = self.serve(*prepared);
                self.answer_when_kept(reply, outcome);
            }
            Call::Plan { prepared, reply } => drop(reply.send(self.plan(&prepared))),
            Call::Stop { name, reply } => {
                let outcome = self.stop(&name);
                self.answer_when_kept(reply, outcome);
            }
            Call::Drain { node, models, reply } => {
                let outcome = self.drain(node, &models);
                self.answer_when_kept(reply, outcome);
            }
            Call::Undrain { node, reply } => {
                self.set_drained(node, false);
                self.answer_when_kept(reply, Ok(()));
            }
            Call::Generate { name, request, reply } => {
                drop(reply.send(self.generate(&name, *request)));
            }
            Call::Header { name, reply } => self.header(&name, reply),
            Call::Shutdown { reply } => drop(reply),
        }
    }

    /// Whoever is told that something is served, or stopped, may rely on it after a power cut.
    fn answer_when_kept<T: Send + 'static>(&mut self, reply: Reply<T>, outcome: Result<T>) {
        self.publish();
        // A caller that has stopped waiting needs no answer.
        match outcome {
            Err(error) => drop(reply.send(Err(error))),
            Ok(value) => self.outside.when_desired_kept(Box::new(|kept| {
                drop(reply.send(kept.map(|()| value)));
            })),
        }
    }

    fn input(&mut self, input: Event) {
        match input {
            Event::Connected(opened) => self.connected(opened),
            Event::DialFailed { peer, error } => self.dial_failed(peer, &error),
            Event::Received { conn, message } => self.received(conn, message),
            Event::Heard { conn } => self.heard(conn),
            Event::Closed { conn, reason } => {
                self.step_membership(membership::Input::Closed { conn, reason })
            }
            Event::Sighted(sighting) => self.sighted(sighting),
            Event::Vanished(id) => self.dirty |= self.nearby.forget(&id),
            Event::JoinAsked { member, secret, from, reply } => {
                self.join_asked(member, (&secret, from), reply)
            }
            Event::JoinLost { peer, secret } => self.join_lost(peer, &secret),
            Event::JoinDone { kept, by, members, reply } => {
                self.join_done(by, members, kept, reply);
            }
            Event::FleetAsked { peer, members, reply } => self.fleet_asked(peer, members, reply),
            Event::United { peer, members } => self.united(peer, members),
            Event::Pair(event) => self.pair_event(event),
            Event::LeaveAsked { peer, reply } => self.leave_asked(peer, reply),
            Event::ProbeAsked { peer, reply } => {
                // A visitor that has left needs no answer.
                let _ = reply.send(peer == self.me || self.membership.is_member(peer));
            }
            Event::ReadSpeed(speed) => self.speed_measured(speed),
            Event::Measured { peer, address, found } => self.measured(peer, address, found),
            Event::PeersFound(addresses) => self.given = addresses,
            Event::Sensed(machine, sensors) => self.sensed(machine, sensors),
            Event::BulkAsked { peer, digest, reply } => {
                drop(reply.send(self.file_for(peer, digest)));
            }
            Event::Damaged { node, digest, group } => self.damaged(node, digest, group),
            Event::Copied { digest, copied } => self.copied(digest, copied),
            Event::WorkerStarted { process, started } => self.worker_started(process, started),
            Event::Worker { process, news } => self.worker_news(process, news),
            Event::Located { digest, path } => self.located(digest, path),
            Event::Opened { id, opened } => self.opened(&id, opened),
            Event::Abandoned { stream } => self.abandoned(stream),
        }
    }

    fn tick(&mut self) {
        self.ticks += 1;
        self.step_membership(membership::Input::Tick);
        if self.ticks.is_multiple_of(HEARTBEAT.as_millis() as u64 / TICK.as_millis() as u64) {
            self.send_heartbeats();
        } else {
            self.send_signs_of_life();
        }
        self.look_elsewhere();
        self.reconcile();
        self.tick_ways();
        self.tick_instances();
        self.look_at_late_links();
        self.forget_apart();
        self.review_placements();
        self.unload_idle();
        self.end_orphans();
        self.resume_streams();
        self.end_long_waits();
        self.finish_joining();
        self.unite_due();
        self.expire_requests();
        self.pair_undecided();
        self.let_go_of_decisions(None);
    }

    fn now(&self) -> Duration {
        self.outside.now()
    }

    fn random_u32(&mut self) -> u32 {
        let [a, b, c, d, ..] = self.outside.random();
        u32::from_le_bytes([a, b, c, d])
    }

    /// When the next instance wants to be ticked, if one does before the next regular tick.
    fn next_deadline(&self) -> Option<Duration> {
        let all = self.owned.values().chain(self.successors.values());
        all.filter_map(|owned| owned.machine.deadline()).min()
    }

    /// Ends all instances, streams and workers.
    fn end_all(&mut self) {
        self.release_all("its node shuts down");
        self.end_streams();
        self.end_all_workers();
    }

    /// Where a node can be called, this one included.
    fn addresses_of(&self, id: NodeId) -> Vec<SocketAddr> {
        if id == self.me {
            return self.outside.addresses();
        }
        let member = self.membership.members().find(|member| member.id == id);
        member.map(|member| member.addresses.clone()).unwrap_or_default()
    }
}
