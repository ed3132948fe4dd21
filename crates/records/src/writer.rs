//! The one thread that writes: seals records, appends them to a segment, evicts old segments, and
//! goes on by itself after a disk had no room or failed.

use std::fs::File;
use std::io::{self, Write};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use crate::buffer::{ALIGN, Buffer};
use crate::catalog::{Place, Segment};
use crate::disk::{Disk, Sink, disk_bytes, private};
use crate::forget;
use crate::index::{Entry, Index};
use crate::options::{FOLDER_BYTES, Options};
use crate::seal::{Key, Kind};
use crate::segment::{ending, ending_bytes, head, name};
use crate::shared::{Shared, unix_ns};
use crate::status::{Event, days_to_text};

/// How often the times of use are saved, of which an eviction after a restart knows.
const SAVE_EVERY: Duration = Duration::from_secs(60);
const DAY_NS: u64 = 24 * 3600 * 1_000_000_000;
/// The file with the bytes written by day.
pub(crate) const DAYS_FILE: &str = "written";

pub(crate) enum Command {
    Put(Draft),
    /// Answered once everything before is written or dropped.
    Flush(SyncSender<()>),
    /// Removes these files, and answers with how many are left.
    Remove(Vec<Arc<Segment>>, SyncSender<usize>),
    Close,
}

/// A record to be written.
pub(crate) struct Draft {
    pub key: Key,
    pub header: Box<[u8]>,
    pub record: Buffer,
    pub payload_bytes: usize,
    /// Of the catalog when it was put.
    pub generation: u64,
}

pub(crate) struct Writer {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    options: Options,
    next_number: u32,
    open: Option<OpenSegment>,
    /// Since when the disk fails or has no room.
    stopped: Option<Instant>,
    saved: Instant,
    /// When it last looked whether all is to be forgotten.
    looked: Instant,
}

struct OpenSegment {
    segment: Arc<Segment>,
    sink: Box<dyn Sink>,
    /// Where the next record begins.
    end: u64,
    generation: u64,
}

/// Why a record is not written.
enum Refused {
    Budget,
    /// Everything was cleared meanwhile.
    Cleared,
    Disk(String),
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Disk(error.to_string())
    }
}

impl Writer {
    pub fn new(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        options: Options,
        next_number: u32,
    ) -> Self {
        let now = Instant::now();
        let (open, stopped) = (None, None);
        Self { shared, disk, options, next_number, open, stopped, saved: now, looked: now }
    }

