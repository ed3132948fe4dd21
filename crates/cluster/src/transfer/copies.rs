//! Copies a served model's file from other members to this node's model folder. Every group is
//! compared with its hash on arrival, so a copy equals its original. An interrupted copy resumes.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::future::try_join_all;
use hub::{Kept, Partial};
use store::{Store, Tree};

use crate::transfer::swarm::Swarm;

/// Groups in flight: from several members, and during writes to disk.
const AT_ONCE: u64 = 8;

/// Limit of a file name's stem. File systems allow 255 bytes, and suffixes need some of them.
const STEM_CHARS_MAX: usize = 200;

/// The files of a model under way, in sequence.
struct Target {
    /// The start of all paths.
    stem: PathBuf,
    files: Vec<Part>,
    tree: Tree,
}

/// One file.
struct Part {
    /// Offset of its first byte in the model.
    start: u64,
    /// Its final path.
    path: PathBuf,
    partial: Partial,
    kept: Kept,
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
    let mut target = open.await?;
    let count = tree.bytes.div_ceil(store::GROUP_BYTES);
    for first in (0..count).step_by(AT_ONCE as usize) {
        if !tell(first * store::GROUP_BYTES, tree.bytes) {
            return Err(io::Error::other("it is wanted no more"));
        }
        let groups = first..count.min(first + AT_ONCE);
        let look = blocking(move || {
            let missing: Vec<u64> = groups.filter(|group| !target.has(*group)).collect();
            Ok((target, missing))
        });
        let (mut open, missing) = look.await?;
        let fetched = try_join_all(missing.iter().map(|group| swarm.group(&tree, *group))).await?;
        let write = blocking(move || open.write(&missing, &fetched).map(|()| open));
        target = write.await?;
    }
    blocking(move || {
        let tree = target.tree.clone();
        let path = target.finish()?;
        store.adopt(&path, &tree)?;
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
    /// Opens the files of a model, under a name that no other file has.
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
        let content = tree.digest.to_string();
        let mut stem = plain.to_owned();
        let is_taken = models.join(format!("{plain}.gguf")).exists();
        if plain.is_empty() || is_taken || (0..count).any(|at| path(&stem, at).exists()) {
            stem = format!("{plain}-{}", &content[..12]);
        }
        let (mut files, mut start, mut missing) = (Vec::new(), 0, 0);
        for (at, len) in lens.iter().enumerate() {
            let path = path(&stem, at);
            let opened = Partial::of_content(&path, *len, &content);
            let (partial, kept) = opened.map_err(io::Error::other)?;
            missing += len - kept.have_bytes();
            files.push(Part { start, path, partial, kept });
            start += len;
        }
        hub::check_room(models, &stem, missing).map_err(io::Error::other)?;
        Ok(Self { stem: models.join(stem), files, tree })
    }

    /// Whether an interrupted copy already has the group.
    fn has(&mut self, group: u64) -> bool {
        let (start, len) = self.tree.extent(group);
        let mut bytes = vec![0; len as usize];
        let read = self.each(start, len, |part, at, range| {
            let is_there = part.kept.has(at..at + range.len() as u64);
            let missing = || io::Error::from(io::ErrorKind::NotFound);
            is_there.then_some(()).ok_or_else(missing)?;
            part.partial.read(at, &mut bytes[range])
        });
        read.is_ok() && self.tree.is_group(group, &bytes)
    }

    /// Writes groups, and lists them as present.
    fn write(&mut self, groups: &[u64], fetched: &[Vec<u8>]) -> io::Result<()> {
        for (group, bytes) in groups.iter().zip(fetched) {
            let (start, len) = self.tree.extent(*group);
            self.each(start, len, |part, at, range| {
                part.partial.write(at, &bytes[range.clone()])?;
                part.kept.add(at..at + range.len() as u64);
                Ok(())
            })?;
        }
        self.files.iter().try_for_each(|part| part.partial.save(&part.kept))
    }

    /// Calls `act` for each file's share of a byte range, with the offset in the file and the range
    /// in the bytes.
    fn each(
        &mut self,
        start: u64,
        len: u64,
        mut act: impl FnMut(&mut Part, u64, Range<usize>) -> io::Result<()>,
    ) -> io::Result<()> {
        for part in &mut self.files {
            let (first, end) = (part.start, part.start + part.kept.size());
            let (from, to) = (start.max(first), (start + len).min(end));
            if from < to {
                act(part, from - first, (from - start) as usize..(to - start) as usize)?;
            }
        }
        Ok(())
    }

    /// Moves the files to their final paths; returns the first.
    fn finish(self) -> io::Result<PathBuf> {
        let paths: Vec<PathBuf> = self.files.iter().map(|part| part.path.clone()).collect();
        self.files
            .into_iter()
            .try_for_each(|part| part.partial.finish())
            .map_err(io::Error::other)?;
        match paths.split_last() {
            Some((tower, model)) if !model.is_empty() && is_tower(tower) => {
                rename(&self.stem, model, tower)
            }
            _ => Ok(paths[0].clone()),
        }
    }
}

fn is_tower(path: &Path) -> bool {
    let header = gguf::read_header(path);
    header.is_ok_and(|it| it.find_str("general.architecture").ok().flatten() == Some("clip"))
}

/// Renames a copied model whose last file is a vision tower: the tower gets the model's name, and
/// the other files are counted without it. Returns the model's first file.
fn rename(stem: &Path, model: &[PathBuf], tower: &Path) -> io::Result<PathBuf> {
    let named = |end: String| PathBuf::from(format!("{}{end}", stem.display()));
    store::rename(tower, named(".mmproj.gguf".to_owned()))?;
    let count = model.len();
    let own = |at: usize| match count {
        1 => named(".gguf".to_owned()),
        _ => named(format!("-{:05}-of-{count:05}.gguf", at + 1)),
    };
    model.iter().enumerate().try_for_each(|(at, path)| store::rename(path, own(at)))?;
    Ok(own(0))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A model of two files, whose second group lies in both.
    fn original(dir: &Path) -> (Vec<u8>, Tree, [u64; 2]) {
        let bytes: Vec<u8> = (0..(3u32 << 20) - 5).map(|at| (at / 7) as u8).collect();
        let (one, two) = bytes.split_at((1 << 20) + 100);
        let paths = [dir.join("one"), dir.join("two")];
        fs::write(&paths[0], one).unwrap();
        fs::write(&paths[1], two).unwrap();
        let files = paths.iter().map(|path| gguf::on_disk(path).unwrap()).collect();
        let tree = Tree::of_files(files, &|_| {}).unwrap();
        (bytes.clone(), tree, [one.len() as u64, two.len() as u64])
    }

    #[test]
    fn an_interrupted_copy_goes_on_and_is_listed() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, tree, lens) = original(dir.path());
        let models = dir.path().join("models");
        let open = || Target::open(&models, "m", tree.clone(), &lens);
        let group = |group: u64| {
            let (start, len) = tree.extent(group);
            bytes[start as usize..(start + len) as usize].to_vec()
        };
        let mut copy = open().unwrap();
        copy.write(&[1, 2], &[group(1), group(2)]).unwrap();
        assert!(open().is_err_and(|error| error.to_string().contains("another process")));
        drop(copy);
        let listed = hub::unfinished(&models);
        let done: u64 = listed.iter().map(|file| file.done_bytes).sum();
        assert_eq!((listed.len(), done), (2, bytes.len() as u64 - (1 << 20)));

        // What is damaged on the disk meanwhile is fetched again.
        let second = models.join("m-00002-of-00002.gguf.part");
        let mut part = fs::read(&second).unwrap();
        *part.last_mut().unwrap() ^= 1;
        fs::write(&second, part).unwrap();
        let mut copy = open().unwrap();
        assert_eq!([0, 1, 2].map(|group| copy.has(group)), [false, true, false]);
        copy.write(&[0, 2], &[group(0), group(2)]).unwrap();
        let first = copy.finish().unwrap();
        let found =
            [first, models.join("m-00002-of-00002.gguf")].map(|path| fs::read(path).unwrap());
        assert_eq!(found.concat(), bytes);
        assert!(hub::unfinished(&models).is_empty());
    }
}
