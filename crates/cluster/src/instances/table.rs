//! The table of this node's instances: one slot for each, from its start to its end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use protocol::Secret;
use store::Digest;

use super::owned::{Owned, WORKERS_BITS};
use crate::context::ServedFile;
use crate::context::{Context, Prepared};
use crate::wire::WorkerId;

/// This node's data of an instance.
#[derive(Default)]
pub(crate) struct Slot {
    pub current: Option<Owned>,
    /// Loads beside the current one, to replace it.
    pub successor: Option<Owned>,
    /// The file of an instance that is not in memory.
    pub unloaded: Option<Arc<Prepared>>,
    /// The state of its start.
    pub start: Option<Starting>,
}

#[derive(Debug)]
pub(crate) enum Starting {
    /// Its file is being read.
    Opening,
    /// Waits for memory that other models are about to free; since when, and the time of the last
    /// check.
    Waiting { since: Duration, looked: Duration },
    /// The reason and the time.
    Failed(String, Duration),
}

impl Slot {
    fn is_empty(&self) -> bool {
        let (instances, unloaded) = ((&self.current, &self.successor), &self.unloaded);
        matches!((instances, unloaded, &self.start), ((None, None), None, None))
    }
}

#[derive(Default)]
pub(crate) struct Table {
    slots: BTreeMap<String, Slot>,
    /// Number of instances that this daemon has made; gives each its own worker numbers.
    made: u64,
}

impl Table {
    /// The slot of an instance; created if missing.
    pub(super) fn slot(&mut self, id: &str) -> &mut Slot {
        self.slots.entry(id.to_owned()).or_default()
    }

    /// Drops empty slots.
    pub(super) fn prune(&mut self) {
        self.slots.retain(|_, slot| !slot.is_empty());
    }

    pub(crate) fn get(&self, id: &str) -> Option<&Owned> {
        self.slots.get(id)?.current.as_ref()
    }

    pub(super) fn get_mut(&mut self, id: &str) -> Option<&mut Owned> {
        self.slots.get_mut(id)?.current.as_mut()
    }

    pub(crate) fn successor(&self, id: &str) -> Option<&Owned> {
        self.slots.get(id)?.successor.as_ref()
    }

    pub(super) fn successor_mut(&mut self, id: &str) -> Option<&mut Owned> {
        self.slots.get_mut(id)?.successor.as_mut()
    }

    pub(super) fn take_current(&mut self, id: &str) -> Option<Owned> {
        self.slots.get_mut(id)?.current.take()
    }

    pub(super) fn take_successor(&mut self, id: &str) -> Option<Owned> {
        self.slots.get_mut(id)?.successor.take()
    }

    pub(super) fn take_unloaded(&mut self, id: &str) -> Option<Arc<Prepared>> {
        self.slots.get_mut(id)?.unloaded.take()
    }

    pub(super) fn take_start(&mut self, id: &str) -> Option<Starting> {
        self.slots.get_mut(id)?.start.take()
    }

    pub(super) fn unloaded(&self, id: &str) -> Option<&Arc<Prepared>> {
        self.slots.get(id)?.unloaded.as_ref()
    }

    pub(super) fn start(&self, id: &str) -> Option<&Starting> {
        self.slots.get(id)?.start.as_ref()
    }

    pub(super) fn start_mut(&mut self, id: &str) -> Option<&mut Starting> {
        self.slots.get_mut(id)?.start.as_mut()
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = (&String, &Slot)> {
        self.slots.iter()
    }

    pub(crate) fn current(&self) -> impl Iterator<Item = (&String, &Owned)> {
        self.slots.iter().filter_map(|(id, slot)| Some((id, slot.current.as_ref()?)))
    }

    pub(super) fn current_mut(&mut self) -> impl Iterator<Item = (&String, &mut Owned)> {
        self.slots.iter_mut().filter_map(|(id, slot)| Some((id, slot.current.as_mut()?)))
    }

    pub(super) fn successors(&self) -> impl Iterator<Item = (&String, &Owned)> {
        self.slots.iter().filter_map(|(id, slot)| Some((id, slot.successor.as_ref()?)))
    }

    pub(super) fn running_mut(&mut self) -> impl Iterator<Item = &mut Owned> {
        self.slots.values_mut().flat_map(|slot| slot.current.iter_mut().chain(&mut slot.successor))
    }

    /// Clears what starts wait for, or why they failed, but for these instances. A file that is
    /// being read stays noted, so that it is read once.
    pub(super) fn retain_starts(&mut self, keeps: impl Fn(&str) -> bool) {
        for (id, slot) in &mut self.slots {
            slot.start.take_if(|start| !matches!(start, Starting::Opening) && !keeps(id));
        }
    }

    /// All instances that run or load.
    pub(super) fn running(&self) -> impl Iterator<Item = (&String, &Owned)> {
        self.current().chain(self.successors())
    }

    pub(super) fn ids(&self) -> Vec<String> {
        self.current().map(|(id, _)| id.clone()).collect()
    }

    pub(super) fn successor_ids(&self) -> Vec<String> {
        self.successors().map(|(id, _)| id.clone()).collect()
    }

    /// The instance of this id or name, if this node runs it.
    pub(super) fn find(&self, name: &str) -> Option<&String> {
        let is_it = |id: &str, owned: &Owned| id == name || owned.machine.fixed().model == name;
        self.current().find(|(id, owned)| is_it(id, owned)).map(|(id, _)| id)
    }

    /// The instance of a worker's number, and whether it is the current one.
    pub(super) fn of_worker(&self, worker: WorkerId) -> Option<(&String, &Owned, bool)> {
        let current = self.current().map(|(id, owned)| (id, owned, true));
        let successors = self.successors().map(|(id, owned)| (id, owned, false));
        current.chain(successors).find(|(_, owned, _)| owned.has_number(worker))
    }

    /// The file of a placed or unloaded model.
    pub(super) fn file(&self, digest: Digest) -> Option<&Arc<ServedFile>> {
        let running = self.running().map(|(_, owned)| &owned.prepared);
        let unloaded = self.slots.values().filter_map(|slot| slot.unloaded.as_ref());
        let found = running.chain(unloaded).find(|prepared| prepared.found.digest == digest)?;
        Some(&found.file)
    }

    /// The secret and the first worker number of a new instance, or of an instance's next run.
    pub(super) fn number(&mut self, ctx: &mut Context) -> (Secret, WorkerId) {
        self.made += 1;
        (Secret(ctx.outside.random()), self.made << WORKERS_BITS)
    }

    /// The deadline of the first instance that has one.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.running().filter_map(|(_, owned)| owned.machine.deadline()).min()
    }
}
