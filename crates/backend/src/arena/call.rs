//! The experts that one layer needs in one step: read ahead, given out, and given back.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use records::Buffer;

use super::error::ArenaError;
use super::lru::Key;
use super::store::{Inner, LoadedExpert, Slot, Wanted};

/// Reads in flight or finished and not used yet. The pool reads 16 at once; as many again keep it
/// busy while it compares slabs with their hashes.
const READS_MAX: usize = 32;

/// A call, which has the arena for itself.
pub(crate) struct Call<'a> {
    inner: MutexGuard<'a, Inner>,
    layer: u32,
    /// In the order of their numbers.
    wanted: Vec<Wanted>,
    /// The first of them that is not done, and the first that nobody has looked for.
    first: usize,
    next: usize,
    /// Those that are being read.
    reads: usize,
    /// Whether a step like this one uses more experts than the arena holds.
    is_scan: bool,
}

impl<'a> Call<'a> {
    pub(super) fn begin(
        mut inner: MutexGuard<'a, Inner>,
        layer: u32,
        experts: impl Iterator<Item = usize>,
    ) -> Self {
        let mut wanted = std::mem::take(&mut inner.wanted);
        wanted.clear();
        wanted.extend(experts.map(|expert| Wanted::new(expert as u32)));
        for Wanted { expert, .. } in &wanted {
            let key = (layer, *expert);
            // What was asked for in advance may still be read.
            match inner.slots.get_mut(key) {
                Some(Slot::Held(_)) => inner.counts.hits += 1,
                _ => inner.counts.misses += 1,
            }
            inner.slots.touch(key);
        }
        inner.ahead_bytes = 0;
        inner.note_hot();
        let bytes = inner.slot_bytes(layer);
        let of_step = bytes * (wanted.len() * inner.layers.len()) as u64;
        let is_scan = of_step > inner.budget_bytes;
        Self { inner, layer, wanted, first: 0, next: 0, reads: 0, is_scan }
    }

    /// Begins to read what is missing, as far as there is room.
    ///
    /// # Errors
    /// Not even the first fits.
    pub fn read_ahead(&mut self) -> Result<(), ArenaError> {
        while let Some(wanted) = self.wanted.get(self.next) {
            let key = (self.layer, wanted.expert);
            if !self.inner.slots.contains(key) {
                if self.reads == READS_MAX {
                    return Ok(());
                }
                let bytes = self.inner.slot_bytes(self.layer);
                let Some(free) = self.make_room(bytes)? else { return Ok(()) };
                self.inner.read(key, free);
                self.wanted[self.next].was_read = true;
                self.reads += 1;
            }
            self.next += 1;
        }
        Ok(())
    }

    /// Makes room for `bytes`; `None` if there is none without an expert that is wanted later. A
    /// buffer that has become free comes with it.
    fn make_room(&mut self, bytes: u64) -> Result<Option<Option<Buffer>>, ArenaError> {
        let mut buffer = None;
        while self.inner.slots.bytes() + bytes > self.inner.budget_bytes {
            let Some(victim) = self.victim() else {
                if self.first < self.next {
                    return Ok(None);
                }
                self.end_stray_read()?;
                continue;
            };
            buffer = self.inner.evict(victim, bytes).or(buffer);
        }
        Ok(Some(buffer))
    }

    /// The expert that goes next: the one used longest ago that this call does not want. If the
    /// call cannot go on, the last one that it wants.
    fn victim(&self) -> Option<Key> {
        let is_held = |slot: &Slot| matches!(slot, Slot::Held(_));
        let is_free = |(key, slot): &(Key, &Slot)| is_held(slot) && !self.is_wanted(*key);
        let free = self.inner.slots.iter().find(is_free).map(|(key, _)| key);
        if free.is_some() || self.first < self.next {
            return free;
        }
        let held = |(_, slot): &(Key, &Slot)| is_held(slot);
        let later = self.inner.slots.iter().filter(held).map(|(key, _)| key);
        later.max_by_key(|key| key.1)
    }

    fn is_wanted(&self, (layer, expert): Key) -> bool {
        let place = |expert| self.wanted.binary_search_by_key(&expert, |wanted| wanted.expert);
        layer == self.layer && place(expert).is_ok_and(|at| !self.wanted[at].is_done)
    }

