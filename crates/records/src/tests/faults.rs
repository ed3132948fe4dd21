//! Disks that fail, fill, hang and die in the middle of a write; files that are damaged.

use std::io;
use std::sync::{Condvar, Mutex};

use super::*;
use crate::disk::Sink;

/// A disk that fails as told.
#[derive(Default)]
pub(super) struct FaultyDisk {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The system's number of the error of each write.
    errno: Option<i32>,
    is_hanging: bool,
    /// Writes until the program is killed, and the bytes of the last one that still arrive.
    dies_after: Option<(usize, usize)>,
    is_dead: bool,
    writes: usize,
}

impl FaultyDisk {
    pub fn dying_after(writes: usize, then_bytes: usize) -> Arc<Self> {
        let disk = Self::default();
        disk.state.lock().unwrap().dies_after = Some((writes, then_bytes));
        Arc::new(disk)
    }

    pub fn kill(&self) {
        self.state.lock().unwrap().is_dead = true;
    }

    fn set(&self, set: impl FnOnce(&mut State)) {
        set(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    /// Bytes of a write of `bytes` that arrive, and whether it then fails.
    fn write(&self, bytes: usize) -> (usize, io::Result<()>) {
        let mut state = self.state.lock().unwrap();
        while state.is_hanging {
            state = self.changed.wait(state).unwrap();
        }
        if state.is_dead {
            return (0, Err(io::Error::other("killed")));
        }
        if let Some(errno) = state.errno {
            // Half of it may have arrived.
            return (bytes / 2 / 4096 * 4096, Err(io::Error::from_raw_os_error(errno)));
        }
        state.writes += 1;
        match state.dies_after {
            Some((writes, then_bytes)) if state.writes > writes => {
                state.is_dead = true;
                (then_bytes.min(bytes), Err(io::Error::other("killed")))
            }
            _ => (bytes, Ok(())),
        }
    }
}

impl Disk for Arc<FaultyDisk> {
    fn open(&self, path: &Path, is_new: bool) -> io::Result<Box<dyn Sink>> {
        if self.state.lock().unwrap().is_dead {
            return Err(io::Error::other("killed"));
        }
        Ok(Box::new(FaultySink { disk: self.clone(), sink: SystemDisk.open(path, is_new)? }))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        if self.state.lock().unwrap().is_dead {
            return Err(io::Error::other("killed"));
        }
        SystemDisk.remove(path)
    }

    fn free_bytes(&self, folder: &Path) -> io::Result<u64> {
        SystemDisk.free_bytes(folder)
    }
}

struct FaultySink {
    disk: Arc<FaultyDisk>,
    sink: Box<dyn Sink>,
}

impl Sink for FaultySink {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let (arrives, result) = self.disk.write(bytes.len());
        self.sink.write_at(&bytes[..arrives], offset)?;
        result
    }
}

pub(super) fn open_on(disk: &Arc<FaultyDisk>, folder: &Path) -> Records {
    Records::open_on(Arc::new(disk.clone()), options(folder), pool()).unwrap()
}

#[test]
fn a_failing_disk_drops_records_and_recovers_by_itself() {
    const ENOSPC: i32 = 28;
    const EIO: i32 = 5;
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let records = open_on(&disk, dir.path());
    put_all(&records, 0..5);
    for (turn, errno) in [ENOSPC, EIO].into_iter().enumerate() {
        disk.set(|state| state.errno = Some(errno));
        put_all(&records, 10..15);
        assert!((10..15).all(|number| !has(&records, number)));
        assert!((0..5).all(|number| has(&records, number)), "what is there is read");
        assert_eq!(records.counts().dropped_disk, 5 * (turn as u64 + 1));
        let events = records.take_events();
        assert!(matches!(&events[..], [Event::Stopped { .. }]), "told once: {events:?}");
        disk.set(|state| state.errno = None);
        put_all(&records, [20 + turn]);
        assert_eq!(records.take_events(), [Event::Resumed]);
    }
    drop(records);
    let records = open(dir.path());
    assert!((0..5).chain(20..22).all(|number| has(&records, number)));
    assert_eq!(records.take_events(), [], "torn ends are no damage");
    assert!((10..15).all(|number| !has(&records, number)));
}

/// A disk of 1 MiB that is full, as root can make it.
#[test]
#[cfg(target_os = "linux")]
fn a_full_file_system_is_harmless() {
    let dir = tempfile::tempdir().unwrap();
    let mount = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "none"])
        .arg(dir.path())
        .stderr(std::process::Stdio::null())
        .status();
    if !mount.is_ok_and(|mount| mount.success()) {
        return;
    }
    let records = open(&dir.path().join("cache"));
    put_all(&records, 0..100);
    let counts = records.counts();
    assert!(counts.written > 30 && counts.dropped_disk > 30, "{counts:?}");
    let found = (0..100).filter(|number| has(&records, *number)).count() as u64;
    assert_eq!((found, counts.damaged), (counts.written, 0));
    drop(records);
    let records = open(&dir.path().join("cache"));
    let found = (0..100).filter(|number| has(&records, *number)).count() as u64;
    assert_eq!(found, counts.written);
    drop(records);
    let unmount = std::process::Command::new("umount").arg(dir.path()).status();
    assert!(unmount.unwrap().success());
}

