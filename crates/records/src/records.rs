//! The handle of a folder of records.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Sender, channel, sync_channel};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use crate::buffer::{ALIGN, Buffer};
use crate::catalog::Segment;
use crate::disk::{Disk, SystemDisk, private, private_folder};
use crate::index::entries;
use crate::options::{Options, RecordsError};
use crate::pool::{CLOSE_PATIENCE, Pending, Pool, Read, join_until};
use crate::recover::{list, read_indexes, recover};
use crate::seal::{HEADER_BYTES_MAX, Key, PAYLOAD_BYTES_MAX, Sealing, record_bytes};
use crate::segment::ending_bytes;
use crate::shared::Shared;
use crate::status::{Counts, Event, days_of_text};
use crate::throttle::Throttle;
use crate::writer::{Command, DAYS_FILE, Draft, Writer};

/// Records that wait to be written, beside the bytes that the options allow.
const QUEUE_RECORDS_MAX: usize = 16 << 10;
const LOCK_FILE: &str = "lock";

/// Sealed records in the segment files of one folder: a cache that outlives the process.
///
/// Dropping it closes the segment that is being written. What still waits is dropped: [`flush`]
/// comes before.
///
/// [`flush`]: Records::flush
pub struct Records {
    shared: Arc<Shared>,
    pool: Arc<Pool>,
    options: Options,
    commands: Sender<Command>,
    writer: Option<JoinHandle<()>>,
}

/// What became of a record that was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Put {
    /// It will be written, unless the disk refuses it.
    Queued,
    /// It is there.
    Present,
    /// Too much waits to be written.
    QueueFull,
    /// Its header or payload is longer than records are, or than a segment under this budget.
    TooLong,
}

/// A record as it was put.
pub struct Record {
    buffer: Buffer,
    header: Range<usize>,
    payload: Range<usize>,
}

impl Record {
    pub fn header(&self) -> &[u8] {
        &self.buffer[self.header.clone()]
    }

    /// Begins at a multiple of 512 bytes.
    pub fn payload(&self) -> &[u8] {
        &self.buffer[self.payload.clone()]
    }
}

impl Records {
    /// Opens a folder, or makes it. Records are read by the threads of `pool`.
    ///
    /// # Errors
    /// The folder cannot be made or listed, another process has it open, or the budget is too
    /// small.
    pub fn open(options: Options, pool: Arc<Pool>) -> Result<Self, RecordsError> {
        Self::open_on(Arc::new(SystemDisk), options, pool)
    }

    pub(crate) fn open_on(
        disk: Arc<dyn Disk>,
        options: Options,
        pool: Arc<Pool>,
    ) -> Result<Self, RecordsError> {
        options.check()?;
        let folder = options.folder.as_path();
        private_folder(folder).map_err(RecordsError::io(folder))?;
        let lock = lock(folder)?;
        let segments = list(folder).map_err(RecordsError::io(folder))?;
        let next_number = segments.last().map_or(0, |last| last.number + 1);
        let throttle = Throttle::new(options.write_bytes_per_sec);
        let shared = Arc::new(Shared::new(Sealing::new(&options.sealing_key), throttle));
        let days = std::fs::read_to_string(folder.join(DAYS_FILE)).unwrap_or_default();
        shared.status.counts().written_by_day = days_of_text(&days);
        recover(&shared, Some(&*disk), segments);

        let (commands, queue) = channel();
        let writer = Writer::new(shared.clone(), disk, options.clone(), next_number);
        let thread = std::thread::Builder::new().name("disk-write".to_owned());
        let run = move || {
            writer.run(&queue);
            // The folder is another's only now.
            drop(lock);
        };
        let writer = thread.spawn(run).map_err(RecordsError::io(folder))?;
        Ok(Self { shared, pool, options, commands, writer: Some(writer) })
    }

