//! Where each record lies, and which segments there are: the index in memory.
//!
//! A record takes some 80 bytes: half of its key is kept, as the whole one is compared when the
//! record is read.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::direct::DirectFile;
use crate::index::Index;
use crate::seal::Key;

/// A file of records. Whoever reads it holds it, and then it is not evicted.
pub(crate) struct Segment {
    pub number: u32,
    pub path: PathBuf,
    /// What it takes of the disk, or will take once it is closed.
    pub disk_bytes: AtomicU64,
    /// When a record of it was last of use, in nanoseconds since 1970.
    pub last_used_ns: AtomicU64,
    /// The same as the file's time says it, for the next start.
    pub saved_ns: AtomicU64,
    /// Whether damage of it was reported.
    pub is_reported: AtomicBool,
    /// The index, while the file has none.
    pub unwritten: Mutex<Option<Index>>,
    /// The file as long as anybody reads it: a folder has more segments than a process may open.
    file: Mutex<Weak<DirectFile>>,
}

impl Segment {
    pub fn new(number: u32, path: PathBuf, disk_bytes: u64, last_used_ns: u64) -> Self {
        Self {
            number,
            path,
            disk_bytes: AtomicU64::new(disk_bytes),
            last_used_ns: AtomicU64::new(last_used_ns),
            saved_ns: AtomicU64::new(last_used_ns),
            is_reported: AtomicBool::new(false),
            unwritten: Mutex::default(),
            file: Mutex::default(),
        }
    }

    /// The file, which its first read opens.
    pub fn file(&self) -> Arc<DirectFile> {
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.upgrade().unwrap_or_else(|| {
            let opened = Arc::new(DirectFile::lazy(self.path.clone()));
            *file = Arc::downgrade(&opened);
            opened
        })
    }
}

/// Where a record lies, in blocks of 4096 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub segment: u32,
    pub block: u16,
    pub blocks: u16,
}

type HalfKey = [u8; 16];

fn half(key: &Key) -> HalfKey {
    *key.first_chunk().expect("a key has 32 bytes")
}

struct Held {
    segment: Arc<Segment>,
    keys: Vec<HalfKey>,
    /// The system does not remove it.
    is_stuck: bool,
}

#[derive(Default)]
pub(crate) struct Catalog {
    places: HashMap<HalfKey, Place>,
    segments: BTreeMap<u32, Held>,
    /// How often everything was cleared; what was put before belongs to nobody.
    generation: u64,
}

impl Catalog {
    pub fn records(&self) -> usize {
        self.places.len()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }

    pub fn disk_bytes(&self) -> u64 {
        self.segments.values().map(|held| held.segment.disk_bytes.load(Relaxed)).sum()
    }

    pub fn segments(&self) -> impl Iterator<Item = &Arc<Segment>> {
        self.segments.values().map(|held| &held.segment)
    }

    pub fn find(&self, key: &Key) -> Option<(Arc<Segment>, Place)> {
        let place = self.places.get(&half(key))?;
        let held = self.segments.get(&place.segment)?;
        Some((held.segment.clone(), *place))
    }

    pub fn contains(&self, key: &Key) -> bool {
        self.places.contains_key(&half(key))
    }

    /// Whether a record is found at this place.
    pub fn is_at(&self, key: &Key, segment: u32, block: u16) -> bool {
        let place = self.places.get(&half(key));
        place.is_some_and(|place| (place.segment, place.block) == (segment, block))
    }

    pub fn add_segment(&mut self, segment: Arc<Segment>) {
        let held = Held { segment, keys: Vec::new(), is_stuck: false };
        self.segments.insert(held.segment.number, held);
    }

    /// Adds records of one segment. Of two with one key the later segment's stays.
    pub fn add(&mut self, segment: u32, records: impl IntoIterator<Item = (Key, Place)>) {
        let Some(held) = self.segments.get_mut(&segment) else { return };
        for (key, place) in records {
            let key = half(&key);
            if self.places.get(&key).is_none_or(|known| known.segment <= segment) {
                self.places.insert(key, place);
                held.keys.push(key);
            }
        }
    }

    /// A record that does not open is found no longer, so that it is written anew.
    pub fn forget(&mut self, key: &Key, place: &Place) {
        if self.places.get(&half(key)) == Some(place) {
            self.places.remove(&half(key));
        }
    }

    /// Takes out the segment whose records have not been of use for longest. None goes that anybody
    /// holds, so neither does the one that is being written.
    pub fn take_oldest(&mut self) -> Option<Arc<Segment>> {
        let free = |held: &&Held| !held.is_stuck && Arc::strong_count(&held.segment) == 1;
        let free = self.segments.values().filter(free);
        let oldest = free.min_by_key(|held| held.segment.last_used_ns.load(Relaxed))?;
        self.take(oldest.segment.number)
    }

    pub fn take(&mut self, number: u32) -> Option<Arc<Segment>> {
        let held = self.segments.remove(&number)?;
        for key in &held.keys {
            if self.places.get(key).is_some_and(|place| place.segment == number) {
                self.places.remove(key);
            }
        }
        Some(held.segment)
    }

    /// Puts back, without its records, what could not be removed: it still takes room.
    pub fn keep_stuck(&mut self, segment: Arc<Segment>) {
        let held = Held { segment, keys: Vec::new(), is_stuck: true };
        self.segments.insert(held.segment.number, held);
    }

    /// Takes out everything.
    pub fn clear(&mut self) -> Vec<Arc<Segment>> {
        self.generation += 1;
        self.places = HashMap::new();
        std::mem::take(&mut self.segments).into_values().map(|held| held.segment).collect()
    }
}
