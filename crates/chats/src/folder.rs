//! A folder of conversations.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::SystemTime;

use store::private;

use crate::conversation::Conversation;
use crate::draft::{Draft, DraftFile};
use crate::error::{ChatsError, Doing};
use crate::file::{FILE_BYTES_MAX, read_file};
use crate::id::{check, fresh};
use crate::listing::{Index, Listing};

/// Held while a file is changed, also by other processes.
const LOCK: &str = ".lock";

/// How much a folder may have.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    pub count_max: usize,
    pub bytes_max: u64,
}

impl Default for Limits {
    /// A person's own folder: a list of 100,000 can still be shown, and the disk is theirs.
    fn default() -> Self {
        Self { count_max: 100_000, bytes_max: u64::MAX }
    }
}

/// One user's conversations. Calls block on the disk.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    limits: Limits,
    index: Mutex<Index>,
}

impl Folder {
    /// Makes the folder, for this user alone.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn open(path: impl Into<PathBuf>, limits: Limits) -> Result<Self, ChatsError> {
        let path = path.into();
        private::folder(&path).doing("make", &path)?;
        Ok(Self { path, limits, index: Mutex::default() })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All conversations, the newest first.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self) -> Result<Listing, ChatsError> {
        self.index().refresh(&self.path)
    }

    /// The ids of the conversations with all of these words, the newest first. `#word` means a tag.
    ///
    /// # Errors
    /// As for [`Self::list`].
    pub fn search(&self, words: &str) -> Result<Vec<String>, ChatsError> {
        let words = words.to_lowercase();
        let words: Vec<&str> = words.split_whitespace().collect();
        let has = |id: &str| {
            let Ok(talk) = self.read(id) else { return false };
            let texts = talk.messages.iter().map(|message| message.text());
            let all = std::iter::once(talk.name.clone()).chain(texts);
            let all = all.collect::<Vec<_>>().join("\n").to_lowercase();
            words.iter().all(|word| match word.strip_prefix('#') {
                Some(tag) => talk.tags.iter().any(|known| known.to_lowercase() == tag),
                None => all.contains(word),
            })
        };
        let list = self.list()?;
        let ids = list.chats.iter().map(|chat| chat.id.clone());
        Ok(ids.filter(|id| has(id)).collect())
    }

    /// # Errors
    /// There is no such conversation, or its file is damaged.
    pub fn read(&self, id: &str) -> Result<Conversation, ChatsError> {
        let path = self.file(id)?;
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_file() => read_file(&path),
            Ok(_) => {
                let why = "it is a link or a folder".to_owned();
                Err(ChatsError::Damaged { path, why })
            }
            Err(_) => Err(ChatsError::Unknown { id: id.to_owned() }),
        }
    }

    /// Keeps a new conversation under a new id, or under this one if it is free.
    ///
    /// # Errors
    /// The id is taken or none, the folder is full, or the file cannot be written.
    pub fn create(
        &self,
        id: Option<&str>,
        mut talk: Conversation,
    ) -> Result<(String, Conversation), ChatsError> {
        talk.check()?;
        let list = self.list()?;
        let (count, bytes) = (list.chats.len() + list.damaged.len(), list.bytes);
        let Limits { count_max, bytes_max } = self.limits;
        if count >= count_max || bytes >= bytes_max {
            return Err(ChatsError::Full { bytes, bytes_max, count, count_max });
        }
        let _lock = self.lock()?;
        let id = match id {
            Some(id) => id.to_owned(),
            None => fresh(),
        };
        let path = self.file(&id)?;
        if fs::symlink_metadata(&path).is_ok() {
            return Err(ChatsError::Changed { found: 1, wanted: 0 });
        }
        talk.version = talk.version.max(1);
        if talk.changed_ms == 0 {
            talk.changed_ms = now_ms();
        }
        self.write(&id, &talk)?;
        Ok((id, talk))
    }

    /// Changes a conversation, if it has this version still. No other process changes it meanwhile.
    ///
    /// # Errors
    /// There is none, it has another version, `act` fails, or the file cannot be written: the old
    /// one stays.
    pub fn change<T>(
        &self,
        id: &str,
        version: Option<u64>,
        act: impl FnOnce(&mut Conversation) -> Result<T, ChatsError>,
    ) -> Result<(T, Conversation), ChatsError> {
        let _lock = self.lock()?;
        let mut talk = self.read(id)?;
        if let Some(wanted) = version.filter(|wanted| *wanted != talk.version) {
            return Err(ChatsError::Changed { found: talk.version, wanted });
        }
        let done = act(&mut talk)?;
        talk.check()?;
        talk.version += 1;
        talk.changed_ms = now_ms();
        self.write(id, &talk)?;
        Ok((done, talk))
    }

    /// # Errors
    /// There is none, or its file cannot be removed.
    pub fn remove(&self, id: &str) -> Result<(), ChatsError> {
        let path = self.file(id)?;
        let _lock = self.lock()?;
        if fs::symlink_metadata(&path).is_err() {
            return Err(ChatsError::Unknown { id: id.to_owned() });
        }
        fs::remove_file(&path).doing("remove", &path)?;
        self.remove_draft(id);
        self.index().touch();
        Ok(())
    }

    /// Begins a draft, instead of another one of this conversation.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn draft(&self, id: &str, draft: &Draft) -> Result<DraftFile, ChatsError> {
        check(id)?;
        let new = self.path.join(format!(".{id}.draft"));
        DraftFile::create(self.draft_path(id), &new, draft)
    }

    pub fn remove_draft(&self, id: &str) {
        // A draft that stays is taken for one of a killed process, and goes on: nothing is lost.
        let _ = fs::remove_file(self.draft_path(id));
    }

    /// The drafts that are there, by conversation.
    pub fn drafts(&self) -> Vec<(String, Draft)> {
        let entries = fs::read_dir(&self.path).into_iter().flatten().flatten();
        let found = entries.filter_map(|entry| {
            let name = entry.file_name();
            let id = name.to_str()?.strip_suffix(".draft")?.to_owned();
            let is_ours = check(&id).is_ok() && entry.metadata().ok()?.is_file();
            let draft = Draft::read(&entry.path()).filter(|_| is_ours)?;
            Some((id, draft))
        });
        found.collect()
    }

    fn file(&self, id: &str) -> Result<PathBuf, ChatsError> {
        check(id)?;
        Ok(self.path.join(format!("{id}.json")))
    }

    fn draft_path(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.draft"))
    }

    fn lock(&self) -> Result<File, ChatsError> {
        let path = self.path.join(LOCK);
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false);
        let file = private::file(&mut options).open(&path).doing("open", &path)?;
        file.lock().doing("lock", &path)?;
        Ok(file)
    }

    /// Replaces a file as a whole; on failure the old one stays, and nothing else.
    fn write(&self, id: &str, talk: &Conversation) -> Result<(), ChatsError> {
        let path = self.file(id)?;
        let text = serde_json::to_vec(talk).expect("plain data is JSON");
        if text.len() as u64 > FILE_BYTES_MAX {
            let what = format!("{} bytes", text.len());
            return Err(ChatsError::TooMuch { what, most: format!("{FILE_BYTES_MAX} bytes") });
        }
        let new = self.path.join(format!(".{id}.new"));
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let written = private::file(&mut options).open(&new).and_then(|mut file| {
            file.write_all(&text)?;
            // Also after a power cut there is the old file or the new one.
            file.sync_all()?;
            store::rename(&new, &path)
        });
        self.index().touch();
        written.inspect_err(|_| drop(fs::remove_file(&new))).doing("write", path)
    }

    fn index(&self) -> std::sync::MutexGuard<'_, Index> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Message;

    fn folder() -> (tempfile::TempDir, Folder) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::open(dir.path().join("chats"), Limits::default()).unwrap();
        (dir, folder)
    }

    fn talk(question: &str) -> Conversation {
        let messages = vec![Message::new("user", question)];
        Conversation { model: "m".to_owned(), messages, ..Conversation::default() }
    }

    #[test]
    fn a_conversation_is_kept_listed_found_and_removed() {
        let (_dir, folder) = folder();
        let (id, kept) = folder.create(None, talk("Which boat is BLUE?")).unwrap();
        folder.create(Some("boats"), talk("none")).unwrap();
        let file = fs::metadata(folder.path().join(format!("{id}.json"))).unwrap();
        assert!(!private::is_open_to_others(&file));
        assert_eq!(folder.read(&id).unwrap(), kept);
        assert_eq!(folder.list().unwrap().chats.len(), 2);
        assert_eq!(folder.search("blue which").unwrap(), [id.as_str()]);
        assert_eq!(folder.search("").unwrap().len(), 2);
        let tag = |talk: &mut Conversation| {
            talk.tags = vec!["Sea".to_owned()];
            Ok(())
        };
        folder.change(&id, None, tag).unwrap();
        assert_eq!(folder.search("#sea").unwrap(), [id.as_str()]);
        folder.create(Some("boats"), talk("again")).unwrap_err();
        folder.remove(&id).unwrap();
        assert!(matches!(folder.remove(&id), Err(ChatsError::Unknown { .. })));
        let list = folder.list().unwrap();
        assert_eq!((list.chats.len(), list.chats[0].id.as_str()), (1, "boats"));
    }

    #[test]
    fn a_change_of_an_old_version_is_refused_and_nothing_is_lost() {
        let (_dir, folder) = folder();
        let (id, kept) = folder.create(None, talk("q")).unwrap();
        let rename = |name: &'static str| {
            move |talk: &mut Conversation| {
                talk.name = name.into();
                Ok(())
            }
        };
        folder.change(&id, Some(kept.version), rename("one")).unwrap();
        let late = folder.change(&id, Some(kept.version), rename("two"));
        assert!(matches!(late, Err(ChatsError::Changed { found: 2, wanted: 1 })));
        assert_eq!(folder.read(&id).unwrap().name, "one");
    }

    #[test]
    fn many_writers_lose_no_turn() {
        let (_dir, folder) = folder();
        let (id, _) = folder.create(None, talk("q")).unwrap();
        // As a second process has it.
        let other = Folder::open(folder.path(), Limits::default()).unwrap();
        std::thread::scope(|scope| {
            for folder in [&folder, &other] {
                let id = &id;
                scope.spawn(move || {
                    for _ in 0..20 {
                        let push = |talk: &mut Conversation| {
                            Ok(talk.push(Message::new("user", "more"), talk.head()))
                        };
                        folder.change(id, None, push).unwrap();
                    }
                });
            }
        });
        let read = folder.read(&id).unwrap();
        assert_eq!((read.messages.len(), read.path_to(read.head()).len()), (41, 41));
        assert_eq!(other.list().unwrap().chats[0].messages, 41);
    }

    #[test]
    fn what_is_no_conversation_is_named_and_left_alone() {
        let (dir, folder) = folder();
        folder.create(Some("good"), talk("q")).unwrap();
        fs::write(folder.path().join("bad.json"), "[").unwrap();
        fs::write(folder.path().join("deep.json"), "[".repeat(100_000)).unwrap();
        fs::write(folder.path().join("history"), "q").unwrap();
        fs::write(dir.path().join("secret"), r#"{"messages":[]}"#).unwrap();
        #[cfg(unix)]
        std::os::unix::fs::symlink(dir.path().join("secret"), folder.path().join("link.json"))
            .unwrap();
        let list = folder.list().unwrap();
        assert_eq!(
            (list.chats.len(), &*list.damaged),
            (1, &["bad.json".into(), "deep.json".into()][..])
        );
        let error = folder.read("bad").unwrap_err().to_string();
        assert!(error.contains("is no conversation") && error.contains("Delete it"), "{error}");
        if cfg!(unix) {
            assert!(matches!(folder.read("link"), Err(ChatsError::Damaged { .. })));
        }
    }

    #[test]
    fn a_draft_is_found_up_to_its_last_whole_line() {
        let (_dir, folder) = folder();
        let (id, _) = folder.create(None, talk("q")).unwrap();
        let draft = Draft { model: "m".to_owned(), after: 1, ..Draft::default() };
        let mut file = folder.draft(&id, &draft).unwrap();
        file.append("Hello", "").unwrap();
        file.append(" world", "hm").unwrap();
        let path = folder.path().join(format!("{id}.draft"));
        let mut cut = OpenOptions::new().append(true).open(path).unwrap();
        cut.write_all(br#"{"text":"lo"#).unwrap();
        let found = folder.drafts();
        let (text, thoughts) = ("Hello world".to_owned(), "hm".to_owned());
        assert_eq!(found, [(id.clone(), Draft { text, thoughts, ..draft })]);
        folder.remove_draft(&id);
        assert!(folder.drafts().is_empty());
    }

    #[test]
    fn a_full_folder_refuses_and_keeps_what_it_has() {
        let (_dir, folder) = folder();
        let limits = Limits { count_max: 1, bytes_max: u64::MAX };
        let small = Folder::open(folder.path(), limits).unwrap();
        small.create(None, talk("q")).unwrap();
        let error = small.create(None, talk("r")).unwrap_err().to_string();
        assert!(error.contains("Forget some"), "{error}");
        assert_eq!(small.list().unwrap().chats.len(), 1);
    }
}