#[test]
fn a_hanging_disk_holds_up_nobody() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Arc::new(FaultyDisk::default());
    let small = Options { queue_bytes: 100_000, ..options(dir.path()) };
    let records = Records::open_on(Arc::new(disk.clone()), small, pool()).unwrap();
    put_all(&records, 0..5);
    disk.set(|state| state.is_hanging = true);
    let puts: Vec<Put> = (10..30).map(|number| put(&records, number)).collect();
    assert_eq!(puts.iter().filter(|put| **put == Put::QueueFull).count() as u64, {
        records.counts().dropped_queue
    });
    assert!(puts[10..].iter().all(|put| *put == Put::QueueFull), "{puts:?}");
    assert!((0..5).all(|number| has(&records, number)));
    disk.set(|state| state.is_hanging = false);
    flush(&records);
    put_all(&records, [40]);
    let kept = (10..30).filter(|number| has(&records, *number)).count();
    assert_eq!(kept, puts.iter().filter(|put| **put == Put::Queued).count());
}

#[test]
fn a_kill_at_any_write_loses_that_record_alone() {
    // Head, 13 records, index and so on: two segments.
    for writes in 0..30 {
        for then_bytes in [0, 4096, 8192, 1 << 20] {
            let dir = tempfile::tempdir().unwrap();
            let disk = FaultyDisk::dying_after(writes, then_bytes);
            let records = open_on(&disk, dir.path());
            (0..26).for_each(|number| assert_eq!(put(&records, number), Put::Queued));
            flush(&records);
            let written = records.counts().written as usize;
            drop(records);
            let records = open(dir.path());
            assert!((0..written).all(|number| has(&records, number)), "{writes} {then_bytes}");
            // The last one may have arrived whole.
            assert!((written + 1..26).all(|number| !has(&records, number)));
            assert_eq!(records.counts().damaged, 0);
            // Whatever was torn, the folder is written on.
            put_all(&records, 50..60);
            drop(records);
            let records = open(dir.path());
            assert!((0..written).chain(50..60).all(|number| has(&records, number)));
        }
    }
}

#[test]
fn a_damaged_record_is_a_miss_told_once_and_written_anew() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    put_all(&records, 0..8);
    // In the second block of the records 2 and 3.
    let path = dir.path().join("00000000.records");
    let mut bytes = std::fs::read(&path).unwrap();
    for number in [2, 3] {
        bytes[4096 + number * RECORD_BYTES + 5000] ^= 4;
    }
    overwrite(&path, &bytes);
    let found: Vec<usize> = (0..8).filter(|number| has(&records, *number)).collect();
    assert_eq!(found, [0, 1, 4, 5, 6, 7]);
    assert_eq!(records.counts().damaged, 2);
    let events = records.take_events();
    assert!(matches!(&events[..], [Event::Damaged { .. }]), "{events:?}");
    put_all(&records, [2]);
    drop(records);
    let records = open(dir.path());
    assert!(has(&records, 2), "the later one is found");
    assert!(!has(&records, 3));
}

#[test]
fn another_version_is_not_read() {
    let dir = tempfile::tempdir().unwrap();
    put_all(&open(dir.path()), 0..8);
    let path = dir.path().join("00000000.records");
    let whole = std::fs::read(&path).unwrap();
    let with_version = |from: usize| {
        let mut bytes = whole.clone();
        let begins = |at: &usize| bytes[*at..].starts_with(b"sinewrec");
        let begins: Vec<usize> = (from..bytes.len()).step_by(4096).filter(begins).collect();
        begins.iter().for_each(|at| bytes[at + 8] = 2);
        bytes
    };
    // All of it, as a later program writes it.
    std::fs::write(&path, with_version(0)).unwrap();
    let records = open(dir.path());
    assert!((0..8).all(|number| !has(&records, number)));
    let why = "it is of another version";
    assert_eq!(records.take_events(), [Event::Foreign { path: path.clone(), why }]);
    assert_eq!(records.counts().foreign_segments, 1);
    drop(records);
    // One record, while the folder is open.
    std::fs::write(&path, &whole).unwrap();
    let records = open(dir.path());
    overwrite(&path, &with_version(4096 + 7 * RECORD_BYTES));
    assert!(has(&records, 6) && !has(&records, 7));
    assert_eq!(records.counts().damaged, 1);
}

#[test]
fn a_cut_segment_keeps_what_is_before_the_cut() {
    let dir = tempfile::tempdir().unwrap();
    put_all(&open(dir.path()), 0..8);
    let path = dir.path().join("00000000.records");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(4096 + 5 * RECORD_BYTES as u64 + 100).unwrap();
    let expected = [0, 1, 2, 3, 4];
    for _ in 0..2 {
        let records = open(dir.path());
        let found: Vec<usize> = (0..8).filter(|number| has(&records, *number)).collect();
        assert_eq!(found, expected);
        assert_eq!(records.counts().damaged, 0);
    }
}

/// Without a new file: readers have this one open.
fn overwrite(path: &Path, bytes: &[u8]) {
    let mut file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
    io::Write::write_all(&mut file, bytes).unwrap();
}
