//! Checks the header before downloading the weights: some megabytes show whether a model can be
//! run. The download reuses those bytes.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf::{Bytes, Directory, Source as _};

use crate::download::{Account, Nearby, Work};
use crate::partial::Partial;
use crate::plan::Source;
use crate::pull::Call;
use crate::ranges::Ranges;
use crate::{Hub, HubError, Plan, RemoteFile, Watch};

/// The longest header. Published models stay below 20 MB.
const HEADER_BYTES_MAX: u64 = 64 << 20;

/// Decides from a model's header whether it can be run; the error is the reason.
pub type Check<'c> = dyn Fn(&Directory) -> Result<(), String> + Sync + 'c;

/// The received start of a file; the rest reads as zeros.
#[derive(Debug)]
struct Head {
    bytes: Vec<u8>,
    len: u64,
}

impl Bytes for Head {
    fn len(&self) -> u64 {
        self.len
    }

    fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        out.fill(0);
        let known = self.bytes.get(start as usize..).unwrap_or_default();
        let len = known.len().min(out.len());
        out[..len].copy_from_slice(&known[..len]);
        Ok(())
    }
}

impl Hub {
    /// Fetches the headers of a plan's files and passes them to `check`. Where the server supports
    /// no ranges, or a header has no end, nothing is checked.
    ///
    /// # Errors
    /// The model cannot be run: its fetched bytes are deleted. Otherwise as [`Self::fetch`].
    pub fn check_header(
        &self,
        plan: &Plan,
        models: &Path,
        nearby: Option<&dyn Nearby>,
        check: &Check<'_>,
        watch: &Watch<'_>,
    ) -> Result<(), HubError> {
        if plan.is_there(models) && !plan.is_doubted {
            return Ok(());
        }
        if plan.is_folder {
            return self.check_folder(plan, models, watch);
        }
        let Some(heads) = self.heads(plan, models, nearby, watch)? else { return Ok(()) };
        let first = plan.path(models, &plan.files[0]);
        let found = gguf::File::over(&first, &heads).map_err(|error| error.to_string());
        let Err(why) = found.and_then(|file| check(file.directory())) else { return Ok(()) };
        for file in &plan.files {
            let path = plan.path(models, file);
            if !path.exists() {
                Partial::open(&path, file)?.0.discard()?;
                remove_empty(&path, models);
            }
        }
        Err(HubError::CannotRun { name: plan.name.clone(), why, bytes: plan.bytes() })
    }

    /// The header of a plan's model, by way of the folder `scratch`, which keeps what is fetched.
    /// `None` where the server supports no ranges, or a header has no end.
    ///
    /// # Errors
    /// Those of [`Self::fetch`], or the header is none of a model.
    pub fn header(
        &self,
        plan: &Plan,
        scratch: &Path,
        watch: &Watch<'_>,
    ) -> Result<Option<Arc<Directory>>, HubError> {
        if plan.is_folder {
            return self.folder_header(plan, scratch, watch);
        }
        let Some(heads) = self.heads(plan, scratch, None, watch)? else { return Ok(None) };
        let first = plan.path(scratch, &plan.files[0]);
        let file = gguf::File::over(&first, &heads).map_err(|error| HubError::CannotRun {
            name: plan.name.clone(),
            why: error.to_string(),
            bytes: plan.bytes(),
        })?;
        Ok(Some(file.directory().clone()))
    }

    /// The header of a folder: its small files, and the starts of its weights, whose files are as
    /// long as they will be and otherwise empty.
    fn folder_header(
        &self,
        plan: &Plan,
        scratch: &Path,
        watch: &Watch<'_>,
    ) -> Result<Option<Arc<Directory>>, HubError> {
        self.check_folder(plan, scratch, watch)?;
        let weights = plan.files.iter().filter(|file| is_weights(file)).cloned().collect();
        let weights = Plan { files: weights, ..plan.clone() };
        let Some(heads) = self.heads(&weights, scratch, None, watch)? else { return Ok(None) };
        for (file, head) in weights.files.iter().zip(heads) {
            let path = plan.path(scratch, file);
            let mut start = [0; 8];
            let mut write = || {
                head.read(0, &mut start)?;
                let len = u64::from_le_bytes(start).min(HEADER_BYTES_MAX) + 8;
                let mut bytes = vec![0; len.min(file.size) as usize];
                head.read(0, &mut bytes)?;
                std::fs::write(&path, &bytes)?;
                std::fs::OpenOptions::new().write(true).open(&path)?.set_len(file.size)
            };
            write().map_err(HubError::disk(&path))?;
        }
        let folder = plan.pulled(scratch).path;
        let opened = checkpoint::open(&folder).map_err(|error| HubError::CannotRun {
            name: plan.name.clone(),
            why: error.to_string(),
            bytes: plan.bytes(),
        })?;
        Ok(Some(opened.directory().clone()))
    }

