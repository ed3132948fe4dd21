//! What is to be served, and what this node does for it: keeps the document with the others, takes
//! over what has lost its owner, starts what it owns, ends what it no longer does.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use store::Digest;
use tracing::{info, warn};

use super::copying::Copying;
use super::{Daemon, Prepared};
use crate::desired::{Document, Drain, Entry, Files, Seen, Version, Wanted};
use crate::membership::ConnId;
use crate::wire::Message;
use crate::{InstanceState, InstanceStatus, NodeId};

/// A node that has just started listens for so long before it acts, so that it does not act on what
/// the others know better by now: a little more than the second call takes between two nodes.
const SETTLE_MAX: Duration = Duration::from_secs(4);
/// After so long without its owner an instance may be said to be reached through another node.
const ROUND_AFTER: Duration = Duration::from_secs(2);
/// How often a file that was missing, or could not be opened, is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

/// What this node knows of the files of what is to be served.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Found {
    Looking,
    Here(PathBuf),
    /// Not here, when it was looked for last.
    Missing(Duration),
}

/// Where the start of an instance that this node owns is.
#[derive(Debug)]
pub(super) enum Starting {
    Opening,
    /// Memory that others are about to free; since when, and when that was looked at last.
    Waiting {
        since: Duration,
        looked: Duration,
    },
    /// It could not be started, why, and when that was.
    Failed(String, Duration),
}

/// What starting an instance waits for, and what is known of files.
#[derive(Debug, Default)]
pub(super) struct Duties {
    /// Whether this node has heard the others since it started.
    settled: bool,
    files: BTreeMap<Digest, Found>,
    /// By instance id.
    starting: BTreeMap<String, Starting>,
    /// Of files that too few nodes have.
    pub(super) copying: BTreeMap<Digest, Copying>,
}

impl Duties {
    pub(super) fn has_settled(&self) -> bool {
        self.settled
    }

    /// Whether an instance waits for memory that others are about to free.
    pub(super) fn waits_for_room(&self, id: &str) -> bool {
        matches!(self.starting.get(id), Some(Starting::Waiting { .. }))
    }

    /// Where this node has the file of what is to be served, as far as it is known.
    pub(super) fn file_here(&self, digest: &Digest) -> Option<&PathBuf> {
        match self.files.get(digest)? {
            Found::Here(path) => Some(path),
            Found::Looking | Found::Missing(_) => None,
        }
    }
}

impl Daemon {
    /// Everybody shall know and keep these; `from` does already.
    pub(super) fn desired_changed(&mut self, news: impl Into<Document>, from: Option<ConnId>) {
        let news = news.into();
        if news.is_empty() {
            return;
        }
        self.dirty = true;
        self.outside.keep_desired(self.desired.document());
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        for conn in conns.into_iter().filter(|conn| Some(*conn) != from) {
            self.send(conn, Message::Desired(news.clone()));
        }
    }

    /// What a member knows.
    pub(super) fn desired_told(&mut self, mut told: Document, from: ConnId) {
        if let (true, Some(teller)) = (self.desired.strip_forged(&mut told), self.conns.get(&from))
        {
            self.disbelieve(teller.peer, "what another node wants served");
        }
        let news = self.desired.merge(told);
        for Entry { name, wanted, claim, .. } in &news.entries {
            let owner = self.node_name(claim.node);
            info!(name, owner, served = wanted.is_some(), "told what is to be served");
        }
        for Drain { node, is_on, .. } in &news.drains {
            info!(node = self.node_name(*node), is_on, "told whether a node is to be empty");
        }
        self.desired_changed(news, Some(from));
        self.reconcile();
    }

    /// A member whose document differs is told this node's; it does the same.
    pub(super) fn compare_documents(&mut self, conn: ConnId, fingerprint: u64) {
        if fingerprint != self.desired.fingerprint() {
            let document = self.desired.document();
            self.send(conn, Message::Desired(document));
        }
    }

    /// Does whatever the document and the members ask of this node.
    pub(super) fn reconcile(&mut self) {
        self.settle();
        self.look_for_files();
        if self.duties.settled {
            self.take_over();
        }
        // Before anything is started: the memory of what ends is free to plan with.
        self.end_superseded();
        self.forget_unloaded();
        if self.duties.settled {
            self.inherit();
            self.start_owned();
            self.keep_copies();
        }
    }

    /// A document that is the same as everybody's is the latest.
    fn settle(&mut self) {
        if self.duties.settled {
            return;
        }
        let fingerprint = self.desired.fingerprint();
        let heard = |id: NodeId| {
            let heartbeat = self.views.get(&id).and_then(|view| view.heartbeat.as_ref());
            heartbeat.is_some_and(|heartbeat| heartbeat.document == fingerprint)
        };
        let all = self.membership.members().all(|member| heard(member.id));
        self.duties.settled = all || self.now() >= SETTLE_MAX;
        self.dirty |= self.duties.settled;
    }

