//! Changes a user's file in such a way that it can be restored byte for byte.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serve::clients::Change;

use crate::data_dir::write_private;
use crate::error::{CliError, Doing};

/// The original files, with one description a program.
pub struct Backups {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
struct Backup {
    path: PathBuf,
    /// Absent if there was no file.
    before: Option<String>,
    /// The written content; a file that differs contains later changes of the user.
    after: String,
    /// Folders that were created for it, the innermost first.
    made: Vec<PathBuf>,
}

impl Backups {
    pub fn new(data_dir: &Path) -> Self {
        Self { folder: data_dir.join("launch") }
    }

    fn path(&self, id: &str) -> PathBuf {
        self.folder.join(format!("{id}.json"))
    }

    /// Changes a file and keeps the original. A second change starts from the original too.
    ///
    /// # Errors
    /// `change` refuses, or the file cannot be read or written.
    pub fn change(
        &self,
        id: &str,
        path: &Path,
        change: impl FnOnce(Option<&str>) -> Result<String, CliError>,
    ) -> Result<(), CliError> {
        if self.path(id).exists() {
            self.undo(id)?;
        }
        let before = match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(error).doing(format!("cannot read {}", path.display())),
        };
        let after = change(before.as_deref()).map_err(|error| {
            CliError::Refused(format!("{} was left as it is: {error}", path.display()))
        })?;
        let missing = path.ancestors().skip(1).take_while(|folder| !folder.exists());
        let made = missing.map(Path::to_path_buf).collect();
        let backup = Backup { path: path.to_path_buf(), before, after, made };
        let kept = serde_json::to_vec_pretty(&backup).expect("text and paths are JSON");
        fs::create_dir_all(&self.folder)
            .and_then(|()| write_private(&self.path(id), &kept))
            .doing(format!("cannot keep what {} was, so it was left as it is", path.display()))?;
        let folder = path.parent().unwrap_or(Path::new("/"));
        fs::create_dir_all(folder)
            .and_then(|()| replace(path, backup.after.as_bytes()))
            .doing(format!("cannot write {}", path.display()))
    }

    /// Restores the file; returns its path.
    ///
    /// # Errors
    /// There is nothing to restore, or the file was changed meanwhile.
    pub fn undo(&self, id: &str) -> Result<PathBuf, CliError> {
        let kept = fs::read(self.path(id)).map_err(|_| {
            CliError::Refused(format!("nothing was written for {id}, so there is nothing to undo"))
        })?;
        let backup: Backup = serde_json::from_slice(&kept)
            .map_err(|error| CliError::Refused(format!("{}: {error}", self.path(id).display())))?;
        let path = &backup.path;
        let now = fs::read_to_string(path).ok();
        // A file that equals the original was restored by hand.
        if now != backup.before {
            if now.as_deref() != Some(backup.after.as_str()) {
                let text = format!(
                    "{} was changed since sinew wrote it, so it is left as it is. What it was \
                     before is in {}",
                    path.display(),
                    self.path(id).display()
                );
                return Err(CliError::Refused(text));
            }
            let restored = match &backup.before {
                Some(text) => replace(path, text.as_bytes()),
                None => fs::remove_file(path),
            };
            restored.doing(format!("cannot put {} back", path.display()))?;
        }
        for folder in &backup.made {
            // A folder with other content stays.
            let _ = fs::remove_dir(folder);
        }
        fs::remove_file(self.path(id)).doing(format!("cannot forget {}", path.display()))?;
        Ok(backup.path)
    }
}

/// Replaces the file atomically and keeps its permissions.
fn replace(path: &Path, text: &[u8]) -> std::io::Result<()> {
    // A link stays a link: its target is written.
    let path = dunce::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".sinew-new");
    let temporary = path.with_file_name(name);
    let written = write_private(&temporary, text).and_then(|()| {
        if let Ok(found) = fs::metadata(&path) {
            fs::set_permissions(&temporary, found.permissions())?;
        }
        store::rename(&temporary, &path)
    });
    written.inspect_err(|_| drop(fs::remove_file(&temporary)))
}

