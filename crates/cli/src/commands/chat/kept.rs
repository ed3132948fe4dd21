//! Conversations that are kept on this machine: a private file each, in the data directory.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::data_dir::{DataDir, replace_private};
use crate::error::{CliError, Doing};

/// A conversation's pictures are part of its file; more than a request may have is no conversation.
const FILE_BYTES_MAX: u64 = 256 << 20;
const NAME_CHARS_MAX: usize = 64;

/// The folder of a user's chats.
#[derive(Debug, Clone)]
pub struct Chats {
    folder: PathBuf,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Kept {
    pub model: String,
    /// As a request has them.
    pub messages: Vec<Value>,
}

impl Chats {
    /// Makes the folder, for this user alone.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(data_dir: &DataDir) -> Result<Self, CliError> {
        data_dir.create()?;
        let folder = data_dir.path().join("chats");
        store::private::folder(&folder).doing(format!("cannot make {}", folder.display()))?;
        Ok(Self { folder })
    }

    /// The file of the questions' history.
    pub fn history(&self) -> PathBuf {
        self.folder.join("history")
    }

    /// # Errors
    /// The name is none for a file, or the file cannot be written.
    pub fn save(&self, name: &str, kept: &Kept) -> Result<PathBuf, CliError> {
        let path = self.path(name)?;
        let text = serde_json::to_vec(kept).map_err(|error| CliError::Usage(error.to_string()))?;
        replace_private(&path, &text).doing(format!("cannot write {}", path.display()))?;
        Ok(path)
    }

    /// # Errors
    /// There is no such conversation, or its file is damaged.
    pub fn load(&self, name: &str) -> Result<Kept, CliError> {
        let path = self.path(name)?;
        let Ok(found) = fs::metadata(&path) else {
            let names = self.names();
            let near = crate::near::did_you_mean(name, names.iter().map(String::as_str));
            let text = format!("no conversation is kept as {name}{near} /load alone lists them");
            return Err(CliError::Usage(text));
        };
        if found.len() > FILE_BYTES_MAX {
            return Err(CliError::Usage(format!(
                "{} has {} bytes, and a conversation has at most {FILE_BYTES_MAX}; load another",
                path.display(),
                found.len()
            )));
        }
        let text = fs::read(&path).doing(format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&text).map_err(|error| {
            let path = path.display();
            CliError::Usage(format!("{path} is no conversation: {error}. Delete it"))
        })
    }

    /// The names of all, in order.
    pub fn names(&self) -> Vec<String> {
        let name = |path: &Path| {
            let is_kept = path.extension().is_some_and(|end| end == "json");
            is_kept.then(|| path.file_stem()?.to_str().map(str::to_owned)).flatten()
        };
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| name(&entry.path())).collect();
        names.sort();
        names
    }

    /// A name is a part of a path, so it may not lead elsewhere.
    fn path(&self, name: &str) -> Result<PathBuf, CliError> {
        let known = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        let is_name = name.chars().all(known) && name.chars().count() <= NAME_CHARS_MAX;
        if is_name && !name.starts_with('.') && !name.is_empty() {
            return Ok(self.folder.join(format!("{name}.json")));
        }
        Err(CliError::Usage(format!(
            "{name} is no name: 1 to {NAME_CHARS_MAX} letters, digits, - and _ are one"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_conversation_comes_back_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let chats = Chats::new(&DataDir::at(dir.path().join("node"))).unwrap();
        let messages = vec![json!({ "role": "user", "content": "Hello" })];
        let kept = Kept { model: "m".to_owned(), messages: messages.clone() };
        let path = chats.save("boats-2", &kept).unwrap();
        assert!(!store::private::is_open_to_others(&fs::metadata(&path).unwrap()));
        let loaded = chats.load("boats-2").unwrap();
        assert_eq!((loaded.model.as_str(), loaded.messages), ("m", messages));
        assert_eq!(chats.names(), ["boats-2"]);
        let error = chats.load("boats").unwrap_err().to_string();
        assert!(error.contains("did you mean boats-2?"), "{error}");
        fs::write(&path, "[]").unwrap();
        assert!(chats.load("boats-2").unwrap_err().to_string().contains("is no conversation"));
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let chats = Chats::new(&DataDir::at(dir.path().join("node"))).unwrap();
        let kept = Kept { model: String::new(), messages: Vec::new() };
        for name in ["", "..", "../keys", "a/b", ".hidden", "a b", &"x".repeat(65)] {
            assert!(chats.save(name, &kept).unwrap_err().to_string().contains("is no name"));
        }
    }
}