    /// The starts of a plan's files.
    fn heads(
        &self,
        plan: &Plan,
        models: &Path,
        nearby: Option<&dyn Nearby>,
        watch: &Watch<'_>,
    ) -> Result<Option<Vec<Arc<dyn Bytes>>>, HubError> {
        let call = Call::new(self, watch);
        let (mut heads, mut before): (Vec<Arc<dyn Bytes>>, u64) = (Vec::new(), 0);
        for file in &plan.files {
            let path = plan.path(models, file);
            let account = Account { file, before, all: plan.bytes() };
            let there = gguf::on_disk(&path).ok().filter(|_| !plan.is_doubted);
            let there = there.filter(|there| there.len() == file.size);
            let head = match there {
                Some(there) => Some(there),
                None => {
                    let near = nearby.filter(|_| file.sha256.is_some());
                    call.head(&plan.source, &path, account, near)?
                }
            };
            let Some(head) = head else { return Ok(None) };
            heads.push(head);
            before += file.size;
        }
        Ok(Some(heads))
    }

    /// Fetches the small files of a folder, which tell whether it can be read.
    fn check_folder(&self, plan: &Plan, models: &Path, watch: &Watch<'_>) -> Result<(), HubError> {
        let small = plan.files.iter().filter(|file| !is_weights(file));
        let files: Vec<RemoteFile> = small.cloned().collect();
        let small = Plan { files, ..plan.clone() };
        let folder = self.fetch(&small, models, watch)?.path;
        let Err(why) = checkpoint::check(&folder) else { return Ok(()) };
        for file in &small.files {
            let path = plan.path(models, file);
            std::fs::remove_file(&path).map_err(HubError::disk(&path))?;
            remove_empty(&path, models);
        }
        let (name, why) = (plan.name.clone(), why.to_string());
        Err(HubError::CannotRun { name, why, bytes: plan.bytes() })
    }
}

/// Whether it is one of a folder's files of weights.
fn is_weights(file: &RemoteFile) -> bool {
    file.path.ends_with(".safetensors")
}

/// Whether the start of a file has all of its header.
fn has_header(file: &RemoteFile, start: &[u8]) -> bool {
    if is_weights(file) {
        let len = start.first_chunk().map(|len| u64::from_le_bytes(*len));
        return len.is_some_and(|len| start.len() as u64 >= len.saturating_add(8));
    }
    !matches!(Directory::parse(start, file.size), Err(gguf::Error::Truncated { .. }))
}

/// Removes the folders made for a file, as far as they are empty.
fn remove_empty(path: &Path, models: &Path) {
    let mut dir = path.parent().map(PathBuf::from);
    while let Some(empty) = dir.filter(|dir| dir != models && dir.starts_with(models)) {
        if std::fs::remove_dir(&empty).is_err() {
            return;
        }
        dir = empty.parent().map(PathBuf::from);
    }
}

impl Call<'_> {
    /// A file's header; `None` if it is not available.
    fn head(
        &self,
        source: &Source,
        path: &Path,
        account: Account<'_>,
        nearby: Option<&dyn Nearby>,
    ) -> Result<Option<Arc<dyn Bytes>>, HubError> {
        let (partial, kept) = Partial::open(path, account.file)?;
        let work = Work::new(self, source, account, (&partial, kept, None));
        let bytes = work.head(nearby);
        if !matches!(bytes, Err(HubError::Changed { .. } | HubError::NotGguf { .. })) {
            partial.save(&work.lock().kept).map_err(HubError::disk(path))?;
        }
        let len = account.file.size;
        Ok(bytes?.map(|bytes| Arc::new(Head { bytes, len }) as Arc<dyn Bytes>))
    }
}

impl Work<'_> {
    fn head(&self, nearby: Option<&dyn Nearby>) -> Result<Option<Vec<u8>>, HubError> {
        let mut near = nearby;
        loop {
            let known = self.known_start();
            let mut bytes = vec![0; known.min(HEADER_BYTES_MAX) as usize];
            self.partial.read(0, &mut bytes).map_err(HubError::disk(&self.file.path))?;
            if known >= self.file.size || has_header(self.file, &bytes) {
                return Ok(Some(bytes));
            }
            if known >= HEADER_BYTES_MAX {
                return Ok(None);
            }
            match near {
                Some(nearby) => self.pieces_near(nearby, 0, 1),
                None => self.connection(1),
            }
            let ignores_ranges = {
                let mut shared = self.lock();
                if let Some(error) = shared.error.take() {
                    return Err(error);
                }
                shared.ignores_ranges
            };
            match self.known_start() == known {
                true if ignores_ranges || near.is_none() => return Ok(None),
                // Bytes that the nearby source lacks come from the hub.
                true => near = None,
                false => {}
            }
        }
    }

    /// The number of consecutive bytes present from the file's start on.
    fn known_start(&self) -> u64 {
        let gap = self.lock().kept.have.gap(&Ranges::default(), self.file.size, 1);
        gap.map_or(self.file.size, |(start, _)| start)
    }
}
