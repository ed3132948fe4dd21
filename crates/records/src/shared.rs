//! What the handle, the writer and the readers of a folder share.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use crate::buffer::Buffer;
use crate::catalog::{Catalog, Place, Segment};
use crate::seal::{Damage, Key, Kind, Sealing};
use crate::status::{Event, Status};
use crate::throttle::Throttle;

pub(crate) struct Shared {
    pub sealing: Sealing,
    pub status: Status,
    pub throttle: Throttle,
    /// What waits to be written.
    pub queued: AtomicUsize,
    pub queued_bytes: AtomicUsize,
    /// Nothing more is written.
    pub is_closing: AtomicBool,
    catalog: Mutex<Catalog>,
    latest_ns: AtomicU64,
}

impl Shared {
    pub fn new(sealing: Sealing, throttle: Throttle) -> Self {
        Self {
            sealing,
            throttle,
            status: Status::default(),
            queued: AtomicUsize::new(0),
            queued_bytes: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
            catalog: Mutex::default(),
            latest_ns: AtomicU64::new(0),
        }
    }

    pub fn catalog(&self) -> MutexGuard<'_, Catalog> {
        self.catalog.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment is of use: now, and later than everything before, whatever the clock says.
    pub fn touch(&self, segment: &Segment) {
        let now = unix_ns(SystemTime::now());
        let next = |latest: u64| Some(now.max(latest.saturating_add(1)));
        let latest = self.latest_ns.fetch_update(Relaxed, Relaxed, next);
        let now = latest.ok().and_then(next).unwrap_or(now);
        segment.last_used_ns.fetch_max(now, Relaxed);
    }

    /// A segment from before, by its file's time.
    pub fn remember(&self, last_used_ns: u64) {
        self.latest_ns.fetch_max(last_used_ns, Relaxed);
    }

    /// Opens what was read at a place; `None`: it is not the record of that key and header.
    pub fn accept(
        &self,
        wanted: (&Key, Option<&[u8]>),
        from: (&Arc<Segment>, Place),
        read: io::Result<Buffer>,
    ) -> Option<(Buffer, std::ops::Range<usize>, std::ops::Range<usize>)> {
        let (key, header) = wanted;
        let mut buffer = read.map_err(|error| self.damaged(key, from, &error.to_string())).ok()?;
        let begin = buffer.as_ptr().addr();
        let range = |part: &[u8]| {
            let start = part.as_ptr().addr() - begin;
            start..start + part.len()
        };
        let found = match self.sealing.open(&mut buffer, Kind::Content) {
            Ok(plain) if plain.key != *key => Err("a record of another key"),
            Ok(plain) if header.is_some_and(|header| header != plain.header) => Ok(None),
            Ok(plain) => Ok(Some((range(plain.header), range(plain.payload)))),
            Err(Damage::Tag) => Err("its bytes have changed"),
            Err(Damage::Form) => Err("there is no record"),
            Err(Damage::Version) => Err("a record of another version"),
        };
        match found {
            Ok(Some((header, payload))) => {
                self.status.counts().hits += 1;
                Some((buffer, header, payload))
            }
            Ok(None) => {
                self.status.counts().misses += 1;
                None
            }
            Err(why) => {
                self.damaged(key, from, why);
                None
            }
        }
    }

    fn damaged(&self, key: &Key, (segment, place): (&Arc<Segment>, Place), why: &str) {
        // What was cleared meanwhile is no damage.
        if !self.catalog().is_at(key, place.segment, place.block) {
            self.status.counts().misses += 1;
            return;
        }
        self.catalog().forget(key, &place);
        self.status.counts().damaged += 1;
        if !segment.is_reported.swap(true, Relaxed) {
            let why = why.to_owned();
            self.status.tell(Event::Damaged { path: segment.path.clone(), why });
        }
    }
}

/// Nanoseconds since 1970.
pub(crate) fn unix_ns(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
