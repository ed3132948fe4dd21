//! Finds the records of a folder. It deletes nothing: what is not understood is passed over.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, PoisonError};

use crate::buffer::{ALIGN, aligned};
use crate::catalog::{Place, Segment};
use crate::disk::{Disk, disk_bytes};
use crate::index::{Index, entries};
use crate::seal::{Damage, Sealing, record_bytes};
use crate::segment;
use crate::shared::{Shared, unix_ns};
use crate::status::Event;

/// Files read at once, as in the pool.
const THREADS: usize = 16;
/// What is read at a start of segments without an index. A program that was killed leaves one; of
/// more than this the oldest wait for the next start, as these then have theirs.
const SCAN_BYTES_MAX: u64 = 256 << 20;

/// The segments of a folder, oldest first.
pub(crate) fn list(folder: &Path) -> io::Result<Vec<Arc<Segment>>> {
    let mut segments = Vec::new();
    for file in std::fs::read_dir(folder)? {
        let file = file?;
        let Some(number) = file.file_name().to_str().and_then(segment::number) else { continue };
        let Ok(about) = file.metadata() else { continue };
        let used_ns = about.modified().map_or(0, unix_ns);
        segments.push(Arc::new(Segment::new(number, file.path(), disk_bytes(&about), used_ns)));
    }
    segments.sort_unstable_by_key(|segment| segment.number);
    Ok(segments)
}

/// Puts the records of these segments into the catalog. Segments without an index get one on
/// `disk`, if there is one.
pub(crate) fn recover(shared: &Shared, disk: Option<&dyn Disk>, segments: Vec<Arc<Segment>>) {
    for segment in &segments {
        shared.remember(segment.last_used_ns.load(Relaxed));
        shared.catalog().add_segment(segment.clone());
    }
    let mut without = Vec::new();
    read_indexes(&segments, &shared.sealing, |segment, index| match index {
        Ok(Some(index)) => add(shared, segment, &index),
        Ok(None) => without.push(segment.clone()),
        Err(error) => unreadable(shared, segment, &error),
    });
    without.sort_unstable_by_key(|segment| std::cmp::Reverse(segment.number));
    let mut left = SCAN_BYTES_MAX;
    for segment in without {
        let bytes = segment.disk_bytes.load(Relaxed);
        match segment::check_head(&segment.file(), &shared.sealing) {
            Err(error) => unreadable(shared, &segment, &error),
            Ok(Err(damage)) => foreign(shared, &segment, damage),
            Ok(Ok(())) if bytes > left => left = 0,
            Ok(Ok(())) => {
                left -= bytes;
                scan(shared, disk, &segment);
            }
        }
    }
}

/// Reads the indexes of many segments at once and hands them over in any order.
pub(crate) fn read_indexes(
    segments: &[Arc<Segment>],
    sealing: &Sealing,
    mut take: impl FnMut(&Arc<Segment>, io::Result<Option<Vec<u8>>>),
) {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = sync_channel(THREADS);
    std::thread::scope(|scope| {
        for _ in 0..THREADS.min(segments.len()) {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(segment) = segments.get(next.fetch_add(1, Relaxed)) {
                    let index = segment::read_index(&segment.file(), sealing);
                    if sender.send((segment, index)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        receiver.iter().for_each(|(segment, index)| take(segment, index));
    });
}

fn add(shared: &Shared, segment: &Segment, index: &[u8]) {
    let records = entries(index).map(|entry| {
        let blocks = record_bytes(entry.payload_bytes as usize) / ALIGN;
        let blocks = u16::try_from(blocks).unwrap_or(u16::MAX);
        (entry.key, Place { segment: segment.number, block: entry.block, blocks })
    });
    shared.catalog().add(segment.number, records);
}

/// Finds the records of a segment without an index, and appends one.
fn scan(shared: &Shared, disk: Option<&dyn Disk>, segment: &Arc<Segment>) {
    let index = match segment::scan(&segment.file(), &shared.sealing) {
        Ok(index) => index,
        Err(error) => return unreadable(shared, segment, &error),
    };
    add(shared, segment, index.bytes());
    let Some(disk) = disk else { return };
    if append(shared, disk, segment, &index).is_err() {
        *segment.unwritten.lock().unwrap_or_else(PoisonError::into_inner) = Some(index);
    }
    if let Ok(file) = std::fs::metadata(&segment.path) {
        segment.disk_bytes.store(disk_bytes(&file), Relaxed);
    }
}

fn append(shared: &Shared, disk: &dyn Disk, segment: &Segment, index: &Index) -> io::Result<()> {
    let end = aligned(segment.file().bytes()? as usize) as u64;
    let ending = segment::ending(&shared.sealing, index, end)?;
    disk.open(&segment.path, false)?.write_at(&ending, end)
}

fn foreign(shared: &Shared, segment: &Segment, damage: Damage) {
    let why = match damage {
        Damage::Version => "it is of another version",
        Damage::Form | Damage::Tag => "it is sealed with another key, or damaged",
    };
    // It is of no use to anyone here, so it goes first.
    segment.last_used_ns.store(0, Relaxed);
    shared.status.counts().foreign_segments += 1;
    shared.status.tell(Event::Foreign { path: segment.path.clone(), why });
}

fn unreadable(shared: &Shared, segment: &Segment, error: &io::Error) {
    shared.status.counts().damaged += 1;
    let (path, why) = (segment.path.clone(), error.to_string());
    shared.status.tell(Event::Damaged { path, why });
}
