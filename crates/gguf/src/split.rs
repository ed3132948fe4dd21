//! A model in several files, `NAME-00001-of-00003.gguf` and so on.
//!
//! The parts appear as the one file they were split from. Its header is written anew (the first
//! part's metadata, every part's tensors; of a vision tower's file also what describes it), and
//! each tensor's bytes appear at that header's offset,
//! though they lie in a part. So no other module and no peer needs to know of parts.
//!
//! Source: `gguf-split` of the llama.cpp project (keys `split.count`, `split.no`).

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::Disk;
use crate::{Bytes, Directory, Error, Writer};

/// Far more than any published model has.
const PARTS_MAX: u64 = 4096;
const COUNT: &str = "split.count";
const NUMBER: &str = "split.no";

/// The parts of a split file, joined.
#[derive(Debug)]
pub(crate) struct Split {
    /// Everything in front of the first tensor.
    header: Vec<u8>,
    parts: Vec<Disk>,
    /// The place of each tensor's bytes, in the order of `start`.
    pieces: Vec<Piece>,
    len: u64,
}

/// One tensor's bytes.
#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Offset in the joint file.
    start: u64,
    len: u64,
    part: usize,
    /// Offset in the part.
    at: u64,
}

/// The files of the model at `path`, in order and including it, derived from its name; a single one
/// for a file that is not split.
pub fn parts_of(path: &Path) -> Vec<PathBuf> {
    let Some((prefix, _, count)) = part_name(path) else { return vec![path.to_path_buf()] };
    let name = |number: u64| format!("{prefix}-{number:05}-of-{count:05}.gguf");
    (1..=count).map(|number| path.with_file_name(name(number))).collect()
}

/// `NAME-00002-of-00003.gguf` as `(NAME, 2, 3)`; `None` for other names.
pub fn part_name(path: &Path) -> Option<(String, u64, u64)> {
    const DIGITS: usize = 5;
    let stem = path.file_name()?.to_str()?.strip_suffix(".gguf")?;
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (prefix, number) = rest.rsplit_once('-')?;
    let parse = |digits: &str| match digits.len() == DIGITS {
        true => digits.parse::<u64>().ok(),
        false => None,
    };
    let (number, count) = (parse(number)?, parse(count)?);
    let possible = (1..=PARTS_MAX).contains(&count) && (1..=count).contains(&number);
    possible.then(|| (prefix.to_owned(), number, count))
}

/// Whether a key describes a tower beside a model.
fn is_of_tower(key: &str) -> bool {
    key.starts_with("clip.") || key.starts_with("vision.")
}

/// Whether a file's metadata marks it as one of several.
pub(crate) fn is_split(directory: &Directory) -> Result<bool, Error> {
    Ok(directory.find_u64(COUNT)?.is_some_and(|count| count > 1))
}

impl Split {
    /// Opens the parts of a split file, or of a model with a tower. `path`, already open, is the
    /// first; `open` opens another by its number from 0 and its path. `tower`: a file with a vision
    /// tower, opened as the part behind the last.
    pub fn open(
        path: &Path,
        tower: Option<&Path>,
        first: (Disk, Directory),
        open: impl Fn(usize, &Path) -> Result<(Disk, Directory), Error>,
    ) -> Result<(Self, Directory), Error> {
        let broken = |why: String| Error::Split { path: path.to_path_buf(), why };
        let is_split = is_split(&first.1)?;
        let paths = if is_split { parts_of(path) } else { vec![path.to_path_buf()] };
        let count = if is_split { first.1.u64(COUNT)? } else { 1 };
        let number = first.1.find_u64(NUMBER)?.unwrap_or(0);
        if paths.len() as u64 != count {
            let wanted = format!("-00001-of-{count:05}.gguf");
            return Err(broken(format!(
                "its name must end in {wanted} for the others to be found"
            )));
        }
        if number != 0 {
            return Err(broken(format!("it is part {}; open the first", number + 1)));
        }
        let mut parts = vec![first];
        for (number, path) in paths.iter().enumerate().skip(1) {
            let (part, directory) = open(number, path)?;
            let found = (directory.find_u64(NUMBER)?, directory.find_u64(COUNT)?);
            if found != (Some(number as u64), Some(count)) {
                let name = path.display();
                return Err(broken(format!("{name} is not its part {} of {count}", number + 1)));
            }
            parts.push((part, directory));
        }
        if let Some(tower) = tower {
            let (part, directory) = open(paths.len(), tower)?;
            if directory.find_str("general.architecture")? != Some("clip") {
                let why = format!("{} holds no vision tower", tower.display());
                return Err(Error::Split { path: path.to_path_buf(), why });
            }
            parts.push((part, directory));
        }
        Self::join(parts)
    }

