//! Models with missing parts. They do not run; listing them shows the user why.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use super::folder::in_repository;
use super::{Places, files_below};

/// Names of missing files that are shown.
const SHOWN_MAX: usize = 3;

/// A model in several files with some missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Incomplete {
    /// `org/repo:QUANT` if its folder shows it, or its files' common name.
    pub name: String,
    pub dir: PathBuf,
    /// The files' names up to their numbers.
    stem: String,
    /// The number of present files, and of all its files.
    pub present: u64,
    pub count: u64,
    /// Names of the missing files.
    pub missing: Vec<String>,
}

/// Every such model in this node's folder and in the user's folders.
pub(crate) fn incomplete(own: &Path, places: &Places) -> Vec<Incomplete> {
    let dirs = std::iter::once(own).chain(places.folders.iter().map(PathBuf::as_path));
    dirs.chain(places.lm_studio.iter().map(PathBuf::as_path)).flat_map(below).collect()
}

fn below(root: &Path) -> Vec<Incomplete> {
    let is_part = |path: &Path, _: &str| gguf::part_name(path).is_some();
    let mut sets: BTreeMap<(PathBuf, String, u64), Vec<PathBuf>> = BTreeMap::new();
    for path in files_below(root, &is_part) {
        let Some((stem, _, count)) = gguf::part_name(&path) else { continue };
        let dir = path.parent().unwrap_or(root).to_path_buf();
        sets.entry((dir, stem, count)).or_default().push(path);
    }
    let whole = sets.into_iter().filter_map(|((dir, stem, count), present)| {
        let all = gguf::parts_of(&present[0]);
        let missing = all.iter().filter(|part| !present.contains(part));
        let name = |part: &PathBuf| part.file_name().map(|it| it.to_string_lossy().into_owned());
        let missing: Vec<String> = missing.filter_map(name).collect();
        let quant = crate::quant_of(&stem);
        let repo = in_repository(root, &present[0]).map(|(repo, _)| repo);
        let name = match (repo, quant) {
            (Some(repo), Some(quant)) => format!("{repo}:{quant}"),
            _ => stem.clone(),
        };
        let name = crate::naming::clean(&name);
        let present = present.len() as u64;
        (!missing.is_empty()).then_some(Incomplete { name, dir, stem, present, count, missing })
    });
    whole.collect()
}

impl Incomplete {
    /// Whether a name means this one.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let file = Path::new(name.rsplit(['/', ':']).next().unwrap_or(name));
        let of_file = gguf::part_name(file).is_some_and(|(stem, _, _)| stem == self.stem);
        let repo = self.name.split_once(':').map(|(repo, _)| repo);
        let names = [Some(self.name.as_str()), Some(self.stem.as_str()), repo];
        of_file || names.into_iter().flatten().any(|known| known.eq_ignore_ascii_case(name))
    }
}

impl fmt::Display for Incomplete {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.missing.iter().take(SHOWN_MAX).cloned().collect::<Vec<_>>().join(", ");
        let more = self.missing.len().saturating_sub(SHOWN_MAX);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let (present, count) = (self.present, self.count);
        let shown = crate::naming::clean(&shown);
        write!(
            f,
            "{present} of {count} files are in {}; missing: {shown}{more}",
            self.dir.display()
        )
    }
}
