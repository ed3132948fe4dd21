//! Models with a vision tower from another place.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::naming::real;
use crate::{Shelved, Store, StoreError};

impl Store {
    /// A model with a vision tower that is not beside it: a folder of the node's own, with links to
    /// the files of both. Returns the model's name, and its path there.
    ///
    /// # Errors
    /// There is no such model, the tower does not suit it, or the folder cannot be written.
    pub fn with_tower(&self, model: &str, tower: &Path) -> Result<(String, PathBuf), StoreError> {
        let located = self.locate(model)?;
        let refuse = |why: String| {
            let (tower, model) = (tower.to_path_buf(), located.path.clone());
            Err(StoreError::Tower { tower, model, why })
        };
        if checkpoint::is_folder(&located.path) {
            return refuse("put it into the model's folder".to_owned());
        }
        match checkpoint::why_no_tower(&located.path, tower) {
            Ok(None) => {}
            Ok(Some(why)) => return refuse(why),
            Err(error) => return refuse(error.to_string()),
        }
        let stem =
            |path: &Path| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let folder = self.models.join(format!("{} with {}", stem(&located.path), stem(tower)));
        let parts = gguf::parts_of(&located.path);
        let named = |part: &PathBuf| folder.join(part.file_name().unwrap_or_default());
        let links = parts.iter().map(|part| (part.clone(), named(part)));
        let links = links.chain([(tower.to_path_buf(), folder.join("mmproj.gguf"))]);
        let link = |(from, to): (PathBuf, PathBuf)| {
            let _ = fs::remove_file(&to);
            link(&from, &to)
        };
        let linked =
            fs::create_dir_all(&folder).and_then(|()| links.into_iter().try_for_each(link));
        if let Err(error) = linked {
            return refuse(format!("{} cannot be written: {error}", folder.display()));
        }
        self.refresh();
        Ok((located.name, named(&located.path)))
    }
}

/// A link to a file, or where links need a privilege, a second name of it.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let from = dunce::canonicalize(from)?;
    #[cfg(unix)]
    return std::os::unix::fs::symlink(from, to);
    #[cfg(not(unix))]
    return fs::hard_link(from, to);
}

/// Whether a file of the model at `path` is a vision tower that another model has too.
pub(crate) fn is_of_another(part: &Path, path: &Path, shelved: &[Shelved]) -> bool {
    let mut others = shelved.iter().filter(|other| real(&other.path) != real(path));
    checkpoint::is_tower(&part.to_string_lossy())
        && others.any(|other| checkpoint::paths(&other.path).iter().any(|file| file == part))
}
