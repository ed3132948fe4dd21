//! As many records as 100 GB have, in sparse files: how long the folder takes to open.

use super::*;
use crate::index::{Entry, Index};
use crate::seal::Sealing;
use crate::segment;

const SEGMENTS: u32 = 1560;

/// A segment whose records are a hole: head, index and end alone.
fn write_sparse(sealing: &Sealing, folder: &Path, number: u32, records: usize) {
    let mut index = Index::default();
    let blocks = 16_000 / records;
    for at in 0..records {
        let key = key(number as usize * records + at);
        let block = (1 + at * blocks) as u16;
        index.push(&Entry { key, block, payload_bytes: 100_000, header: &[7; 64] });
    }
    let end = 62 << 20;
    let mut sink = SystemDisk.open(&folder.join(segment::name(number)), true).unwrap();
    sink.write_at(&segment::head(sealing).unwrap(), 0).unwrap();
    sink.write_at(&segment::ending(sealing, &index, end).unwrap(), end).unwrap();
}

fn open_sparse(segments: u32, records: usize) -> Duration {
    let dir = tempfile::tempdir().unwrap();
    let sealing = Sealing::new(&[9; 32]);
    (0..segments).for_each(|number| write_sparse(&sealing, dir.path(), number, records));
    let pool = pool();
    let options = Options { budget_bytes: 100 << 30, ..options(dir.path()) };
    let start = Instant::now();
    let opened = Records::open(options, pool).unwrap();
    let time = start.elapsed();
    assert_eq!(opened.counts().records, u64::from(segments) * records as u64);
    assert!(opened.contains(&key(segments as usize * records - 1)));
    let start = Instant::now();
    let mut found = 0;
    opened.for_each(|_, header, _| found += usize::from(header.len() == 64));
    println!("opened in {time:?}; headers in {:?}", start.elapsed());
    assert_eq!(found, segments as usize * records);
    // What lies in a hole is a miss.
    assert!(!has(&opened, 5));
    assert_eq!(opened.counts().damaged, 1);
    time
}

#[test]
fn a_sparse_folder_opens() {
    open_sparse(20, 640);
}

#[test]
#[ignore = "measures the start of a folder of 100 GB"]
fn a_million_records_are_ready_within_a_second() {
    let time = open_sparse(SEGMENTS, 640);
    assert!(time < Duration::from_secs(1), "{time:?}");
}
