//! An answer that is being written: a file beside the conversation, with a line for each piece.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use store::private;

use crate::error::{ChatsError, Doing};

/// Far above what a context holds.
const DRAFT_BYTES_MAX: u64 = 64 << 20;

/// An answer so far.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Draft {
    pub model: String,
    /// The message that it follows.
    pub after: usize,
    /// The unfinished message that it goes on with; 0 if it is a new one.
    #[serde(default)]
    pub extends: usize,
    #[serde(default)]
    pub text: String,
    #[serde(default)]
    pub thoughts: String,
}

/// What has come since the line before.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Piece {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    text: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    thoughts: String,
}

/// The file of a draft.
#[derive(Debug)]
pub struct DraftFile {
    path: PathBuf,
    file: File,
    /// Bytes of whole lines.
    len: u64,
}

impl DraftFile {
    /// Writes the draft so far, instead of another one, which stays if that fails. `new` is a name
    /// for it meanwhile.
    pub(crate) fn create(path: PathBuf, new: &Path, draft: &Draft) -> Result<Self, ChatsError> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        let file = private::file(&mut options).open(new).doing("write", &path)?;
        let mut made = Self { path, file, len: 0 };
        let written = made.line(draft);
        let written = written.and_then(|()| store::rename(new, &made.path).doing("write", new));
        written.inspect_err(|_| drop(std::fs::remove_file(new)))?;
        Ok(made)
    }

    /// Adds what has come. After an error the file is as before, and the same may be added again.
    ///
    /// # Errors
    /// The disk fails or is full.
    pub fn append(&mut self, text: &str, thoughts: &str) -> Result<(), ChatsError> {
        let (text, thoughts) = (text.to_owned(), thoughts.to_owned());
        self.line(&Piece { text, thoughts })
    }

    fn line(&mut self, value: &impl Serialize) -> Result<(), ChatsError> {
        let mut line = serde_json::to_vec(value).expect("texts and numbers are JSON");
        line.push(b'\n');
        if let Err(error) = self.file.write_all(&line) {
            // A line that was cut would hide those after it.
            let _ = self.file.set_len(self.len);
            let _ = self.file.seek(SeekFrom::Start(self.len));
            return Err(error).doing("write", &self.path);
        }
        self.len += line.len() as u64;
        Ok(())
    }
}

impl Draft {
    /// Reads a file up to its last whole line; none if even the first is not whole.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let file = File::open(path).ok()?.take(DRAFT_BYTES_MAX);
        let mut lines = BufReader::new(file).split(b'\n').map_while(Result::ok);
        let mut draft: Self = serde_json::from_slice(&lines.next()?).ok()?;
        for line in lines {
            let Ok(piece) = serde_json::from_slice::<Piece>(&line) else { break };
            draft.text.push_str(&piece.text);
            draft.thoughts.push_str(&piece.thoughts);
        }
        Some(draft)
    }
}
