//! A folder of records as its user sees it.

mod faults;
mod random;
mod scale;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::disk::{Disk, SystemDisk, disk_bytes};
use crate::{Event, Key, Options, Pool, Put, Records, RecordsError};

const PATIENCE: Duration = Duration::from_secs(60);
/// Of eight segments of 352 KiB.
const BUDGET_BYTES: u64 = 3 << 20;
const PAYLOAD_BYTES: usize = 20_000;
const RECORD_BYTES: usize = 6 * 4096;

fn pool() -> Arc<Pool> {
    Arc::new(Pool::with_depth(4).unwrap())
}

fn options(folder: &Path) -> Options {
    // Short: nothing waits after a fault.
    Options { retry_after: Duration::ZERO, ..Options::new(folder, [9; 32], BUDGET_BYTES) }
}

/// The last one's writer may still close its files: a busy disk takes its time.
fn open(folder: &Path) -> Records {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match Records::open(options(folder), pool()) {
            Err(RecordsError::Locked { .. }) if Instant::now() < deadline => {
                std::thread::yield_now();
            }
            opened => return opened.unwrap(),
        }
    }
}

fn key(number: usize) -> Key {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn header(number: usize) -> Vec<u8> {
    vec![number as u8; number % 257]
}

fn payload(number: usize, bytes: usize) -> Vec<u8> {
    let mut payload = vec![0; bytes];
    blake3::Hasher::new().update(&key(number)).finalize_xof().fill(&mut payload);
    payload
}

fn put_sized(records: &Records, number: usize, bytes: usize) -> Put {
    let fill = |to: &mut [u8]| to.copy_from_slice(&payload(number, bytes));
    records.put(&key(number), &header(number), bytes, fill)
}

fn put(records: &Records, number: usize) -> Put {
    put_sized(records, number, PAYLOAD_BYTES)
}

fn flush(records: &Records) {
    records.flush().wait(Instant::now() + PATIENCE).unwrap();
}

fn put_all(records: &Records, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        assert_eq!(put(records, number), Put::Queued, "{number}");
        flush(records);
    }
}

/// Whether a record is there; it then has the right bytes.
fn has(records: &Records, number: usize) -> bool {
    let mut pending = records.get(&key(number), None);
    let found = pending.wait(Instant::now() + PATIENCE).unwrap();
    if let Some(record) = &found {
        assert_eq!(record.header(), header(number), "{number}");
        assert_eq!(record.payload(), payload(number, record.payload().len()), "{number}");
    }
    found.is_some()
}

/// What the file system counts.
fn used_bytes(folder: &Path) -> u64 {
    let files = std::fs::read_dir(folder).unwrap().flatten();
    let files: u64 = files.filter_map(|file| Some(disk_bytes(&file.metadata().ok()?))).sum();
    files + disk_bytes(&std::fs::metadata(folder).unwrap())
}

#[test]
fn records_are_found_before_and_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    put_all(&records, 0..50);
    let check = |records: &Records| {
        assert!((0..50).all(|number| records.contains(&key(number)) && has(records, number)));
        assert!(!records.contains(&key(50)) && !has(records, 50));
        assert_eq!(put(records, 7), Put::Present);
        let mut found = Vec::new();
        records.for_each(|key, header, bytes| found.push((*key, header.to_vec(), bytes)));
        let mut expected: Vec<_> =
            (0..50).map(|number| (key(number), header(number), PAYLOAD_BYTES)).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        assert_eq!(records.counts().records, 50);
    };
    check(&records);
    let written = records.counts().written_by_day;
    assert!(written.iter().map(|(_, bytes)| bytes).sum::<u64>() >= 50 * PAYLOAD_BYTES as u64);
    drop(records);
    let records = open(dir.path());
    check(&records);
    assert_eq!(records.counts().written_by_day, written);
    assert_eq!(records.take_events(), []);
}

#[test]
fn another_header_is_a_miss_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    put_all(&records, [3]);
    let get = |header: &[u8]| records.get(&key(3), Some(header)).wait_forever().unwrap();
    assert!(get(b"other tokens").is_none());
    assert!(get(&header(3)).is_some());
    let counts = records.counts();
    assert_eq!((counts.hits, counts.misses, counts.damaged), (1, 1, 0));
}

#[test]
fn a_folder_is_opened_once_and_by_its_user_alone() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("cache");
    let records = open(&folder);
    put_all(&records, [1]);
    let Err(error) = Records::open(options(&folder), pool()) else { panic!("opened twice") };
    assert!(matches!(error, RecordsError::Locked { .. }), "{error}");
    assert!(error.to_string().contains("in use by another process"), "{error}");
    drop(records);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        for file in std::fs::read_dir(&folder).unwrap().flatten() {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
        assert_eq!(std::fs::metadata(&folder).unwrap().permissions().mode() & 0o777, 0o700);
    }
    assert!(has(&open(&folder), 1));
}

#[test]
fn what_is_too_long_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    let fill = |_: &mut [u8]| panic!("nothing is written");
    assert_eq!(records.put(&key(1), &[0; 257], 10, fill), Put::TooLong);
    assert_eq!(records.put(&key(1), &[], 400 << 10, fill), Put::TooLong);
    assert_eq!(put_sized(&records, 1, 240 << 10), Put::Queued);
    flush(&records);
    assert!(has(&records, 1));
    let small = Options { budget_bytes: 1 << 20, ..options(dir.path()) };
    assert!(matches!(Records::open(small, pool()), Err(RecordsError::Budget { .. })));
}