    /// Ends what was stopped, what another node owns now, and workers of former owners.
    fn end_superseded(&mut self) {
        let owned = self.owned.iter().map(|(id, owned)| (id, owned.machine.fixed().claim));
        let over: Vec<String> = owned
            .filter(|(id, claim)| !self.is_current(id, *claim))
            .map(|(id, _)| id.clone())
            .collect();
        self.abandon_superseded();
        for id in over {
            let reason = match self.desired.find(&id) {
                Some((entry, _)) => {
                    format!("node {} has taken it over", self.node_name(entry.owner()))
                }
                None => "it was stopped".to_owned(),
            };
            self.release(&id, &reason);
        }
        self.leave_former_owners();
    }

    /// Whether an instance is to be served, and its owner is still the one of that claim.
    pub(super) fn is_current(&self, id: &str, claim: Version) -> bool {
        self.desired.find(id).is_some_and(|(entry, _)| entry.claim == claim)
    }

    fn look_for_files(&mut self) {
        let now = self.now();
        let wanted: BTreeMap<Digest, Wanted> =
            self.desired.wanted().map(|(_, wanted)| (wanted.digest, wanted.clone())).collect();
        self.duties.files.retain(|digest, _| wanted.contains_key(digest));
        for (digest, wanted) in wanted {
            let is_due = match self.duties.files.get(&digest) {
                None => true,
                Some(Found::Missing(since)) => now.saturating_sub(*since) >= LOOK_AGAIN,
                Some(Found::Looking | Found::Here(_)) => false,
            };
            if !is_due {
                continue;
            }
            // One that was missing stays so until it is found.
            self.duties.files.entry(digest).or_insert(Found::Looking);
            self.outside.locate(digest, wanted);
        }
    }

    pub(super) fn located(&mut self, digest: Digest, path: Option<PathBuf>) {
        let before = self.files();
        let found = path.map_or(Found::Missing(self.now()), Found::Here);
        self.duties.files.insert(digest, found);
        if self.files() != before {
            self.send_heartbeats();
        }
    }

    /// Which of the files of what is to be served are here, as far as it is known.
    pub(super) fn files(&self) -> Files {
        let known = self.duties.files.iter().filter(|(_, found)| **found != Found::Looking);
        known.map(|(digest, found)| (*digest, matches!(found, Found::Here(_)))).collect()
    }

    /// The members that can be reached, as they last told of themselves.
    pub(super) fn seen(&self) -> Vec<Seen> {
        let reachable = self.membership.members().filter_map(|member| {
            self.membership.conn(member.id)?;
            let heartbeat = self.views.get(&member.id)?.heartbeat.as_ref()?;
            let (sees, files) = (heartbeat.sees.clone(), heartbeat.files.clone());
            Some(Seen { node: member.id, name: member.name.clone(), sees, files })
        });
        reachable.collect()
    }

    fn take_over(&mut self) {
        let (peers, files, now) = (self.seen(), self.files(), self.now());
        let claims = self.desired.take_over(&files, &peers, now);
        for Entry { name, .. } in &claims {
            warn!(name, "its owner is gone; this node takes it over");
        }
        self.desired_changed(claims, None);
    }

    /// Opens the files of what this node owns and does not run yet. Of what is unloaded it needs
    /// the header.
    fn start_owned(&mut self) {
        let (me, now) = (self.me, self.now());
        let mine = self.desired.wanted().filter(|(entry, _)| entry.owner() == me);
        let is_due = |id: &str| match self.duties.starting.get(id) {
            None => !self.owned.contains_key(id) && !self.unloaded.contains_key(id),
            Some(Starting::Opening) => false,
            Some(Starting::Waiting { looked, .. }) => {
                now.saturating_sub(*looked) >= super::resting::ROOM_LOOK
            }
            Some(Starting::Failed(_, since)) => now.saturating_sub(*since) >= LOOK_AGAIN,
        };
        let due: Vec<Wanted> =
            mine.map(|(_, wanted)| wanted.clone()).filter(|wanted| is_due(&wanted.id)).collect();
        due.into_iter().for_each(|wanted| self.open(wanted));
    }

    /// Reads from disk what starting an instance takes; `opened` gets it.
    pub(super) fn open(&mut self, wanted: Wanted) {
        // What waits for memory goes on waiting while it is read again.
        let waits = matches!(self.duties.starting.get(&wanted.id), Some(Starting::Waiting { .. }));
        if !waits {
            self.duties.starting.insert(wanted.id.clone(), Starting::Opening);
        } else if let Some(Starting::Waiting { looked, .. }) =
            self.duties.starting.get_mut(&wanted.id)
        {
            *looked = self.outside.now();
        }
        self.outside.open(wanted);
    }

