//! Models that are named and in nobody's memory: the first request loads them, and what nobody has
//! asked for anything for as long as was said is unloaded.
//!
//! Whether a model is unloaded stands in the document, beside its owner, and the owner alone
//! changes it: so it stays as it is over restarts and losses, and no two nodes ever load it. The
//! memory of what ends is not free before its processes are gone: `hosting` lets new ones wait.

use std::time::Duration;

use protocol::KeepAlive;
use tracing::info;

use super::placing::{Candidate, plan_somehow};
use super::{Daemon, Owned, Prepared};
use crate::{InstanceState, InstanceStatus};

/// How often a model that waits for memory looks whether there is enough.
pub(super) const ROOM_LOOK: Duration = Duration::from_secs(1);
/// For how long it waits after others were unloaded for it: a process ends within a second or is
/// killed after five, and other nodes tell of theirs twice a second.
const ROOM_MAX: Duration = Duration::from_secs(10);

/// For how long an instance has been idle, and may be.
#[derive(Debug, Default)]
pub(super) struct Rest {
    /// What the last request said that said anything.
    asked: Option<KeepAlive>,
    /// By this node's clock, and by the wall's.
    idle_since: Option<(Duration, u64)>,
}

impl Rest {
    /// A request has come.
    pub(super) fn asked(&mut self, keep_alive: Option<KeepAlive>) {
        self.idle_since = None;
        self.asked = keep_alive.or(self.asked);
    }
}

impl Owned {
    /// For how long it may be idle; `None`: for good.
    fn keep_alive(&self) -> Option<KeepAlive> {
        let said = self.rest.asked.or(self.machine.fixed().spec.keep_alive);
        said.filter(|keep| keep.limit().is_some())
    }

    /// How it stands, for people and other nodes.
    pub(super) fn told(&self) -> InstanceStatus {
        let (keep_alive, since) = (self.keep_alive(), self.rest.idle_since);
        let idle_since_unix_s = since.map(|(_, unix_s)| unix_s);
        let limit = keep_alive.and_then(KeepAlive::limit);
        let unloads_at_unix_s = idle_since_unix_s.zip(limit).map(|(s, keep)| s + keep.as_secs());
        let status = self.machine.status();
        InstanceStatus { keep_alive, idle_since_unix_s, unloads_at_unix_s, ..status }
    }

    /// Whether it works, and nobody asks it for anything.
    fn is_idle(&self) -> bool {
        let works = self.machine.state() == InstanceState::Ready && self.machine.has_generated();
        works && self.machine.is_idle()
    }
}

impl Daemon {
    /// With each tick.
    pub(super) fn unload_idle(&mut self) {
        let now = self.now();
        let unix_s = self.outside.unix_ms() / 1000;
        let mut due = Vec::new();
        for (id, owned) in &mut self.owned {
            if !owned.is_idle() {
                self.dirty |= owned.rest.idle_since.take().is_some();
                continue;
            }
            if owned.rest.idle_since.is_none() {
                owned.rest.idle_since = Some((now, unix_s));
                self.dirty = true;
            }
            let limit = owned.keep_alive().and_then(KeepAlive::limit);
            let idle = owned.rest.idle_since.map(|(since, _)| now.saturating_sub(since));
            if idle.zip(limit).is_some_and(|(idle, limit)| idle >= limit) {
                due.push(id.clone());
            }
        }
        for id in due {
            self.unload(&id, "nobody has asked it for anything for as long as it was to stay");
        }
    }

    /// Ends an instance of this node until somebody asks for it.
    fn unload(&mut self, id: &str, why: &str) {
        let Some(prepared) = self.owned.get(id).map(|owned| owned.prepared.clone()) else { return };
        let Some(entry) = self.desired.set_unloaded(id, true) else { return };
        self.unloaded.insert(id.to_owned(), prepared);
        self.desired_changed(vec![entry], None);
        self.release(id, why);
    }

    /// Loads what is unloaded, if it is.
    pub(super) fn load_on_request(&mut self, id: &str, keep_alive: Option<KeepAlive>) {
        let Some(entry) = self.desired.set_unloaded(id, false) else { return };
        info!(instance = id, model = entry.name, ?keep_alive, "loaded for a request");
        self.unloaded.remove(id);
        self.desired_changed(vec![entry], None);
        self.reconcile();
    }

    /// Whether this node owns an instance, loaded or not.
    pub(super) fn is_mine(&self, id: &str) -> bool {
        self.desired.find(id).is_some_and(|(entry, _)| entry.owner() == self.me)
    }

    /// What is loaded, stopped or another node's now needs no header here.
    pub(super) fn forget_unloaded(&mut self) {
        let (desired, me) = (&self.desired, self.me);
        self.unloaded.retain(|id, _| {
            desired.find(id).is_some_and(|(entry, _)| entry.unloaded && entry.owner() == me)
        });
    }

    /// Whether a model that does not fit now will as soon as others have left; those of this node
    /// that may be unloaded, and that nobody asks for anything, are, the one that was idle for the
    /// longest first.
    pub(super) fn must_wait_for_room(&mut self, prepared: &Prepared, since: Duration) -> bool {
        let (fits, unloaded) = self.unload_for(prepared);
        let leaves = unloaded || self.workers.values().any(|hosted| hosted.ending);
        let waited = self.now().saturating_sub(since);
        !fits && (leaves || waited > Duration::ZERO) && waited < ROOM_MAX
    }

    /// Unloads what may be until a model fits; whether it does, and whether any was.
    pub(super) fn unload_for(&mut self, prepared: &Prepared) -> (bool, bool) {
        let fits = |daemon: &Self| {
            let all = daemon.candidates(None, prepared.spec.options.transport);
            plan_somehow(prepared, all, &prepared.spec).is_ok()
        };
        let mut unloaded = false;
        while !fits(self) {
            let Some(id) = self.longest_idle() else { return (false, unloaded) };
            unloaded = true;
            self.unload(&id, "another model needs its memory");
        }
        (true, unloaded)
    }

    fn longest_idle(&self) -> Option<String> {
        let idle =
            self.owned.iter().filter(|(_, owned)| owned.keep_alive().is_some() && owned.is_idle());
        let since = idle.filter_map(|(id, owned)| Some((owned.rest.idle_since?.0, id)));
        since.min().map(|(_, id)| id.clone())
    }

    /// Counts the memory of all that is served as free.
    pub(super) fn count_as_empty(&self, candidates: &mut [Candidate]) {
        for one in candidates {
            let heartbeat = self.views.get(&one.node).and_then(|view| view.heartbeat.as_ref());
            let whole = match heartbeat {
                Some(heartbeat) => heartbeat.memory_bytes,
                None => self.config.memory_bytes,
            };
            one.memory_free_bytes = whole;
        }
    }

    /// Why a request for an instance that its owner is about to run waits.
    pub(super) fn why_not_yet(&self, id: &str) -> String {
        if self.duties.waits_for_room(id) {
            return "the model waits for the memory of others, which are being unloaded".to_owned();
        }
        "the node that owns the model is starting it".to_owned()
    }
}
