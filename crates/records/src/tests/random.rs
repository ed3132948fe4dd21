//! Ten thousand random operations on one folder, with everything that may happen to it in between:
//! what is found has the right bytes.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use super::faults::{FaultyDisk, open_on};
use super::*;

const OPERATIONS: usize = 10_000;
const KEYS: usize = 400;
const SEED: u64 = 64;

struct World {
    folder: PathBuf,
    random: fastrand::Rng,
    disk: Arc<FaultyDisk>,
    records: Option<Records>,
    hits: usize,
    restarts: usize,
}

impl World {
    fn records(&self) -> &Records {
        self.records.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.records = None;
        self.disk = match self.random.u8(0..3) {
            0 => FaultyDisk::dying_after(self.random.usize(0..60), self.random.usize(0..8) * 4096),
            _ => Arc::default(),
        };
        self.records = Some(open_on(&self.disk, &self.folder));
        self.restarts += 1;
    }

    /// A file of records, and a place in it.
    fn victim(&mut self) -> Option<(std::fs::File, u64)> {
        let files = std::fs::read_dir(&self.folder).unwrap().flatten();
        let mut files: Vec<PathBuf> = files.map(|file| file.path()).collect();
        files.retain(|path| path.extension().is_some_and(|one| one == "records"));
        files.sort();
        let path = self.random.choice(&files)?;
        // Or it has just been evicted.
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let bytes = file.metadata().unwrap().len().max(1);
        Some((file, self.random.u64(0..bytes)))
    }

    fn flip(&mut self) {
        let Some((mut file, at)) = self.victim() else { return };
        let mut byte = [0];
        file.seek(SeekFrom::Start(at)).unwrap();
        if file.read(&mut byte).unwrap() == 1 {
            byte[0] ^= 1 << self.random.u8(0..8);
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&byte).unwrap();
        }
    }

    fn cut(&mut self) {
        if let Some((file, at)) = self.victim() {
            file.set_len(at).unwrap();
        }
    }

    /// Somebody else's program uses the folder in between.
    fn visit(&mut self) {
        self.records = None;
        let other = Options { sealing_key: [1; 32], ..options(&self.folder) };
        let records = Records::open(other, pool()).unwrap();
        for _ in 0..self.random.usize(0..20) {
            let number = self.random.usize(0..KEYS);
            has(&records, number);
            put_sized(&records, number, self.random.usize(0..9000));
        }
        flush(&records);
        drop(records);
        self.reopen();
    }

    fn step(&mut self) {
        let number = self.random.usize(0..KEYS);
        match self.random.u32(0..1000) {
            0..420 => drop(put_sized(self.records(), number, number * 50)),
            420..900 => {
                let several = self.random.usize(1..6);
                let numbers = (0..several).map(|next| (number + next) % KEYS);
                self.hits += numbers.filter(|number| has(self.records(), *number)).count();
            }
            900..930 => drop(self.records().get(&key(number), None)),
            930..950 => drop(self.records().touch(&key(number))),
            950..964 => flush(self.records()),
            964..974 => self.reopen(),
            974..980 => {
                self.disk.kill();
                self.reopen();
            }
            980..988 => self.flip(),
            988..991 => self.cut(),
            991..993 => self.visit(),
            993..998 => self.records().for_each(|_, header, bytes| {
                assert!(header.len() <= 256 && bytes <= KEYS * 50);
            }),
            998.. => drop(self.records().clear()),
        }
    }
}

#[test]
fn whatever_happens_a_record_is_right_or_missing() {
    println!("seed {SEED}");
    let dir = tempfile::tempdir().unwrap();
    let mut world = World {
        folder: dir.path().to_owned(),
        random: fastrand::Rng::with_seed(SEED),
        disk: Arc::default(),
        records: None,
        hits: 0,
        restarts: 0,
    };
    world.reopen();
    let mut damaged = 0;
    for _ in 0..OPERATIONS {
        world.step();
        damaged += world.records().take_events().len();
    }
    drop(world.records.take());
    assert!(used_bytes(dir.path()) <= BUDGET_BYTES);
    println!("{} hits, {} restarts, {damaged} events", world.hits, world.restarts);
    assert!(world.hits > 1000 && world.restarts > 100 && damaged > 10);
}
