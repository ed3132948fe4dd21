//! Copies a served model's file from other members to this node's model folder. Every group is
//! compared with its hash on arrival, so a copy equals its original. An interrupted copy resumes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::try_join_all;
use store::{Store, Tree};

use crate::transfer::swarm::Swarm;

/// Groups in flight: from several members, and during writes to disk.
const AT_ONCE: u64 = 8;

/// Limit of a file name's stem. File systems allow 255 bytes, and suffixes need some of them.
const STEM_CHARS_MAX: usize = 200;

/// The files of a model under way, in sequence.
struct Target {
    /// Each with the offset of its first byte and its final path.
    files: Vec<(u64, PathBuf, File)>,
    tree: Tree,
}

/// Copies a model. `tell` receives the bytes present and the total, and returns whether to
/// continue.
///
/// # Errors
/// The disk is too small or fails, no member has the right bytes, or `tell` has cancelled.
pub(crate) async fn copy(
    swarm: &Swarm,
    store: Arc<Store>,
    name: &str,
    mut tell: impl FnMut(u64, u64) -> bool,
) -> io::Result<PathBuf> {
    let (tree, lens) = swarm.learn().await?;
    let (models, name, kept) = (store.models_dir().to_path_buf(), name.to_owned(), tree.clone());
    let open = blocking(move || Target::open(&models, &name, kept, &lens));
    let target = Arc::new(open.await?);
    let count = tree.bytes.div_ceil(store::GROUP_BYTES);
    for first in (0..count).step_by(AT_ONCE as usize) {
        if !tell(first * store::GROUP_BYTES, tree.bytes) {
            return Err(io::Error::other("it is wanted no more"));
        }
        let groups: Vec<u64> = (first..count.min(first + AT_ONCE)).collect();
        let look = target.clone();
        let missing = blocking(move || {
            Ok(groups.into_iter().filter(|group| !look.has(*group)).collect::<Vec<_>>())
        });
        let missing = missing.await?;
        let fetched = try_join_all(missing.iter().map(|group| swarm.group(&tree, *group))).await?;
        let write = target.clone();
        blocking(move || {
            let mut found = missing.into_iter().zip(fetched);
            found.try_for_each(|(group, bytes)| write.write(group, &bytes))
        })
        .await?;
    }
    blocking(move || {
        let path = target.finish()?;
        store.adopt(&path, &target.tree)?;
        Ok(path)
    })
    .await
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

impl Target {
    /// Allocates the files of a model, under a name that no other file has.
    fn open(models: &Path, name: &str, tree: Tree, lens: &[u64]) -> io::Result<Self> {
        let usual = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let plain = name.chars().map(|c| if usual(c) { c } else { '-' });
        let plain: String = plain.take(STEM_CHARS_MAX).collect();
        let plain = plain.trim_start_matches('.');
        let count = lens.len();
        let path = |stem: &str, at: usize| match count {
            1 => models.join(format!("{stem}.gguf")),
            _ => models.join(format!("{stem}-{:05}-of-{count:05}.gguf", at + 1)),
        };
        let mut stem = plain.to_owned();
        if plain.is_empty() || (0..count).any(|at| path(&stem, at).exists()) {
            stem = format!("{plain}-{}", &tree.digest.to_string()[..12]);
        }
        let (mut files, mut start, mut missing) = (Vec::new(), 0, 0);
        for (at, len) in lens.iter().enumerate() {
            let path = path(&stem, at);
            let mut options = File::options();
            let file = options.read(true).write(true).create(true).truncate(false);
            let file = file.open(part(&path))?;
            missing += len.saturating_sub(file.metadata()?.len());
            files.push((start, path, file));
            start += len;
        }
        hub::check_room(models, &stem, missing).map_err(io::Error::other)?;
        for ((_, _, file), len) in files.iter().zip(lens) {
            file.set_len(*len)?;
        }
        Ok(Self { files, tree })
    }

    /// Whether an interrupted copy already has the group.
    fn has(&self, group: u64) -> bool {
        let (start, len) = self.tree.extent(group);
        let mut bytes = vec![0; len as usize];
        let read =
            self.each(start, len, |file, at, range| file.read_exact_at(&mut bytes[range], at));
        read.is_ok() && self.tree.is_group(group, &bytes)
    }

    fn write(&self, group: u64, bytes: &[u8]) -> io::Result<()> {
        let (start, len) = self.tree.extent(group);
        self.each(start, len, |file, at, range| file.write_all_at(&bytes[range], at))
    }

    /// Calls `act` for each file's share of a byte range, with the offset in the file and the range
    /// in the bytes.
    fn each(
        &self,
        start: u64,
        len: u64,
        mut act: impl FnMut(&File, u64, std::ops::Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        for (at, (first, _, file)) in self.files.iter().enumerate() {
            let end = self.files.get(at + 1).map_or(self.tree.bytes, |next| next.0);
            let (from, to) = (start.max(*first), (start + len).min(end));
            if from < to {
                act(file, from - first, (from - start) as usize..(to - start) as usize)?;
            }
        }
        Ok(())
    }

    /// Moves the files to their final paths; returns the first.
    fn finish(&self) -> io::Result<PathBuf> {
        for (_, path, file) in &self.files {
            file.sync_all()?;
            fs::rename(part(path), path)?;
        }
        Ok(self.files[0].1.clone())
    }
}

fn part(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".part");
    path.with_file_name(name)
}
