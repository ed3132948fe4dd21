//! Links in a model's folder. A folder may come from a stranger, as by `git clone`, and the node
//! shows some of its files to its clients. So a link leads to a file of the same folder or of a
//! hub's cache, and nowhere else.

use std::io;
use std::path::Path;

/// Of a repository in a hub's cache, whose folders of files have links to `blobs`.
const REPOSITORY: &str = "models--";
const BLOBS: &str = "blobs";

/// Checks a file of a model's folder, which exists.
///
/// # Errors
/// It is a link to another place, or cannot be looked at.
pub(crate) fn check(path: &Path) -> io::Result<()> {
    let real = path.canonicalize()?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or(Path::new(".")).canonicalize()?;
    if real.starts_with(folder) || is_in_cache(&real) {
        return Ok(());
    }
    let why = "it is a link out of the model's folder, which is not followed. Put the file itself \
               there";
    Err(io::Error::other(why))
}

/// Whether this is the path of `models--OWNER--REPO/blobs/HASH`.
fn is_in_cache(real: &Path) -> bool {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let Some(blobs) = real.parent() else { return false };
    name(blobs) == BLOBS && blobs.parent().is_some_and(|it| name(it).starts_with(REPOSITORY))
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn links_lead_to_the_folder_and_to_a_cache_only() {
        let home = tempfile::tempdir().unwrap();
        let at = |path: &str| home.path().join(path);
        for folder in ["model", "model-2", "other", "models--o--r/blobs", "o--r/blobs"] {
            fs::create_dir_all(at(folder)).unwrap();
        }
        let targets = [
            ("model/own", true),
            ("models--o--r/blobs/hash", true),
            ("o--r/blobs/hash", false),
            ("models--o--r/config", false),
            ("model-2/secret", false),
            ("secret", false),
        ];
        for (target, passes) in targets {
            fs::write(at(target), "x").unwrap();
            let link = at("model/chat_template.jinja");
            symlink(at(target), &link).unwrap();
            assert_eq!(check(&link).is_ok(), passes, "{target}");
            // Over another link.
            symlink(&link, at("model/second")).unwrap();
            assert_eq!(check(&at("model/second")).is_ok(), passes, "{target}");
            for made in ["model/second", "model/chat_template.jinja"] {
                fs::remove_file(at(made)).unwrap();
            }
        }
        // A folder that is itself a link.
        symlink(at("model"), at("linked")).unwrap();
        check(&at("linked/own")).unwrap();
    }
}
