//! Conversations that are kept on this machine, in the folder that the node's page uses too.

use std::path::PathBuf;

use chats::{ChatsError, Conversation, Folder, Limits, Message};
use serde_json::Value;

use crate::data_dir::{CHATS, DataDir};
use crate::error::CliError;

/// The folder of a user's chats.
#[derive(Debug)]
pub struct Chats {
    folder: Folder,
}

#[derive(Debug)]
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
        let folder = Folder::open(data_dir.path().join(CHATS), Limits::default());
        Ok(Self { folder: folder.map_err(usage)? })
    }

    /// The file of the questions' history.
    pub fn history(&self) -> PathBuf {
        self.folder.path().join("history")
    }

    /// Keeps a conversation, beside what is kept under its name already: that stays as another
    /// branch, which the page shows.
    ///
    /// # Errors
    /// The name is none for a file, or the file cannot be written.
    pub fn save(&self, name: &str, kept: &Kept) -> Result<PathBuf, CliError> {
        let read = |value: &Value| serde_json::from_value::<Message>(value.clone());
        let messages: Result<Vec<Message>, _> = kept.messages.iter().map(read).collect();
        let mut messages = messages.map_err(|error| CliError::Usage(error.to_string()))?;
        let has_system = messages.first().is_some_and(|first| first.role == "system");
        let system = if has_system { messages.remove(0).text() } else { String::new() };
        let fill = |talk: &mut Conversation| {
            talk.merge(&messages);
            talk.start = 0;
            talk.system = system;
            talk.model.clone_from(&kept.model);
        };
        let id = self.id(name);
        if matches!(self.folder.read(&id), Err(ChatsError::Unknown { .. })) {
            let mut talk = Conversation::default();
            fill(&mut talk);
            self.folder.create(Some(&id), talk).map_err(usage)?;
        } else {
            let change = |talk: &mut _| {
                fill(talk);
                Ok(())
            };
            self.folder.change(&id, None, change).map_err(usage)?;
        }
        Ok(self.folder.path().join(format!("{id}.json")))
    }

    /// # Errors
    /// There is no such conversation, or its file is damaged.
    pub fn load(&self, name: &str) -> Result<Kept, CliError> {
        match self.folder.read(&self.id(name)) {
            Ok(talk) => Ok(Kept { messages: talk.request(talk.head()), model: talk.model.clone() }),
            Err(ChatsError::Unknown { .. }) => {
                let names: Vec<String> =
                    self.names().into_iter().flat_map(<[_; 2]>::from).collect();
                let near = crate::near::did_you_mean(name, names.iter().map(String::as_str));
                let text =
                    format!("no conversation is kept as {name}{near} /load alone lists them");
                Err(CliError::Usage(text))
            }
            Err(error) => Err(usage(error)),
        }
    }

    /// The names of all and their titles, in order.
    pub fn names(&self) -> Vec<(String, String)> {
        let list = self.folder.list().unwrap_or_default();
        let chats = list.chats.iter().map(|chat| (chat.id.clone(), chat.title.clone()));
        let mut names: Vec<(String, String)> = chats.collect();
        names.sort();
        names
    }

    /// The name of the file that is kept under a name or title.
    fn id(&self, name: &str) -> String {
        let names = self.names();
        let titled = names.iter().find(|(id, title)| id != name && title == name);
        let is_id = names.iter().any(|(id, _)| id == name);
        titled.filter(|_| !is_id).map_or(name.to_owned(), |(id, _)| id.clone())
    }
}

fn usage(error: ChatsError) -> CliError {
    CliError::Usage(error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use serde_json::json;

    fn chats(dir: &tempfile::TempDir) -> Chats {
        Chats::new(&DataDir::at(dir.path().join("node"))).unwrap()
    }

    #[test]
    fn a_conversation_comes_back_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let chats = chats(&dir);
        let messages = vec![
            json!({ "role": "system", "content": "Be brief." }),
            json!({ "role": "user", "content": "Hello" }),
        ];
        let kept = Kept { model: "m".to_owned(), messages: messages.clone() };
        let path = chats.save("boats-2", &kept).unwrap();
        assert!(!store::private::is_open_to_others(&fs::metadata(&path).unwrap()));
        let loaded = chats.load("boats-2").unwrap();
        assert_eq!((loaded.model.as_str(), &loaded.messages), ("m", &messages));
        assert_eq!(chats.load("Hello").unwrap().messages, messages, "by its title");
        assert_eq!(chats.names(), [("boats-2".to_owned(), "Hello".to_owned())]);
        let error = chats.load("boats").unwrap_err().to_string();
        assert!(error.contains("did you mean boats-2?"), "{error}");
        fs::write(&path, "[]").unwrap();
        assert!(chats.load("boats-2").unwrap_err().to_string().contains("is no conversation"));
    }

    #[test]
    fn what_is_kept_under_a_name_already_stays_as_a_branch() {
        let dir = tempfile::tempdir().unwrap();
        let chats = chats(&dir);
        let keep = |text: &str| {
            let messages = vec![json!({ "role": "user", "content": text })];
            chats.save("talk", &Kept { model: "m".to_owned(), messages }).unwrap();
        };
        keep("first");
        keep("second");
        assert_eq!(chats.load("talk").unwrap().messages[0]["content"], "second");
        assert_eq!(chats.folder.read("talk").unwrap().messages.len(), 2);
    }

    #[test]
    fn a_name_leads_nowhere_else() {
        let dir = tempfile::tempdir().unwrap();
        let kept = Kept { model: String::new(), messages: Vec::new() };
        for name in ["", "..", "../keys", "a/b", ".hidden", "a b", &"x".repeat(65)] {
            let error = chats(&dir).save(name, &kept).unwrap_err();
            assert!(error.to_string().contains("is no name"));
        }
    }
}