    /// The files themselves.
    pub fn parts(&self) -> Vec<Arc<dyn Bytes>> {
        self.parts.iter().map(Disk::bytes).collect()
    }

    fn join(parts: Vec<(Disk, Directory)>) -> Result<(Self, Directory), Error> {
        let mut writer = Writer::new();
        for (key, value) in parts[0].1.metadata() {
            if !key.starts_with("split.") && key != "general.alignment" {
                writer.set(key, value.clone());
            }
        }
        let metadata = parts[1..].iter().flat_map(|(_, directory)| directory.metadata());
        for (key, value) in metadata.filter(|(key, _)| is_of_tower(key)) {
            writer.set(key, value.clone());
        }
        let tensors: Vec<_> = parts
            .iter()
            .enumerate()
            .flat_map(|(part, (_, directory))| {
                directory.tensors().iter().map(move |tensor| (part, tensor))
            })
            .collect();
        for (_, tensor) in &tensors {
            writer.declare(&tensor.name, &tensor.dims, tensor.ty);
        }
        let header = writer.padded_header();
        let mut start = header.len() as u64;
        let mut pieces = Vec::with_capacity(tensors.len());
        for (part, tensor) in &tensors {
            let len = tensor.range.end - tensor.range.start;
            pieces.push(Piece { start, len, part: *part, at: tensor.range.start });
            start = start.saturating_add(Writer::padded(len));
        }
        let directory = Directory::parse(&header, start)?;
        let parts = parts.into_iter().map(|(part, _)| part).collect();
        Ok((Self { header, parts, pieces, len: start }, directory))
    }

    /// Bytes of the joint file.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Fills `out` with the bytes from `start` on, which must lie inside the header or one tensor.
    pub fn read(&self, start: u64, out: &mut [u8]) -> io::Result<()> {
        let len = out.len();
        let header = self.header.get(start as usize..).and_then(|header| header.get(..len));
        if let Some(bytes) = header {
            out.copy_from_slice(bytes);
            return Ok(());
        }
        let after = self.pieces.partition_point(|piece| piece.start <= start);
        let piece = after.checked_sub(1).map(|at| self.pieces[at]);
        let inside = |piece: &Piece| start - piece.start + len as u64 <= piece.len;
        let Some(piece) = piece.filter(inside) else {
            return Err(io::Error::other(format!(
                "{len} bytes at {start} do not lie inside one tensor"
            )));
        };
        self.parts[piece.part].read(piece.at + (start - piece.start), out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_parts_are_told_from_others() {
        let parse = |name: &str| part_name(Path::new(name));
        assert_eq!(parse("/m/a-b-00002-of-00003.gguf"), Some(("a-b".to_owned(), 2, 3)));
        for other in [
            "a.gguf",
            "a-00000-of-00003.gguf",
            "a-00004-of-00003.gguf",
            "a-00001-of-99999.gguf",
            "a-1-of-3.gguf",
            "a-00001-of-00003.bin",
            "00001-of-00003.gguf",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
        let parts = parts_of(Path::new("/m/a-00001-of-00002.gguf"));
        assert_eq!(parts[1], Path::new("/m/a-00002-of-00002.gguf"));
        assert_eq!(parts_of(Path::new("/m/a.gguf")), [Path::new("/m/a.gguf")]);
    }
}