    pub(super) fn is_opening(&self, id: &str) -> bool {
        self.duties.starting.contains_key(id)
    }

    /// Starts an instance whose file is open now, unless another node has taken it over meanwhile.
    pub(super) fn opened(&mut self, id: &str, opened: Result<Box<Prepared>, String>) {
        self.dirty = true;
        let waiting = self.duties.starting.remove(id);
        let Some((entry, _)) = self.desired.find(id) else { return };
        let entry = entry.clone();
        if self.owned.contains_key(id) {
            return;
        }
        match opened {
            Ok(prepared) if entry.owner() != self.me => {
                self.prepare_to_own(id, entry, *prepared);
            }
            Ok(prepared) if entry.unloaded => {
                self.unloaded.insert(id.to_owned(), prepared.into());
            }
            Ok(prepared) => {
                let since = match waiting {
                    Some(Starting::Waiting { since, .. }) => since,
                    _ => self.now(),
                };
                if self.must_wait_for_room(&prepared, since) {
                    let waiting = Starting::Waiting { since, looked: self.now() };
                    self.duties.starting.insert(id.to_owned(), waiting);
                } else {
                    self.own_again(id, entry, *prepared);
                }
            }
            Err(why) => {
                warn!(instance = id, why, "what this node owns cannot be started");
                let now = self.now();
                self.duties.starting.insert(id.to_owned(), Starting::Failed(why, now));
                // Another node may have the file.
                let digest = self.desired.find(id).map(|(_, wanted)| wanted.digest);
                if let Some(digest) = digest {
                    self.located(digest, None);
                }
            }
        }
    }

    /// An instance that is to be served, as far as this node knows without running it.
    pub(super) fn status_of(&self, entry: &Entry, wanted: &Wanted) -> InstanceStatus {
        let owner = entry.owner();
        let told = self.views.get(&owner).filter(|_| self.membership.conn(owner).is_some());
        let heartbeat = told.and_then(|view| view.heartbeat.as_ref());
        let mut instances = heartbeat.into_iter().flat_map(|heartbeat| &heartbeat.instances);
        let is_told = instances.find(|status| status.id == wanted.id);
        if let Some(status) = is_told.filter(|_| !entry.unloaded) {
            let model = entry.name.clone();
            return InstanceStatus { model, owner, ..status.clone() };
        }
        let state = match self.duties.starting.get(&wanted.id) {
            Some(Starting::Failed(reason, _)) if self.has_heir(wanted) => {
                let reason = format!("{reason}; another node takes it over");
                InstanceState::Recovering { reason }
            }
            Some(Starting::Failed(reason, _)) => InstanceState::Failed { reason: reason.clone() },
            _ if owner != self.me && heartbeat.is_none() => {
                InstanceState::Recovering { reason: self.why_without_owner(entry, wanted) }
            }
            _ if entry.unloaded => InstanceState::Unloaded,
            _ => InstanceState::Loading,
        };
        InstanceStatus {
            id: wanted.id.clone(),
            model: entry.name.clone(),
            digest: Some(wanted.digest),
            model_bytes: wanted.bytes,
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
            keep_alive: wanted.spec.keep_alive,
            idle_since_unix_s: None,
            unloads_at_unix_s: None,
        }
    }

    /// Whether this node, or one that it reaches, has the file and may own the instance.
    pub(super) fn has_heir(&self, wanted: &Wanted) -> bool {
        self.file_holders(wanted).any(|node| !self.desired.is_drained(node))
    }

    /// This node and those that it reaches, as far as they have the file.
    pub(super) fn file_holders(&self, wanted: &Wanted) -> impl Iterator<Item = NodeId> {
        let digest = wanted.digest;
        let has_it = move |id: &NodeId| {
            let heartbeat = self.views.get(id).and_then(|view| view.heartbeat.as_ref());
            heartbeat.is_some_and(|heartbeat| heartbeat.files.contains(&(digest, true)))
        };
        let here = self.duties.file_here(&digest).is_some();
        let me = here.then_some(self.me);
        me.into_iter().chain(self.membership.reachable().filter(has_it))
    }

    fn why_without_owner(&self, entry: &Entry, wanted: &Wanted) -> String {
        let owner = self.node_name(entry.owner());
        // Just after a loss the others have yet to say that they have lost it as well.
        let is_settled = self.gone_for(entry.owner()) > ROUND_AFTER;
        if is_settled && self.way_round(entry.owner()).is_some() {
            return format!("node {owner}, which owns it, is reached only through another node");
        }
        if self.has_heir(wanted) {
            return format!("node {owner}, which owns it, is gone; another one takes it over");
        }
        let gib = wanted.bytes as f64 / (1u64 << 30) as f64;
        if let Some(drained) = self.file_holders(wanted).next() {
            let name = self.node_name(drained);
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
}
