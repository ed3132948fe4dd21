//! Copies a served model's file from other members to this node's model folder. Every group is
//! compared with its hash on arrival, so a copy equals its original. An interrupted copy resumes.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hub::{DiskRoom, Kept, Partial, Reserved};
use store::{Store, Tree};

use crate::io::on_thread::on_thread;
use crate::transfer::swarm::Swarm;

/// Groups in flight: from several members, and during writes to disk.
const AT_ONCE: u64 = 8;

/// Limit of a file name's stem. File systems allow 255 bytes, and suffixes need some of them.
const STEM_CHARS_MAX: usize = 200;

/// Where a model's files go.
#[derive(Clone)]
struct Paths {
    models: PathBuf,
    /// The start of all paths.
    stem: PathBuf,
    /// The files with their lengths, in sequence.
    files: Vec<(PathBuf, u64)>,
}

/// The files of a model under way, in sequence.
struct Target {
    /// The start of all paths.
    stem: PathBuf,
    files: Vec<Part>,
    tree: Tree,
    reserved: Reserved,
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
/// continue. A copy that nobody asked for needs ample room, and leaves nothing where there is none
/// or where it is wanted no more; what a bad network interrupts goes on later.
///
/// # Errors
/// The disk is too small or fails, no member has the right bytes, or `tell` has cancelled.
pub(crate) async fn copy(
    swarm: &Swarm,
    store: Arc<Store>,
    name: &str,
    room: DiskRoom,
    tell: impl FnMut(u64, u64) -> bool,
) -> io::Result<PathBuf> {
    let (tree, lens) = swarm.learn().await?;
    let (models, name) = (store.models_dir().to_path_buf(), name.to_owned());
    let named = tree.clone();
    let paths = blocking(move || Ok(Paths::of(&models, &name, &named, &lens))).await?;
    let copied = fetch(swarm, store, (&paths, &tree, room), tell).await;
    let ends = [io::ErrorKind::StorageFull, io::ErrorKind::Interrupted];
    let is_over = copied.as_ref().is_err_and(|error| ends.contains(&error.kind()));
    if is_over && room == DiskRoom::Ample {
        // The disk may fail again; the first error says why.
        let _ = blocking(move || paths.discard(&tree)).await;
    }
    copied
}

async fn fetch(
    swarm: &Swarm,
    store: Arc<Store>,
    (paths, tree, room): (&Paths, &Tree, DiskRoom),
    mut tell: impl FnMut(u64, u64) -> bool,
) -> io::Result<PathBuf> {
    let (paths, own_tree) = (paths.clone(), tree.clone());
    let open = blocking(move || Target::open(&paths, own_tree, room));
    let mut target = open.await?;
    let count = tree.bytes.div_ceil(store::GROUP_BYTES);
    for first in (0..count).step_by(AT_ONCE as usize) {
        let groups = first..count.min(first + AT_ONCE);
        let end_bytes = tree.bytes.min(groups.end * store::GROUP_BYTES);
        if !tell(first * store::GROUP_BYTES, tree.bytes) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "it is wanted no more"));
        }
        let look = blocking(move || {
            target.check_room()?;
            let missing: Vec<u64> = groups.filter(|group| !target.has(*group)).collect();
            Ok((target, missing))
        });
        let (mut open, missing) = look.await?;
        let missing_bytes: u64 = missing.iter().map(|group| tree.extent(*group).1).sum();
        let mut have_bytes = end_bytes - missing_bytes;
        let mut arriving: FuturesUnordered<_> = missing
            .into_iter()
            .map(async |group| (group, swarm.group(tree, group).await))
            .collect();
        // What comes is kept, whatever becomes of the others.
        let mut failure = None;
        while let Some((group, fetched)) = arriving.next().await {
            match fetched {
                Ok(bytes) => {
                    have_bytes += bytes.len() as u64;
                    tell(have_bytes, tree.bytes);
                    open = blocking(move || open.write(group, &bytes).map(|()| open)).await?;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        target = blocking(move || open.save().map(|()| open)).await?;
        failure.map_or(Ok(()), Err)?;
    }
    blocking(move || {
        let tree = target.tree.clone();
        let path = target.finish()?;
        store.adopt(&path, &tree)?;
        Ok(path)
    })
    .await
}

fn full(why: String) -> io::Error {
    io::Error::new(io::ErrorKind::StorageFull, why)
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    on_thread(work).await.map_err(io::Error::other)?
}

impl Paths {
    /// Paths that no other files have.
    fn of(models: &Path, name: &str, tree: &Tree, lens: &[u64]) -> Self {
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
        let is_taken = models.join(format!("{plain}.gguf")).exists();
        if plain.is_empty() || is_taken || (0..count).any(|at| path(&stem, at).exists()) {
            stem = format!("{plain}-{}", &tree.digest.to_string()[..12]);
        }
        let files = lens.iter().enumerate().map(|(at, len)| (path(&stem, at), *len)).collect();
        Self { models: models.to_path_buf(), stem: models.join(stem), files }
    }

    /// Reserves the space for what is missing.
    fn reserve(&self, files: &[Part], room: DiskRoom) -> io::Result<Reserved> {
        let missing: u64 = files.iter().map(|part| part.kept.size() - part.kept.have_bytes()).sum();
        let name = self.stem.file_name().unwrap_or_default().to_string_lossy();
        let reserved = hub::reserve(&self.models, &name, missing, room);
        reserved.map_err(|error| match room {
            DiskRoom::Enough => full(error.to_string()),
            DiskRoom::Ample => full(format!(
                "the disk of {} has no room for twice its {:.1} GiB beside what other downloads \
                 and copies still need",
                self.models.display(),
                missing as f64 / (1u64 << 30) as f64
            )),
        })
    }

    /// Deletes what has come, unless another process writes it.
    fn discard(&self, tree: &Tree) -> io::Result<()> {
        self.files.iter().try_for_each(|(path, len)| {
            let opened = Partial::of_content(path, *len, &tree.digest.to_string());
            opened.and_then(|(partial, _)| partial.discard()).map_err(io::Error::other)
        })
    }
}

impl Target {
    /// Opens the files of a model. What it cannot begin it does not leave behind.
    fn open(paths: &Paths, tree: Tree, room: DiskRoom) -> io::Result<Self> {
        let (mut files, mut start) = (Vec::new(), 0);
        let content = tree.digest.to_string();
        let opened = paths.files.iter().try_for_each(|(path, len)| {
            let (partial, kept) =
                Partial::of_content(path, *len, &content).map_err(io::Error::other)?;
            files.push(Part { start, path: path.clone(), partial, kept });
            start += len;
            Ok(())
        });
        match opened.and_then(|()| paths.reserve(&files, room)) {
            Ok(reserved) => Ok(Self { stem: paths.stem.clone(), files, tree, reserved }),
            Err(error) => {
                let empty = files.into_iter().filter(|part| part.kept.have_bytes() == 0);
                empty.for_each(|part| drop(part.partial.discard()));
                Err(error)
            }
        }
    }

    /// # Errors
    /// Other programs have filled the disk meanwhile, and nobody asked for this copy.
    fn check_room(&self) -> io::Result<()> {
        let full = || full("the disk has no room for it any more".to_owned());
        self.reserved.still_fits().then_some(()).ok_or_else(full)
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

    /// Writes a group.
    fn write(&mut self, group: u64, bytes: &[u8]) -> io::Result<()> {
        let (start, len) = self.tree.extent(group);
        self.each(start, len, |part, at, range| {
            part.partial.write(at, &bytes[range.clone()])?;
            part.kept.add(at..at + range.len() as u64);
            Ok(())
        })?;
        self.reserved.written(len);
        Ok(())
    }

    /// Lists what was written as present.
    fn save(&mut self) -> io::Result<()> {
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
        let paths = || Paths::of(&models, "m", &tree, &lens);
        let open = || Target::open(&paths(), tree.clone(), DiskRoom::Enough);
        let group = |group: u64| {
            let (start, len) = tree.extent(group);
            bytes[start as usize..(start + len) as usize].to_vec()
        };
        let mut copy = open().unwrap();
        [1, 2].into_iter().try_for_each(|at| copy.write(at, &group(at))).unwrap();
        copy.save().unwrap();
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
        [0, 2].into_iter().try_for_each(|at| copy.write(at, &group(at))).unwrap();
        copy.save().unwrap();
        let first = copy.finish().unwrap();
        let found =
            [first, models.join("m-00002-of-00002.gguf")].map(|path| fs::read(path).unwrap());
        assert_eq!(found.concat(), bytes);
        assert!(hub::unfinished(&models).is_empty());
    }

    #[test]
    fn what_fails_without_having_been_asked_for_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (bytes, tree, lens) = original(dir.path());
        let models = dir.path().join("models");
        let count = || fs::read_dir(&models).unwrap().count();
        let paths = Paths::of(&models, "m", &tree, &lens);
        let mut copy = Target::open(&paths, tree.clone(), DiskRoom::Ample).unwrap();
        copy.check_room().unwrap();
        copy.write(0, &bytes[..1 << 20]).unwrap();
        copy.save().unwrap();
        drop(copy);
        assert_eq!(count(), 4);
        paths.discard(&tree).unwrap();
        assert_eq!(count(), 0);
        // Where there is no room, nothing is begun.
        let lens = [lens[0], 8 << 40];
        let paths = Paths::of(&models, "m", &tree, &lens);
        for room in [DiskRoom::Enough, DiskRoom::Ample] {
            assert!(Target::open(&paths, tree.clone(), room).is_err());
            assert_eq!(count(), 0, "{room:?}");
        }
    }
}
