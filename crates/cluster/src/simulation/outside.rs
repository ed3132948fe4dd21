//! The outside of a simulated daemon: records its calls, and returns the time that the world sets.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use gguf::Directory;
use protocol::WorkerCommand;
use store::Digest;
use tokio::sync::mpsc;

use super::address;
use crate::context::sources::Sources;
use crate::context::{Announcement, Attempt, Done, HeaderOf, Outside, ProcessId, Reply, Start};
use crate::desired::{Document, Service, Signer};
use crate::edge::Depth;
use crate::members::Members;
use crate::membership::ConnId;
use crate::secrets::code::JoinCode;
use crate::wire::{Message, Verdict, Versions};
use crate::{GenerateEvent, Joined, NodeId, PullStatus};

/// A recorded call of a daemon.
pub(super) enum Act {
    Dial(NodeId),
    Keep(ConnId),
    Refuse(ConnId, String, Option<Verdict>),
    Close(ConnId),
    Send(ConnId, Message),
    Write(Option<Document>, Option<Done>),
    Locate(Digest),
    Open(Box<Service>),
    Start(Box<Start>),
    Command(ProcessId, WorkerCommand),
    End(ProcessId),
    MeasureReading,
    MeasureWay(NodeId, SocketAddr),
}

/// The state shared by a daemon and its world.
#[derive(Default)]
pub(super) struct Shared {
    node: usize,
    now_us: AtomicU64,
    acts: Mutex<Vec<Act>>,
    seed: u64,
}

impl Shared {
    pub(super) fn new(node: usize, seed: u64) -> Self {
        Self { node, seed, ..Self::default() }
    }

    pub(super) fn set_now(&self, us: u64) {
        self.now_us.store(us, Ordering::Relaxed);
    }

    pub(super) fn take_acts(&self) -> Vec<Act> {
        std::mem::take(&mut self.acts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, act: Act) {
        self.acts.lock().unwrap_or_else(PoisonError::into_inner).push(act);
    }
}

pub(super) struct SimulatedOutside(pub Arc<Shared>, pub Rng);

impl SimulatedOutside {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let random = Rng::with_seed(shared.seed);
        Self(shared, random)
    }
}

impl Outside for SimulatedOutside {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.now_us.load(Ordering::Relaxed))
    }

    fn unix_ms(&self) -> u64 {
        self.now().as_millis() as u64
    }

    fn downloads(&self) -> Vec<PullStatus> {
        Vec::new()
    }

    fn random(&mut self) -> [u8; 32] {
        let mut bytes = [0; 32];
        self.1.fill(&mut bytes);
        bytes
    }

    fn signer(&self) -> Signer {
        Signer::of_nobody()
    }

    fn versions(&self) -> Versions {
        Versions::CURRENT
    }

    fn addresses(&self) -> Vec<SocketAddr> {
        vec![address(self.0.node)]
    }

    fn dial(&mut self, peer: NodeId, _: Vec<SocketAddr>) {
        self.0.push(Act::Dial(peer));
    }

    fn keep(&mut self, conn: ConnId) {
        self.0.push(Act::Keep(conn));
    }

    fn refuse(&mut self, conn: ConnId, reason: String, verdict: Option<Verdict>) {
        self.0.push(Act::Refuse(conn, reason, verdict));
    }

    fn close(&mut self, conn: ConnId) {
        self.0.push(Act::Close(conn));
    }

    fn send(&mut self, conn: ConnId, message: Message) {
        self.0.push(Act::Send(conn, message));
    }

    fn announce(&mut self, _: Announcement) {}

    fn pair(&mut self, _: Attempt) {}

    fn unite(&mut self, _: Option<NodeId>, _: Vec<SocketAddr>, _: Members) {}

    fn keep_members(&mut self, _: Members) {}

    fn when_members_kept(&mut self, done: Done) {
        self.0.push(Act::Write(None, Some(done)));
    }

    fn keep_desired(&mut self, document: Document) {
        self.0.push(Act::Write(Some(document), None));
    }

    fn when_desired_kept(&mut self, done: Done) {
        self.0.push(Act::Write(None, Some(done)));
    }

    fn locate(&mut self, digest: Digest, _: Service) {
        self.0.push(Act::Locate(digest));
    }

    fn open(&mut self, wanted: Service) {
        self.0.push(Act::Open(Box::new(wanted)));
    }

    /// No model has `--copies` here.
    fn copy(&mut self, _: Service, _: Sources) {}

    fn start_worker(&mut self, start: Start) {
        self.0.push(Act::Start(Box::new(start)));
    }

    fn command(&mut self, key: ProcessId, command: WorkerCommand) {
        self.0.push(Act::Command(key, command));
    }

    fn end_worker(&mut self, key: ProcessId, _: bool) {
        self.0.push(Act::End(key));
    }

    /// The world itself reports when a client leaves.
    fn watch_client(&mut self, _: u64, _: mpsc::UnboundedSender<GenerateEvent>) {}

    fn ask_to_join(&mut self, _: JoinCode, _: Reply<Joined>) {}

    fn read_header(&mut self, _: PathBuf, _: HeaderOf, _: Reply<Arc<Directory>>) {}
    fn fetch_header(&mut self, _: Sources, _: HeaderOf, _: Reply<Arc<Directory>>) {}

    fn measure_reading(&mut self) {
        self.0.push(Act::MeasureReading);
    }

    fn measure_way(&mut self, peer: NodeId, address: SocketAddr, _: Depth) {
        self.0.push(Act::MeasureWay(peer, address));
    }

    fn sense(&mut self) {}
}