    /// The thread's life.
    pub fn run(mut self, commands: &Receiver<Command>) {
        // The budget may be smaller than it was.
        self.make_room(0);
        loop {
            match commands.recv_timeout(forget::LOOK_EVERY) {
                Ok(Command::Put(draft)) => self.put(draft),
                Ok(Command::Flush(done)) => drop(done.send(())),
                Ok(Command::Remove(segments, done)) => {
                    let _ = done.send(self.remove_cleared(segments));
                }
                Ok(Command::Close) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.saved.elapsed() >= SAVE_EVERY {
                self.save();
            }
            if self.looked.elapsed() >= forget::LOOK_EVERY {
                self.looked = Instant::now();
                self.forget_if_asked();
            }
        }
        self.close_segment();
        self.save();
    }

    /// Removes the files of what was cleared; returns how many are left.
    fn remove_cleared(&mut self, segments: Vec<Arc<Segment>>) -> usize {
        let generation = self.shared.catalog().generation();
        self.open.take_if(|open| open.generation != generation);
        segments.into_iter().filter(|one| !self.remove(one)).count()
    }

    fn forget_if_asked(&mut self) {
        if forget::is_asked(&self.options.folder) {
            let segments = self.shared.catalog().clear();
            if self.remove_cleared(segments) == 0 {
                forget::is_done(&self.options.folder);
            }
        }
    }

    fn put(&mut self, draft: Draft) {
        self.shared.queued.fetch_sub(1, Relaxed);
        self.shared.queued_bytes.fetch_sub(draft.record.len(), Relaxed);
        let is_wanted = {
            let catalog = self.shared.catalog();
            catalog.generation() == draft.generation && !catalog.contains(&draft.key)
        };
        if !is_wanted || self.shared.is_closing.load(Relaxed) {
            return;
        }
        if self.stopped.is_some_and(|since| since.elapsed() < self.options.retry_after) {
            self.shared.status.counts().dropped_disk += 1;
            return;
        }
        match self.write(draft) {
            Ok(()) => {
                if self.stopped.take().is_some() {
                    self.shared.status.tell(Event::Resumed);
                }
            }
            Err(Refused::Cleared) => {}
            Err(Refused::Budget) => self.shared.status.counts().dropped_budget += 1,
            Err(Refused::Disk(why)) => {
                self.shared.status.counts().dropped_disk += 1;
                if self.stopped.replace(Instant::now()).is_none() {
                    self.shared.status.tell(Event::Stopped { why });
                }
            }
        }
    }

    /// Seals a record and appends it to the open segment, or to a new one.
    fn write(&mut self, mut draft: Draft) -> Result<(), Refused> {
        let bytes = draft.record.len();
        let shared = self.shared.clone();
        shared.sealing.seal(
            &mut draft.record,
            Kind::Content,
            &draft.key,
            &draft.header,
            draft.payload_bytes,
        )?;
        shared.throttle.take(bytes);
        self.begin_segment(&draft)?;
        self.has_room(bytes)?;
        let Some(open) = &mut self.open else {
            return Err(io::Error::other("no segment is open").into());
        };
        if let Err(error) = open.sink.write_at(&draft.record, open.end) {
            self.abandon_segment();
            return Err(error.into());
        }
        let entry = Entry {
            key: draft.key,
            block: (open.end / ALIGN as u64) as u16,
            payload_bytes: draft.payload_bytes as u32,
            header: &draft.header,
        };
        open.end += bytes as u64;
        open.list(&entry);
        let number = open.segment.number;
        let place = Place { segment: number, block: entry.block, blocks: (bytes / ALIGN) as u16 };
        shared.touch(&open.segment);
        let mut catalog = shared.catalog();
        if catalog.generation() == open.generation {
            catalog.add(number, [(draft.key, place)]);
        }
        drop(catalog);
        let mut counts = shared.status.counts();
        counts.written += 1;
        counts.add_written(unix_ns(SystemTime::now()) / DAY_NS, bytes as u64);
        Ok(())
    }

    /// Sees to it that a segment is open with room for a record.
    fn begin_segment(&mut self, draft: &Draft) -> Result<(), Refused> {
        let bytes = draft.record.len();
        let is_of = |open: &OpenSegment| {
            let ends_at = open.end + (bytes + open.ending_bytes(&draft.header)) as u64;
            open.generation == draft.generation && ends_at <= self.options.segment_bytes()
        };
        if self.open.as_ref().is_some_and(is_of) {
            return Ok(());
        }
        self.close_segment();
        self.has_room(bytes)?;
        let path = self.options.folder.join(name(self.next_number));
        self.next_number += 1;
        let head = head(&self.shared.sealing)?;
        let mut sink = self.disk.open(&path, true)?;
        if let Err(error) = sink.write_at(&head, 0) {
            let _ = self.disk.remove(&path);
            return Err(error.into());
        }
        let planned = (head.len() + ending_bytes(0)) as u64;
        let segment = Segment::new(self.next_number - 1, path, planned, 0);
        let segment = Arc::new(segment);
        *segment.unwritten.lock().expect("nobody else has it yet") = Some(Index::default());
        let is_of_now = {
            let mut catalog = self.shared.catalog();
            let is_of_now = catalog.generation() == draft.generation;
            if is_of_now {
                catalog.add_segment(segment.clone());
            }
            is_of_now
        };
        if !is_of_now {
            self.remove(&segment);
            return Err(Refused::Cleared);
        }
        let end = head.len() as u64;
        self.open = Some(OpenSegment { segment, sink, end, generation: draft.generation });
        Ok(())
    }

    /// Whether disk and budget have room for a record of `bytes` more.
    fn has_room(&mut self, bytes: usize) -> Result<(), Refused> {
        // With it may come a segment's head, the index's next block, and an extent.
        let bytes = (bytes + 4 * ALIGN) as u64;
        let free = self.disk.free_bytes(&self.options.folder)?;
        let reserve = self.options.reserve_bytes;
        if free < reserve.saturating_add(bytes) {
            let why = format!("the disk has {free} bytes left, and {reserve} are kept free");
            return Err(Refused::Disk(why));
        }
        if self.make_room(bytes) { Ok(()) } else { Err(Refused::Budget) }
    }

    /// Evicts until `bytes` more are within the budget.
    fn make_room(&self, bytes: u64) -> bool {
        loop {
            let victim = {
                let mut catalog = self.shared.catalog();
                if catalog.disk_bytes() + bytes + FOLDER_BYTES <= self.options.budget_bytes {
                    return true;
                }
                catalog.take_oldest()
            };
            let Some(victim) = victim else { return false };
            if self.remove(&victim) {
                self.shared.status.counts().evicted_segments += 1;
            }
        }
    }

    /// Removes a segment's file; one that stays goes on to count.
    fn remove(&self, segment: &Arc<Segment>) -> bool {
        match self.disk.remove(&segment.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                let (path, why) = (segment.path.clone(), error.to_string());
                self.shared.status.tell(Event::Stuck { path, why });
                self.shared.catalog().keep_stuck(segment.clone());
                false
            }
            _ => true,
        }
    }