    /// Waits for a read that an earlier call has left behind.
    fn end_stray_read(&mut self) -> Result<(), ArenaError> {
        let is_reading = |(_, slot): &(Key, &Slot)| matches!(slot, Slot::Reading(_));
        let stray = self.inner.slots.iter().find(is_reading).map(|(key, _)| key);
        let Some(key) = stray else {
            let what = "no expert has room in it".to_owned();
            return Err(ArenaError::Unreadable { what });
        };
        self.inner.slots.remove(key).into_iter().for_each(|slot| match slot {
            Slot::Reading(mut pending) => drop(pending.wait_forever()),
            Slot::Held(_) => {}
        });
        Ok(())
    }

    /// An expert, if it is in memory.
    ///
    /// # Errors
    /// Its slab cannot be read, or is damaged.
    pub fn find(&mut self, expert: usize) -> Result<Option<Arc<LoadedExpert>>, ArenaError> {
        self.get(expert, false)
    }

    /// An expert, as soon as it is in memory.
    ///
    /// # Errors
    /// Its slab cannot be read, or is damaged.
    pub fn wait(&mut self, expert: usize) -> Result<Arc<LoadedExpert>, ArenaError> {
        let start = Instant::now();
        let found = self.get(expert, true);
        self.inner.counts.wait_time += start.elapsed();
        found?.ok_or_else(|| self.failed(expert, "nobody reads it"))
    }

    fn get(&mut self, expert: usize, waits: bool) -> Result<Option<Arc<LoadedExpert>>, ArenaError> {
        let key = (self.layer, expert as u32);
        let read = match self.inner.slots.get_mut(key) {
            None => return Ok(None),
            Some(Slot::Held(expert)) => return Ok(Some(expert.clone())),
            Some(Slot::Reading(pending)) if waits => pending.wait_forever(),
            Some(Slot::Reading(pending)) => pending.try_take(),
        };
        let read = match read {
            None if waits => Err(std::io::ErrorKind::Interrupted.into()),
            None => return Ok(None),
            Some(read) => read,
        };
        self.reads = self.reads.saturating_sub(1);
        let opened = match read {
            Ok(slab) => {
                let shape = &self.inner.layers[self.layer as usize].shape;
                let opened = LoadedExpert::open(shape, expert, slab);
                opened.map_err(|error| self.failed(expert, &error.to_string()))
            }
            Err(error) => Err(self.unreadable(expert, &error)),
        };
        match opened {
            Ok(opened) => {
                let opened = Arc::new(opened);
                if let Some(slot) = self.inner.slots.get_mut(key) {
                    *slot = Slot::Held(opened.clone());
                }
                Ok(Some(opened))
            }
            Err(error) => {
                self.inner.slots.remove(key);
                Err(error)
            }
        }
    }

    /// What a failed read means. A damaged file goes, so that the next start writes it anew.
    fn unreadable(&self, expert: usize, error: &std::io::Error) -> ArenaError {
        let is_damaged = [std::io::ErrorKind::InvalidData, std::io::ErrorKind::UnexpectedEof]
            .contains(&error.kind());
        let is_gone = is_damaged && self.inner.layers[self.layer as usize].source.discard();
        let then = if is_gone { "; the file is written anew at the next start" } else { "" };
        self.failed(expert, &format!("{error}{then}"))
    }

    fn failed(&self, expert: usize, why: &str) -> ArenaError {
        let layer = &self.inner.layers[self.layer as usize];
        let (place, number) = (layer.source.place(), layer.number);
        let what = format!("expert {expert} of layer {number} in {place}: {why}");
        ArenaError::Unreadable { what }
    }

    /// Notes that an expert was used, and is not needed any longer.
    ///
    /// A prompt uses nearly all experts of one layer after another. If those that it has read
    /// stayed, each would have gone when its turn comes again; so they go first, and what was
    /// there before stays.
    pub fn finish(&mut self, expert: usize) {
        let key = (self.layer, expert as u32);
        let place = self.wanted.binary_search_by_key(&(expert as u32), |wanted| wanted.expert);
        let mut was_read = false;
        if let Ok(at) = place {
            self.wanted[at].is_done = true;
            was_read = self.wanted[at].was_read;
        }
        match self.is_scan && was_read {
            true => self.inner.slots.demote(key),
            false => self.inner.slots.touch(key),
        }
        while self.wanted.get(self.first).is_some_and(|wanted| wanted.is_done) {
            self.first += 1;
        }
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.inner.wanted = std::mem::take(&mut self.wanted);
    }
}