    /// Puts a record of `payload_bytes`, which `fill` writes into zeros. Does not wait: what finds
    /// no room in the queue is dropped, and `fill` is not called.
    pub fn put(
        &self,
        key: &Key,
        header: &[u8],
        payload_bytes: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Put {
        let bytes = record_bytes(payload_bytes);
        // With a segment's head, and the index of this record alone.
        let most = self.options.segment_bytes() - (ALIGN + ending_bytes(512)) as u64;
        if header.len() > HEADER_BYTES_MAX
            || payload_bytes > PAYLOAD_BYTES_MAX
            || bytes as u64 > most
        {
            return Put::TooLong;
        }
        let generation = {
            let catalog = self.shared.catalog();
            if let Some((segment, _)) = catalog.find(key) {
                self.shared.touch(&segment);
                return Put::Present;
            }
            catalog.generation()
        };
        let queued = self.shared.queued.fetch_add(1, Relaxed);
        let queued_bytes = self.shared.queued_bytes.fetch_add(bytes, Relaxed);
        let is_full = queued >= QUEUE_RECORDS_MAX
            || queued > 0 && queued_bytes + bytes > self.options.queue_bytes;
        if !is_full {
            let (mut record, at) = Sealing::draft(payload_bytes);
            fill(&mut record[at]);
            let header = header.into();
            let draft = Draft { key: *key, header, record, payload_bytes, generation };
            if self.commands.send(Command::Put(draft)).is_ok() {
                return Put::Queued;
            }
        }
        self.shared.queued.fetch_sub(1, Relaxed);
        self.shared.queued_bytes.fetch_sub(bytes, Relaxed);
        self.shared.status.counts().dropped_queue += 1;
        Put::QueueFull
    }

    /// Whether a record of this many bytes would be taken now.
    pub fn has_room(&self, payload_bytes: usize) -> bool {
        let queued = self.shared.queued.load(Relaxed);
        let bytes = self.shared.queued_bytes.load(Relaxed) + record_bytes(payload_bytes);
        queued == 0 || queued < QUEUE_RECORDS_MAX && bytes <= self.options.queue_bytes
    }

    /// Whether a record of this key can be found. Its bytes are not looked at.
    pub fn contains(&self, key: &Key) -> bool {
        self.shared.catalog().contains(key)
    }

    /// Says that a record is of use, so that it is evicted later. `false`: there is none.
    pub fn touch(&self, key: &Key) -> bool {
        let found = self.shared.catalog().find(key);
        found.inspect(|(segment, _)| self.shared.touch(segment)).is_some()
    }

    /// Reads and opens a record in a thread of the pool. `None`: there is none of this key, none
    /// with this header (if one is given), or its bytes are not what was put. Many may be asked for
    /// at once. Each has memory from the begin of its read until its result is dropped.
    pub fn get(&self, key: &Key, header: Option<&[u8]>) -> Pending<Option<Record>> {
        get(&self.shared, &self.pool, key, header)
    }

    /// Hands key, header and bytes of the payload of every record over, in any order. Reads the
    /// segments' indexes, not the records; waits for the disk.
    pub fn for_each(&self, mut take: impl FnMut(&Key, &[u8], usize)) {
        let segments: Vec<Arc<Segment>> = self.shared.catalog().segments().cloned().collect();
        let mut hand_over = |segment: &Segment, index: &[u8]| {
            for entry in entries(index) {
                let is_found = self.shared.catalog().is_at(&entry.key, segment.number, entry.block);
                if is_found {
                    take(&entry.key, entry.header, entry.payload_bytes as usize);
                }
            }
        };
        let (mut written, mut unwritten) = (Vec::new(), Vec::new());
        for segment in segments {
            let index = segment.unwritten.lock().unwrap_or_else(PoisonError::into_inner).clone();
            match index {
                Some(index) => unwritten.push((segment, index)),
                None => written.push(segment),
            }
        }
        unwritten.iter().for_each(|(segment, index)| hand_over(segment, index.bytes()));
        read_indexes(&written, &self.shared.sealing, |segment, index| {
            if let Ok(Some(index)) = index {
                hand_over(segment, &index);
            }
        });
    }

    /// Forgets all records at once, also those that wait. The writer removes their files; after
    /// that the result comes: the number of files that the system does not remove.
    pub fn clear(&self) -> Pending<usize> {
        let (sender, receiver) = sync_channel(1);
        let segments = self.shared.catalog().clear();
        let _ = self.commands.send(Command::Remove(segments, sender));
        Pending::of(receiver)
    }

    /// The result comes once everything put before is written or dropped.
    pub fn flush(&self) -> Pending<()> {
        let (sender, receiver) = sync_channel(1);
        let _ = self.commands.send(Command::Flush(sender));
        Pending::of(receiver)
    }

    /// Sets the ceiling for writing; `None` takes it away.
    pub fn limit_writing(&self, bytes_per_sec: Option<u64>) {
        self.shared.throttle.set(bytes_per_sec);
    }

    pub fn counts(&self) -> Counts {
        let (records, disk_bytes) = {
            let catalog = self.shared.catalog();
            (catalog.records() as u64, catalog.disk_bytes())
        };
        Counts { records, disk_bytes, ..self.shared.status.counts().clone() }
    }

    /// What has happened since the last call, to be logged.
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.status.take_events()
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Relaxed);
        self.shared.throttle.open();
        let _ = self.commands.send(Command::Close);
        let Some(writer) = self.writer.take() else { return };
        join_until(writer, Instant::now() + CLOSE_PATIENCE);
    }
}

/// As [`Records::get`].
pub(crate) fn get(
    shared: &Arc<Shared>,
    pool: &Pool,
    key: &Key,
    header: Option<&[u8]>,
) -> Pending<Option<Record>> {
    let Some((segment, place)) = shared.catalog().find(key) else {
        shared.status.counts().misses += 1;
        return Pending::ready(None);
    };
    shared.touch(&segment);
    let read = Read {
        file: segment.file(),
        offset: u64::from(place.block) * ALIGN as u64,
        bytes: usize::from(place.blocks) * ALIGN,
        into: None,
    };
    let (shared, key) = (shared.clone(), *key);
    let header: Option<Box<[u8]>> = header.map(Into::into);
    pool.read_then(read, move |read| {
        let wanted = (&key, header.as_deref());
        let (buffer, header, payload) = shared.accept(wanted, (&segment, place), read)?;
        Some(Record { buffer, header, payload })
    })
}

/// Keeps other processes out of a folder as long as the file is open.
fn lock(folder: &Path) -> Result<File, RecordsError> {
    let path = folder.join(LOCK_FILE);
    let mut options = File::options();
    let file = private(options.create(true).truncate(false).write(true)).open(&path);
    let file = file.map_err(RecordsError::io(&path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => {
            Err(RecordsError::Locked { folder: folder.to_owned() })
        }
        // A file system without locks: better a folder that two may open than none.
        Err(std::fs::TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
            Ok(file)
        }
        Err(std::fs::TryLockError::Error(error)) => Err(RecordsError::io(&path)(error)),
    }
}
