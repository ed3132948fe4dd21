//! Folders of models: this node's, LM Studio's and those that the user named. A file two folders
//! deep or more is `PUBLISHER/REPO/FILE`, as LM Studio has them; others go by their names.

use std::path::Path;

use super::{Shelf, Shelved, models_below, repo_name, shelved};

pub(super) fn scan(dir: &Path, shelf: &Shelf) -> Vec<Shelved> {
    let models = models_below(dir).into_iter();
    models.filter_map(|path| shelved(path.clone(), name(dir, &path), shelf)).collect()
}

fn name(dir: &Path, path: &Path) -> String {
    let inside = path.strip_prefix(dir).unwrap_or(path);
    let folders: Vec<_> = inside.parent().into_iter().flat_map(Path::iter).collect();
    match folders[..] {
        [owner, repo, ..] => {
            let repo = format!("{}/{}", owner.to_string_lossy(), repo.to_string_lossy());
            repo_name(&repo, path)
        }
        _ => crate::store::name_of(path),
    }
}