/// The new content of a file.
///
/// # Errors
/// Only the user can change it without losing something.
pub fn changed(before: Option<&str>, change: &Change) -> Result<String, CliError> {
    let refused = |text: String| Err(CliError::Refused(text));
    let before = before.filter(|text| !text.trim().is_empty());
    match (change, before) {
        (change, None) => Ok(format!("{}\n", change.text().trim_end())),
        (Change::Create(_), Some(_)) => refused(
            "it is there already. Leave --write out, and add what is printed to it".to_owned(),
        ),
        (Change::Append(tables), Some(before)) => {
            let heads = tables.lines().filter(|line| line.starts_with('['));
            for head in heads {
                if before.lines().any(|line| line.trim() == head) {
                    let text =
                        format!("it has {head} already. Change it there, or remove it first");
                    return refused(text);
                }
            }
            Ok(format!("{}\n\n{}\n", before.trim_end(), tables.trim_end()))
        }
        (Change::Merge(values), Some(before)) => {
            let mut merged: Value = match serde_json::from_str(before) {
                Ok(Value::Object(fields)) => Value::Object(fields),
                Ok(_) => return refused("it is JSON, but no object".to_owned()),
                Err(error) => {
                    let text = format!(
                        "it is no plain JSON ({error}); comments in it would be lost. Leave --write \
                         out, and add what is printed to it"
                    );
                    return refused(text);
                }
            };
            merge(&mut merged, values);
            Ok(format!("{merged:#}\n"))
        }
    }
}

/// Merges `values` into `target`: objects field by field; everything else is replaced.
fn merge(target: &mut Value, values: &Value) {
    match (target, values) {
        (Value::Object(target), Value::Object(values)) => {
            for (name, value) in values {
                merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (target, value) => *target = value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(outcome: Result<String, CliError>) -> String {
        outcome.unwrap_err().to_string()
    }

    #[test]
    fn a_file_keeps_what_is_not_ours() {
        let change = Change::Merge(json!({"env": {"A": "1"}}));
        let merged = changed(Some(r#"{"theme": "dark", "env": {"B": "2", "A": "0"}}"#), &change);
        let merged: Value = serde_json::from_str(&merged.unwrap()).unwrap();
        assert_eq!(merged, json!({"theme": "dark", "env": {"A": "1", "B": "2"}}));
        assert!(refusal(changed(Some("{\n// mine\n}"), &change)).contains("comments"));
        assert!(refusal(changed(Some("[1]"), &change)).contains("no object"));
        let change = Change::Append("[model_providers.sinew]\nname = \"S\"\n".to_owned());
        let merged = changed(Some("model = \"x\""), &change).unwrap();
        assert_eq!(merged, "model = \"x\"\n\n[model_providers.sinew]\nname = \"S\"\n");
        assert!(refusal(changed(Some(&merged), &change)).contains("already"));
        assert!(
            refusal(changed(Some("a: 1"), &Change::Create("b: 2".to_owned()))).contains("there")
        );
    }

    #[test]
    fn undo_restores_every_byte_and_leaves_what_others_changed() {
        let dir = tempfile::tempdir().unwrap();
        let backups = Backups::new(&dir.path().join("data"));
        let path = dir.path().join("home/.tool/settings.json");
        let write = |text: &str| {
            let text = text.to_owned();
            backups.change("tool", &path, move |_| Ok(text))
        };
        // If there was no file, nothing is left, not even the folders.
        write("one").unwrap();
        write("two").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "two");
        backups.undo("tool").unwrap();
        assert!(!dir.path().join("home").exists());
        assert!(backups.undo("tool").unwrap_err().to_string().contains("nothing to undo"));

        let odd = "{ \"a\":1 }\r\n\t\u{e9}";
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, odd).unwrap();
        write("three").unwrap();
        backups.undo("tool").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), odd);

        write("four").unwrap();
        fs::write(&path, "a person's").unwrap();
        for outcome in [backups.undo("tool").map(drop), write("five")] {
            assert!(outcome.unwrap_err().to_string().contains("was changed"), "left as it is");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), "a person's");
        let refused = backups.change("other", &path, |_| Err(CliError::Refused("no".to_owned())));
        assert!(refused.unwrap_err().to_string().contains("left as it is: no"));
    }
}
