//! Downloads a planned model: file by file, each by ranges over several connections. A file is
//! verified before it moves to its final path.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ring::digest::{Context, SHA256};

use crate::partial::{Kept, Partial};
use crate::place::Place;
use crate::plan::Source;
use crate::pull::Call;
use crate::ranges::Ranges;
use crate::{Hub, HubError, Plan, Progress, Pulled, RemoteFile, Stage, Watch, space, transfer};

/// Intervals of progress reports, and of saving the list of fetched ranges.
const TELL_EVERY: Duration = Duration::from_millis(100);
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// The minimum piece, so that the cost of a request is small beside it.
const PIECE_BYTES_MIN: u64 = 1 << 20;
/// Bytes read at once while verifying.
const VERIFY_BYTES: usize = 1 << 20;

/// A nearer source of a model's files than the hub.
pub trait Nearby: Sync {
    /// Fills `out` with a file's bytes from `start` on. Several calls run at a time, each with its
    /// own `slot`; false means that this source has no more.
    fn read(&self, slot: usize, file: &RemoteFile, start: u64, out: &mut [u8]) -> bool;
}

impl Hub {
    /// Downloads the missing files of a plan into a folder of models.
    ///
    /// # Errors
    /// The disk is too small, the files differ from the announced ones, the hub refuses them, or
    /// `watch` breaks. Fetched bytes are kept, and the next call continues from there.
    pub fn fetch(&self, plan: &Plan, models: &Path, watch: &Watch<'_>) -> Result<Pulled, HubError> {
        self.fetch_near(plan, models, None, watch)
    }

    /// Like [`Self::fetch`], with bytes from `nearby` as far as it has them. They are verified like
    /// the hub's; if they are wrong, the file is downloaded only from the hub.
    ///
    /// # Errors
    /// As [`Self::fetch`].
    pub fn fetch_near(
        &self,
        plan: &Plan,
        models: &Path,
        nearby: Option<&dyn Nearby>,
        watch: &Watch<'_>,
    ) -> Result<Pulled, HubError> {
        let call = Call::new(self, watch);
        fs::create_dir_all(models).map_err(HubError::disk(models))?;
        let mut before = 0;
        for file in &plan.files {
            let path = plan.path(models, file);
            let account = Account { file, before, all: plan.bytes() };
            let is_long = fs::metadata(&path).is_ok_and(|found| found.len() == file.size);
            let is_there = is_long && !(plan.is_doubted && is_damaged(&path, file));
            if !is_there {
                let left = plan.bytes() - before;
                // Only a file with an announced hash can be accepted from another source.
                let near = nearby.filter(|_| file.sha256.is_some());
                match call.fetch_file(&plan.source, &path, account, left, near) {
                    Err(HubError::Digest { .. }) if near.is_some() => {
                        call.fetch_file(&plan.source, &path, account, left, None)?;
                    }
                    outcome => outcome?,
                }
            }
            before += file.size;
            call.tell(account.progress(Stage::Done, file.size))?;
        }
        Ok(plan.pulled(models))
    }
}

/// A file's position among all of a model's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Account<'a> {
    pub file: &'a RemoteFile,
    /// Bytes of the files before it.
    pub before: u64,
    pub all: u64,
}

impl Account<'_> {
    fn progress(&self, stage: Stage, done: u64) -> Progress {
        Progress {
            stage,
            file: self.file.path.clone(),
            sha256: self.file.sha256.clone(),
            done,
            total: self.file.size,
            all_done: self.before + done,
            all_total: self.all,
        }
    }
}

impl Call<'_> {
    fn fetch_file(
        &self,
        source: &Source,
        path: &Path,
        account: Account<'_>,
        left: u64,
        nearby: Option<&dyn Nearby>,
    ) -> Result<(), HubError> {
        let (partial, kept) = Partial::open(path, account.file)?;
        let dir = path.parent().unwrap_or(Path::new("."));
        let missing = left.saturating_sub(kept.have.total());
        let reserved = space::reserve(dir, &account.file.path, missing, space::DiskRoom::Enough)?;
        let work = Work::new(self, source, account, (&partial, kept, Some(reserved)));
        if let Some(nearby) = nearby {
            work.run_near(nearby);
        }
        let outcome = work.run(dir);
        // Saves the fetched ranges after any outcome, unless the file has changed.
        let saved = match outcome {
            Err(HubError::Changed { .. } | HubError::NotGguf { .. }) => Ok(()),
            _ => partial.save(&work.lock().kept).map_err(HubError::disk(path)),
        };
        outcome?;
        saved?;
        match self.verify(&partial, account) {
            Ok(()) => partial.finish(),
            Err(error @ HubError::Digest { .. }) => partial.discard().and(Err(error)),
            Err(error) => Err(error),
        }
    }

    /// Reads the whole file back, to verify what is on the disk.
    fn verify(&self, partial: &Partial, account: Account<'_>) -> Result<(), HubError> {
        let file = account.file;
        let Some(announced) = &file.sha256 else { return Ok(()) };
        let mut hasher = Context::new(&SHA256);
        let mut buffer = vec![0; VERIFY_BYTES];
        let (mut at, mut told) = (0, Instant::now());
        while at < file.size {
            let len = (file.size - at).min(VERIFY_BYTES as u64) as usize;
            partial.read(at, &mut buffer[..len]).map_err(HubError::disk(&file.path))?;
            hasher.update(&buffer[..len]);
            at += len as u64;
            if told.elapsed() >= TELL_EVERY || at == file.size {
                told = Instant::now();
                self.tell(account.progress(Stage::Verifying, at))?;
            }
        }
        let found = data_encoding::HEXLOWER.encode(hasher.finish().as_ref());
        if found == *announced {
            return Ok(());
        }
        let (file, announced) = (file.path.clone(), announced.clone());
        Err(HubError::Digest { file, found, announced })
    }
}