    /// Writes the open segment's index.
    fn close_segment(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let mut unwritten = open.segment.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let index = unwritten.take().unwrap_or_default();
        let written = ending(&self.shared.sealing, &index, open.end)
            .and_then(|ending| open.sink.write_at(&ending, open.end));
        // A segment without an index is scanned at the next start.
        if written.is_err() {
            *unwritten = Some(index);
        }
        drop(unwritten);
        open.measure();
    }

    /// Leaves a segment in which a write has failed: the disk may be bad there. Its records can be
    /// read; a segment without any goes.
    fn abandon_segment(&mut self) {
        let Some(open) = self.open.take() else { return };
        if open.end > ALIGN as u64 {
            return open.measure();
        }
        let empty = self.shared.catalog().take(open.segment.number);
        if let Some(segment) = empty {
            self.remove(&segment);
        }
    }

    /// Saves the times of use in the files' own times, and the bytes by day.
    fn save(&mut self) {
        self.saved = Instant::now();
        let segments: Vec<Arc<Segment>> = self.shared.catalog().segments().cloned().collect();
        for segment in segments {
            let used = segment.last_used_ns.load(Relaxed);
            if used > segment.saved_ns.swap(used, Relaxed) {
                let time = SystemTime::UNIX_EPOCH + Duration::from_nanos(used);
                let file = File::options().write(true).open(&segment.path);
                let _ = file.and_then(|file| file.set_modified(time));
            }
        }
        let days = days_to_text(&self.shared.status.counts().written_by_day);
        let path = self.options.folder.join(DAYS_FILE);
        let file = private(File::options().create(true).truncate(true).write(true)).open(path);
        let _ = file.and_then(|mut file| file.write_all(days.as_bytes()));
    }
}

impl OpenSegment {
    /// Adds a record to the index, and what it takes to the segment.
    fn list(&self, entry: &Entry<'_>) {
        let mut index = self.segment.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let index = index.get_or_insert_default();
        index.push(entry);
        let bytes = self.end + ending_bytes(index.bytes().len()) as u64;
        self.segment.disk_bytes.store(bytes, Relaxed);
    }

    /// Bytes of what closes the segment after one more record.
    fn ending_bytes(&self, header: &[u8]) -> usize {
        let index = self.segment.unwritten.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = index.as_ref().map_or(0, |index| index.bytes().len());
        ending_bytes(bytes + Index::entry_bytes(header))
    }

    /// Notes what a segment that is no longer written takes of the disk.
    fn measure(&self) {
        if let Ok(file) = std::fs::metadata(&self.segment.path) {
            self.segment.disk_bytes.store(disk_bytes(&file), Relaxed);
        }
    }
}
