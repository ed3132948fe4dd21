//! Rates of a folder's disk: a prompt of 541 MB as sealed records, beside plain direct reads.
//!
//!     cargo run --release -p records --example rates -- [FOLDER]
//!
//! Sketch: a record is read once, by 16 threads, and opened by the thread that read it. AES-256-GCM
//! opens 3 GB/s on a core with instructions for it, so that a disk of 0.8 GB/s takes a third of a
//! core, and the rate is the disk's.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use records::{DirectFile, Key, Options, Pool, Put, Records};

/// Keys and values of 64 positions of one layer: 128 KiB, and 4,000 of these.
const PAYLOAD_BYTES: usize = 135_000;
const RECORDS: usize = 4007;
const BYTES: usize = PAYLOAD_BYTES * RECORDS;
const ROUNDS: usize = 9;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let given = std::env::args().nth(1);
    let folder = given.map_or_else(std::env::temp_dir, Into::into);
    let dir = tempfile::tempdir_in(folder)?;
    let pool = Arc::new(Pool::new()?);
    let options = Options {
        queue_bytes: 2 * BYTES,
        ..Options::new(dir.path().join("records"), [1; 32], 4 * BYTES as u64)
    };
    let records = Records::open(options.clone(), pool.clone())?;
    write(&records);
    drop(records);
    let plain = plain_file(dir.path())?;
    println!("plain reads are direct: {}", plain.is_direct()?);
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let start = Instant::now();
        let records = Records::open(options.clone(), pool.clone())?;
        let opened = start.elapsed();
        let before = pool.measure(&plain, BYTES as u64)?;
        let took = read_all(&records);
        let disk = (before + pool.measure(&plain, BYTES as u64)?) / 2.0;
        let read = BYTES as f64 / took.as_secs_f64();
        let allowed = 1.25 * BYTES as f64 / disk + 0.2;
        println!(
            "{round}: opened in {opened:.1?}; records {:.0} MB/s in {took:.2?} of {allowed:.2} s, \
             plain {:.0} MB/s: {:.2}",
            read / 1e6,
            disk / 1e6,
            read / disk
        );
        ratios.push(read / disk);
    }
    ratios.sort_by(f64::total_cmp);
    println!("median: {:.2} of the plain rate", ratios[ROUNDS / 2]);
    Ok(())
}

fn key(number: usize) -> Key {
    *blake3::hash(&number.to_le_bytes()).as_bytes()
}

fn write(records: &Records) {
    let start = Instant::now();
    for number in 0..RECORDS {
        let fill = |payload: &mut [u8]| payload.fill(number as u8);
        let put = records.put(&key(number), &[0; 64], PAYLOAD_BYTES, fill);
        assert_eq!(put, Put::Queued);
    }
    let queued = start.elapsed();
    records.flush().wait_forever();
    let rate = BYTES as f64 / start.elapsed().as_secs_f64() / 1e6;
    println!("{} MB put in {queued:?}, written at {rate:.0} MB/s", BYTES / 1_000_000);
}

/// Reads all records, asked for at once.
fn read_all(records: &Records) -> Duration {
    let start = Instant::now();
    let pending: Vec<_> = (0..RECORDS).map(|number| records.get(&key(number), None)).collect();
    for (number, mut one) in pending.into_iter().enumerate() {
        let record = one.wait_forever().flatten().expect("it was written");
        assert_eq!(record.payload()[number], number as u8);
    }
    start.elapsed()
}

/// A file as large as all records, written past the page cache as they are.
fn plain_file(folder: &Path) -> std::io::Result<Arc<DirectFile>> {
    let path = folder.join("plain");
    let mut file = std::fs::File::create(&path)?;
    let mut block = vec![0; 1 << 20];
    fastrand::Rng::with_seed(1).fill(&mut block);
    for _ in 0..BYTES.div_ceil(block.len()) {
        std::io::Write::write_all(&mut file, &block)?;
    }
    file.sync_all()?;
    Ok(Arc::new(DirectFile::open(path)?))
}