/// Whether a file differs from the announced one, or has no announced hash.
fn is_damaged(path: &Path, file: &RemoteFile) -> bool {
    let hash = || {
        let (mut hasher, mut buffer) = (Context::new(&SHA256), vec![0; VERIFY_BYTES]);
        let mut read = fs::File::open(path).ok()?;
        loop {
            match read.read(&mut buffer).ok()? {
                0 => return Some(data_encoding::HEXLOWER.encode(hasher.finish().as_ref())),
                len => hasher.update(&buffer[..len]),
            }
        }
    };
    file.sha256.is_none() || hash() != file.sha256
}

/// The download of one file, shared by all connections.
pub(crate) struct Work<'a> {
    pub call: &'a Call<'a>,
    pub source: &'a Source,
    pub file: &'a RemoteFile,
    account: Account<'a>,
    pub partial: &'a Partial,
    /// Room on the disk for what is missing; none for a header alone.
    reserved: Option<space::Reserved>,
    shared: Mutex<Shared>,
    /// A connection failed, or the server sends only whole files.
    stop: AtomicBool,
}

pub(crate) struct Shared {
    pub kept: Kept,
    /// Bytes that existed when this download began.
    had: u64,
    /// Ranges being fetched.
    taken: Ranges,
    pub place: Option<Place>,
    /// Counts places, so that a stale one is resolved once.
    pub place_number: u64,
    pub error: Option<HubError>,
    pub ignores_ranges: bool,
    told: Instant,
    saved: Instant,
}

impl Shared {
    /// Whether this call has received no bytes yet.
    pub fn is_first(&self) -> bool {
        self.kept.have.total() == self.had
    }
}