#[test]
fn the_least_recently_used_go_first_and_the_budget_holds() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    for number in 0..400 {
        put_all(&records, [number]);
        assert!(records.touch(&key(0)), "record 0 is of use when {number} is put");
        assert!(used_bytes(dir.path()) <= BUDGET_BYTES, "after {number}");
    }
    let counts = records.counts();
    assert!(counts.evicted_segments > 20, "{counts:?}");
    assert!(!has(&records, 20), "long unused");
    assert!((340..400).all(|number| has(&records, number)), "just written");
    assert!(counts.disk_bytes > BUDGET_BYTES / 2, "{counts:?}");

    // The files' times say the same after a restart.
    drop(records);
    let records = open(dir.path());
    assert!(has(&records, 0));
    put_all(&records, 400..440);
    assert!(has(&records, 0) && !has(&records, 345));
    drop(records);
    // A smaller budget holds from the next start on.
    let least = Options { budget_bytes: (5 << 20) / 2, ..options(dir.path()) };
    let records = Records::open(least, pool()).unwrap();
    flush(&records);
    assert!(used_bytes(dir.path()) <= (5 << 20) / 2);
    assert!(has(&records, 439));
}

#[test]
fn what_is_being_read_is_not_evicted() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool();
    let records = Records::open(options(dir.path()), pool.clone()).unwrap();
    put_all(&records, 0..20);
    // Reads wait for an hour; the pool's end lets them through.
    pool.limit(Some(1));
    let reads: Vec<_> = (0..4).map(|number| records.get(&key(number), None)).collect();
    put_all(&records, 20..200);
    assert!(records.counts().evicted_segments > 0);
    pool.limit(None);
    drop(records);
    drop(pool);
    for (number, mut read) in reads.into_iter().enumerate() {
        let record = read.wait(Instant::now() + PATIENCE).unwrap();
        assert_eq!(record.unwrap().payload(), payload(number, PAYLOAD_BYTES));
    }
}

#[test]
fn a_cleared_folder_is_empty_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    put_all(&records, 0..50);
    put(&records, 50);
    let mut cleared = records.clear();
    assert!((0..51).all(|number| !records.contains(&key(number))));
    assert_eq!(cleared.wait(Instant::now() + PATIENCE), Some(0));
    assert!(used_bytes(dir.path()) < 64 << 10);
    put_all(&records, [3]);
    drop(records);
    let records = open(dir.path());
    assert!(has(&records, 3) && !has(&records, 4) && !has(&records, 50));
    assert_eq!(records.counts().records, 1);
}

#[test]
fn another_process_has_a_folder_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let records = open(dir.path());
    put_all(&records, 0..50);
    crate::forget(dir.path(), PATIENCE).unwrap();
    assert!((0..50).all(|number| !records.contains(&key(number))));
    assert!(used_bytes(dir.path()) < 64 << 10);
    put_all(&records, [3]);
    assert!(has(&records, 3));
    drop(records);
    // Nobody has it open.
    let error = crate::forget(dir.path(), Duration::ZERO).unwrap_err();
    assert!(error.to_string().contains("has not cleared it in 0 s"), "{error}");
    assert!(has(&open(dir.path()), 3), "what was asked too late is not done later");
}

#[test]
fn a_disk_without_spare_room_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let free = SystemDisk.free_bytes(dir.path()).unwrap();
    let reserve = Options { reserve_bytes: 2 * free, ..options(dir.path()) };
    let records = Records::open(reserve, pool()).unwrap();
    put_all(&records, 0..5);
    assert_eq!(records.counts().dropped_disk, 5);
    let events = records.take_events();
    assert!(matches!(&events[..], [Event::Stopped { why }] if why.contains("kept free")));
    assert!(!has(&records, 0));
}

#[test]
fn files_of_another_key_are_left_alone_until_room_is_needed() {
    let dir = tempfile::tempdir().unwrap();
    put_all(&open(dir.path()), 0..30);
    let other = || Options { sealing_key: [8; 32], ..options(dir.path()) };
    let records = Records::open(other(), pool()).unwrap();
    assert!((0..30).all(|number| !has(&records, number)));
    let events = records.take_events();
    assert!(events.len() >= 2, "{events:?}");
    assert!(events.iter().all(|event| matches!(event, Event::Foreign { .. })), "{events:?}");
    put_all(&records, 100..110);
    drop(records);
    let records = open(dir.path());
    assert!((0..30).all(|number| has(&records, number)), "nothing was deleted");
    drop(records);
    let records = Records::open(other(), pool()).unwrap();
    assert!((100..110).all(|number| has(&records, number)));
    put_all(&records, 110..180);
    assert!((100..180).all(|number| has(&records, number)), "foreign files go first");
}

#[test]
fn writing_keeps_its_ceiling() {
    let dir = tempfile::tempdir().unwrap();
    let slow = Options { write_bytes_per_sec: Some(1 << 20), ..options(dir.path()) };
    let records = Records::open(slow, pool()).unwrap();
    let start = Instant::now();
    put_all(&records, 0..5);
    let least = 5.0 * RECORD_BYTES as f64 / f64::from(1 << 20);
    assert!(start.elapsed() >= Duration::from_secs_f64(least));
    // An end does not wait for what would take an hour.
    records.limit_writing(Some(10));
    put(&records, 6);
    put(&records, 7);
    drop(records);
    assert!((0..5).all(|number| has(&open(dir.path()), number)));
}