impl<'a> Work<'a> {
    pub fn new(
        call: &'a Call<'a>,
        source: &'a Source,
        account: Account<'a>,
        (partial, kept, reserved): (&'a Partial, Kept, Option<space::Reserved>),
    ) -> Self {
        let now = Instant::now();
        let shared = Shared {
            had: kept.have.total(),
            kept,
            taken: Ranges::default(),
            place: None,
            place_number: 0,
            error: None,
            ignores_ranges: false,
            told: now,
            saved: now,
        };
        let (file, stop) = (account.file, AtomicBool::new(false));
        let shared = Mutex::new(shared);
        Self { call, source, file, account, partial, reserved, shared, stop }
    }

    pub fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches from the nearby source; missing bytes come from the hub.
    fn run_near(&self, nearby: &dyn Nearby) {
        std::thread::scope(|scope| {
            for slot in 0..self.call.hub.settings.connections {
                scope.spawn(move || self.pieces_near(nearby, slot, usize::MAX));
            }
        });
    }

    /// Fetches up to `pieces` pieces from the nearby source.
    pub fn pieces_near(&self, nearby: &dyn Nearby, slot: usize, pieces: usize) {
        let mut buffer = vec![0; PIECE_BYTES_MIN as usize];
        for _ in 0..pieces {
            let Some((start, end)) = self.take() else { return };
            let mut at = start;
            while at < end {
                let len = (end - at).min(PIECE_BYTES_MIN);
                let bytes = &mut buffer[..len as usize];
                let is_kept =
                    nearby.read(slot, self.file, at, bytes) && self.keep(at, bytes).is_ok();
                if !is_kept {
                    break;
                }
                at += len;
            }
            self.lock().taken.remove(start, end);
            if at < end {
                return;
            }
        }
    }

    /// Fetches all missing bytes. The first piece goes alone: it shows whether the server supports
    /// ranges, and whether the file is a model.
    fn run(&self, dir: &Path) -> Result<(), HubError> {
        self.tell()?;
        let settings = &self.call.hub.settings;
        self.connection(1);
        std::thread::scope(|scope| {
            let more = if self.file.size > PIECE_BYTES_MIN { settings.connections } else { 1 };
            for _ in 0..more {
                scope.spawn(|| self.connection(usize::MAX));
            }
        });
        let (error, ignores_ranges) = {
            let mut shared = self.lock();
            (shared.error.take(), shared.ignores_ranges)
        };
        match error {
            None if ignores_ranges => self.stop.store(false, Ordering::SeqCst),
            None => {}
            Some(HubError::Disk { source, .. })
                if source.kind() == std::io::ErrorKind::StorageFull =>
            {
                let missing = self.file.size - self.have();
                return Err(space::became_full(dir, &self.file.path, missing));
            }
            Some(error) => return Err(error),
        }
        if ignores_ranges {
            transfer::whole(self)?;
        }
        let have = self.have();
        if have != self.file.size {
            let (file, announced) = (self.file.path.clone(), self.file.size);
            return Err(HubError::Length { file, found: have, announced });
        }
        self.looks_like_a_model()?;
        self.tell()
    }

    /// Fetches up to `pieces` pieces, one after the other.
    pub fn connection(&self, pieces: usize) {
        for _ in 0..pieces {
            let Some((start, end)) = self.take() else { return };
            let outcome = transfer::piece(self, start, end);
            let mut shared = self.lock();
            shared.taken.remove(start, end);
            if let Err(error) = outcome {
                shared.error.get_or_insert(error);
                self.stop.store(true, Ordering::SeqCst);
            }
        }
    }

    /// The next piece that is neither fetched nor being fetched.
    fn take(&self) -> Option<(u64, u64)> {
        if self.is_stopped() {
            return None;
        }
        let settings = &self.call.hub.settings;
        let even = self.file.size / (4 * settings.connections.max(1)) as u64;
        let least = PIECE_BYTES_MIN.min(settings.piece_bytes);
        let most = even.clamp(least, settings.piece_bytes);
        let mut shared = self.lock();
        let gap = shared.kept.have.gap(&shared.taken, self.file.size, most)?;
        shared.taken.add(gap.0, gap.1);
        Some(gap)
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Records that the server sends whole files only.
    pub fn ignores_ranges(&self) {
        self.lock().ignores_ranges = true;
        self.stop.store(true, Ordering::SeqCst);
    }

    pub fn have(&self) -> u64 {
        self.lock().kept.have.total()
    }

    pub fn has(&self, start: u64, end: u64) -> bool {
        let shared = self.lock();
        let mut all = shared.kept.have.clone();
        all.add(start, end);
        all == shared.kept.have
    }

    /// Stores received bytes.
    pub fn keep(&self, at: u64, bytes: &[u8]) -> Result<(), HubError> {
        if at == 0 {
            check_magic(self.file, bytes)?;
        }
        self.partial.write(at, bytes).map_err(HubError::disk(&self.file.path))?;
        let mut shared = self.lock();
        let before = shared.kept.have.total();
        shared.kept.have.add(at, at + bytes.len() as u64);
        let added = shared.kept.have.total().saturating_sub(before);
        self.reserved.iter().for_each(|reserved| reserved.written(added));
        if shared.saved.elapsed() >= SAVE_EVERY {
            shared.saved = Instant::now();
            self.partial.save(&shared.kept).map_err(HubError::disk(&self.file.path))?;
        }
        if shared.told.elapsed() < TELL_EVERY {
            return Ok(());
        }
        shared.told = Instant::now();
        drop(shared);
        self.tell()
    }

    fn tell(&self) -> Result<(), HubError> {
        self.call.tell(self.account.progress(Stage::Pulling, self.have()))
    }

    /// Records the server's ETag of the file. If it changed and this call has added no bytes yet,
    /// the old bytes are dropped.
    ///
    /// # Errors
    /// The file changed during the download.
    pub fn note_etag(&self, etag: &str, is_first: bool) -> Result<(), HubError> {
        let mut shared = self.lock();
        match &shared.kept.etag {
            Some(known) if known == etag => {}
            None => shared.kept.etag = Some(etag.to_owned()),
            Some(_) if is_first => {
                shared.kept.have = Ranges::default();
                shared.had = 0;
                shared.kept.etag = Some(etag.to_owned());
            }
            Some(_) => {
                self.partial.forget()?;
                let (file, host) = (self.file.path.clone(), self.call.host());
                return Err(HubError::Changed { file, host });
            }
        }
        Ok(())
    }

    fn looks_like_a_model(&self) -> Result<(), HubError> {
        let mut magic = [0; 4];
        if self.file.size >= 4 {
            self.partial.read(0, &mut magic).map_err(HubError::disk(&self.file.path))?;
        }
        check_magic(self.file, &magic)
    }
}

fn check_magic(file: &RemoteFile, bytes: &[u8]) -> Result<(), HubError> {
    const MAGIC: &[u8] = b"GGUF";
    // The files of a folder begin with a length, or are text.
    if file.path.ends_with(".safetensors") || checkpoint::SMALL_FILES.contains(&&*file.path) {
        return Ok(());
    }
    let len = bytes.len().min(MAGIC.len());
    if bytes[..len] == MAGIC[..len] {
        return Ok(());
    }
    let found = bytes[..len].escape_ascii();
    Err(HubError::NotGguf { file: file.path.clone(), why: format!("it begins with \"{found}\"") })
}
